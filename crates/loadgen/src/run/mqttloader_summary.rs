//! MQTTLoader's summary, with the same lines and names.

use std::io::{self, Write};

use super::{Outcome, Second, Throughput};
use crate::utc;

/// Prints the summary. Its figures follow MQTTLoader's rules.
///
/// Each side's seconds count from its own first message to its last. The seconds of ramp-up and ramp-down are left out
/// of all figures, the number of messages included. Latency is from the due time.
pub(crate) fn write(out: &mut dyn Write, outcome: &Outcome) -> io::Result<()> {
    let ended_unix_ms = outcome.started_unix_ms + (outcome.seconds * 1e3) as u64;
    writeln!(out, "Measurement started: {}", utc::date_time(outcome.started_unix_ms))?;
    writeln!(out, "Measurement ended: {}", utc::date_time(ended_unix_ms))?;
    writeln!(out, "\n-----Publisher-----")?;
    write_throughput(out, "published", &outcome.published, &outcome.per_second, |second| second.published)?;
    writeln!(out, "\n-----Subscriber-----")?;
    write_throughput(out, "received", &outcome.received, &outcome.per_second, |second| second.received)?;
    let (maximum, average) = outcome.latency.map_or((0.0, 0.0), |latency| (latency.max, latency.mean));
    writeln!(out, "Maximum latency [ms]: {maximum:.3}")?;
    writeln!(out, "Average latency [ms]: {average:.3}")
}

fn write_throughput(
    out: &mut dyn Write,
    what: &str,
    throughput: &Throughput,
    seconds: &[Second],
    of: fn(&Second) -> u64,
) -> io::Result<()> {
    let counted = seconds.iter().skip(throughput.from_second as usize).take(throughput.seconds as usize).map(of);
    writeln!(out, "Maximum throughput [msg/s]: {}", throughput.maximum_per_second)?;
    writeln!(out, "Average throughput [msg/s]: {:.3}", throughput.average_per_second)?;
    writeln!(out, "Number of {what} messages: {}", counted.clone().sum::<u64>())?;
    let list: Vec<_> = counted.map(|messages| messages.to_string()).collect();
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
        // The first and the last of four seconds are ramp-up and ramp-down.
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
Average latency [ms]: 12.250
";
        assert_eq!(text(&sample::outcome()), expected);
    }

    #[test]
    fn a_run_without_messages_has_the_same_lines() {
        let nothing = Throughput::default();
        let outcome = Outcome { published: nothing, received: nothing, latency: None, ..sample::outcome() };
        let text = text(&outcome);
        assert!(text.contains("Average throughput [msg/s]: 0.000\nNumber of received messages: 0\n"), "{text}");
        assert!(text.contains("Per second throughput [msg/s]: \nMaximum latency [ms]: 0.000\n"), "{text}");
    }
}
