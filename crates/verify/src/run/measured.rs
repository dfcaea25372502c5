//! Measurements of a finished load, from its records and ledger.

use std::collections::HashSet;
use std::ops::Range;

use tenbin_loadgen::run::{Finished, Ledger, MessageRecord, Outcome};

use crate::judge::measured::{Counts, Measurements, Percentiles};
use crate::judge::recovery::{Second, TICK, Tick};
use crate::units::Time;

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// Measurements of a run, from the end of its warm-up on.
pub(crate) struct Measured {
    origin_ns: u64,
    ledger: Option<Ledger>,
    /// Due time and latency of each arrival, by due time.
    arrivals: Vec<(Time, Time)>,
    /// Due time and time to acknowledgement of each acknowledged message, by due time.
    acknowledged: Vec<(Time, Time)>,
    seconds: Vec<Second>,
    details: Vec<Details>,
    ticks: Vec<Tick>,
}

/// Figures of a second that only pages and files show, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Details {
    pub(crate) p50: Option<f64>,
    pub(crate) p90: Option<f64>,
    pub(crate) p999: Option<f64>,
    pub(crate) max: Option<f64>,
    pub(crate) ack_p50: Option<f64>,
    pub(crate) ack_p99: Option<f64>,
    pub(crate) lost: u64,
    pub(crate) connections_lost: u64,
}

impl Measured {
    /// Measurements of `finished`, whose warm-up ended at `origin_ns`: a whole number of seconds after `start_ns`, the
    /// start of the load.
    pub(crate) fn of(finished: Finished, start_ns: u64, origin_ns: u64) -> Self {
        let Finished { outcome, ledger, arrivals, departures } = finished;
        let after = |ns: u64| ns.checked_sub(origin_ns).map(Time::from_ns);
        let first = first_copies(&arrivals);
        let latency = |record: &MessageRecord| {
            let due = after(record.due_ns)?;
            Some((due, Time::from_ns(record.received_ns.saturating_sub(record.due_ns))))
        };
        let mut latencies: Vec<_> = first.iter().filter_map(|record| latency(record)).collect();
        latencies.sort_unstable();
        let mut acknowledged = Vec::new();
        let mut ticks: Vec<Tick> = Vec::new();
        for record in &departures {
            if let Some(at) = after(record.published_ns) {
                tick(&mut ticks, at).answered += 1;
            }
            let due = ledger.as_ref().and_then(|ledger| ledger.due_ns(record.stream, record.sequence));
            if let Some(due) = due.and_then(after) {
                let took = record.published_ns.saturating_sub(origin_ns + due.ns());
                acknowledged.push((due, Time::from_ns(took)));
            }
        }
        acknowledged.sort_unstable();
        let skipped = (origin_ns.saturating_sub(start_ns) / SECOND) as usize;
        let mut measured = Self {
            origin_ns,
            ledger,
            arrivals: latencies,
            acknowledged,
            seconds: Vec::new(),
            details: Vec::new(),
            ticks,
        };
        measured.add_seconds(&outcome, skipped);
        measured.add_backlog(&first);
        measured.add_due(&outcome);
        measured
    }

    /// Figures of each second beside [`Measurements::seconds`].
    pub(crate) fn details(&self) -> &[Details] {
        &self.details
    }

    fn add_seconds(&mut self, outcome: &Outcome, skipped: usize) {
        let payload = u64::from(outcome.plan.publishers.payload);
        for (index, second) in outcome.per_second.iter().skip(skipped).enumerate() {
            let window = Time::from_secs(index as u64)..Time::from_secs(index as u64 + 1);
            let ledger = self.ledger.as_ref().map(|ledger| ledger.window(self.unix(&window)));
            // Without a ledger, payloads are too small to tell messages apart; sent ones are then the published ones.
            let sent = ledger.map_or(second.published, |counts| counts.published);
            let ms = |ms: f64| Time::from_ns((ms * 1e6) as u64);
            self.seconds.push(Second {
                sent,
                sent_bytes: sent * payload,
                published: second.published,
                published_bytes: second.published_bytes,
                received: second.received,
                received_bytes: second.received_bytes,
                refused: second.refused,
                reconnects: second.reconnects,
                backlog: 0,
                p99: second.latency.map(|latency| ms(latency.p99)),
            });
            self.details.push(Details {
                p50: second.latency.map(|latency| latency.p50),
                p90: second.latency.map(|latency| latency.p90),
                p999: second.latency.map(|latency| latency.p999),
                max: second.latency.map(|latency| latency.max),
                ack_p50: second.acknowledgement.map(|time| time.p50),
                ack_p99: second.acknowledgement.map(|time| time.p99),
                lost: ledger.map_or(0, |counts| counts.lost),
                connections_lost: second.connections_lost,
            });
        }
    }

    /// Counts, for the end of each second, arrivals that were due before and came later. Lost messages are no backlog:
    /// else no system would ever recover from a loss.
    fn add_backlog(&mut self, arrivals: &[&MessageRecord]) {
        let mut changes = vec![0_i64; self.seconds.len() + 1];
        let second = |ns: u64| (ns.saturating_sub(self.origin_ns) / SECOND) as usize;
        for record in arrivals.iter().filter(|record| record.received_ns >= self.origin_ns) {
            let last = changes.len() - 1;
            changes[second(record.due_ns).min(last)] += 1;
            changes[second(record.received_ns).min(last)] -= 1;
        }
        let mut backlog = 0;
        for (second, change) in self.seconds.iter_mut().zip(changes) {
            backlog += change;
            second.backlog = u64::try_from(backlog).unwrap_or_default();
        }
    }

    /// Counts the messages that became due in each tick. Without an exact ledger nothing is known to be due.
    fn add_due(&mut self, outcome: &Outcome) {
        let Some(ledger) = &self.ledger else { return };
        let end = Time::from_secs(self.seconds.len() as u64);
        if outcome.plan.publishers.pace.is_scheduled() {
            for publisher in 0..outcome.plan.publishers.count {
                let Some(mut times) = tenbin_loadgen::run::DueTimes::of(&outcome.plan, publisher) else { continue };
                times.start(ledger.start_ns());
                let mut number = times.due_by(self.origin_ns.saturating_sub(1));
                // Publishing ends with the last sent message; later due times are no one's wait.
                while let Some(at) = times.due_ns(number).checked_sub(self.origin_ns).map(Time::from_ns)
                    && at < end
                    && ledger.due_ns(publisher, number as u32).is_some()
                {
                    tick(&mut self.ticks, at).due += 1;
                    number += 1;
                }
            }
            return;
        }
        // At full speed a message is due when it is sent.
        for index in 0..(end.ns() / TICK.ns()) {
            let window = Time::from_ns(index * TICK.ns())..Time::from_ns((index + 1) * TICK.ns());
            tick(&mut self.ticks, window.start).due += ledger.window(self.unix(&window)).published as u32;
        }
    }

    fn unix(&self, window: &Range<Time>) -> Range<u64> {
        self.origin_ns + window.start.ns()..self.origin_ns + window.end.ns()
    }
}

/// Arrivals of this run's messages, without further copies.
fn first_copies(arrivals: &[MessageRecord]) -> Vec<&MessageRecord> {
    let mut seen = HashSet::new();
    let own = arrivals.iter().filter(|record| record.stream != u32::MAX);
    own.filter(|record| seen.insert((record.stream, record.sequence, record.receiver))).collect()
}

fn tick(ticks: &mut Vec<Tick>, at: Time) -> &mut Tick {
    let index = (at.ns() / TICK.ns()) as usize;
    if ticks.len() <= index {
        ticks.resize(index + 1, Tick::default());
    }
    &mut ticks[index]
}

/// Values of messages that were due in `times`, from a list by due time.
fn percentiles(list: &[(Time, Time)], times: &[Range<Time>]) -> Option<Percentiles> {
    let mut values = Vec::new();
    for window in times {
        let from = list.partition_point(|(due, _)| *due < window.start);
        let to = list.partition_point(|(due, _)| *due < window.end);
        values.extend(list[from..to.max(from)].iter().map(|(_, value)| *value));
    }
    values.sort_unstable();
    let max = *values.last()?;
    let at = |share: f64| values[((values.len() as f64 * share).ceil() as usize).clamp(1, values.len()) - 1];
    Some(Percentiles { p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999), max })
}

impl Measurements for Measured {
    fn counts(&self, window: Range<Time>) -> Option<Counts> {
        let counts = self.ledger.as_ref()?.window(self.unix(&window));
        Some(Counts {
            lost: counts.lost,
            duplicated: counts.duplicated,
            out_of_order: counts.out_of_order,
            unconfirmed: counts.unconfirmed,
            refused: counts.refused,
        })
    }

    fn latency(&self, times: &[Range<Time>]) -> Option<Percentiles> {
        percentiles(&self.arrivals, times)
    }

    fn acknowledgement(&self, times: &[Range<Time>]) -> Option<Percentiles> {
        percentiles(&self.acknowledged, times)
    }

    fn seconds(&self) -> &[Second] {
        &self.seconds
    }

    fn ticks(&self) -> &[Tick] {
        &self.ticks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_messages_due_in_the_window() {
        let list: Vec<_> = (0..1000).map(|ms| (Time::from_ns(ms), Time::from_ns(ms))).collect();
        let ns = |from, to| Time::from_ns(from)..Time::from_ns(to);
        let all = percentiles(&list, &[ns(0, 1000)]).unwrap();
        assert_eq!((all.p50.ns(), all.p99.ns(), all.p999.ns(), all.max.ns()), (499, 989, 998, 999));
        let two = percentiles(&list, &[ns(0, 10), ns(990, 1000)]).unwrap();
        assert_eq!((two.p50.ns(), two.max.ns()), (9, 999));
        assert_eq!(percentiles(&list, &[ns(5, 5), ns(2000, 3000)]), None);
    }
}
