//! Records of a run, made from the recording of the load's engine.

use std::collections::HashMap;
use std::time::Duration;

use roaring::RoaringBitmap;
use tenbin_codec::QoS;
use tenbin_simulator::scenario::WorkerKind;

use super::Plan;
use crate::run::{MessageRecord, Trace};

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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
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
    /// The records of a run of `plan` with these workers; `unknown` messages were not of this run.
    pub(super) fn of(
        plan: &Plan,
        seed: u64,
        kinds: Vec<WorkerKind>,
        arrivals: Vec<MessageRecord>,
        trace: Trace,
        unknown: u64,
    ) -> Self {
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
            unknown,
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

#[cfg(test)]
mod tests {
    use tenbin_simulator::Span;

    use super::*;
    use crate::run::WorkRecord;
    use crate::values::parsed;

    const MS: u64 = 1_000_000;

    /// Start of the run.
    const START_NS: u64 = 1_800_000_000_000_000_000;

    fn at(ms: u64) -> u64 {
        START_NS + ms * MS
    }

    fn arrival(receiver: u32, sequence: u32) -> MessageRecord {
        let sequence_ms = u64::from(sequence);
        MessageRecord { stream: 0, sequence, receiver, due_ns: at(sequence_ms), late_us: 0, received_ns: at(100) }
    }

    fn work(receiver: u32, sequence: u32, finished_ms: u64) -> WorkRecord {
        WorkRecord {
            receiver,
            sequence,
            created_ns: at(sequence.into()),
            received_ns: at(100),
            taken_ns: at(finished_ms - 1),
            observed_ns: at(finished_ms),
            finished_ns: at(finished_ms),
        }
    }

    #[test]
    fn message_is_received_once_it_is_processed_or_left_queued() {
        let plan = Plan::new(&parsed("scenario 1 --interval 1ms").unwrap()).unwrap();
        let kind = WorkerKind::of(Span::from_ms(1.0));
        let kinds = vec![WorkerKind { dies: Some(Span::from_ms(500.0)), ..kind.clone() }, kind];
        // Of 0 to 6: 0 is processed twice, by each; 1 dies with the first worker and is processed by the second; 2 dies
        // with it and 6 never arrives, so that both are lost; 3 arrives twice at the second and is processed once; 4 is
        // left in its queue.
        let arrivals = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 3), (1, 3), (1, 4), (0, 5)];
        let trace = Trace {
            start_ns: START_NS,
            created_ns: (0..7).map(|ms| at(ms) + MS / 4).collect(),
            works: vec![work(1, 0, 210), work(0, 0, 201), work(0, 5, 202), work(1, 1, 211), work(1, 3, 212)],
            reports: vec![(1, START_NS - 10 * MS, Duration::from_millis(3))],
        };
        let record = RunRecord::of(&plan, 1, kinds, arrivals.map(|(to, number)| arrival(to, number)).into(), trace, 8);

        let totals = Totals { published: 7, received: 5, lost: 2, duplicated: 2, unknown: 8 };
        assert_eq!(record.totals, totals);
        let [first, second] = &record.workers[..] else { panic!("two workers") };
        assert_eq!((first.name.as_str(), first.died_with_it, second.died_with_it), ("sub-0", 2, 0));
        let told = |worker: &WorkerRecord| -> Vec<_> {
            worker.deliveries.iter().map(|one| (one.sequence, one.is_first, one.latency_ms())).collect()
        };
        assert_eq!(told(first), [(0, true, Some(200.0)), (5, true, Some(196.0))]);
        let left = [(3, false, None), (4, true, None)];
        let processed = [(0, false, Some(209.0)), (1, true, Some(209.0)), (3, true, Some(208.0))];
        assert_eq!(told(second), [&processed[..], &left].concat());
        // Times count from the first record, which is the report.
        assert_eq!((record.start_ns, &second.reports[..]), (10 * MS, &[(0, Duration::from_millis(3))][..]));
        assert_eq!((record.created_ns[1], record.lateness_ms[1]), (11 * MS + MS / 4, 0.25));
    }
}
