//! Report of a run: sections for the terminal and the page, `summary.json`, `messages.csv`.

mod charts;
mod csv;
#[cfg(test)]
pub(crate) mod sample;
#[cfg(test)]
mod tests;

use std::io::Write;
use std::path::Path;

use serde_json::Value;

use super::assertion::Check;
use super::{AudienceOutcome, Latency, MessageRecord, Outcome, SubscriberOutcome, Verdict, mqttloader_summary};
use crate::LoadgenError;
use crate::number::{DASH, brief, count, fixed, ms, short};
use crate::report::files::{create_directory, write_file, write_json};
use crate::report::model::{Block, Cell, Report, Section, Table, Tone};
use crate::report::origin::Origin;
use crate::report::{LATE_MS, html, text};
use crate::utc;

/// Writes `summary.json` (`outcome`), `report.html`, and an SVG file for each figure.
///
/// If there are `records`, it writes `messages.csv` too. Creates the directory if needed.
///
/// # Errors
/// A file cannot be written.
pub(crate) fn write(
    directory: &Path,
    outcome: &Outcome,
    records: Option<&[MessageRecord]>,
    checks: &[Check],
) -> Result<(), LoadgenError> {
    create_directory(directory)?;
    write_json(&directory.join("summary.json"), outcome)?;
    if let Some(records) = records {
        write_file(&directory.join("messages.csv"), |file| csv::write_messages(file, outcome, records))?;
    }
    html::write(directory, &report(outcome, records, checks))
}

/// Prints MQTTLoader's summary, followed by further figures.
pub(crate) fn print(out: &mut dyn Write, outcome: &Outcome) -> Result<(), LoadgenError> {
    mqttloader_summary::write(out, outcome).map_err(LoadgenError::Print)?;
    let mut sections = results(outcome);
    sections
        .push(Section::new("").with(Block::List(outcome.notes.iter().map(|note| format!("note: {note}")).collect())));
    text::print(out, &sections)
}

fn report(outcome: &Outcome, records: Option<&[MessageRecord]>, checks: &[Check]) -> Report {
    let brokers: Vec<_> = outcome.plan.brokers.iter().map(|broker| broker.name.as_str()).collect();
    let mut sections = vec![lead(outcome, records, checks)];
    if !outcome.notes.is_empty() {
        sections.push(Section::new("Notes").with(Block::List(outcome.notes.clone())));
    }
    sections.push(Section::new("Figures").with_all(charts::figures(outcome, records)));
    sections.push(Section::new("Throughput").with(throughput(outcome)).with(THROUGHPUT_LEGEND.to_owned()));
    sections.extend(results(outcome));
    sections.push(Section::new("Plan").with(plan(outcome)));
    let date = format!("{} UTC, {} s", utc::to_the_second(outcome.started_unix_ms), short(outcome.seconds));
    let origin = Origin { date, ..Origin::here() };
    Report { title: format!("Load on {}", brokers.join(", ")), headline: headline(outcome), origin, sections }
}

fn headline(outcome: &Outcome) -> String {
    let latency = outcome.latency.map(|l| format!("p50 {} ms, p99 {} ms", brief(l.p50), brief(l.p99)));
    let rate = format!("{} messages a second received", short(outcome.received.average_per_second));
    let lost = (outcome.verdict.lost > 0).then(|| format!("{} lost", count(outcome.verdict.lost)));
    [latency, Some(rate), lost].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Verdict, assertions, warnings and key figures.
fn lead(outcome: &Outcome, records: Option<&[MessageRecord]>, checks: &[Check]) -> Section {
    let failed = checks.iter().filter(|check| !check.holds).count();
    let (mut tone, verdict) = verdict_of(outcome);
    let mut section = Section::default();
    if failed > 0 {
        // Nothing is good in a run with a failed assertion.
        tone = if tone == Tone::Good { Tone::Plain } else { tone };
        let text = format!("{failed} of {} assertions failed.", checks.len());
        section = section.with(Block::Banner(Tone::Bad, text));
    }
    section = section.with(Block::Banner(tone, verdict));
    if !checks.is_empty() {
        let checks = checks.iter().map(|check| (check.holds, check.found())).collect();
        section = section.with(Block::Checks(checks));
    }
    let mut tiles = vec![
        ("published a second".to_owned(), Cell::from(short(outcome.published.average_per_second))),
        ("received a second".to_owned(), Cell::from(short(outcome.received.average_per_second))),
    ];
    if let Some(Latency { p50, p99, max, .. }) = outcome.latency {
        for (name, ms) in [("median", p50), ("p99", p99), ("maximum", max)] {
            tiles.push((format!("latency, {name}, ms"), short(ms).into()));
        }
    }
    let lost = outcome.verdict.lost;
    tiles.push(("lost".to_owned(), Cell { text: count(lost), tone: Tone::of_faults(lost) }));
    let late = late_ms(outcome, records).map(|late| {
        let text = format!(
            "Publishers were late, by about {} ms (p99): the broker took too little, or this machine was too busy to send. \
             Latency counts from the due time and has that in it.",
            brief(late)
        );
        Block::Banner(Tone::Warning, text)
    });
    section.with_all(late).with(Block::Tiles(tiles))
}

/// Delay of late messages (p99) before they went out; `None` if they were on time or due at no time.
pub(crate) fn late_ms(outcome: &Outcome, records: Option<&[MessageRecord]>) -> Option<f64> {
    let recorded = records.filter(|records| !records.is_empty()).map(|records| {
        let mut late: Vec<_> = records.iter().map(|record| record.late_us).collect();
        let place = (late.len() * 99).div_ceil(100) - 1;
        f64::from(*late.select_nth_unstable(place).1) / 1e3
    });
    // Without records: the difference of the latencies, or the least p99 that explains the mean.
    let between = || {
        let (due, sent) = (outcome.latency?, outcome.latency_uncorrected?);
        Some((due.p99 - sent.p99).max(due.mean - sent.mean - outcome.latest_send_ms / 100.0))
    };
    let is_open = outcome.plan.publishers.pace.is_scheduled();
    recorded.or_else(between).filter(|late| is_open && *late > LATE_MS)
}

/// Verdict on the run in one sentence.
pub(super) fn verdict_of(outcome: &Outcome) -> (Tone, String) {
    if outcome.plan.publishers.count == 0 {
        return (Tone::Plain, "No verdict: others published the messages.".to_owned());
    }
    let verdict = &outcome.verdict;
    let listed = |counts: Vec<(u64, &str)>| {
        let some = counts.into_iter().filter(|(number, _)| *number > 0);
        some.map(|(number, name)| format!("{} {name}", count(number))).collect::<Vec<_>>().join(", ")
    };
    let missing = listed(outcome.untaken().collect());
    let beside = match missing.as_str() {
        "" => String::new(),
        missing => format!(" Messages that are not expected, but missing: {missing}."),
    };
    let found = listed(vec![
        (verdict.lost, "lost"),
        (verdict.duplicated, "duplicated"),
        (verdict.out_of_order, "out of order"),
        (verdict.wrong, "wrong"),
        (verdict.foreign, "foreign"),
    ]);
    let of = count(verdict.expected);
    if !found.is_empty() {
        (Tone::Bad, format!("Of {of} expected deliveries: {found}.{beside}"))
    } else if !missing.is_empty() && !outcome.gives_messages_up() {
        (Tone::Bad, format!("All {of} expected deliveries came.{beside}"))
    } else if verdict.exact {
        (Tone::Good, format!("All {of} deliveries came, once and in order.{beside}"))
    } else {
        let text = "As many deliveries as expected";
        (Tone::Good, format!("{text}: {of}. Payloads are too small to tell more.{beside}"))
    }
}

/// Sections for both terminal and page.
fn results(outcome: &Outcome) -> Vec<Section> {
    let mut sections = Vec::new();
    sections.extend(latency(outcome).map(|latency| Section::new("Latency").with(latency)));
    let listed = outcome.audiences.iter().filter(|audience| audience.subscribers.len() > 1);
    if outcome.plan.publishers.count == 0 && !outcome.audiences.is_empty() {
        sections.push(Section::new("Verdict").with("no verdict: others published the messages".to_owned()));
    } else if !outcome.audiences.is_empty() {
        sections.push(fate(outcome));
    }
    sections.extend(listed.map(|audience| subscribers(outcome, audience)));
    let usage = broker_usage(outcome);
    sections.push(Section::new("Brokers and connections").with_all(usage).with(connections(outcome)));
    sections
}

fn throughput(outcome: &Outcome) -> Table {
    let mut table = Table::new(["", "messages", "average a second", "maximum a second", "seconds that count"]);
    for (name, of) in [("published", outcome.published), ("received", outcome.received)] {
        let average = short(of.average_per_second);
        table.add(name, [count(of.messages), average, count(of.maximum_per_second), of.seconds.to_string()]);
    }
    table
}

/// `None` if nothing arrived.
fn latency(outcome: &Outcome) -> Option<Table> {
    let workers = outcome.audiences.iter().filter(|audience| audience.waiting.is_some());
    let rows = [
        ("from the due time".to_owned(), outcome.latency),
        ("from sending".to_owned(), outcome.latency_uncorrected),
        ("CONNECT to CONNACK".to_owned(), outcome.connects),
    ];
    let rows = rows.into_iter().chain(workers.map(|one| (format!("taken by {}", name_of(outcome, one)), one.waiting)));
    let mut table = Table::new(["latency in ms", "mean", "min", "p50", "p90", "p99", "p99.9", "max"]);
    for (name, l) in rows.filter_map(|(name, latency)| Some((name, latency?))) {
        table.add(name, [l.mean, l.min, l.p50, l.p90, l.p99, l.p999, l.max].map(ms));
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Fate of the messages: a row for each audience on each broker, and their sum.
fn fate(outcome: &Outcome) -> Section {
    let mut table = Table::new(["verdict", "expected", "received", "lost", "duplicated", "misordered"]);
    let mut add = |name: &str, v: &Verdict| {
        let faults = [v.lost, v.duplicated, v.out_of_order].map(Cell::faults);
        table.add(name, [v.expected, v.received].map(|number| count(number).into()).into_iter().chain(faults));
    };
    outcome.audiences.iter().for_each(|audience| add(&name_of(outcome, audience), &audience.verdict));
    if outcome.audiences.len() > 1 {
        add("all", &outcome.verdict);
    }
    let untaken: Vec<_> = outcome.untaken().map(|(count, why)| format!("{why} {count}")).collect();
    let missing = (!untaken.is_empty()).then(|| format!("missing, but not in lost: {}", untaken.join(", ")));
    let verdict = outcome.verdict;
    let others = [
        ("duplicated without DUP flag", verdict.duplicated_unmarked),
        ("duplicated to another member of the group", verdict.to_another_member),
        ("not acknowledged to their publisher", verdict.unconfirmed),
        ("foreign", verdict.foreign),
        ("damaged or not subscribed to", verdict.wrong),
    ];
    let others = others.iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {count}"));
    let others = others.collect::<Vec<_>>().join(", ");
    let inexact = "by numbers of messages only: payloads are too small to tell one from the other";
    let lines = [missing, Some(others), (!verdict.exact).then(|| inexact.to_owned())].into_iter().flatten();
    Section::new("Fate of the messages").with(table).with_all(lines.filter(|line| !line.is_empty()))
}

/// Members of an audience; of many only some.
fn subscribers(outcome: &Outcome, audience: &AudienceOutcome) -> Section {
    let members = &audience.subscribers;
    let all = members.iter().map(|one| one.received).sum::<u64>().max(1);
    let until = if audience.waiting.is_some() { "until taken" } else { "until received" };
    let mut table = Table::new([until, "received", "share", "mean ms", "p50", "p99", "max"]);
    let mut add = |name: String, one: &SubscriberOutcome| {
        let share = format!("{} %", fixed(100.0 * one.received as f64 / all as f64, 1));
        let latency = one.waiting.or(one.latency).map(|l| [l.mean, l.p50, l.p99, l.max].map(ms));
        let latency = latency.unwrap_or_else(|| [DASH; 4].map(str::to_owned));
        table.add(name, [count(one.received), share].into_iter().chain(latency));
    };
    if members.len() <= LISTED_MAX {
        members.iter().for_each(|one| add(one.name.clone(), one));
    } else {
        let mut by_share: Vec<_> = members.iter().collect();
        by_share.sort_by_key(|one| one.received);
        for (which, at) in [("least", 0), ("in the middle", members.len() / 2), ("most", members.len() - 1)] {
            add(format!("{which}: {}", by_share[at].name), by_share[at]);
        }
    }
    let jain = audience.jain.map_or(String::new(), |jain| format!(", Jain's index {jain:.3}"));
    let (name, number) = (name_of(outcome, audience), members.len());
    Section::new(&format!("{name}: {number} subscriber{}{jain}", if number == 1 { "" } else { "s" })).with(table)
}

/// `None` if no broker's process is known.
fn broker_usage(outcome: &Outcome) -> Option<Table> {
    let head = ["broker", "process", "CPU s", "deliveries/CPU s", "MiB", "at most"];
    let mut table = Table::new(head);
    for usage in &outcome.broker_usage {
        let per_second = usage.deliveries_per_cpu_second.map_or(DASH.to_owned(), |number| fixed(number, 0));
        let [end, peak] = [usage.resident_kib, usage.resident_peak_kib].map(|kib| fixed(kib as f64 / 1024.0, 1));
        table.add(&usage.broker, [usage.pid.to_string(), fixed(usage.cpu_seconds, 2), per_second, end, peak]);
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Counts of connections and of late messages; only those above 0.
fn connections(outcome: &Outcome) -> Table {
    let c = outcome.connections;
    let counts = [
        ("connections accepted", c.accepted),
        ("accepted a second", c.accepted_per_second as u64),
        ("refused", c.refused),
        ("lost", c.lost),
        ("cut by the run", c.cut),
        ("came back to their session", c.sessions_present),
        ("Wills that arrived", c.wills),
        ("messages never acknowledged", outcome.unacknowledged),
        ("messages refused", outcome.not_taken),
        ("messages due, but not sent", outcome.unsent),
    ];
    let counts = counts.iter().filter(|(_, number)| *number > 0).map(|(name, number)| (*name, count(*number)));
    let is_open = outcome.plan.publishers.pace.is_scheduled() && outcome.plan.publishers.count > 0;
    let late = is_open.then(|| ("latest message, ms after its time", ms(outcome.latest_send_ms)));
    let own = ("processor time of this program, s", fixed(outcome.own_cpu_seconds, 2));
    Table::facts(counts.chain(late).chain([own]).map(|(name, value)| (name.to_owned(), value)))
}

/// All values of the plan, by name.
fn plan(outcome: &Outcome) -> Table {
    let mut rows = Vec::new();
    flatten("", &serde_json::to_value(&outcome.plan).unwrap_or_default(), &mut rows);
    Table::facts(rows)
}

fn flatten(name: &str, value: &Value, rows: &mut Vec<(String, String)>) {
    let below = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name} · {key}") };
    match value {
        Value::Null => {}
        Value::Object(fields) => match (fields.get("secs"), fields.get("nanos")) {
            (Some(seconds), Some(nanos)) => {
                let seconds = seconds.as_f64().unwrap_or(0.0) + nanos.as_f64().unwrap_or(0.0) / 1e9;
                rows.push((
                    name.to_owned(),
                    format!("{} s", fixed(seconds, 6).trim_end_matches('0').trim_end_matches('.')),
                ));
            }
            _ => fields.iter().for_each(|(key, value)| flatten(&below(&key.replace('_', " ")), value, rows)),
        },
        Value::Array(values) => {
            (1..).zip(values).for_each(|(number, value)| flatten(&format!("{name} {number}"), value, rows));
        }
        Value::String(text) => rows.push((name.to_owned(), text.clone())),
        value => rows.push((name.to_owned(), value.to_string())),
    }
}

/// Name of an audience, with the broker's if there are several.
pub(super) fn name_of(outcome: &Outcome, audience: &AudienceOutcome) -> String {
    match outcome.plan.brokers.len() {
        1 => audience.name.clone(),
        _ => format!("{} at {}", audience.name, audience.broker),
    }
}

const THROUGHPUT_LEGEND: &str = "Rates leave ramp-up and ramp-down out; numbers of messages and the verdict do not.";

/// Maximum number of subscribers to list; of more, only the extremes and the median are listed.
const LISTED_MAX: usize = 16;
