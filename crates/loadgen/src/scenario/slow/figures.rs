use std::time::Duration;

use hdrhistogram::Histogram;

use super::SlowArgs;
use super::args::SizeLoad;
use super::latency::{Arrival, PhaseLatency, Phases};
use super::receiver::Received;
use super::spooling::{Said, time_until};

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
    pub(crate) lateness_p99_ms: f64,
    pub(crate) lateness_max_ms: f64,
    /// Each message at each normal receiver.
    pub(crate) arrivals: Vec<Arrival>,
    pub(crate) bounds: Phases,
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) lost: u64,
    /// Missing messages that may still have been queued when the run ended.
    pub(crate) still_queued: u64,
    pub(crate) duplicated: u64,
    pub(crate) out_of_order: u64,
}

/// All records of a run.
pub(super) struct Record {
    /// Creation time of each message by the run's clock, by sequence number.
    pub(super) made_ns: Vec<u64>,
    pub(super) slow_from_ns: u64,
    pub(super) normal: Vec<Received>,
    pub(super) slow: Vec<Received>,
    pub(super) said: Vec<Said>,
    pub(super) backlog: u64,
    pub(super) drain: Duration,
    /// Whether messages were still arriving when the run ended.
    pub(super) is_draining: bool,
    pub(super) published: u64,
    pub(super) refused: u64,
    pub(super) unacknowledged: u64,
    pub(super) lateness_ns: Histogram<u64>,
}

impl SlowFigures {
    pub(super) fn of(args: &SlowArgs, size: SizeLoad, record: &Record) -> Self {
        let bounds = Phases::of(args);
        let arrivals: Vec<_> = record.arrivals(size).collect();
        let phases = bounds.figures(&arrivals);
        let calm_after = phases[0].and_then(|before| bounds.calm_after(&arrivals, before.latency.mean));
        let spooled = |receivers| time_until(&record.said, record.slow_from_ns, receivers);
        let ms = |ns: u64| ns as f64 / 1e6;
        Self {
            size,
            phases,
            first_spooled: spooled(1),
            all_spooled: spooled(u64::from(args.slow).max(1)),
            calm_after,
            backlog: record.backlog,
            drain: record.drain,
            counts: Counts {
                published: record.published,
                refused: record.refused,
                unacknowledged: record.unacknowledged,
                normal: Tally::of(&record.normal, false),
                slow: Tally::of(&record.slow, record.is_draining),
            },
            lateness_p99_ms: ms(record.lateness_ns.value_at_quantile(0.99)),
            lateness_max_ms: ms(record.lateness_ns.max()),
            arrivals,
            bounds,
        }
    }
}

impl SlowFigures {
    /// Worst latency since receivers became slow, relative to the worst before.
    pub(crate) fn worst_to_worst(&self) -> Option<f64> {
        self.phases[1..].iter().flatten().map(|phase| phase.worst_to_worst).reduce(f64::max)
    }
}

impl Record {
    fn arrivals(&self, size: SizeLoad) -> impl Iterator<Item = Arrival> {
        self.normal.iter().enumerate().flat_map(move |(receiver, received)| {
            received.arrivals.iter().filter_map(move |&(sequence, received_ns)| {
                let due_ns = (sequence as f64 * size.interval_ns()) as u64;
                let made_ns = self.made_ns.get(sequence as usize)?;
                let latency_ms = received_ns.saturating_sub(*made_ns) as f64 / 1e6;
                Some(Arrival { receiver, sequence, due: Duration::from_nanos(due_ns), latency_ms })
            })
        })
    }
}

impl Tally {
    fn of(received: &[Received], is_draining: bool) -> Self {
        received.iter().fold(Self::default(), |mut tally, received| {
            let totals = received.ledger.totals();
            // Messages after the last one that arrived may still be queued; missing ones before it are lost.
            let last = received.arrivals.iter().map(|(sequence, _)| *sequence).max();
            let waits = |sequence: &u64| is_draining && last.is_none_or(|last| *sequence > last);
            let still_queued = received.ledger.lost().filter(waits).count() as u64;
            tally.still_queued += still_queued;
            tally.lost += totals.lost - still_queued;
            tally.duplicated += totals.duplicated;
            tally.out_of_order += received.out_of_order;
            tally
        })
    }
}
