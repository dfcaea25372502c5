//! Printed summary of a run, at most 100 characters wide except for lists.

use std::io::{self, Write};

use super::{AudienceOutcome, BrokerUsage, Latency, Outcome, SubscriberOutcome, Verdict, mqttloader_summary};

/// Prints MQTTLoader's summary, followed by further figures.
pub(crate) fn write(out: &mut dyn Write, outcome: &Outcome) -> io::Result<()> {
    mqttloader_summary::write(out, outcome)?;
    write_latencies(out, outcome)?;
    if outcome.plan.publishers.count == 0 && !outcome.audiences.is_empty() {
        writeln!(out, "\nno verdict: what came was published by others")?;
    } else if !outcome.audiences.is_empty() {
        write_verdicts(out, outcome)?;
    }
    for audience in outcome.audiences.iter().filter(|audience| is_worth_a_look(audience)) {
        write_subscribers(out, outcome, audience)?;
    }
    writeln!(out)?;
    write_connections(out, outcome)?;
    write_sending(out, outcome)?;
    outcome.broker_usage.iter().try_for_each(|usage| write_usage(out, usage))?;
    writeln!(out, "this program: {:.2} s of processor time", outcome.own_cpu_seconds)?;
    outcome.notes.iter().try_for_each(|note| writeln!(out, "note: {note}"))?;
    out.flush()
}

fn write_latencies(out: &mut dyn Write, outcome: &Outcome) -> io::Result<()> {
    let workers = outcome.audiences.iter().filter(|audience| audience.waiting.is_some());
    let rows: Vec<_> = [
        ("from the due time".to_owned(), outcome.latency),
        ("from sending".to_owned(), outcome.latency_uncorrected),
        ("connecting".to_owned(), outcome.connects),
    ]
    .into_iter()
    .chain(workers.map(|audience| (format!("taken by {}", title(outcome, audience)), audience.waiting)))
    .collect();
    if rows.iter().all(|(_, latency)| latency.is_none()) {
        return Ok(());
    }
    writeln!(out)?;
    row(out, "latency in ms", ["mean", "min", "p50", "p90", "p99", "p99.9", "max"])?;
    for (title, latency) in rows {
        if let Some(Latency { mean, min, p50, p90, p99, p999, max, .. }) = latency {
            row(out, &format!("  {title}"), [mean, min, p50, p90, p99, p999, max].map(ms))?;
        }
    }
    Ok(())
}

fn write_verdicts(out: &mut dyn Write, outcome: &Outcome) -> io::Result<()> {
    writeln!(out)?;
    row(out, "verdict", ["expected", "received", "lost", "duplicated", "misordered"])?;
    for audience in &outcome.audiences {
        write_verdict(out, &title(outcome, audience), &audience.verdict)?;
    }
    if outcome.audiences.len() > 1 {
        write_verdict(out, "all", &outcome.verdict)?;
    }
    let untaken: Vec<_> = outcome.untaken().map(|(count, why)| format!("{why} {count}")).collect();
    if !untaken.is_empty() {
        writeln!(out, "  missing, but not in lost: {}", untaken.join(", "))?;
    }
    let verdict = outcome.verdict;
    let others = [
        ("duplicated without DUP flag", verdict.duplicated_unmarked),
        ("duplicated to another member of the group", verdict.to_another_member),
        ("not acknowledged to their publisher", verdict.unconfirmed),
        ("of somebody else", verdict.foreign),
        ("damaged or not subscribed to", verdict.wrong),
    ];
    let others: Vec<_> =
        others.iter().filter(|(_, count)| *count > 0).map(|(what, count)| format!("{what} {count}")).collect();
    if !others.is_empty() {
        writeln!(out, "  {}", others.join(", "))?;
    }
    if !verdict.exact {
        writeln!(out, "  by numbers of messages only: payloads are too small to tell one from the other")?;
    }
    Ok(())
}

fn write_verdict(out: &mut dyn Write, title: &str, verdict: &Verdict) -> io::Result<()> {
    let Verdict { expected, received, lost, duplicated, out_of_order, .. } = *verdict;
    row(out, &format!("  {title}"), [expected, received, lost, duplicated, out_of_order].map(|count| count.to_string()))
}

/// Whether its subscribers may differ: members of a share group, and workers.
fn is_worth_a_look(audience: &AudienceOutcome) -> bool {
    audience.subscribers.len() > 1 && (audience.shared || audience.waiting.is_some())
}

fn write_subscribers(out: &mut dyn Write, outcome: &Outcome, audience: &AudienceOutcome) -> io::Result<()> {
    writeln!(out)?;
    let jain = audience.jain.map_or(String::new(), |jain| format!(", Jain's index {jain:.3}"));
    let count = audience.subscribers.len();
    writeln!(out, "{}: {count} subscribers{jain}", title(outcome, audience))?;
    let all: u64 = audience.subscribers.iter().map(|subscriber| subscriber.received).sum();
    let until = if audience.waiting.is_some() { "  (until taken)" } else { "" };
    row(out, until, ["received", "share", "mean ms", "p50", "p99", "max"])?;
    if count <= LISTED_MAX {
        return audience
            .subscribers
            .iter()
            .try_for_each(|subscriber| write_subscriber(out, &subscriber.name, subscriber, all));
    }
    let mut by_share: Vec<_> = audience.subscribers.iter().collect();
    by_share.sort_by_key(|subscriber| subscriber.received);
    for (what, at) in [("least", 0), ("in the middle", count / 2), ("most", count - 1)] {
        let subscriber = by_share[at];
        write_subscriber(out, &format!("{what}: {}", subscriber.name), subscriber, all)?;
    }
    Ok(())
}

fn write_subscriber(out: &mut dyn Write, title: &str, subscriber: &SubscriberOutcome, all: u64) -> io::Result<()> {
    let share = 100.0 * subscriber.received as f64 / all.max(1) as f64;
    let latency = match subscriber.waiting.or(subscriber.latency) {
        Some(Latency { mean, p50, p99, max, .. }) => [mean, p50, p99, max].map(ms),
        None => [(); 4].map(|()| "-".to_owned()),
    };
    let cells = [subscriber.received.to_string(), format!("{share:.1} %")];
    row(out, &format!("  {title}"), cells.into_iter().chain(latency))
}

fn write_connections(out: &mut dyn Write, outcome: &Outcome) -> io::Result<()> {
    let connections = outcome.connections;
    write!(out, "connections: {} accepted", connections.accepted)?;
    if connections.accepted_per_second > 0.0 {
        write!(out, " ({:.0} a second)", connections.accepted_per_second)?;
    }
    for (what, count) in [
        ("refused", connections.refused),
        ("lost", connections.lost),
        ("cut", connections.cut),
        ("sessions resumed", connections.sessions_present),
        ("Wills received", connections.wills),
    ] {
        if count > 0 {
            write!(out, ", {what} {count}")?;
        }
    }
    writeln!(out)
}

/// Prints whether messages were sent on schedule.
fn write_sending(out: &mut dyn Write, outcome: &Outcome) -> io::Result<()> {
    if !outcome.plan.publishers.pace.is_scheduled() || outcome.plan.publishers.count == 0 {
        return Ok(());
    }
    write!(out, "schedule: messages went out at most {} ms late", ms(outcome.latest_send_ms))?;
    match outcome.unsent {
        0 => writeln!(out),
        unsent => writeln!(out, "; {unsent} that were due had not gone out at the end"),
    }
}

fn write_usage(out: &mut dyn Write, usage: &BrokerUsage) -> io::Result<()> {
    write!(out, "broker {} (process {}): {:.2} s of processor time", usage.broker, usage.pid, usage.cpu_seconds)?;
    if let Some(deliveries) = usage.deliveries_per_cpu_second {
        write!(out, ", {deliveries:.0} deliveries per CPU-second")?;
    }
    let mib = |kib: u64| kib as f64 / 1024.0;
    writeln!(out, ", {:.1} MiB, at most {:.1}", mib(usage.resident_kib), mib(usage.resident_peak_kib))
}

/// `workers`, or `workers at b` if there are several brokers.
fn title(outcome: &Outcome, audience: &AudienceOutcome) -> String {
    match outcome.plan.brokers.len() {
        1 => audience.name.clone(),
        _ => format!("{} at {}", audience.name, audience.broker),
    }
}

fn row(out: &mut dyn Write, title: &str, cells: impl IntoIterator<Item = impl AsRef<str>>) -> io::Result<()> {
    write!(out, "{title:<24}")?;
    for cell in cells {
        write!(out, "{:>11}", cell.as_ref())?;
    }
    writeln!(out)
}

fn ms(value: f64) -> String {
    if value < 100.0 { format!("{value:.3}") } else { format!("{value:.1}") }
}

/// Maximum number of subscribers to list; of more, only the extremes and the median are listed.
const LISTED_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::sample;

    fn text(outcome: &Outcome) -> String {
        let mut out = Vec::new();
        write(&mut out, outcome).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn words<'a>(text: &'a str, title: &str) -> Vec<&'a str> {
        let row = text.lines().find_map(|line| line.trim_start().strip_prefix(title));
        row.unwrap_or_else(|| panic!("{title} in {text}")).split_whitespace().collect()
    }

    #[test]
    fn summary_shows_waiting_time_of_workers() {
        let mut outcome = sample::outcome();
        let waiting = outcome.latency.map(|latency| Latency { mean: 77.5, ..latency });
        outcome.audiences[0].waiting = waiting;
        outcome.audiences[0].subscribers[0].waiting = waiting;
        let text = text(&outcome);
        assert_eq!(words(&text, "taken by workers")[0], "77.500");
        assert_eq!((words(&text, "sub-0")[3], words(&text, "sub-1")[3]), ("77.500", "12.250"));
        assert_eq!(words(&text, "(until taken)")[..2], ["received", "share"]);
    }

    #[test]
    fn corrected_and_uncorrected_latencies_stand_side_by_side() {
        let text = text(&sample::outcome());
        assert_eq!(words(&text, "latency in ms"), ["mean", "min", "p50", "p90", "p99", "p99.9", "max"]);
        let due = ["12.250", "0.500", "10.000", "40.000", "61.200", "150.0", "200.0"];
        assert_eq!(words(&text, "from the due time"), due);
        assert_eq!(words(&text, "from sending")[4], "20.500");
        assert!(!text.contains("connecting"), "{text}");
    }

    #[test]
    fn the_verdict_is_given_by_audience_and_for_all() {
        let mut outcome = sample::outcome();
        let row = ["1000", "997", "3", "0", "2"];
        assert_eq!(words(&text(&outcome), "workers"), row);
        assert!(!text(&outcome).contains("without DUP"));

        outcome.audiences.push(AudienceOutcome { name: "archive".into(), ..outcome.audiences[0].clone() });
        outcome.verdict =
            Verdict { expected: 2000, duplicated: 5, duplicated_unmarked: 4, exact: false, ..outcome.verdict };
        let text = text(&outcome);
        assert_eq!(words(&text, "archive"), row);
        assert_eq!(words(&text, "all"), ["2000", "997", "3", "5", "2"]);
        assert!(
            text.contains("duplicated without DUP flag 4\n") && text.contains("by numbers of messages only"),
            "{text}"
        );
    }

    #[test]
    fn missing_messages_stand_below_the_verdict() {
        assert!(!text(&sample::outcome()).contains("missing"));
        let text = text(&Outcome { unacknowledged: 7, not_taken: 2, ..sample::outcome() });
        let lines: Vec<_> = text.lines().collect();
        let verdict = lines.iter().position(|line| line.starts_with("verdict")).expect("there is one");
        let expected = "  missing, but not in lost: never acknowledged 7, refused by the broker 2";
        assert_eq!(lines[verdict + 2], expected, "{text}");
    }

    #[test]
    fn receive_only_run_has_no_verdict() {
        let mut outcome = sample::outcome();
        outcome.plan.publishers.count = 0;
        let text = text(&outcome);
        assert!(text.contains("no verdict: ") && !text.contains("expected"), "{text}");
    }

    #[test]
    fn shares_are_those_of_each_member_or_of_the_extremes() {
        let mut outcome = sample::outcome();
        let few = text(&outcome);
        assert!(few.contains("workers: 2 subscribers, Jain's index 0.960"), "{few}");
        assert_eq!(words(&few, "sub-1")[..3], ["397", "39.8", "%"]);

        let member = outcome.audiences[0].subscribers[0].clone();
        let named = |number: u64| SubscriberOutcome { name: format!("s{number}"), received: number, ..member.clone() };
        outcome.audiences[0].subscribers = (0..100).map(named).collect();
        let many = text(&outcome);
        assert_eq!(words(&many, "most: s99")[0], "99");
        assert_eq!(words(&many, "in the middle: s50")[0], "50");
        assert!(!many.contains("s42"), "{many}");
    }

    #[test]
    fn summary_shows_usage_and_notes() {
        let text = text(&sample::outcome());
        assert!(
            text.contains(
                "broker b (process 42): 0.50 s of processor time, 1594 deliveries per CPU-second, 4.0 MiB, at most 5.0"
            ),
            "{text}"
        );
        assert!(text.contains("connections: 3 accepted (300 a second)\n"), "{text}");
        assert!(text.ends_with("this program: 0.25 s of processor time\nnote: a note\n"), "{text}");
    }
}
