//! Tables of a scenario, with published values beside ours.

use super::chart::{Drawing, Figure, Grid};
use super::html::{Cell, Table, Tone};
use super::number::{count, fixed};
use super::{Run, file_name, of_runs};
use crate::scenario::{
    FIRST_ABOVE_SECOND_MS, Plan, PublishedPhase, REDUCTION_PERCENT, RISE_OF_THE_FAST_MS, overall_ms, stable_phase,
};
use crate::statistics::{Summary, median};

/// All policies side by side.
pub(super) fn overview(plan: &Plan, runs: &[Run]) -> Table {
    let row = |policy: &String| {
        let middle = |figure: fn(&Summary) -> f64| median(&of_runs(runs, policy, figure));
        let ours = [middle(|l| l.mean), middle(|l| l.p50), middle(|l| l.p99), middle(|l| l.max)];
        let published = overall_ms(&plan.scenario.name, policy);
        let mut row = vec![Cell::from(policy.clone())];
        row.extend(ours.map(|ms| Cell::from(optional(ms))));
        row.push(Cell::toned(optional(published), Tone::Aside));
        row
    };
    Table {
        head: texts(&["latency, ms", "mean", "p50", "p99", "max", "published mean"]),
        rows: plan.policies.iter().map(row).collect(),
        text_columns: 1,
    }
}

/// Message counts of each run, and the lateness of publisher and workers.
pub(super) fn runs(runs: &[Run]) -> Table {
    let row = |run: &Run| {
        let (totals, figures) = (run.figures.totals, &run.figures);
        let bad = |number: u64| Cell::toned(count(number), if number > 0 { Tone::Bad } else { Tone::Plain });
        let mut row = vec![Cell::from(run.policy.clone()), run.number.to_string().into()];
        row.extend([totals.published, totals.received].map(|number| Cell::from(count(number))));
        row.extend([totals.lost, totals.duplicated].map(bad));
        row.push(optional(figures.latency.map(|latency| latency.mean)).into());
        row.extend([figures.lateness.p99_ms, figures.wake_up.p99_ms].map(|ms| Cell::from(fixed(ms, 2))));
        row
    };
    let head = [
        "policy",
        "run",
        "published",
        "received",
        "lost",
        "duplicated",
        "mean latency, ms",
        "publisher late, p99, ms",
        "workers woke late, p99, ms",
    ];
    Table { head: texts(&head), rows: runs.iter().map(row).collect(), text_columns: 1 }
}

/// The stable phase of a run beside the published one (tables 7 and 8), as a table and as a figure.
pub(super) fn stable_phase_table(plan: &Plan, run: &Run) -> (Table, Figure) {
    let published = stable_phase(&plan.scenario.name, &run.policy);
    let mut rows = Vec::new();
    for (place, one) in run.figures.subscribers.iter().enumerate() {
        let mut row = vec![Cell::from(one.name.clone())];
        match one.stable {
            Some(Summary { n, min, max, mean, sd, .. }) => {
                row.push(n.to_string().into());
                row.extend([min, max, mean, sd].map(|ms| Cell::from(fixed(ms, 1))));
            }
            None => row.extend(["0", "–", "–", "–", "–"].map(Cell::from)),
        }
        rows.push(row);
        let published = published.and_then(|rows| rows.get(place).copied());
        if let Some(PublishedPhase { n, min, max, mean, sd }) = published {
            let mut row = vec![Cell::toned("  published", Tone::Aside), Cell::toned(n.to_string(), Tone::Aside)];
            let decimals = [(min, 0), (max, 0), (mean, 1), (sd, 1)];
            row.extend(decimals.map(|(ms, decimals)| Cell::toned(fixed(ms, decimals), Tone::Aside)));
            rows.push(row);
        }
    }
    let table = Table {
        head: texts(&["latency, ms", "messages", "min", "max", "mean", "standard deviation"]),
        rows,
        text_columns: 1,
    };
    (table.clone(), figure(plan, run, &table))
}

fn figure(plan: &Plan, run: &Run, table: &Table) -> Figure {
    let number = match (plan.scenario.name.as_str(), run.policy.as_str()) {
        ("2", "round_robin") => Some(7),
        ("2", "thesis_score") => Some(8),
        _ => None,
    };
    let policy = file_name(&run.policy);
    let title = format!("Stable phase (messages 500 to 999), {}", run.policy);
    let (name, title) = match number {
        Some(number) => (format!("table-{number}-stable-phase-{policy}"), format!("Table {number}: {title}")),
        None => (format!("{policy}-stable-phase"), title),
    };
    let text = |row: &Vec<Cell>| row.iter().map(|cell| cell.text.clone()).collect();
    let grid = Grid { head: table.head.clone(), rows: table.rows.iter().map(text).collect() };
    let caption = if number.is_some() {
        format!("Ours from run {}, and the published values below.", run.number)
    } else {
        format!("From run {}.", run.number)
    };
    Figure { name, title, caption, drawing: Drawing::Grid(grid) }
}

/// Claims of the thesis about figures 43 and 44 beside our values; `shown` has a run of each policy.
///
/// `None` if not all of its policies were run.
pub(super) fn claims(plan: &Plan, shown: &[&Run]) -> Option<Table> {
    let of = |policy: &str| shown.iter().find(|run| run.policy == policy).map(|run| &run.figures);
    let (random, round_robin, proposed) = (of("random")?, of("round_robin")?, of("thesis_score")?);
    let mean = |figures: &crate::scenario::RunFigures, subscriber: usize| {
        Some(figures.subscribers.get(subscriber)?.latency?.mean)
    };
    let all = |figures: &crate::scenario::RunFigures| Some(figures.latency?.mean);
    let below = |ours: f64, others: [f64; 2]| 100.0 * (1.0 - ours / others[0].max(others[1]));
    let mut rows = Vec::new();
    let mut add = |what: &str, published: String, ours: String| {
        rows.push(vec![Cell::from(what), Cell::toned(published, Tone::Aside), Cell::from(ours)]);
    };
    match plan.scenario.name.as_str() {
        "1" => {
            let (ours, theirs, by_chance) = (all(proposed)?, all(round_robin)?, all(random)?);
            add("all messages: thesis_score, round_robin", "equal".to_owned(), format!("{ours:.2}, {theirs:.2} ms"));
            let worse = (0..3).filter(|n| mean(random, *n) > mean(round_robin, *n)).count();
            add(
                "random is worse at",
                "every subscriber".to_owned(),
                format!("{worse} of 3, on average {by_chance:.1} ms"),
            );
        }
        "2" => {
            let percent = |value: f64| format!("{value:.1} %");
            let published = || format!("≤ {REDUCTION_PERCENT} %");
            let whole = below(all(proposed)?, [all(random)?, all(round_robin)?]);
            add("all messages: thesis_score is below the others by", published(), percent(whole));
            let slow = below(mean(proposed, 2)?, [mean(random, 2)?, mean(round_robin, 2)?]);
            add("sub-2, the slow one: below the others by", published(), percent(slow));
            let rise = |n| Some(mean(proposed, n)? - mean(round_robin, n)?);
            let (first, second) = (rise(0)?, rise(1)?);
            let text = format!("≤ {RISE_OF_THE_FAST_MS} ms");
            add("sub-0 and sub-1: above round_robin by", text, format!("≤ {:.1} ms", first.max(second)));
            let apart = mean(proposed, 0)? - mean(proposed, 1)?;
            let text = format!("{FIRST_ABOVE_SECOND_MS} ms");
            add("sub-0 is above sub-1, its equal, by", text, format!("{} ms", fixed(apart, 1)));
        }
        _ => return None,
    }
    Some(Table { head: texts(&["", "published", "here"]), rows, text_columns: 1 })
}

fn optional(ms: Option<f64>) -> String {
    ms.map_or("–".to_owned(), |ms| fixed(ms, 1))
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}
