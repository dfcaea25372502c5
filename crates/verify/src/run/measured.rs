//! Measurements of a finished load, from its ledger and ticks.

use std::ops::Range;

use tenbin_loadgen::run::{Finished, Latency, Ledger, LedgerCounts, Outcome, Ticks};

use crate::judge::measured::{Measurements, Percentiles};
use crate::judge::recovery::{Second, TICK, Tick};
use crate::results::Details;
use crate::units::Time;

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// Measurements of a run, from the end of its warm-up on.
pub(crate) struct Measured {
    origin_ns: u64,
    ledger: Option<Ledger>,
    times: Ticks,
    seconds: Vec<Second>,
    details: Vec<Details>,
    ticks: Vec<Tick>,
}

impl Measured {
    /// Measurements of `finished`, whose warm-up ended at `origin_ns`: a whole number of seconds after `start_ns`, the
    /// start of the load. `has_losses` tells whether all clients count their losses of connections.
    pub(crate) fn of(finished: Finished, start_ns: u64, origin_ns: u64, has_losses: bool) -> Self {
        let Finished { outcome, ledger, ticks: times } = finished;
        let skipped = (origin_ns.saturating_sub(start_ns) / SECOND) as usize;
        let mut measured =
            Self { origin_ns, ledger, times, seconds: Vec::new(), details: Vec::new(), ticks: Vec::new() };
        measured.add_seconds(&outcome, skipped, has_losses);
        measured.add_backlog();
        measured.add_ticks();
        measured
    }

    /// Figures of each second beside [`Measurements::seconds`].
    pub(crate) fn details(&self) -> &[Details] {
        &self.details
    }

    fn add_seconds(&mut self, outcome: &Outcome, skipped: usize, has_losses: bool) {
        let payload = u64::from(outcome.plan.publishers.payload);
        for (index, second) in outcome.per_second.iter().skip(skipped).enumerate() {
            let window = Time::from_secs(index as u64)..Time::from_secs(index as u64 + 1);
            let ledger = self.ledger.as_ref().map(|ledger| ledger.window(self.unix(&window)));
            // Without a ledger, payloads are too small to tell messages apart; sent ones are then the published ones.
            let sent = ledger.map_or(second.published, |counts| counts.published);
            self.seconds.push(Second {
                sent,
                sent_bytes: sent * payload,
                published: second.published,
                published_bytes: second.published_bytes,
                received: second.received,
                received_bytes: second.received_bytes,
                refused: second.refused,
                reconnects: has_losses.then_some(second.reconnects),
                backlog: 0,
                p99: second.latency.map(|latency| time(latency.p99)),
            });
            self.details.push(Details {
                p50: second.latency.map(|latency| latency.p50),
                p90: second.latency.map(|latency| latency.p90),
                p999: second.latency.map(|latency| latency.p999),
                max: second.latency.map(|latency| latency.max),
                ack_p50: second.acknowledgement.map(|time| time.p50),
                ack_p99: second.acknowledgement.map(|time| time.p99),
                lost: ledger.map_or(0, |counts| counts.lost),
                connections_lost: has_losses.then_some(second.connections_lost),
            });
        }
    }

    /// Counts, for the end of each second, arrivals that were due before and came later. Lost messages are no backlog:
    /// else no system would ever recover from a loss.
    fn add_backlog(&mut self) {
        let mut arrived = self.times.arrived().peekable();
        let came_of =
            |due: Range<u64>| self.times.latency(std::slice::from_ref(&due)).map_or(0, |latency| latency.count);
        let (mut begin, mut backlog) = (0, 0);
        for (number, second) in (1..).zip(&mut self.seconds) {
            let end = self.origin_ns + number * SECOND;
            backlog += came_of(std::mem::replace(&mut begin, end)..end);
            while let Some((_, count)) = arrived.next_if(|(at, _)| *at < end) {
                backlog = backlog.saturating_sub(count.into());
            }
            second.backlog = backlog;
        }
    }

    /// Counts the messages that became due, and the answers, in each tick. Without an exact ledger nothing is known to
    /// be due.
    fn add_ticks(&mut self) {
        let end = Time::from_secs(self.seconds.len() as u64);
        self.ticks = vec![Tick::default(); (end.ns() / TICK.ns()) as usize];
        for (at, answered) in self.times.answered() {
            let tick = at.checked_sub(self.origin_ns).map(|ns| (ns / TICK.ns()) as usize);
            if let Some(tick) = tick.and_then(|tick| self.ticks.get_mut(tick)) {
                tick.answered += answered;
            }
        }
        let Some(ledger) = &self.ledger else { return };
        for (number, tick) in (0..).zip(&mut self.ticks) {
            let begin = self.origin_ns + number * TICK.ns();
            tick.due = u32::try_from(ledger.published(begin..begin + TICK.ns())).unwrap_or(u32::MAX);
        }
    }

    fn unix(&self, window: &Range<Time>) -> Range<u64> {
        self.origin_ns + window.start.ns()..self.origin_ns + window.end.ns()
    }

    fn all_unix(&self, windows: &[Range<Time>]) -> Vec<Range<u64>> {
        windows.iter().map(|window| self.unix(window)).collect()
    }
}

fn percentiles(latency: Latency) -> Percentiles {
    let Latency { p50, p90, p99, p999, max, .. } = latency;
    let [p50, p90, p99, p999, max] = [p50, p90, p99, p999, max].map(time);
    Percentiles { p50, p90, p99, p999, max }
}

fn time(ms: f64) -> Time {
    Time::from_ns((ms * 1e6).round() as u64)
}

impl Measurements for Measured {
    fn counts(&self, window: Range<Time>) -> Option<LedgerCounts> {
        Some(self.ledger.as_ref()?.window(self.unix(&window)))
    }

    fn latency(&self, times: &[Range<Time>]) -> Option<Percentiles> {
        self.times.latency(&self.all_unix(times)).map(percentiles)
    }

    fn acknowledgement(&self, times: &[Range<Time>]) -> Option<Percentiles> {
        self.times.acknowledgement(&self.all_unix(times)).map(percentiles)
    }

    fn seconds(&self) -> &[Second] {
        &self.seconds
    }

    fn ticks(&self) -> &[Tick] {
        &self.ticks
    }
}
