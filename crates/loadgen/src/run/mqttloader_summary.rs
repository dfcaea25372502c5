//! MQTTLoader's summary, line by line under its names.

use std::io::{self, Write};

use super::{Outcome, Second, utc};

/// Prints it. Figures follow MQTTLoader's rules: each side's seconds count from its own first message, and those of
/// ramp-up and ramp-down are left out of all of them, the number of messages included. Latency is from the due time.
pub(crate) fn write(out: &mut dyn Write, outcome: &Outcome) -> io::Result<()> {
    let ended_unix_ms = outcome.started_unix_ms + (outcome.seconds * 1e3) as u64;
    writeln!(out, "Measurement started: {}", utc::date_time(outcome.started_unix_ms))?;
    writeln!(out, "Measurement ended: {}", utc::date_time(ended_unix_ms))?;
    writeln!(out, "\n-----Publisher-----")?;
    let published = counted(outcome, |second| second.published);
    write_throughput(out, "published", published.iter().map(|second| second.published))?;
    writeln!(out, "\n-----Subscriber-----")?;
    let received = counted(outcome, |second| second.received);
    write_throughput(out, "received", received.iter().map(|second| second.received))?;
    let latencies = || received.iter().filter_map(|second| second.latency);
    let maximum = latencies().map(|latency| latency.max).fold(0.0, f64::max);
    let messages: u64 = latencies().map(|latency| latency.count).sum();
    // The sum of no floats is minus zero.
    let sum = latencies().map(|latency| latency.mean * latency.count as f64).fold(0.0, |sum, of| sum + of);
    writeln!(out, "Maximum latency [ms]: {maximum:.3}")?;
    writeln!(out, "Average latency [ms]: {:.3}", sum / messages.max(1) as f64)
}

/// The seconds from the first to the last in which there is something, without ramp-up and ramp-down.
fn counted(outcome: &Outcome, of: impl Fn(&Second) -> u64) -> &[Second] {
    let seconds = outcome.per_second.as_slice();
    let first = seconds.iter().position(|second| of(second) > 0).unwrap_or(seconds.len());
    let end = seconds.iter().rposition(|second| of(second) > 0).map_or(first, |last| last + 1);
    let first = first.saturating_add(outcome.plan.schedule.ramp_up as usize);
    let end = end.saturating_sub(outcome.plan.schedule.ramp_down as usize);
    seconds.get(first..end).unwrap_or_default()
}

fn write_throughput(
    out: &mut dyn Write,
    what: &str,
    per_second: impl ExactSizeIterator<Item = u64> + Clone,
) -> io::Result<()> {
    let sum: u64 = per_second.clone().sum();
    let average = sum as f64 / per_second.len().max(1) as f64;
    writeln!(out, "Maximum throughput [msg/s]: {}", per_second.clone().max().unwrap_or(0))?;
    writeln!(out, "Average throughput [msg/s]: {average:.3}")?;
    writeln!(out, "Number of {what} messages: {sum}")?;
    let list: Vec<_> = per_second.map(|messages| messages.to_string()).collect();
    writeln!(out, "Per second throughput [msg/s]: {}", list.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::sample;

    fn text(outcome: &Outcome) -> String {
        let mut out = Vec::new();
        write(&mut out, outcome).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_lines_have_mqttloader_s_names_and_its_figures() {
        // The first and the last of four seconds are ramp-up and ramp-down; latencies are 20 and 30 ms on average.
        let expected = "\
Measurement started: 2020-11-04 10:18:38.169 UTC
Measurement ended: 2020-11-04 10:18:42.169 UTC

-----Publisher-----
Maximum throughput [msg/s]: 400
Average throughput [msg/s]: 400.000
Number of published messages: 800
Per second throughput [msg/s]: 400, 400

-----Subscriber-----
Maximum throughput [msg/s]: 407
Average throughput [msg/s]: 398.500
Number of received messages: 797
Per second throughput [msg/s]: 390, 407
Maximum latency [ms]: 200.000
Average latency [ms]: 25.107
";
        assert_eq!(text(&sample::outcome()), expected);
    }

    #[test]
    fn each_side_counts_from_its_own_first_message() {
        let mut outcome = sample::outcome();
        outcome.plan.schedule.ramp_up = 0;
        outcome.plan.schedule.ramp_down = 0;
        let received = [0, 5, 0, 7];
        for (second, received) in outcome.per_second.iter_mut().zip(received) {
            second.received = received;
        }
        let text = text(&outcome);
        assert!(text.contains("Per second throughput [msg/s]: 100, 400, 400, 100\n"), "{text}");
        assert!(text.contains("Per second throughput [msg/s]: 5, 0, 7\nMaximum latency"), "{text}");
        assert!(text.contains("Average throughput [msg/s]: 4.000\nNumber of received messages: 12\n"), "{text}");
    }

    #[test]
    fn a_run_without_messages_has_the_same_lines() {
        for ramp in [0, 1, 100] {
            let mut outcome = Outcome { per_second: Vec::new(), ..sample::outcome() };
            outcome.plan.schedule.ramp_up = ramp;
            let text = text(&outcome);
            assert!(text.contains("Average throughput [msg/s]: 0.000\nNumber of received messages: 0\n"), "{text}");
            assert!(text.contains("Maximum latency [ms]: 0.000\nAverage latency [ms]: 0.000\n"), "{text}");
        }
    }
}
