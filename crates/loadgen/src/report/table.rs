//! The tables for people, at most 100 characters wide.

use std::io::{self, Write};

use super::{Run, overall_means};
use crate::scenario::{Plan, PublishedPhase, STABLE_PHASE, overall_ms, stable_phase};
use crate::statistics::{Summary, median};

/// What is going to run.
pub(super) fn write_plan(out: &mut dyn Write, plan: &Plan) -> io::Result<()> {
    let services: Vec<_> = plan.services.iter().map(|service| service.as_millis().to_string()).collect();
    writeln!(
        out,
        "scenario {}: workers of {} ms, {} messages of {} bytes every {:?}, QoS {}, reports every {:?}{}",
        plan.scenario,
        services.join("/"),
        plan.schedule.messages,
        crate::payload::Stamp::PAYLOAD_LEN,
        plan.schedule.interval,
        plan.qos,
        plan.ping_interval,
        if plan.eager_pings { " and early" } else { "" },
    )?;
    writeln!(out, "latency: from creation until taken from the worker's queue, in ms")?;
    if plan.scenario == 2 {
        writeln!(out, "published: figures of the thesis, whose interval was nominally 10 ms")?;
    }
    Ok(())
}

/// One run.
pub(super) fn write_run(out: &mut dyn Write, plan: &Plan, run: &Run) -> io::Result<()> {
    let figures = &run.figures;
    writeln!(out, "\n{}, run {} of {}", run.policy, run.number, plan.runs)?;

    let names = figures.subscribers.iter().map(|of| of.name.as_str()).chain(["overall", "published"]);
    row(out, "", names)?;
    let subscribers = figures.subscribers.iter().map(|of| of.latency);
    let messages = subscribers.clone().chain([figures.latency]).map(count);
    row(out, "messages", messages)?;
    let published = overall_ms(plan.scenario, &run.policy).map(number);
    let means = subscribers.chain([figures.latency]).map(|latency| latency.map_or(dash(), |l| number(l.mean)));
    row(out, "mean latency", means.chain(published))?;
    let rates = figures.subscribers.iter().map(|of| of.messages_per_second);
    row(out, "messages/s", rates.clone().chain([rates.sum()]).map(number))?;

    write_stable_phase(out, plan, run)?;

    let totals = figures.totals;
    write!(
        out,
        "  published {}, received {}, lost {}, duplicated {}",
        totals.published, totals.received, totals.lost, totals.duplicated
    )?;
    if figures.not_taken > 0 {
        write!(out, ", left in a queue {}", figures.not_taken)?;
    }
    if totals.unknown > 0 {
        write!(out, ", from elsewhere {}", totals.unknown)?;
    }
    writeln!(
        out,
        "\n  publisher late by {:.2} ms (p99; at most {:.2}); workers woke late by {:.2} ms (p99), which is left out",
        figures.lateness.p99_ms, figures.lateness.max_ms, figures.wake_up.p99_ms
    )
}

fn write_stable_phase(out: &mut dyn Write, plan: &Plan, run: &Run) -> io::Result<()> {
    if plan.schedule.messages < STABLE_PHASE.end {
        return Ok(());
    }
    let published = stable_phase(plan.scenario, &run.policy);
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

/// All runs, side by side.
pub(super) fn write_overview(out: &mut dyn Write, plan: &Plan, runs: &[Run]) -> io::Result<()> {
    writeln!(out, "\nmean latency of all messages, ms")?;
    let numbers = (1..=plan.runs).map(|number| format!("run {number}"));
    row(out, "", numbers.chain(["median".to_owned(), "published".to_owned()]))?;
    for policy in &plan.policies {
        let means = overall_means(runs, policy);
        let middle = median(&means).map_or(dash(), number);
        let published = overall_ms(plan.scenario, policy).map_or(dash(), number);
        row(out, policy, means.into_iter().map(number).chain([middle, published]))?;
    }
    Ok(())
}

fn row(out: &mut dyn Write, title: &str, cells: impl Iterator<Item = impl AsRef<str>>) -> io::Result<()> {
    write!(out, "  {title:<22}")?;
    for cell in cells {
        write!(out, "{:>11}", cell.as_ref())?;
    }
    writeln!(out)
}

fn phase(summary: Option<Summary>) -> String {
    match summary {
        Some(Summary { n, min, max, mean, sd }) => format!("{n:>5}{min:>9.1}{max:>9.1}{mean:>9.1}{sd:>9.1}"),
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
