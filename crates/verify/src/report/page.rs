//! Content of the page.

use tenbin_loadgen::report::{Block, Cell, Report, Section, Table, Tone};

use super::plots::timelines;
use super::resources::{instances, limits, links};
use super::{Results, Run, Variant};
use crate::judge::assertion::Bound;
use crate::judge::figure::{Figure, Unit};
use crate::judge::windows::Phase;
use crate::plan::Plan;
use crate::results::{Happening, VariantVerdict};
use crate::template::Expect;

/// The page of one verification, or the comparison of several.
pub(super) fn report(all: &[Results]) -> Report {
    let [first, ..] = all else { unreachable!("the command has at least one directory") };
    let mut names = all.iter().map(|results| results.verdict.name.as_str()).collect::<Vec<_>>();
    names.dedup();
    let title = first.verdict.title.clone().filter(|_| names.len() == 1);
    let mut sections = vec![overview(all)];
    sections.extend(rows(all).map(|(name, variant)| variant_section(&name, variant)));
    sections.push(how_to_repeat(all));
    let names = if all.len() == 1 { names[0].to_owned() } else { format!("comparison of {}", names.join(", ")) };
    Report {
        title: format!("tenbin-verify · {names}"),
        headline: title.unwrap_or_else(|| names.clone()),
        origin: first.origin.clone(),
        sections,
    }
}

/// All variants with their names, which have the verification's in front if there are several.
fn rows(all: &[Results]) -> impl Iterator<Item = (String, &Variant)> {
    let name = move |results: &Results, variant: &Variant| match all {
        [_] => variant.verdict.name.clone(),
        _ => format!("{}, {}", results.verdict.name, variant.verdict.name),
    };
    all.iter().flat_map(move |results| results.variants.iter().map(move |variant| (name(results, variant), variant)))
}

/// Verdict on each variant, and the figures before and during each fault.
fn overview(all: &[Results]) -> Section {
    let as_expected = all.iter().all(|results| results.verdict.as_expected);
    let (tone, text) = match as_expected {
        true => (Tone::Good, "Every system did as expected."),
        false => (Tone::Bad, "A system did not do as expected."),
    };
    let mut section = Section::default().with(Block::Banner(tone, text.to_owned()));
    let mut table =
        Table::new(["system", "outcome", "lost", "duplicated", "out of order", "unconfirmed", "unavailable"]);
    table.text_columns = 2;
    for (name, variant) in rows(all) {
        let cells = [Figure::Lost, Figure::Duplicated, Figure::OutOfOrder, Figure::Unconfirmed, Figure::Unavailable]
            .map(|figure| of_all_runs(variant, figure));
        table.add(name, std::iter::once(outcome(variant)).chain(cells));
    }
    section = section.with(table);
    for difference in all.iter().flat_map(|results| &results.verdict.variants).filter_map(VariantVerdict::difference) {
        section = section.with(Block::Banner(Tone::Warning, format!("Differs from expected.toml: {difference}")));
    }
    if let Some(table) = before_and_during(all) {
        let text = "Before → during the first fault. The first row of a system has the medians of its runs.";
        section = section.with(Block::Text(text.to_owned())).with(table);
    }
    section
}

/// A figure of the whole run: the median, and each run's value if they differ. A median must not hide a loss.
fn of_all_runs(variant: &Variant, figure: Figure) -> Cell {
    let verdict = &variant.verdict;
    let Some(median) = verdict.medians.get(&Phase::Whole, figure) else { return Cell::aside("–") };
    let runs: Vec<_> = verdict.runs.iter().filter_map(|run| run.figures.get(&Phase::Whole, figure)).collect();
    let is_same = runs.iter().all(|value| *value == median);
    let each = runs.iter().map(|value| shown(figure, *value)).collect::<Vec<_>>().join(", ");
    let text = if is_same { shown(figure, median) } else { format!("{} ({each})", shown(figure, median)) };
    let is_fault = figure == Figure::Lost && runs.iter().any(|value| *value > 0.0);
    Cell { text, tone: if is_fault { Tone::Bad } else { Tone::Plain } }
}

/// The published table's form: publisher, subscriber and latency, each before and during the first fault. Medians,
/// then each of several runs, then the published values.
fn before_and_during(all: &[Results]) -> Option<Table> {
    let mut table = Table::new(["system", "publisher MB/s", "subscriber MB/s", "latency p50", "latency p99"]);
    for (name, variant) in rows(all) {
        let phases = variant.runs.iter().flat_map(|run| &run.verdict.phases).map(|time| &time.phase);
        let Some(during) = phases.into_iter().find(|phase| matches!(phase, Phase::During(_))) else { continue };
        let mut add = |name: String, tone: Tone, value: &dyn Fn(&Phase, Figure) -> Option<f64>| {
            let cell = |figure: Figure| {
                let values = [&Phase::Before, during].map(|phase| value(phase, figure));
                let [before, during] = values.map(|value| value.map_or("–".to_owned(), |value| bare(figure, value)));
                let is_known = values.iter().any(Option::is_some);
                if is_known { Cell { text: format!("{before} → {during}"), tone } } else { Cell::aside("–") }
            };
            let cells = [Figure::PublishedBytes, Figure::ReceivedBytes, Figure::P50, Figure::P99].map(cell);
            table.add(name, cells);
        };
        let verdict = &variant.verdict;
        add(name, Tone::Plain, &|phase, figure| verdict.medians.get(phase, figure));
        for run in verdict.runs.iter().filter(|_| verdict.runs.len() > 1) {
            add(format!("  run {}", run.number), Tone::Aside, &|phase, figure| run.figures.get(phase, figure));
        }
        if !verdict.published.is_empty() {
            let published = |phase: &Phase, figure| {
                let mut all = verdict.published.iter();
                all.find(|one| one.figure == figure && one.phase == *phase).and_then(|one| match one.bound {
                    Bound::Value(value) => Some(value),
                    Bound::Times(..) => None,
                })
            };
            add("  as published".to_owned(), Tone::Aside, &published);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

fn variant_section(name: &str, variant: &Variant) -> Section {
    let mut section = Section::new(name);
    for run in &variant.runs {
        if variant.runs.len() > 1 {
            section = section.with(Block::Text(format!("Run {}:", run.verdict.number)));
        }
        section = run_blocks(section, variant, run);
    }
    section
}

fn run_blocks(mut section: Section, variant: &Variant, run: &Run) -> Section {
    let verdict = &run.verdict;
    if let Some(error) = &verdict.error {
        section = section.with(Block::Banner(Tone::Bad, format!("The run did not take place as planned: {error}")));
    }
    for left in &verdict.not_undone {
        section = section.with(Block::Banner(Tone::Bad, format!("Not undone: {left}")));
    }
    let checks: Vec<_> = verdict.checks.iter().map(|check| (check.holds, check.found())).collect();
    if !checks.is_empty() {
        section = section.with(Block::Checks(checks));
    }
    if variant.verdict.expect == Expect::Fail {
        section = section.with(Block::Text("A failure is expected: this is a demonstration of a weakness.".to_owned()));
    }
    if !verdict.notes.is_empty() {
        section = section.with(Block::List(verdict.notes.clone()));
    }
    let name = format!("{}-{}", variant.verdict.name, verdict.number);
    section = section.with_all(timelines(run, &name));
    section = section.with_all(ledger(run)).with_all(rates(run)).with_all(events(run));
    section = section.with_all(limits(run)).with_all(instances(run, &name)).with_all(links(run));
    let Some(plan) = &run.plan else { return section };
    section.with(members(plan))
}

/// Fate of the messages that were due in each phase.
fn ledger(run: &Run) -> Option<Table> {
    let mut table =
        Table::new(["messages due", "from", "to", "lost", "duplicated", "out of order", "unconfirmed", "refused"]);
    let mut last = None;
    for time in &run.verdict.phases {
        // The counts of a repeated action are sums over all repetitions, shown once.
        let is_again = last.as_ref() == Some(&time.phase);
        last = Some(time.phase.clone());
        let count = |figure| match run.verdict.figures.get(&time.phase, figure) {
            Some(_) if is_again => Cell::aside("″"),
            Some(count) if figure == Figure::Lost => fault_cell(count),
            Some(count) => shown(figure, count).into(),
            None => Cell::aside("–"),
        };
        let figures = [Figure::Lost, Figure::Duplicated, Figure::OutOfOrder, Figure::Unconfirmed, Figure::Refused];
        let times = [time.from, time.to].map(|time| Cell::from(format!("{:.2} s", time.secs())));
        table.add(time.phase.to_string(), times.into_iter().chain(figures.map(count)));
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Rates and times of each phase.
fn rates(run: &Run) -> Option<Table> {
    let mut table =
        Table::new(["phase", "published", "received", "p50", "p99", "greatest", "unavailable", "recovered after"]);
    let mut seen: Vec<&Phase> = Vec::new();
    for time in &run.verdict.phases {
        if seen.contains(&&time.phase) {
            continue;
        }
        seen.push(&time.phase);
        let cell = |figure: Figure| -> Cell {
            let value = run.verdict.figures.get(&time.phase, figure);
            value.map_or(Cell::aside("–"), |value| shown(figure, value).into())
        };
        let figures = [
            Figure::PublishedMessages,
            Figure::ReceivedMessages,
            Figure::P50,
            Figure::P99,
            Figure::Max,
            Figure::Unavailable,
            Figure::Recovered,
        ];
        table.add(time.phase.to_string(), figures.map(cell));
    }
    (!table.rows.is_empty()).then_some(table)
}

fn events(run: &Run) -> Option<Table> {
    let mut table = Table::new(["at", "fault", "event", ""]);
    table.text_columns = 4;
    for event in &run.events {
        let (name, text) = match &event.happening {
            Happening::Planned { .. } => continue,
            Happening::Resolved { targets } => ("targets", targets.join(", ")),
            Happening::Begun => ("begun", change(run, &event.action)),
            Happening::Ended => ("undo begins", String::new()),
            Happening::Undone => ("undone", String::new()),
            Happening::Failed { error, .. } => ("failed", error.clone()),
        };
        let at = event.at.map_or("–".to_owned(), |at| format!("{:.3} s", at.secs()));
        let again = if event.repetition > 1 { format!(" #{}", event.repetition) } else { String::new() };
        let action = format!("{}{again}", event.action);
        table.add(at, [action, name.to_owned(), text]);
    }
    (!table.rows.is_empty()).then_some(table)
}

fn change(run: &Run, action: &str) -> String {
    let planned = run.events.iter().find(|event| event.action == action);
    match planned.map(|event| &event.happening) {
        Some(Happening::Planned { change, .. }) => change.clone(),
        _ => String::new(),
    }
}

fn members(plan: &Plan) -> Table {
    let mut table = Table::new(["instance or clients", "address", "what"]);
    table.text_columns = 3;
    for machine in &plan.machines {
        let instance = plan.instances.iter().find(|instance| instance.machine == machine.name);
        let client = plan.clients.iter().find(|client| client.machine == machine.name);
        let what = match (instance, client) {
            (Some(instance), _) => crate::dry_run::system_text(instance),
            (None, Some(client)) => crate::dry_run::client_text(client),
            (None, None) => String::new(),
        };
        table.add(machine.name.clone(), [machine.address.to_string(), what]);
    }
    table
}

fn how_to_repeat(all: &[Results]) -> Section {
    let mut rows = Vec::new();
    for results in all {
        rows.push((results.verdict.name.clone(), results.origin.command.clone()));
        let seeds = results.variants.iter().flat_map(|variant| &variant.runs).map(|run| run.verdict.seed);
        let mut seeds = seeds.map(|seed| seed.to_string()).collect::<Vec<_>>();
        seeds.dedup();
        rows.push(("seed".to_owned(), seeds.join(", ")));
        rows.push(("date, machine".to_owned(), format!("{}, {}", results.origin.date, results.origin.machine)));
    }
    let note = "Instances on one machine compete for its processors, so compare figures of the same machine only.";
    Section::new("How to repeat it").with(Table::facts(rows)).with(Block::Text(note.to_owned()))
}

fn outcome(variant: &Variant) -> Cell {
    let verdict = &variant.verdict;
    let text = match (verdict.holds, verdict.expect) {
        _ if verdict.runs.iter().any(|run| run.error.is_some()) => "did not run",
        (true, Expect::Pass) => "passes",
        (false, Expect::Pass) => "fails",
        (false, Expect::Fail) => "fails, as expected",
        (true, Expect::Fail) => "passes, a failure was expected",
    };
    let recorded = match verdict.as_recorded {
        Some(true) => ", as recorded",
        Some(false) => ", not as recorded",
        None => "",
    };
    let tone = if verdict.as_expected { Tone::Good } else { Tone::Bad };
    Cell { text: format!("{text}{recorded}"), tone }
}

fn fault_cell(count: f64) -> Cell {
    Cell::faults(count as u64)
}

/// As [`shown`], in MB/s without the unit, which is in the head of the column.
fn bare(figure: Figure, value: f64) -> String {
    match figure.unit() {
        Unit::Bytes => format!("{:.2}", value / 1e6),
        _ => shown(figure, value),
    }
}

/// A figure's value, short enough for a table.
fn shown(figure: Figure, value: f64) -> String {
    match figure.unit() {
        Unit::Messages => format!("{value:.0}/s"),
        Unit::Time if value < 1.0 => format!("{:.1} ms", value * 1e3),
        Unit::Time => format!("{value:.2} s"),
        unit => unit.text(value),
    }
}
