//! The figures as a table for people.

use std::io::{self, Write};

use crate::{figures::Figures, runs::Case, scenario::Scenario};

/// One case: a line for each chooser.
pub(crate) fn write_case(out: &mut dyn Write, case: &Case<'_>, figures: &[Figures]) -> io::Result<()> {
    let scenario = case.scenario;
    writeln!(out, "\n{}, QoS {}: {}", scenario.name, case.qos, scenario.about)?;
    writeln!(out, "  {}", set_up(scenario, case.seeds))?;
    write!(out, "  {:<20}{:>36}{:>24}{:>9}", "", "waiting, ms: mean  p50  p99  max", "sojourn: mean  p99", "undone")?;
    if scenario.expiry.is_some() {
        write!(out, "{:>12}", "in time, %")?;
    }
    if scenario.loud.is_some() {
        write!(out, "{:>24}", "the others: mean  p99")?;
    }
    writeln!(out, "   messages by worker, %")?;
    for (&chooser, figures) in case.choosers.iter().zip(figures) {
        let chooser = case.name_of(chooser);
        let (waiting, sojourn) = (&figures.waiting, &figures.sojourn);
        write!(out, "  {chooser:<20}")?;
        for ms in [waiting.mean_ms(), waiting.quantile_ms(0.5), waiting.quantile_ms(0.99), waiting.max_ms()] {
            write!(out, "{:>9}", number(ms))?;
        }
        write!(out, "{:>14}{:>10}", number(sojourn.mean_ms()), number(sojourn.quantile_ms(0.99)))?;
        write!(out, "{:>9}", figures.unfinished)?;
        if scenario.expiry.is_some() {
            write!(out, "{:>12}", number(figures.in_time_percent()))?;
        }
        if scenario.loud.is_some() {
            let [mean, p99] = [figures.others.mean_ms(), figures.others.quantile_ms(0.99)].map(number);
            write!(out, "{mean:>14}{p99:>10}")?;
        }
        writeln!(out, "   {}", shares(figures))?;
    }
    Ok(())
}

/// The scenario in one line.
fn set_up(scenario: &Scenario, seeds: u32) -> String {
    let kind = |kind: &crate::scenario::WorkerKind| {
        let count = if kind.count.get() == 1 { String::new() } else { format!("{} × ", kind.count) };
        let threads = if kind.threads.get() == 1 { String::new() } else { format!(" / {} threads", kind.threads) };
        format!("{count}{}{threads}", kind.service)
    };
    let kinds: Vec<_> = scenario.workers.iter().take(KINDS_SHOWN).map(kind).collect();
    let more = if scenario.workers.len() > KINDS_SHOWN { ", …" } else { "" };
    let eager = if scenario.pings.eager { ", eager" } else { "" };
    let seeds = if seeds == 1 { String::new() } else { format!("; {seeds} seeds") };
    format!(
        "workers {}{more}; {} messages, {}; pings every {}{eager}{seeds}",
        kinds.join(", "),
        scenario.messages,
        scenario.arrivals,
        scenario.pings.every,
    )
}

/// Each worker's share if they are few, otherwise the smallest and the greatest.
fn shares(figures: &Figures) -> String {
    let all: u64 = figures.workers.iter().map(|worker| worker.messages).sum();
    let share = |messages: u64| messages as f64 * 100.0 / all.max(1) as f64;
    let messages = figures.workers.iter().map(|worker| worker.messages);
    if figures.workers.len() <= WORKERS_SHOWN {
        return messages.map(|messages| format!("{:.0}", share(messages))).collect::<Vec<_>>().join(" ");
    }
    let (least, most) = (messages.clone().min().unwrap_or(0), messages.max().unwrap_or(0));
    format!("{:.2} to {:.2}, of {}", share(least), share(most), figures.workers.len())
}

/// Formats a number with about three significant digits.
pub(crate) fn number(ms: f64) -> String {
    if ms < 99.95 { format!("{ms:.1}") } else { format!("{ms:.0}") }
}

const KINDS_SHOWN: usize = 8;
const WORKERS_SHOWN: usize = 8;
