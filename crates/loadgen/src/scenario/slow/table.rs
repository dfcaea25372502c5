//! Printed tables, at most 100 characters wide.

use std::io::{self, Write};
use std::time::Duration;

use super::figures::Tally;
use super::latency::GOAL_MEAN;
use super::{PHASES, SlowArgs, SlowFigures, published};

/// Description of the run, in lines.
pub(super) fn head(args: &SlowArgs) -> Vec<String> {
    let slow = match args.slow_reads {
        0.0 => "nothing".to_owned(),
        share => format!("{:.0} % of what they get", share * 100.0),
    };
    vec![
        format!("scenario slow: {} normal and {} slow receivers, QoS 1, lasting sessions", args.normal, args.slow),
        format!(
            "all read for {:?}; then the slow ones read {slow}; the first {:?} of that are the switch, {:?} are after it",
            args.before, args.switch, args.after
        ),
        "latency: of the normal receivers, from when a message is made until it is received, in ms".to_owned(),
        "x: in relation to the mean before; worst/worst: the worst in relation to the worst before".to_owned(),
    ]
}

pub(super) fn write_head(out: &mut dyn Write, args: &SlowArgs) -> io::Result<()> {
    head(args).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    out.flush()
}

/// Prints the results of one size.
pub(super) fn write_size(out: &mut dyn Write, found: &SlowFigures) -> io::Result<()> {
    writeln!(out, "\n{}, {:.0} messages a second", found.size, found.size.messages_per_second)?;
    row(out, "", ["n", "mean", "p99", "worst", "mean x", "worst x", "worst/worst"].map(str::to_owned))?;
    for (name, phase) in PHASES.iter().zip(&found.phases) {
        let cells = phase.map_or([(); 7].map(|()| "-".to_owned()), |phase| {
            let latency = phase.latency;
            let [mean, p99, max] = [latency.mean, latency.p99, latency.max].map(|ms| format!("{ms:.3}"));
            let ratios = [phase.mean_ratio, phase.worst_ratio, phase.worst_to_worst].map(|ratio| format!("{ratio:.2}"));
            let [mean_ratio, worst_ratio, worst_to_worst] = ratios;
            [latency.n.to_string(), mean, p99, max, mean_ratio, worst_ratio, worst_to_worst]
        });
        row(out, name, cells)?;
    }
    if let Some(published) = published(found.size.bytes) {
        for (name, mean, worst) in [
            ("published: flow to disk", published.mean_after.0, published.worst.0),
            ("published: proposed", published.mean_after.1, published.worst.1),
        ] {
            let [none, mean, worst] = [String::new(), format!("{mean:.2}"), format!("{worst:.0}")];
            row(out, name, [none.clone(), none.clone(), none.clone(), none.clone(), mean, worst, none])?;
        }
    }
    write_course(out, found)?;
    write_counts(out, found)?;
    out.flush()
}

fn write_course(out: &mut dyn Write, found: &SlowFigures) -> io::Result<()> {
    let ms = |time: Option<Duration>| time.map(|time| format!("{:.0} ms", time.as_secs_f64() * 1e3));
    let spooled = match (ms(found.first_spooled), ms(found.all_spooled)) {
        (None, _) => "n/a, the broker says nothing of spooling".to_owned(),
        (Some(first), None) => format!("{first} for the first slow receiver, never said for all"),
        (Some(first), Some(all)) => format!("{first} for the first slow receiver, {all} for all"),
    };
    writeln!(out, "  from slow to spooled: {spooled}")?;
    let calm = ms(found.calm_after).unwrap_or("never".to_owned());
    writeln!(out, "  until the latency of a second was at most {GOAL_MEAN} x the mean before: {calm}")?;
    let (backlog, drain) = (found.backlog, found.drain.as_secs_f64());
    writeln!(out, "  the slow ones had {backlog} messages to come at the end; drained for {drain:.1} s")
}

fn write_counts(out: &mut dyn Write, found: &SlowFigures) -> io::Result<()> {
    let counts = &found.counts;
    write!(out, "  published {}", counts.published)?;
    for (what, count) in [("refused", counts.refused), ("not acknowledged", counts.unacknowledged)] {
        if count > 0 {
            write!(out, ", {what} {count}")?;
        }
    }
    writeln!(out)?;
    for (who, Tally { lost, still_queued, duplicated, out_of_order }) in
        [("normal", counts.normal), ("slow", counts.slow)]
    {
        write!(out, "  {who}: lost {lost}, duplicated {duplicated}, out of order {out_of_order}")?;
        writeln!(out, "{}", if still_queued > 0 { format!(", still queued {still_queued}") } else { String::new() })?;
    }
    writeln!(out, "  publisher late by {:.2} ms (p99; at most {:.2})", found.lateness_p99_ms, found.lateness_max_ms)
}

/// Prints for each size whether the goals are reached.
pub(super) fn write_goals(out: &mut dyn Write, found: &[SlowFigures]) -> io::Result<()> {
    writeln!(
        out,
        "\ngoals: mean after at most {GOAL_MEAN} x, worst since slow at most {GOAL_WORST} x the worst before, lost 0"
    )?;
    for figures in found {
        let mean = figures.phases[2].map(|after| after.mean_ratio);
        let worst = figures.worst_to_worst();
        let lost = figures.counts.normal.lost + figures.counts.slow.lost;
        let is_reached = mean.is_some_and(|mean| mean <= GOAL_MEAN) && worst.is_some_and(|worst| worst <= GOAL_WORST);
        let verdict = if is_reached && lost == 0 { "reached" } else { "missed" };
        let [mean, worst] = [mean, worst].map(|ratio| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")));
        writeln!(out, "  {:<10}{verdict}: mean {mean}, worst {worst}, lost {lost}", figures.size.to_string())?;
    }
    out.flush()
}

fn row(out: &mut dyn Write, title: &str, cells: [String; 7]) -> io::Result<()> {
    write!(out, "  {title:<24}")?;
    let (rest, last) = cells.split_at(6);
    rest.iter().try_for_each(|cell| write!(out, "{cell:>10}"))?;
    last.iter().try_for_each(|cell| write!(out, "{cell:>13}"))?;
    writeln!(out)
}

/// Allowed worst latency since receivers became slow, relative to the worst before.
const GOAL_WORST: f64 = 10.0;
