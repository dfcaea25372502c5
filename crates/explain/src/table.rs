//! Reports as tables for people.

use std::collections::HashMap;
use std::io::{self, Write};

use tenbin_kit::printable::printable;

use crate::reports::{Candidate, Decision, Failures, Member, Members, Reports, Shadow};

/// Maximum width of lines, in characters. Longer names go on in the next line.
const WIDTH: usize = 100;
/// Indentation of candidates on a new line.
const INDENT: usize = 28;

/// Table writer that remembers the decisions already printed.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// Number of the last decision that is printed, by filter.
    printed: HashMap<String, u64>,
}

impl Table {
    /// Writes all reports on one group.
    pub(crate) fn write(&mut self, out: &mut dyn Write, reports: &Reports) -> io::Result<()> {
        let Some(members) = &reports.members else { return Ok(()) };
        write_head(out, members)?;
        if let Some(shadow) = &reports.shadow {
            write_shadow(out, shadow)?;
        }
        write_members(out, members)?;
        match reports.decisions.is_empty() {
            true => writeln!(out, "\n  no decision is recorded")?,
            false => writeln!(
                out,
                "\n  {:<13}{:<18} {:<14}{:<14}{:>7}  candidates: wait+penalty, ms",
                "time, UTC", "topic", "chosen", "reason", "between"
            )?,
        }
        self.write_decisions(out, &members.filter, &reports.decisions)
    }

    /// Writes the decisions that are not printed yet.
    pub(crate) fn write_news(&mut self, out: &mut dyn Write, reports: &Reports) -> io::Result<()> {
        let Some(members) = &reports.members else { return Ok(()) };
        self.write_decisions(out, &members.filter, &reports.decisions)
    }

    fn write_decisions(&mut self, out: &mut dyn Write, filter: &str, decisions: &[Decision]) -> io::Result<()> {
        let printed = self.printed.entry(filter.to_owned()).or_default();
        if decisions.last().is_some_and(|last| last.number < *printed) {
            *printed = 0; // the group has ended and begun again
        }
        for decision in decisions.iter().filter(|decision| decision.number > *printed) {
            write_decision(out, decision)?;
        }
        *printed = decisions.last().map_or(*printed, |last| last.number);
        Ok(())
    }
}

fn write_head(out: &mut dyn Write, members: &Members) -> io::Result<()> {
    let Members { group, filter, policy, messages, waiting, waiting_ms, members_total, .. } = members;
    let ordered = if members.is_ordered { ", keys in order" } else { "" };
    let mut line = format!(
        "{}, filter {}: {policy}{ordered}; {members_total} members, {messages} messages",
        printable(group),
        printable(filter)
    );
    if *waiting > 0 {
        line += &format!(", {waiting} wait with the group");
        if let Some(ms) = waiting_ms {
            line += &format!(" ({} ms of work)", number(*ms));
        }
    }
    write_folded(out, &line, 4)?;
    write_failures(out, &members.failures)
}

/// Writes what became of messages that members did not process.
fn write_failures(out: &mut dyn Write, failures: &Failures) -> io::Result<()> {
    let Failures { rejected, overdue, dead_lettered, letters_refused, retries, oldest_retry_ms } = failures;
    if rejected + overdue + dead_lettered + letters_refused == 0 {
        return Ok(());
    }
    let mut line = format!("  {rejected} rejected, {overdue} overdue, {dead_lettered} dead letters");
    if *letters_refused > 0 {
        line += &format!("; the dead letters of {letters_refused} are refused");
    }
    if *retries > 0 {
        line += &format!("; {retries} wait for their next delivery, the first for {} ms", number(*oldest_retry_ms));
    }
    writeln!(out, "{line}")
}

/// Writes a text in lines of at most [`WIDTH`] characters; the later ones are indented.
fn write_folded(out: &mut dyn Write, text: &str, indent: usize) -> io::Result<()> {
    let mut rest = text;
    let mut line_indent = 0;
    loop {
        let end = rest.char_indices().nth(WIDTH - line_indent).map_or(rest.len(), |(at, _)| at);
        writeln!(out, "{:line_indent$}{}", "", &rest[..end])?;
        rest = &rest[end..];
        if rest.is_empty() {
            return Ok(());
        }
        line_indent = indent;
    }
}

fn write_shadow(out: &mut dyn Write, shadow: &Shadow) -> io::Result<()> {
    let Shadow { shadow, compared, agreement, wait_difference_ms_mean } = shadow;
    let percent = agreement * 100.0;
    let (amount, direction) =
        (wait_difference_ms_mean.abs(), if *wait_difference_ms_mean < 0.0 { "less" } else { "more" });
    writeln!(
        out,
        "  shadow {shadow}: the same choice in {percent:.1} % of {compared};\n    by the predictions its messages \
         would have waited {amount:.2} ms {direction} on average"
    )
}

fn write_members(out: &mut dyn Write, members: &Members) -> io::Result<()> {
    writeln!(
        out,
        "\n  {:<20} {:<9}{:>10}{:>8}{:>9}{:>9}{:>11}{:>9}{:>10}",
        "member", "state", "messages", "share %", "wait, ms", "pending", "in flight", "t_p, ms", "cost, ms",
    )?;
    members.members.iter().try_for_each(|member| write_member(out, member))?;
    let others = members.members_total.saturating_sub(members.members.len() as u64);
    if others > 0 {
        writeln!(out, "  and {others} members with fewer messages")?;
    }
    members.members.iter().try_for_each(|member| write_suspicion(out, member))
}

fn write_member(out: &mut dyn Write, member: &Member) -> io::Result<()> {
    let in_flight = match member.in_flight_maximum {
        Some(most) => format!("{} of {most}", member.in_flight),
        None => member.in_flight.to_string(),
    };
    // An estimate from the other members is marked as such.
    let cost = format!("{}{}", if member.is_speed_known { "" } else { "~" }, number(member.processing_time_ms));
    let mut name = printable(&member.client);
    if name.chars().count() > 20 {
        write_folded(out, &format!("  {name}"), 4)?;
        name = "".into();
    }
    writeln!(
        out,
        "  {name:<20} {:<9}{:>10}{:>8.1}{:>9}{:>9}{:>11}{:>9}{:>10}",
        member.state,
        member.messages,
        member.share * 100.0,
        number(member.predicted_wait_ms),
        member.pending,
        in_flight,
        number(member.reported_processing_time_ms),
        cost,
    )?;
    let remarks = [
        learnt(member),
        (member.weight != 1).then(|| format!("weight {}", member.weight)),
        (member.round_trip_ms > 0.0).then(|| format!("way {} ms", number(member.round_trip_ms))),
        (member.late_ms > 0.0).then(|| format!("late by {} ms", number(member.late_ms))),
        (member.late_reports > 0).then(|| format!("late reports: {}", member.late_reports)),
        (member.redispatches > 0).then(|| format!("redispatched: {}", member.redispatches)),
        (member.rejected_of_20 > 0).then(|| format!("rejected {} of 20", member.rejected_of_20)),
        (member.overdue > 0).then(|| format!("overdue: {}", member.overdue)),
    ];
    let remarks: Vec<_> = remarks.into_iter().flatten().collect();
    let Some((last, others)) = remarks.split_last() else { return Ok(()) };
    let items = others.iter().map(|remark| format!("{remark},")).chain([last.clone()]);
    write_wrapped(out, "   ".to_owned(), items)
}

/// States how the member serves messages, and the figures that show it.
fn learnt(member: &Member) -> Option<String> {
    let Member { service, alone_ms, busy_ms, tries, last_try_ms, .. } = member;
    if service.is_empty() || service == "unknown" && *tries == 0 && *alone_ms == 0.0 {
        return None;
    }
    let alone = (*alone_ms > 0.0).then(|| format!(" alone {} ms", number(*alone_ms)));
    let busy = (*busy_ms > 0.0).then(|| format!(" busy {} ms", number(*busy_ms)));
    let tried = (*tries > 0).then(|| format!(" tried {tries} × (last {} ms)", number(*last_try_ms)));
    Some(format!("{service}:{}", [alone, busy, tried].into_iter().flatten().collect::<Vec<_>>().join(",")))
}

/// Names a member that rejects most messages, or is too fast to be true.
fn write_suspicion(out: &mut dyn Write, member: &Member) -> io::Result<()> {
    let client = printable(&member.client);
    if member.state == "suspect" {
        let rejected = member.rejected_of_20;
        let text = format!("  suspect: {client} rejected {rejected} of its last 20 messages, so it gets few");
        write_folded(out, &text, 4)?;
    }
    let Some(times) = member.times_faster else { return Ok(()) };
    let text = format!("  suspect: {client} seems {times} × faster than the mean, so it gets no more than others");
    write_folded(out, &text, 4)
}

fn write_decision(out: &mut dyn Write, decision: &Decision) -> io::Result<()> {
    let (topic, time) = (printable(&decision.topic), time(decision.time_ms));
    let chosen = decision.chosen.as_deref().map_or_else(|| "nobody".into(), printable);
    let (reason, between) = (decision.reason.replace('_', " "), format!("+{}", decision.unrecorded));
    let line = if topic.chars().count() <= 18 && chosen.chars().count() <= 13 {
        format!("  {time:<13}{topic:<18} {chosen:<14}{reason:<14}{between:>7} ")
    } else {
        // Long names have lines for themselves.
        write_folded(out, &format!("  {time:<13}{topic}"), 15)?;
        write_folded(out, &format!("  {:<13}to {chosen}", ""), 18)?;
        format!("  {:<13}{reason} {between} ", "")
    };
    let others = decision.members_total.saturating_sub(decision.candidates.len() as u64);
    let others = (others > 0).then(|| format!("and {others} others"));
    let candidates = decision.candidates.iter().map(|candidate| {
        let Candidate { client, state, predicted_wait_ms, penalty_ms } = candidate;
        let state = if state == "ready" { String::new() } else { format!(" ({state})") };
        format!("{} {}+{}{state}", printable(client), number(*predicted_wait_ms), number(*penalty_ms))
    });
    write_wrapped(out, line, candidates.chain(others))
}

/// Writes a line and its items, with line breaks before [`WIDTH`]. An item that is too long for a line goes on in the next.
fn write_wrapped(out: &mut dyn Write, mut line: String, items: impl Iterator<Item = String>) -> io::Result<()> {
    for item in items {
        if line.chars().count() + 1 + item.chars().count() > WIDTH {
            write_folded(out, line.trim_end(), INDENT + 1)?;
            line = " ".repeat(INDENT);
        }
        line.push(' ');
        line.push_str(&item);
    }
    write_folded(out, &line, INDENT + 1)
}

/// Formats a time of day.
fn time(ms: u64) -> String {
    let (seconds, ms) = (ms / 1000 % 86_400, ms % 1000);
    format!("{:02}:{:02}:{:02}.{ms:03}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Formats a number with about three significant digits.
fn number(ms: f64) -> String {
    if ms < 9.995 {
        format!("{ms:.2}")
    } else if ms < 99.95 {
        format!("{ms:.1}")
    } else {
        format!("{ms:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(number: u64) -> serde_json::Value {
        serde_json::json!({
            "number": number, "time_ms": 1_700_000_000_123_u64 + number, "topic": "a\u{1b}[31m/b", "chosen": "w1",
            "reason": "least_wait", "unrecorded": 7, "members_total": 2,
            "candidates": [
                { "client": "w1", "state": "ready", "predicted_wait_ms": 0.0, "penalty_ms": 1.25 },
                { "client": "w2", "state": "full", "predicted_wait_ms": 123.4, "penalty_ms": 20.0 },
            ],
        })
    }

    fn reports(numbers: &[u64]) -> Reports {
        let members = serde_json::json!({
            "group": "g", "filter": "a/#", "policy": "adaptive", "is_ordered": false, "messages": 10, "waiting": 9, "waiting_ms": 75.0,
            "members_total": 1,
            "members": [{
                "client": "a very long name of a client", "state": "suspect", "weight": 1, "messages": 10, "share": 1.0,
                "predicted_wait_ms": 0.5, "pending": 1, "in_flight": 2, "in_flight_maximum": 3, "round_trip_ms": 40.0,
                "service": "single", "alone_ms": 25.0, "busy_ms": 24.5, "tries": 7, "last_try_ms": 31.0,
                "reported_processing_time_ms": 25.0, "processing_time_ms": 24.0, "is_speed_known": false,
                "times_faster": 400, "late_ms": 0.0, "late_reports": 3, "redispatches": 4,
                "rejected_of_20": 13, "overdue": 2,
            }],
        });
        let decisions = numbers.iter().map(|number| decision(*number)).collect::<Vec<_>>();
        let mut reports = Reports::default();
        assert!(!reports.take("members", members.to_string().as_bytes()).unwrap());
        assert!(reports.take("decisions", serde_json::Value::from(decisions).to_string().as_bytes()).unwrap());
        reports
    }

    fn written(write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn table_shows_chosen_member_and_candidates() {
        let text = written(|out| Table::default().write(out, &reports(&[1])));
        for words in [
            "g, filter a/#: adaptive; 1 members, 10 messages, 9 wait with the group (75.0 ms of work)",
            "  a very long name of a client\n",
            "    single: alone 25.0 ms, busy 24.5 ms, tried 7 × (last 31.0 ms), way 40.0 ms,",
            "~24.0",
            "2 of 3",
            "redispatched: 4, rejected 13 of 20, overdue: 2",
            "suspect: a very long name of a client rejected 13 of its last 20",
            "suspect: a very long name of a client seems 400 × faster",
            "22:13:20.124",
            "least wait",
            "+7",
            "w1 0.00+1.25",
            "w2 123+20.0 (full)",
        ] {
            assert!(text.contains(words), "{words} in\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(!text.contains('\u{1b}'), "a terminal is not told what to do by a topic");
    }

    #[test]
    fn long_names_are_whole_in_lines_of_bounded_width() {
        let [worker, topic] = ["worker-7d9f6c5b8d-abcde-".repeat(10), "plant/line/".repeat(20)];
        let mut document = reports(&[1]).to_json();
        document["members"]["members"][0]["client"] = worker.clone().into();
        document["members"]["group"] = "g".repeat(150).into();
        let decision = &mut document["decisions"][0];
        (decision["topic"], decision["chosen"]) = (topic.clone().into(), worker.clone().into());
        decision["candidates"][0]["client"] = worker.clone().into();
        let text = written(|out| Table::default().write(out, &Reports::of(&document).unwrap()));
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        let whole: String = text.split_whitespace().collect();
        assert_eq!((whole.matches(&worker).count(), whole.matches(&topic).count()), (5, 1), "{text}");
    }

    #[test]
    fn follow_prints_only_new_decisions() {
        let mut table = Table::default();
        let lines = |text: String| text.lines().filter(|line| line.contains("least wait")).count();
        assert_eq!(lines(written(|out| table.write(out, &reports(&[1, 2])))), 2);
        assert_eq!(lines(written(|out| table.write_news(out, &reports(&[2, 3, 4])))), 2);
        assert_eq!(lines(written(|out| table.write_news(out, &reports(&[3, 4])))), 0);
        assert_eq!(lines(written(|out| table.write_news(out, &reports(&[1])))), 1, "of a new group of that name");
    }
}
