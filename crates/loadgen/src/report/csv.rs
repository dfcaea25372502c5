//! CSV file with one row for each message that arrived.

use std::io::{self, Write};

use crate::scenario::RunRecord;

/// Columns: times in ns since the run's first record.
///
/// - `taken_ns`: when the worker was free for the message; latency is measured to it.
/// - `taken_observed_ns`: when the worker's thread took the message.
/// - `service_ms`: processing time.
///
/// These and the latency are empty if the message was still queued at the end.
const HEADER: &str =
    "sequence,subscriber,created_ns,received_ns,taken_ns,latency_ms,service_ms,duplicate,taken_observed_ns";

pub(super) fn write_messages(out: &mut dyn Write, record: &RunRecord) -> io::Result<()> {
    writeln!(out, "{HEADER}")?;
    for worker in &record.workers {
        for delivery in &worker.deliveries {
            let duplicate = !delivery.is_first;
            write!(out, "{},{},{},{},", delivery.sequence, worker.name, delivery.created_ns, delivery.received_ns)?;
            match (delivery.taken, delivery.latency_ms()) {
                (Some(taken), Some(latency_ms)) => {
                    let service_ms = (taken.finished_ns - taken.taken_ns) as f64 / 1e6;
                    let (taken_ns, observed_ns) = (taken.taken_ns, taken.observed_ns);
                    writeln!(out, "{taken_ns},{latency_ms:.6},{service_ms},{duplicate},{observed_ns}")?;
                }
                _ => writeln!(out, ",,,{duplicate},")?,
            }
        }
    }
    Ok(())
}
