//! Printed tables, at most 100 characters wide.

use std::io::{self, Write};

use tenbin_codec::QoS;
use tenbin_simulator::scenario::{Acknowledges, Reports, WorkerKind};

use super::{Run, of_runs};
use crate::scenario::{
    BestPossible, Plan, PublishedPhase, RunFigures, STABLE_PHASE, Simulated, overall_ms, stable_phase,
};
use crate::statistics::{Summary, median};

/// Prints the plan.
pub(super) fn write_plan(out: &mut dyn Write, plan: &Plan) -> io::Result<()> {
    let scenario = &plan.scenario;
    let (messages, bytes) = (plan.scenario.messages, crate::scenario::PAYLOAD_LEN);
    writeln!(
        out,
        "scenario {}: {messages} messages of {bytes} bytes, {}, QoS {}",
        scenario.name, scenario.arrivals, plan.qos
    )?;
    let acknowledges = plan.qos != QoS::AtMostOnce;
    let kinds: Vec<_> = scenario.workers.iter().map(|kind| kind_text(kind, acknowledges)).collect();
    writeln!(out, "workers: {}", kinds.join("; "))?;
    if let Some(churn) = &scenario.churn {
        let verb = if churn.dies { "dies" } else { "leaves" };
        writeln!(out, "every {} one of them {verb} and another joins", churn.every)?;
    }
    match &plan.worker_command {
        Some(command) => writeln!(out, "each is a program of its own: {}", command.join(" "))?,
        None if scenario.workers.iter().all(|kind| kind.reports == Reports::Never) => writeln!(out, "no reports")?,
        None => {
            let early = if plan.scenario.pings.eager { " and early" } else { "" };
            let carrier = plan.carrier.map_or(String::new(), |carrier| format!(", carried by {carrier}"));
            writeln!(out, "reports every {:?}{early}{carrier}", plan.ping_interval())?;
        }
    }
    if let Some(warm_up) = plan.warm_up {
        writeln!(out, "they have been there before, for {warm_up:?}")?;
    }
    writeln!(out, "latency: from creation until taken from the worker's queue, in ms")?;
    if scenario.name == "2" {
        writeln!(out, "published: figures of the thesis, whose interval was nominally 10 ms")?;
    }
    Ok(())
}

/// Description of a kind of workers: `2 × 25ms acknowledging on receipt, 200ms from 5s on`.
pub(super) fn kind_text(kind: &WorkerKind, acknowledges: bool) -> String {
    let mut text = format!("{} x {}", kind.count, kind.service);
    if kind.distribution != Default::default() {
        text += &format!(" ({})", kind.distribution);
    }
    if kind.threads.get() > 1 {
        text += &format!(" on {} threads", kind.threads);
    }
    if acknowledges && kind.acknowledges == Acknowledges::OnArrival {
        text += " acknowledging on receipt";
    }
    for step in &kind.steps {
        text += &format!(", {} from {} on", step.service, step.at);
    }
    for pause in &kind.pauses {
        text += &format!(", standing still at {} for {}", pause.at, pause.length);
    }
    for (verb, at) in [("joins", kind.joins), ("leaves", kind.leaves), ("dies", kind.dies)] {
        text += &at.map_or(String::new(), |at| format!(", {verb} at {at}"));
    }
    text
}

/// Prints one run.
pub(super) fn write_run(out: &mut dyn Write, plan: &Plan, run: &Run) -> io::Result<()> {
    let figures = &run.figures;
    writeln!(out, "\n{}, run {} of {}", run.policy, run.number, plan.runs)?;
    row(out, "", ["ms each", "messages", "per s", "mean", "p50", "p99", "max"])?;
    for of in &figures.subscribers {
        let cells = [of.service_ms.to_string(), count(of.latency), number(of.messages_per_second)];
        row(out, &of.name, cells.into_iter().chain(latency(of.latency)))?;
    }
    let per_second = figures.subscribers.iter().map(|of| of.messages_per_second).sum();
    let cells = [String::new(), count(figures.latency), number(per_second)];
    row(out, "overall", cells.into_iter().chain(latency(figures.latency)))?;
    let BestPossible { as_made, as_received } = figures.best_possible;
    for (title, best) in [("best possible", as_made), ("  as received", as_received)] {
        row(out, title, [String::new(), count(best), String::new()].into_iter().chain(latency(best)))?;
    }
    if let Some(published) = overall_ms(&plan.scenario.name, &run.policy) {
        row(out, "published", ["", "", "", &number(published)])?;
    }

    write_stable_phase(out, plan, run)?;

    let totals = figures.totals;
    write!(
        out,
        "  published {}, received {}, lost {}, duplicated {}",
        totals.published, totals.received, totals.lost, totals.duplicated
    )?;
    for (what, count) in [
        ("left in a queue", figures.not_taken),
        ("died with a worker", figures.died),
        ("from elsewhere", totals.unknown),
    ] {
        if count > 0 {
            write!(out, ", {what} {count}")?;
        }
    }
    writeln!(out)?;
    write!(out, "  publisher late by {:.2} ms (p99; at most {:.2})", figures.lateness.p99_ms, figures.lateness.max_ms)?;
    match plan.worker_command {
        None => writeln!(out, "; workers woke late by {:.2} ms (p99), which is left out", figures.wake_up.p99_ms),
        Some(_) => writeln!(out),
    }
}

fn write_stable_phase(out: &mut dyn Write, plan: &Plan, run: &Run) -> io::Result<()> {
    if !matches!(plan.scenario.name.as_str(), "1" | "2") || u64::from(plan.scenario.messages.get()) < STABLE_PHASE.end {
        return Ok(());
    }
    let published = stable_phase(&plan.scenario.name, &run.policy);
    write!(out, "  {:<22}{:>5}{:>9}{:>9}{:>9}{:>9}", "stable phase 500-999", "n", "min", "max", "mean", "sd")?;
    writeln!(out, "{}", if published.is_some() { "   | published n, min, max, mean, sd" } else { "" })?;
    for (index, subscriber) in run.figures.subscribers.iter().enumerate() {
        write!(out, "  {:<22}{}", format!("  {}", subscriber.name), phase(subscriber.stable))?;
        match published.map(|rows| rows[index]) {
            Some(PublishedPhase { n, min, max, mean, sd }) => writeln!(out, "   | {n}, {min}, {max}, {mean}, {sd}")?,
            None => writeln!(out)?,
        }
    }
    Ok(())
}

/// Prints all runs side by side.
pub(super) fn write_overview(
    out: &mut dyn Write,
    plan: &Plan,
    runs: &[Run],
    simulated: &[(String, Simulated)],
) -> io::Result<()> {
    let of = if plan.runs > 1 { format!(", medians of {} runs", plan.runs) } else { String::new() };
    writeln!(out, "\nlatency of all messages in ms{of}")?;
    let head = ["mean", "p50", "p99", "max", "published", "low mean", "high mean"];
    row(out, "", &head[..if plan.runs > 1 { 7 } else { 5 }])?;
    for policy in &plan.policies {
        let [mean, p50, p99, max] = medians(runs, policy, |figures| figures.latency);
        let published = overall_ms(&plan.scenario.name, policy);
        let mut cells = vec![mean, p50, p99, max, published];
        if plan.runs > 1 {
            let means = Summary::of(&of_runs(runs, policy, |latency| latency.mean));
            cells.extend([means.map(|means| means.min), means.map(|means| means.max)]);
        }
        row(out, policy, cells.into_iter().map(|cell| cell.map_or(dash(), number)))?;
        let as_made = medians(runs, policy, |figures| figures.best_possible.as_made);
        let as_received = medians(runs, policy, |figures| figures.best_possible.as_received);
        for (title, best) in [("  best possible", as_made), ("    as received", as_received)] {
            row(out, title, best.map(|cell| cell.map_or(dash(), number)))?;
        }
        if let Some((_, simulated)) = simulated.iter().find(|(name, _)| name == policy) {
            row(out, "  simulated", [simulated.mean, simulated.p50, simulated.p99, simulated.max].map(number))?;
            let ratio = |measured: Option<f64>, simulated: f64| {
                let ratio = measured.map(|measured| measured / simulated).filter(|ratio| ratio.is_finite());
                ratio.map_or(dash(), |ratio| format!("{ratio:.2}"))
            };
            let ratios = [ratio(mean, simulated.mean), String::new(), ratio(p99, simulated.p99)];
            row(out, "  measured / simulated", ratios)?;
        }
    }
    Ok(())
}

/// Mean, p50, p99 and maximum, each as the median over a policy's runs.
fn medians(runs: &[Run], policy: &str, of: fn(&RunFigures) -> Option<Summary>) -> [Option<f64>; 4] {
    let of_policy = runs.iter().filter(|run| run.policy == policy);
    let summaries: Vec<_> = of_policy.filter_map(|run| of(&run.figures)).collect();
    let figures: [fn(&Summary) -> f64; 4] = [|l| l.mean, |l| l.p50, |l| l.p99, |l| l.max];
    figures.map(|figure| median(&summaries.iter().map(figure).collect::<Vec<_>>()))
}

fn row(out: &mut dyn Write, title: &str, cells: impl IntoIterator<Item = impl AsRef<str>>) -> io::Result<()> {
    write!(out, "  {title:<22}")?;
    for cell in cells {
        write!(out, "{:>10}", cell.as_ref())?;
    }
    writeln!(out)
}

fn latency(summary: Option<Summary>) -> [String; 4] {
    summary.map_or([(); 4].map(|()| dash()), |l| [l.mean, l.p50, l.p99, l.max].map(number))
}

fn phase(summary: Option<Summary>) -> String {
    match summary {
        Some(Summary { n, min, max, mean, sd, .. }) => format!("{n:>5}{min:>9.1}{max:>9.1}{mean:>9.1}{sd:>9.1}"),
        None => format!("{:>5}{:>9}{:>9}{:>9}{:>9}", 0, "-", "-", "-", "-"),
    }
}

fn count(summary: Option<Summary>) -> String {
    summary.map_or(0, |summary| summary.n).to_string()
}

fn number(value: f64) -> String {
    format!("{value:.1}")
}

fn dash() -> String {
    "-".to_owned()
}
