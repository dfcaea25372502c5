//! `messages.csv`: one row for each arrival.

use std::collections::HashMap;
use std::io::{self, Write};

use crate::report::files::csv_field;
use crate::run::{MessageRecord, Outcome};

/// Columns: stream with its publisher and topic, number in the stream, receiver, and times.
///
/// Times are in nanoseconds since 1970-01-01 UTC by the controller's clock. Latency is from `due_ns` to `received_ns`.
/// The first four columns are empty if payloads are too small for sequence numbers.
const HEADER: &str = "stream,sequence,publisher,topic,receiver,due_ns,sent_ns,received_ns,latency_ms";

pub(super) fn write_messages(out: &mut dyn Write, outcome: &Outcome, records: &[MessageRecord]) -> io::Result<()> {
    writeln!(out, "{HEADER}")?;
    let topics = outcome.plan.publishers.topics.max(1);
    // A Client Identifier may contain a comma.
    let names: HashMap<usize, String> =
        receiver_numbers(outcome).into_iter().map(|(name, number)| (number, csv_field(&name))).collect();
    for record in records {
        let MessageRecord { stream, sequence, receiver, due_ns, late_us, received_ns } = *record;
        match stream {
            // The payload was too short for it.
            u32::MAX => write!(out, ",,,,")?,
            _ => write!(out, "{stream},{sequence},{},{},", stream / topics, stream % topics)?,
        }
        match names.get(&(receiver as usize)) {
            Some(name) => out.write_all(name.as_bytes())?,
            None => write!(out, "{receiver}")?,
        }
        let sent_ns = due_ns.saturating_add(u64::from(late_us) * 1000);
        writeln!(out, ",{due_ns},{sent_ns},{received_ns},{:.6}", latency_ms(record))?;
    }
    Ok(())
}

/// Receiver numbers by Client Identifier, which ends with the number.
pub(super) fn receiver_numbers(outcome: &Outcome) -> HashMap<String, usize> {
    let prefix = format!("{}-sub-", outcome.plan.connection.client_id_prefix);
    let subscribers = outcome.audiences.iter().flat_map(|audience| &audience.subscribers);
    let number = |name: &str| name.strip_prefix(&prefix)?.parse().ok();
    subscribers.filter_map(|one| Some((one.name.clone(), number(&one.name)?))).collect()
}

/// Latency from due time to arrival. It is negative if the clocks of two machines differ by more than that.
pub(super) fn latency_ms(record: &MessageRecord) -> f64 {
    (i128::from(record.received_ns) - i128::from(record.due_ns)) as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn each_arrival_is_a_row_with_names_and_times() {
        let (mut outcome, records) = sample::stalled_run();
        let rows = |outcome: &Outcome| {
            let mut out = Vec::new();
            write_messages(&mut out, outcome, &records).unwrap();
            String::from_utf8(out).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let first = &records[0];
        let expected = format!(
            "{},{},{},0,{}-sub-{},{},{},{},{:.6}",
            first.stream,
            first.sequence,
            first.stream,
            outcome.plan.connection.client_id_prefix,
            first.receiver,
            first.due_ns,
            first.due_ns + u64::from(first.late_us) * 1000,
            first.received_ns,
            (first.received_ns - first.due_ns) as f64 / 1e6
        );
        let all = rows(&outcome);
        assert_eq!((all.len(), all[1].as_str()), (records.len() + 1, expected.as_str()));
        assert!(all.iter().all(|row| row.split(',').count() == HEADER.split(',').count()));

        let unknown = MessageRecord { stream: u32::MAX, sequence: u32::MAX, ..records[0] };
        let mut out = Vec::new();
        write_messages(&mut out, &outcome, &[unknown]).unwrap();
        assert!(String::from_utf8(out).unwrap().contains("\n,,,,sample-sub-"));

        // A Client Identifier with a comma and quotes stays one field.
        outcome.plan.connection.client_id_prefix = "a,\"b\"".to_owned();
        for (number, one) in outcome.audiences[0].subscribers.iter_mut().enumerate() {
            one.name = format!("a,\"b\"-sub-{number}");
        }
        let row = &rows(&outcome)[1];
        assert!(row.contains(&format!(",\"a,\"\"b\"\"-sub-{}\",", first.receiver)), "{row}");
    }
}
