use std::time::Duration;

use roaring::RoaringBitmap;

use super::SlowArgs;
use super::args::SizeLoad;
use super::latency::{Arrival, PhaseLatency, Phases};
use super::run::{NORMAL, SLOW};
use super::spooling::{Said, time_until};
use crate::run::{Execution, Verdict};
use crate::statistics::Summary;

/// Figures of a run with one message size.
#[derive(Debug, Clone)]
pub(crate) struct SlowFigures {
    pub(crate) size: SizeLoad,
    /// Latency of the normal receivers, in the order of [`PHASES`](super::PHASES).
    pub(crate) phases: [Option<PhaseLatency>; 3],
    /// Time until the broker reported that it spools for one slow receiver, and for all of them.
    pub(crate) first_spooled: Option<Duration>,
    pub(crate) all_spooled: Option<Duration>,
    /// Time until the normal receivers' latency was as before.
    pub(crate) calm_after: Option<Duration>,
    /// Messages that the slow receivers had not received when publishing ended, and the time they then needed for them.
    pub(crate) backlog: u64,
    pub(crate) drain: Duration,
    pub(crate) counts: Counts,
    /// Switches of slow receivers between the nodes of a pair; `None` with one broker.
    pub(crate) switches: Option<Switches>,
    pub(crate) lateness_p99_ms: f64,
    pub(crate) lateness_max_ms: f64,
    /// Each message at each normal receiver.
    pub(crate) arrivals: Vec<Arrival>,
    pub(crate) bounds: Phases,
}

/// Switches between nodes: from the end of the old connection to CONNACK with Session Present.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub(crate) struct Switches {
    pub(crate) count: u64,
    pub(crate) p50_ms: f64,
    pub(crate) max_ms: f64,
    /// Connections that ended without the name of another server.
    pub(crate) lost: u64,
    /// Switches back to the leader, and the time of the last one since slow receivers read everything again. `None`: a
    /// receiver has stayed at the follower.
    pub(crate) back: u64,
    pub(crate) all_back_s: Option<f64>,
}

/// Message counts of publisher and receivers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Messages given to the broker, and of these the refused ones and the unanswered ones.
    pub(crate) published: u64,
    pub(crate) refused: u64,
    pub(crate) unacknowledged: u64,
    pub(crate) normal: Tally,
    pub(crate) slow: Tally,
}

/// Counts of all receivers of a kind; each message counts for each of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Tally {
    pub(crate) lost: u64,
    /// Missing messages that may still have been queued when the run ended.
    pub(crate) still_queued: u64,
    pub(crate) duplicated: u64,
    pub(crate) out_of_order: u64,
}

impl SlowFigures {
    pub(super) fn of(args: &SlowArgs, size: SizeLoad, finished: &Execution, said: &[Said]) -> Self {
        let (outcome, start_ns) = (&finished.outcome, finished.trace.start_ns);
        let created_ns = &finished.trace.created_ns;
        let due_ns = |sequence: usize| (sequence as f64 * size.interval_ns()) as u64;
        let late_ms = |(sequence, ns): (usize, &u64)| ns.saturating_sub(start_ns + due_ns(sequence)) as f64 / 1e6;
        let lateness = Summary::of(&created_ns.iter().enumerate().map(late_ms).collect::<Vec<_>>());

        // When slow receivers read everything again. Without a pair publishing ends then.
        let fast_ns = if args.pair { start_ns + args.slow_until().as_nanos() as u64 } else { u64::MAX };
        let published_ns = created_ns.last().copied().unwrap_or(start_ns).min(fast_ns);
        let published_by_then = created_ns.partition_point(|ns| *ns <= fast_ns) as u64;
        let normal = usize::from(args.normal);
        let (mut arrivals, mut receivers) = (Vec::new(), vec![RoaringBitmap::new(); normal + usize::from(args.slow)]);
        let (mut slow_in_time, mut drained_ns) = (0, published_ns);
        for record in &finished.arrivals {
            let receiver = record.receiver as usize;
            if !receivers[receiver].insert(record.sequence) {
                continue;
            }
            if receiver >= normal {
                slow_in_time += u64::from(record.received_ns <= published_ns);
                if u64::from(record.sequence) < published_by_then {
                    drained_ns = drained_ns.max(record.received_ns);
                }
                continue;
            }
            arrivals.push(Arrival {
                receiver,
                sequence: record.sequence.into(),
                due: Duration::from_nanos(due_ns(record.sequence as usize)),
                latency_ms: record.received_ns.saturating_sub(record.due_ns) as f64 / 1e6,
            });
        }

        let messages = created_ns.len() as u64;
        let tally = |name: &str, receivers: &[RoaringBitmap], is_draining| {
            let verdict = outcome.audiences.iter().find(|audience| audience.name == name).map(|one| one.verdict);
            Tally::of(verdict.unwrap_or_default(), receivers, messages, is_draining)
        };
        let counts = Counts {
            published: messages,
            refused: outcome.not_taken,
            unacknowledged: outcome.unacknowledged,
            normal: tally(NORMAL, &receivers[..normal], false),
            slow: tally(SLOW, &receivers[normal..], finished.has_given_up),
        };
        let bounds = Phases::of(args);
        let phases = bounds.figures(&arrivals);
        let spooled = |receivers| time_until(said, start_ns + args.before.as_nanos() as u64, receivers);
        Self {
            size,
            phases,
            first_spooled: spooled(1),
            all_spooled: spooled(u64::from(args.slow).max(1)),
            calm_after: phases[0].and_then(|before| bounds.calm_after(&arrivals, before.latency.mean)),
            backlog: (published_by_then * u64::from(args.slow)).saturating_sub(slow_in_time),
            drain: Duration::from_nanos(drained_ns - published_ns),
            counts,
            switches: args.pair.then_some(Switches {
                count: outcome.connections.switches,
                p50_ms: outcome.connections.switch_p50_ms,
                max_ms: outcome.connections.switch_max_ms,
                lost: outcome.connections.lost,
                back: outcome.connections.switches_back,
                all_back_s: (outcome.connections.switches == 2 * outcome.connections.switches_back)
                    .then(|| outcome.connections.switched_back_at_ns.saturating_sub(fast_ns) as f64 / 1e9),
            }),
            lateness_p99_ms: lateness.map_or(0.0, |lateness| lateness.p99),
            lateness_max_ms: lateness.map_or(0.0, |lateness| lateness.max),
            arrivals,
            bounds,
        }
    }

    /// Worst latency since receivers became slow, relative to the worst before.
    pub(crate) fn worst_to_worst(&self) -> Option<f64> {
        self.phases[1..].iter().flatten().map(|phase| phase.worst_to_worst).reduce(f64::max)
    }
}

impl Tally {
    /// Counts of receivers at which these of `messages` messages came; `is_draining` if others were still arriving.
    fn of(verdict: Verdict, receivers: &[RoaringBitmap], messages: u64, is_draining: bool) -> Self {
        let missing = receivers.iter().map(|came| messages.saturating_sub(came.len())).sum::<u64>();
        // Messages after the last one that arrived may still be queued; missing ones before it are lost.
        let after_last = |came: &RoaringBitmap| came.max().map_or(messages, |last| messages - 1 - u64::from(last));
        let still_queued = if is_draining { receivers.iter().map(after_last).sum() } else { 0 };
        let Verdict { duplicated, out_of_order, .. } = verdict;
        Self { lost: missing - still_queued, still_queued, duplicated, out_of_order }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_after_the_last_arrival_may_still_be_queued() {
        let receivers = [&[0, 1, 3][..], &[], &[0, 1, 2, 3, 4, 5]].map(|came| came.iter().copied().collect());
        let verdict = Verdict { duplicated: 2, out_of_order: 1, ..Verdict::default() };
        let tally = |is_draining| Tally::of(verdict, &receivers, 6, is_draining);
        assert_eq!(tally(true), Tally { lost: 1, still_queued: 2 + 6, duplicated: 2, out_of_order: 1 });
        assert_eq!((tally(false).lost, tally(false).still_queued), (9, 0));
    }
}
