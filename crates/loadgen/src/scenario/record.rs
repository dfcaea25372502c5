//! Records of a run, from what the load's engine has recorded.

use std::collections::HashMap;
use std::time::Duration;

use roaring::RoaringBitmap;
use tenbin_codec::QoS;
use tenbin_simulator::scenario::WorkerKind;

use super::Plan;
use crate::run::Execution;

/// All records of a run. Times are in nanoseconds since its first record.
#[derive(Debug)]
pub(crate) struct RunRecord {
    /// Creation time of each message, by sequence number.
    pub(crate) created_ns: Vec<u64>,
    /// Time from due to creation of each message, in ms.
    pub(crate) lateness_ms: Vec<f64>,
    /// Due time of the first message.
    pub(crate) start_ns: u64,
    /// Planned time of publishing.
    pub(crate) duration: Duration,
    pub(crate) qos: QoS,
    /// Seed of the run's random numbers.
    pub(crate) seed: u64,
    /// Each worker's record, in the order of joining.
    pub(crate) workers: Vec<WorkerRecord>,
    pub(crate) totals: Totals,
}

/// Record of a worker, in the order of finishing.
#[derive(Debug)]
pub(crate) struct WorkerRecord {
    /// `sub-0`, `sub-1`, … in the order of joining.
    pub(crate) name: String,
    pub(crate) kind: WorkerKind,
    pub(crate) deliveries: Vec<Delivery>,
    /// Messages that it had, and had not finished, when it died.
    pub(crate) died_with_it: u64,
    /// Time of each load report, and its mean processing time.
    pub(crate) reports: Vec<(u64, Duration)>,
}

/// Record of an arrival.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delivery {
    pub(crate) sequence: u64,
    pub(crate) created_ns: u64,
    pub(crate) received_ns: u64,
    /// Whether it is the first copy of its message.
    pub(crate) is_first: bool,
    /// `None` if the message was still queued when the run ended.
    pub(crate) taken: Option<Taken>,
}

/// Processing times of a message that its worker took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    /// Time by the timeline, up to which latency is measured.
    pub(crate) taken_ns: u64,
    /// When the worker's thread took the message; later than `taken_ns` by the timer's delay.
    pub(crate) observed_ns: u64,
    pub(crate) finished_ns: u64,
}

/// Message counts of a run.
///
/// A message counts as received once it is processed. If it dies with a worker and is not sent again, it is lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Messages that were published.
    pub(crate) published: u64,
    /// Published messages that arrived, each counted once.
    pub(crate) received: u64,
    /// Published messages that never arrived.
    pub(crate) lost: u64,
    /// Further copies of messages that had arrived already.
    pub(crate) duplicated: u64,
    /// Arrivals of messages that were never published.
    pub(crate) unknown: u64,
}

impl RunRecord {
    /// The records of a run of `plan` with these workers.
    pub(super) fn of(plan: &Plan, seed: u64, kinds: Vec<WorkerKind>, finished: Execution) -> Self {
        let Execution { outcome, arrivals, trace, .. } = finished;
        let reported = trace.reports.iter().map(|(_, at_ns, _)| *at_ns);
        let origin_ns = reported.fold(trace.start_ns, u64::min);
        let since = |ns: u64| ns.saturating_sub(origin_ns);
        let worker = |(number, kind)| WorkerRecord { name: format!("sub-{number}"), ..WorkerRecord::new(kind) };
        let mut workers: Vec<_> = kinds.into_iter().enumerate().map(worker).collect();
        for (receiver, at_ns, mean) in trace.reports {
            workers[receiver as usize].reports.push((since(at_ns), mean));
        }

        let (mut came, mut deliveries) = (RoaringBitmap::new(), 0);
        let mut add = |worker: &mut WorkerRecord, sequence: u32, delivery: Delivery| {
            deliveries += 1;
            worker.deliveries.push(Delivery { is_first: came.insert(sequence), ..delivery });
        };
        let mut works = trace.works;
        works.sort_by_key(|work| work.finished_ns);
        let mut finished: HashMap<(u32, u32), u32> = HashMap::new();
        for work in works {
            *finished.entry((work.receiver, work.sequence)).or_default() += 1;
            let taken_ns = since(work.taken_ns);
            let taken = Taken { taken_ns, observed_ns: since(work.observed_ns), finished_ns: since(work.finished_ns) };
            let delivery = Delivery {
                sequence: work.sequence.into(),
                created_ns: since(work.created_ns),
                received_ns: since(work.received_ns),
                is_first: true,
                taken: Some(taken),
            };
            add(&mut workers[work.receiver as usize], work.sequence, delivery);
        }
        for arrival in arrivals {
            let worker = &mut workers[arrival.receiver as usize];
            match finished.get_mut(&(arrival.receiver, arrival.sequence)).filter(|count| **count > 0) {
                Some(count) => *count -= 1,
                None if worker.kind.dies.is_some() => worker.died_with_it += 1,
                None => {
                    let delivery = Delivery {
                        sequence: arrival.sequence.into(),
                        created_ns: since(arrival.due_ns),
                        received_ns: since(arrival.received_ns),
                        is_first: true,
                        taken: None,
                    };
                    add(worker, arrival.sequence, delivery);
                }
            }
        }

        let (published, received) = (trace.created_ns.len() as u64, came.len());
        let totals = Totals {
            published,
            received,
            lost: published.saturating_sub(received),
            duplicated: deliveries - received,
            unknown: outcome.verdict.foreign + outcome.verdict.wrong,
        };
        let messages = plan.scenario.messages.get();
        let due_ns = plan.due_ns(messages, seed);
        let late_ms = |(created, due): (&u64, &u64)| created.saturating_sub(trace.start_ns + due) as f64 / 1e6;
        Self {
            lateness_ms: trace.created_ns.iter().zip(&due_ns).map(late_ms).collect(),
            created_ns: trace.created_ns.into_iter().map(since).collect(),
            start_ns: since(trace.start_ns),
            duration: plan.publishing_time(messages, seed),
            qos: plan.qos,
            seed,
            workers,
            totals,
        }
    }
}

impl WorkerRecord {
    /// An empty record of a worker without a name.
    pub(crate) fn new(kind: WorkerKind) -> Self {
        Self { name: String::new(), kind, deliveries: Vec::new(), died_with_it: 0, reports: Vec::new() }
    }
}

impl Delivery {
    /// Time from creation until taken; `None` if the message was never taken.
    pub(crate) fn latency_ms(&self) -> Option<f64> {
        Some(self.taken?.taken_ns.saturating_sub(self.created_ns) as f64 / 1e6)
    }
}
