//! One row for each message that arrived.

use std::io::{self, Write};

use crate::ledger::Receipt;
use crate::scenario::{Plan, RunRecord};

/// Columns: times in ns since the run's clock was started. `taken_ns`, which latency is measured to, is when the
/// worker was free for the message; `taken_observed_ns` when its thread had it in hand. Both and the latency are
/// empty for a message that was still in the queue at the end.
const HEADER: &str =
    "sequence,subscriber,created_ns,received_ns,taken_ns,latency_ms,service_ms,duplicate,taken_observed_ns";

pub(super) fn write_messages(out: &mut dyn Write, plan: &Plan, record: &RunRecord) -> io::Result<()> {
    writeln!(out, "{HEADER}")?;
    for (index, deliveries) in record.deliveries.iter().enumerate() {
        let subscriber = Plan::subscriber_name(index);
        let service_ms = plan.services[index].as_secs_f64() * 1e3;
        for delivery in deliveries {
            let stamp = delivery.stamp;
            let duplicate = delivery.receipt == Receipt::Duplicate;
            write!(out, "{},{subscriber},{},{},", stamp.sequence, stamp.created_ns, delivery.received_ns)?;
            match (delivery.taken, delivery.latency_ms()) {
                (Some(taken), Some(latency_ms)) => {
                    let (taken_ns, observed_ns) = (taken.taken_ns, taken.observed_ns);
                    writeln!(out, "{taken_ns},{latency_ms:.6},{service_ms},{duplicate},{observed_ns}")?;
                }
                _ => writeln!(out, ",,{service_ms},{duplicate},")?,
            }
        }
    }
    Ok(())
}
