//! Best possible result on the machine as it was: all messages in one queue, from which idle workers take the next.

use std::num::NonZeroU32;

use tenbin_simulator::scenario::WorkerKind;
use tenbin_simulator::{Arrival, Distribution, Span, central_queue};

use super::record::{Delivery, RunRecord, WorkerRecord};
use crate::run::timeline::Speed;
use crate::statistics::Summary;

/// Latencies in ms that the same workers would have reached for the same messages with one common queue.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub(crate) struct BestPossible {
    /// Each message enters the queue when it was made.
    #[serde(rename = "best_possible_ms")]
    pub(crate) as_made: Option<Summary>,
    /// Each message that arrived enters the queue at its time of arrival, delays of the machine included.
    #[serde(rename = "best_possible_as_received_ms")]
    pub(crate) as_received: Option<Summary>,
}

impl BestPossible {
    pub(crate) fn of(record: &RunRecord) -> Self {
        let made = record.created_ns.iter().zip(0..);
        let made = made.map(|(&created_ns, sequence)| Came { sequence, created_ns, at_ns: created_ns });
        let deliveries = record.workers.iter().flat_map(|worker| &worker.deliveries);
        let first_copies = deliveries.filter(|delivery| delivery.is_first);
        let received = first_copies.map(|&Delivery { sequence, created_ns, received_ns, .. }| {
            // The times are readings of two threads.
            Came { sequence, created_ns, at_ns: received_ns.max(created_ns) }
        });
        Self { as_made: latency(record, made.collect()), as_received: latency(record, received.collect()) }
    }
}

/// A message that enters the queue; times by the run's clock.
#[derive(Debug, Clone, Copy)]
struct Came {
    sequence: u64,
    created_ns: u64,
    at_ns: u64,
}

/// Latencies from creation until a worker takes the message.
fn latency(record: &RunRecord, mut came: Vec<Came>) -> Option<Summary> {
    came.sort_by_key(|came| came.at_ns);
    let workers: Vec<_> = record.workers.iter().map(as_it_was).collect();
    let speed = Speed::of(workers.first()?, record.start_ns, record.seed);
    let arrival = |came: &Came| {
        let at = Span::from_ns(came.at_ns.saturating_sub(record.start_ns));
        Arrival { at, seed: speed.message_seed(came.sequence) }
    };
    let arrivals: Vec<_> = came.iter().map(arrival).collect();
    let taken = central_queue(workers, record.qos.is_acknowledged(), &arrivals);
    let latency_ms = |(came, taken): (&Came, Option<Span>)| {
        Some((record.start_ns + taken?.ns()).saturating_sub(came.created_ns) as f64 / 1e6)
    };
    Summary::of(&came.iter().zip(taken).filter_map(latency_ms).collect::<Vec<_>>())
}

/// The simulator's model of a worker.
///
/// A constant service time is replaced by the measured one, as an external program may take longer than requested.
fn as_it_was(record: &WorkerRecord) -> WorkerKind {
    let kind = WorkerKind { count: NonZeroU32::MIN, ..record.kind.clone() };
    let is_steady = kind.distribution == Distribution::Fixed && kind.steps.is_empty() && kind.pauses.is_empty();
    let taken = || record.deliveries.iter().filter_map(|delivery| delivery.taken);
    let sum_ns: u64 = taken().map(|taken| taken.finished_ns.saturating_sub(taken.taken_ns)).sum();
    let measured_ns = sum_ns.checked_div(taken().count() as u64).filter(|ns| is_steady && *ns > 0);
    WorkerKind { service: measured_ns.map_or(kind.service, Span::from_ns), ..kind }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tenbin_codec::QoS;
    use tenbin_simulator::Scenario;

    use super::super::record::{Taken, Totals};
    use super::super::workers;
    use super::*;

    const MS: u64 = 1_000_000;

    /// Sequence number, times of creation, arrival and taking, and service time, in ms.
    type Row = (u64, u64, u64, u64, u64);

    fn delivery((sequence, created_ms, received_ms, taken_ms, service_ms): Row) -> Delivery {
        let (taken_ns, finished_ns) = (taken_ms * MS, (taken_ms + service_ms) * MS);
        Delivery {
            sequence,
            created_ns: created_ms * MS,
            received_ns: received_ms * MS,
            is_first: true,
            taken: Some(Taken { taken_ns, observed_ns: taken_ns + MS, finished_ns }),
        }
    }

    /// Record of two workers of 10 and 20 ms; the first message was due at 5 ms.
    fn record(created_ms: &[u64], workers: [&[Row]; 2]) -> RunRecord {
        let text = "messages = 1\narrivals = { fixed = \"1s\" }\n[[workers]]\nservice = \"10ms\"\n\
                    [[workers]]\nservice = \"20ms\"";
        let kinds = workers::of(&Scenario::parse("test", text).unwrap(), Duration::from_secs(1), 0);
        let worker = |(kind, deliveries): (_, &[Row])| WorkerRecord {
            deliveries: deliveries.iter().copied().map(delivery).collect(),
            ..WorkerRecord::new(kind)
        };
        RunRecord {
            created_ns: created_ms.iter().map(|ms| ms * MS).collect(),
            lateness_ms: Vec::new(),
            start_ns: 5 * MS,
            duration: Duration::from_secs(1),
            qos: QoS::AtLeastOnce,
            seed: 1,
            workers: kinds.into_iter().zip(workers).map(worker).collect(),
            totals: Totals::default(),
        }
    }

    fn mean_and_max(summary: Option<Summary>) -> (usize, f64, f64) {
        summary.map_or((0, 0.0, 0.0), |summary| (summary.n, summary.mean, summary.max))
    }

    #[test]
    fn a_run_of_four_messages_as_worked_out_by_hand() {
        // All messages go to the fast worker, one after the other; the last is on its way for 9 ms.
        let fast = [(0, 5, 5, 5, 10), (1, 6, 6, 15, 10), (2, 7, 7, 25, 10), (3, 21, 30, 35, 10)];
        let best = BestPossible::of(&record(&[5, 6, 7, 21], [&fast, &[]]));
        // As made: at 5 the fast worker, at 6 the slow one (until 26), at 15 and 25 the fast one.
        assert_eq!(mean_and_max(best.as_made), (4, (8 + 4) as f64 / 4.0, 8.0));
        // As received: the last arrives when both are idle, 9 ms after it was made.
        assert_eq!(mean_and_max(best.as_received), (4, (8 + 9) as f64 / 4.0, 9.0));
    }

    #[test]
    fn lost_message_is_only_in_the_queue_as_made() {
        let best = BestPossible::of(&record(&[5, 5, 5], [&[(0, 5, 6, 6, 10)], &[(2, 5, 7, 7, 20)]]));
        // The third waits for the fast worker, which is free at 15.
        assert_eq!(mean_and_max(best.as_made), (3, 10.0 / 3.0, 10.0));
        assert_eq!(mean_and_max(best.as_received), (2, 1.5, 2.0));
    }

    #[test]
    fn measured_service_time_replaces_the_requested_one() {
        let best = BestPossible::of(&record(&[5, 5, 5], [&[(0, 5, 5, 5, 12), (1, 5, 5, 17, 14)], &[]]));
        assert_eq!(mean_and_max(best.as_made), (3, 13.0 / 3.0, 13.0));
    }
}
