//! Tables and texts of a run's report.

use std::time::Duration;

use super::html::{Cell, Table, Tone};
use super::number::{count, fixed, short};
use super::table::kind_text;
use crate::run::{Audience, AudienceOutcome, Latency, Outcome, Pace, Plan, Spread, Throughput, Verdict, Version, Work};

/// Name of an audience, with the broker's if there are several.
pub(super) fn audience_name(outcome: &Outcome, audience: &AudienceOutcome) -> String {
    if outcome.plan.brokers.len() > 1 {
        format!("{} on {}", audience.name, audience.broker)
    } else {
        audience.name.clone()
    }
}

/// Verdict on the run in one sentence.
pub(super) fn verdict_text(outcome: &Outcome) -> (Tone, String) {
    let verdict = &outcome.verdict;
    let missing: Vec<_> = outcome.untaken().map(|(number, why)| format!("{} {why}", count(number))).collect();
    let beside = match missing.is_empty() {
        true => String::new(),
        false => format!(" Messages that are not expected, but missing: {}.", missing.join(", ")),
    };
    let faults = [
        (verdict.lost, "lost"),
        (verdict.duplicated, "duplicated"),
        (verdict.out_of_order, "out of order"),
        (verdict.wrong, "wrong"),
        (verdict.foreign, "of somebody else"),
    ];
    let found: Vec<_> = faults
        .iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, what)| format!("{} {what}", count(*number)))
        .collect();
    let of = count(verdict.expected);
    match (found.is_empty(), verdict.exact) {
        (true, _) if !missing.is_empty() && !outcome.gives_messages_up() => {
            (Tone::Bad, format!("✗ All {of} expected deliveries came.{beside}"))
        }
        (true, true) => (Tone::Good, format!("✓ All {of} deliveries came, once and in order.{beside}")),
        (true, false) => {
            let all = format!("✓ As many deliveries as expected: {of}. Payloads are too small to tell more.{beside}");
            (Tone::Good, all)
        }
        (false, _) => (Tone::Bad, format!("✗ Of {of} expected deliveries: {}.{beside}", found.join(", "))),
    }
}

/// Key figures.
pub(super) fn tiles(outcome: &Outcome) -> Vec<(String, Cell)> {
    let mut tiles = vec![
        ("published a second".to_owned(), Cell::from(short(outcome.published.average_per_second))),
        ("received a second".to_owned(), Cell::from(short(outcome.received.average_per_second))),
    ];
    if let Some(latency) = outcome.latency {
        for (name, ms) in [("median, ms", latency.p50), ("p99, ms", latency.p99), ("maximum, ms", latency.max)] {
            tiles.push((format!("latency, {name}"), short(ms).into()));
        }
    }
    let lost = outcome.verdict.lost;
    let tone = if lost > 0 { Tone::Bad } else { Tone::Good };
    tiles.push(("lost".to_owned(), Cell::toned(count(lost), tone)));
    tiles
}

pub(super) fn throughput(outcome: &Outcome) -> Table {
    let row = |name: &str, throughput: Throughput| {
        let Throughput { messages, average_per_second, maximum_per_second, seconds, .. } = throughput;
        let figures = [count(messages), short(average_per_second), count(maximum_per_second), seconds.to_string()];
        [name.into()].into_iter().chain(figures.map(Cell::from)).collect()
    };
    Table {
        head: texts(["", "messages", "average a second", "maximum a second", "seconds that count"]),
        rows: vec![row("published", outcome.published), row("received", outcome.received)],
        text_columns: 1,
    }
}

pub(super) fn latency(outcome: &Outcome) -> Table {
    let rows = [
        ("from the due time", outcome.latency),
        ("from sending", outcome.latency_uncorrected),
        ("CONNECT to CONNACK", outcome.connects),
    ];
    let row = |(name, latency): (&str, Option<Latency>)| {
        let l = latency?;
        let ms = [l.min, l.mean, l.p50, l.p90, l.p99, l.p999, l.max].map(|ms| Cell::from(short(ms)));
        Some([name.into(), count(l.count).into()].into_iter().chain(ms).collect())
    };
    Table {
        head: texts(["latency, ms", "count", "min", "mean", "p50", "p90", "p99", "p99.9", "max"]),
        rows: rows.into_iter().filter_map(row).collect(),
        text_columns: 1,
    }
    .turned()
}

/// A row for each audience on each broker, and their sum.
pub(super) fn verdicts(outcome: &Outcome) -> Table {
    let row = |name: String, v: &Verdict| {
        let bad = |number: u64| Cell::toned(count(number), if number > 0 { Tone::Bad } else { Tone::Plain });
        let mut row = vec![name.into(), count(v.expected).into(), count(v.received).into()];
        row.extend([v.lost, v.duplicated, v.duplicated_unmarked, v.to_another_member, v.out_of_order].map(bad));
        row.push(count(v.unconfirmed).into());
        row.extend([v.foreign, v.wrong].map(bad));
        row
    };
    let name = |audience: &AudienceOutcome| {
        let name = audience_name(outcome, audience);
        if audience.shared { format!("{name} (shared)") } else { name }
    };
    let mut rows: Vec<_> = outcome.audiences.iter().map(|one| row(name(one), &one.verdict)).collect();
    if rows.len() != 1 {
        rows.push(row("all".to_owned(), &outcome.verdict));
    }
    let head = [
        "audience",
        "expected",
        "received",
        "lost",
        "duplicated",
        "unmarked",
        "other member",
        "out of order",
        "unconfirmed",
        "foreign",
        "wrong",
    ];
    let is_few = rows.len() <= 4;
    let table = Table { head: texts(head), rows, text_columns: 1 };
    if is_few { table.turned() } else { table }
}

pub(super) const VERDICT_LEGEND: &str = "Duplicated: further copies; unmarked: without the DUP flag; other member: to another \
    member of the share group. Unconfirmed: arrived though never acknowledged to their publisher. Foreign: not of this run. \
    Wrong: damaged, or not subscribed to.";

/// A row for each subscriber, up to [`SUBSCRIBERS_MAX`].
pub(super) fn subscribers(outcome: &Outcome) -> Table {
    let all =
        || outcome.audiences.iter().flat_map(|audience| audience.subscribers.iter().map(move |one| (audience, one)));
    let row = |(audience, one): (&AudienceOutcome, _)| {
        let one: &crate::run::SubscriberOutcome = one;
        let sum = audience.subscribers.iter().map(|one| one.received).sum::<u64>().max(1);
        let share = one.received as f64 * 100.0 / sum as f64;
        let ms = one.latency.map(|l| [l.mean, l.p50, l.p99, l.max].map(short));
        let ms = ms.unwrap_or_else(|| [(); 4].map(|()| "–".to_owned()));
        let mut row: Vec<Cell> = vec![one.name.clone().into(), audience_name(outcome, audience).into()];
        row.extend([count(one.received), fixed(share, 1)].map(Cell::from));
        row.extend(ms.map(Cell::from));
        row
    };
    let mut rows: Vec<_> = all().take(SUBSCRIBERS_MAX).map(row).collect();
    let more = all().count().saturating_sub(SUBSCRIBERS_MAX);
    if more > 0 {
        rows.push(vec![format!("and {} more: summary.json", count(more as u64)).into()]);
    }
    let head = ["client id", "audience", "received", "share, %", "mean, ms", "p50, ms", "p99, ms", "max, ms"];
    Table { head: texts(head), rows, text_columns: 2 }
}

/// `None` if no broker's process is known.
pub(super) fn broker_usage(outcome: &Outcome) -> Option<Table> {
    let mib = |kib: u64| fixed(kib as f64 / 1024.0, 1);
    let row = |usage: &crate::run::BrokerUsage| {
        let per_second = usage.deliveries_per_cpu_second.map_or("–".to_owned(), short);
        vec![
            usage.broker.clone().into(),
            usage.pid.to_string().into(),
            fixed(usage.cpu_seconds, 2).into(),
            per_second.into(),
            mib(usage.resident_kib).into(),
            mib(usage.resident_peak_kib).into(),
        ]
    };
    let rows: Vec<_> = outcome.broker_usage.iter().map(row).collect();
    let head =
        ["broker", "process", "processor, s", "deliveries a processor second", "memory at the end, MiB", "peak, MiB"];
    (!rows.is_empty()).then(|| Table { head: texts(head), rows, text_columns: 1 })
}

pub(super) fn connections(outcome: &Outcome) -> Table {
    let c = outcome.connections;
    let rows = [
        ("accepted", count(c.accepted)),
        ("accepted a second", short(c.accepted_per_second)),
        ("refused", count(c.refused)),
        ("lost", count(c.lost)),
        ("cut by the run", count(c.cut)),
        ("came back to their session", count(c.sessions_present)),
        ("Wills that arrived", count(c.wills)),
        ("never acknowledged, messages", count(outcome.unacknowledged)),
        ("refused, messages", count(outcome.not_taken)),
        ("not sent in time, messages", count(outcome.unsent)),
        ("latest message, ms after its time", short(outcome.latest_send_ms)),
        ("processor time of the load itself, s", fixed(outcome.own_cpu_seconds, 2)),
    ];
    pairs(rows.map(|(name, value)| (name.to_owned(), value)).to_vec(), true)
}

/// The plan as names and values.
pub(super) fn plan(plan: &Plan) -> Table {
    let mut rows = Vec::new();
    let mut add = |name: &str, value: String| rows.push((name.to_owned(), value));
    for broker in &plan.brokers {
        add(&format!("broker {}", broker.name), format!("{}:{}", broker.host, broker.port));
    }
    let version = match plan.connection.version {
        Version::V5 => "MQTT 5.0",
        Version::V311 => "MQTT 3.1.1",
    };
    add("protocol", format!("{version}{}", if plan.connection.tls.is_some() { " over TLS" } else { "" }));
    add("publishers", publishers_text(plan));
    add("pace", pace_text(plan));
    for audience in &plan.audiences {
        add(&format!("audience {}", audience.name), audience_text(audience));
    }
    if let Some(idle) = plan.idle {
        let rate = idle.rate.map_or("as fast as it goes".to_owned(), |rate| format!("{} a second", short(rate)));
        add("idle connections", format!("{}, {rate}", count(u64::from(idle.count))));
    }
    if let Some(cuts) = plan.cuts {
        add("cuts", format!("{:?}, one every {:?}, away for {:?}", cuts.whose, cuts.every, cuts.away));
    }
    let schedule = plan.schedule;
    add("at most", seconds(schedule.time_limit));
    add("ramp-up, ramp-down", format!("{} s, {} s", schedule.ramp_up, schedule.ramp_down));
    pairs(rows, false)
}

fn publishers_text(plan: &Plan) -> String {
    let p = &plan.publishers;
    let topics = if p.topics > 1 { format!(", {} topics each", count(u64::from(p.topics))) } else { String::new() };
    let messages = p.messages.map_or(String::new(), |messages| format!(", {} messages each", count(messages)));
    let retain = if p.retain { ", retained" } else { "" };
    let (n, bytes, topic, qos) = (count(u64::from(p.count)), count(u64::from(p.payload)), &p.topic, p.qos);
    format!("{n}, QoS {qos}, {bytes} bytes, topic {topic}{topics}{messages}{retain}{}", spread_text(p.spread, plan))
}

fn pace_text(plan: &Plan) -> String {
    match plan.publishers.pace {
        Pace::Open { interval } => {
            let rate = f64::from(plan.publishers.count) / interval.as_secs_f64();
            format!("open loop: each every {interval:?}, {} a second together", short(rate))
        }
        Pace::Arrivals { arrivals, .. } => format!("messages arrive {arrivals}"),
        Pace::Closed { window } => format!("closed loop: at most {} deliveries outstanding", count(window)),
        Pace::Unlimited => format!("as fast as it goes, {} in flight each", plan.publishers.in_flight),
    }
}

fn audience_text(audience: &Audience) -> String {
    let share = audience.share.as_ref().map_or(String::new(), |share| format!(", share group {share}"));
    let work = audience.work.as_ref().map_or(String::new(), work_text);
    let n = count(u64::from(audience.count));
    format!("{n} subscribers, QoS {}, filter {}{share}{work}", audience.qos, audience.filter)
}

fn work_text(work: &Work) -> String {
    let workers: Vec<_> = work.workers.iter().map(|kind| kind_text(kind, false)).collect();
    let reports = work.reports.map_or("no load reports".to_owned(), |reports| {
        let carrier = reports.carrier.map_or(String::new(), |carrier| format!(" by {carrier:?}"));
        format!("load reports{carrier} every {:?}", reports.interval)
    });
    format!("; workers: {}; {reports}", workers.join("; "))
}

fn spread_text(spread: Spread, plan: &Plan) -> String {
    match spread {
        Spread::InTurns if plan.brokers.len() > 1 => ", over all brokers in turns".to_owned(),
        Spread::Broker(number) if plan.brokers.len() > 1 => {
            let name = plan.brokers.get(usize::from(number)).map_or("?", |broker| &broker.name);
            format!(", to {name}")
        }
        _ => String::new(),
    }
}

fn seconds(duration: Duration) -> String {
    format!("{} s", short(duration.as_secs_f64()))
}

fn pairs(rows: Vec<(String, String)>, are_numbers: bool) -> Table {
    let rows = rows.into_iter().map(|(name, value)| vec![name.into(), value.into()]).collect();
    Table { head: Vec::new(), rows, text_columns: if are_numbers { 1 } else { 2 } }
}

fn texts<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.map(str::to_owned).to_vec()
}

const SUBSCRIBERS_MAX: usize = 100;
