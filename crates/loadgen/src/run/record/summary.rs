//! Computes the figures of a report from the recorders' counts.

use std::ops::Range;

use rustc_hash::FxHashMap;

use super::latencies::{curve, latency};
use super::layout::{Layout, Unit};
use super::part::Part;
use super::recorder::DIGITS;
use super::tally::{ConnectionCounts, PackedReceiver, SecondTally};
use super::verdict::verdicts;
use crate::run::{
    AudienceOutcome, Connections, Doors, Outcome, Plan, Second, Stamp, SubscriberOutcome, Throughput, Verdict,
};

impl Outcome {
    /// Computes the outcome of `part`.
    ///
    /// The caller adds values that recorders do not see: [`Outcome::broker_usage`], [`Outcome::own_cpu_seconds`] and
    /// [`Outcome::notes`].
    pub fn of(plan: &Plan, layout: &Layout, part: Part) -> Self {
        Self::of_part(plan, layout, &part)
    }

    /// As [`Outcome::of`], which leaves `part` for a ledger.
    pub(crate) fn of_part(plan: &Plan, layout: &Layout, part: &Part) -> Self {
        // Without publishers nothing can be lost.
        let exact = plan.publishers.payload as usize >= Stamp::LEN || plan.publishers.count == 0;
        let by_unit = verdicts(layout, part, exact);
        let mut verdict = Verdict { exact, ..Verdict::default() };
        by_unit.iter().for_each(|of_unit| verdict += *of_unit);
        let counted = Counted::of(plan, &part.seconds);
        let in_counted = || part.seconds[counted.latency.clone()].iter();
        // Unsent messages have waited longest, so that they belong to the distribution.
        let from_due = || in_counted().map(|second| &second.latency).chain([&part.unsent_waited]);
        Self {
            started_unix_ms: part.start_ns.unwrap_or(0) / 1_000_000,
            seconds: part.last_ns.saturating_sub(part.start_ns.unwrap_or(part.last_ns)) as f64 / 1e9,
            published: throughput(&part.seconds, &counted.published, |second| second.published),
            received: throughput(&part.seconds, &counted.received, |second| second.received),
            latency: latency(DIGITS, from_due()),
            latency_uncorrected: latency(DIGITS, in_counted().map(|second| &second.uncorrected)),
            latency_curve: curve(DIGITS, from_due()),
            latency_uncorrected_curve: curve(DIGITS, in_counted().map(|second| &second.uncorrected)),
            connects: latency(DIGITS, [&part.connects]),
            per_second: per_second(plan, &part.seconds, &counted),
            audiences: audiences(plan, layout, part, by_unit),
            verdict,
            broker_usage: Vec::new(),
            own_cpu_seconds: 0.0,
            unacknowledged: unacknowledged(part),
            not_taken: part.not_taken,
            unsent: part.unsent,
            latest_send_ms: f64::from(part.latest_send_us) / 1e3,
            connections: connections(&part.connections),
            notes: Vec::new(),
            plan: plan.clone(),
        }
    }

    /// Arrivals at the subscribers of one broker in the counted seconds, for its cost per message.
    ///
    /// If brokers are doors of one system, these are the arrivals at all subscribers.
    pub fn received_from(&self, broker: &str) -> u64 {
        let seconds = self.received.seconds_range();
        let is_one_system = self.plan.doors == Doors::OneSystem;
        let subscribers = self.audiences.iter().filter(|audience| is_one_system || audience.broker == broker);
        let subscribers = subscribers.flat_map(|audience| &audience.subscribers);
        subscribers.map(|one| one.per_second[seconds.clone()].iter().map(|&count| u64::from(count)).sum::<u64>()).sum()
    }
}

impl Throughput {
    /// The counted seconds, as a range of [`Outcome::per_second`].
    pub fn seconds_range(&self) -> Range<usize> {
        self.from_second as usize..(self.from_second + self.seconds) as usize
    }
}

/// Messages that were attempted, and neither published nor refused.
fn unacknowledged(part: &Part) -> u64 {
    let open: u64 = part.streams.iter().map(|(_, sent)| sent.attempted() - sent.published()).sum();
    open.saturating_sub(part.not_taken)
}

/// Ranges of the counted seconds.
struct Counted {
    published: Range<usize>,
    received: Range<usize>,
    /// Counted seconds of latency. They include the end of the run, when an overloaded broker delivers its backlog.
    latency: Range<usize>,
}

impl Counted {
    fn of(plan: &Plan, seconds: &[SecondTally]) -> Self {
        let ramps = (plan.schedule.ramp_up as usize, plan.schedule.ramp_down as usize);
        // MQTTLoader stops at the time limit. Later arrivals would yield rates of seconds that are not full.
        let limit = plan.schedule.time_limit.as_secs_f64().ceil() as usize;
        let in_time = &seconds[..limit.min(seconds.len())];
        Self {
            published: seconds_that_count(in_time, ramps, |second| second.published),
            received: seconds_that_count(in_time, ramps, |second| second.received),
            latency: seconds_that_count(seconds, ramps, |second| second.received),
        }
    }
}

/// Counted seconds: from the first to the last one with a message, without the ramps, and trimmed again.
///
/// As in MQTTLoader, seconds without messages are left out at both ends, but not in between.
fn seconds_that_count(
    seconds: &[SecondTally],
    (ramp_up, ramp_down): (usize, usize),
    count: impl Fn(&SecondTally) -> u64,
) -> Range<usize> {
    let used = |range: Range<usize>| {
        let mut used = range.filter(|&second| count(&seconds[second]) > 0);
        let first = used.next()?;
        Some(first..used.last().unwrap_or(first) + 1)
    };
    let between_ramps = |all: Range<usize>| used(all.start + ramp_up..all.end.saturating_sub(ramp_down));
    used(0..seconds.len()).and_then(between_ramps).unwrap_or(0..0)
}

fn throughput(seconds: &[SecondTally], counted: &Range<usize>, count: impl Fn(&SecondTally) -> u64) -> Throughput {
    let in_counted = || seconds[counted.clone()].iter().map(&count);
    Throughput {
        messages: seconds.iter().map(&count).sum(),
        average_per_second: if counted.is_empty() {
            0.0
        } else {
            in_counted().sum::<u64>() as f64 / counted.len() as f64
        },
        maximum_per_second: in_counted().max().unwrap_or(0),
        from_second: counted.start as u32,
        seconds: counted.len() as u32,
    }
}

fn per_second(plan: &Plan, seconds: &[SecondTally], counted: &Counted) -> Vec<Second> {
    let one = |(number, second): (usize, &SecondTally)| Second {
        second: number as u32,
        counts: counted.published.contains(&number) || counted.received.contains(&number),
        published: second.published,
        received: second.received,
        latency: latency(DIGITS, [&second.latency]),
        published_bytes: second.published * u64::from(plan.publishers.payload),
        received_bytes: second.received_bytes,
        acknowledgement: latency(DIGITS, [&second.acknowledgement]),
        refused: second.refused,
        connections_refused: second.connections_refused,
        connections_lost: second.connections_lost,
        reconnects: second.reconnects,
    };
    seconds.iter().enumerate().map(one).collect()
}

fn audiences(plan: &Plan, layout: &Layout, part: &Part, verdicts: Vec<Verdict>) -> Vec<AudienceOutcome> {
    let tallies: FxHashMap<u32, &PackedReceiver> =
        part.receivers.iter().map(|(number, tally)| (*number, tally)).collect();
    let digits = layout.receiver_digits();
    let one = |(unit, verdict): (&Unit, Verdict)| {
        let audience = &plan.audiences[unit.audience];
        let tally_of = |receiver: &u32| tallies.get(receiver).copied();
        let came: Vec<u64> =
            unit.receivers.iter().map(|number| tally_of(number).map_or(0, |one| one.counts.received)).collect();
        AudienceOutcome {
            name: audience.name.clone(),
            broker: match plan.doors {
                Doors::Independent => plan.brokers[unit.broker].name.clone(),
                Doors::OneSystem => plan.brokers.iter().map(|broker| &broker.name[..]).collect::<Vec<_>>().join("+"),
            },
            shared: unit.is_shared,
            verdict,
            latency: latency(digits, unit.receivers.iter().filter_map(tally_of).map(|tally| &tally.latency)),
            waiting: latency(digits, unit.receivers.iter().filter_map(tally_of).map(|tally| &tally.waiting)),
            jain: jain(&came),
            subscribers: unit
                .receivers
                .iter()
                .map(|number| SubscriberOutcome {
                    name: layout.receivers()[*number as usize].client_id.clone(),
                    ..subscriber(tally_of(number), digits, part.seconds.len(), audience.work.is_some())
                })
                .collect(),
        }
    };
    layout.units().iter().zip(verdicts).map(one).collect()
}

fn subscriber(tally: Option<&PackedReceiver>, digits: u8, seconds: usize, is_worker: bool) -> SubscriberOutcome {
    let nothing = PackedReceiver::default();
    let PackedReceiver { counts, latency: packed, waiting } = tally.unwrap_or(&nothing);
    let mut per_second = counts.per_second.clone();
    per_second.resize(seconds, 0);
    let mean_ms = |&(messages, time): &(u32, std::time::Duration)| {
        (messages > 0).then(|| time.as_secs_f64() * 1e3 / f64::from(messages))
    };
    let mut processing_ms = Vec::new();
    if is_worker {
        processing_ms.extend(counts.processed.iter().map(mean_ms));
        processing_ms.resize(seconds, None);
    }
    SubscriberOutcome {
        name: String::new(),
        received: counts.received,
        per_second,
        latency: latency(digits, [packed]),
        waiting: latency(digits, [waiting]),
        processing_ms,
    }
}

/// Jain's fairness index: (sum of shares)² / (n · sum of squares); `None` if all shares are 0.
fn jain(shares: &[u64]) -> Option<f64> {
    let sum: f64 = shares.iter().map(|&share| share as f64).sum();
    let squares: f64 = shares.iter().map(|&share| (share as f64).powi(2)).sum();
    (sum > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

fn connections(counts: &ConnectionCounts) -> Connections {
    let seconds = counts.span_ns.map_or(0.0, |(first, last)| last.saturating_sub(first) as f64 / 1e9);
    let mut switches: Vec<f64> = counts.switches_ns.iter().map(|ns| *ns as f64 / 1e6).collect();
    switches.sort_unstable_by(f64::total_cmp);
    Connections {
        switches: switches.len() as u64,
        switches_back: counts.back,
        switched_back_at_ns: counts.back_at_ns,
        switch_p50_ms: switches.get(switches.len() / 2).copied().unwrap_or(0.0),
        switch_max_ms: switches.last().copied().unwrap_or(0.0),
        accepted: counts.accepted + counts.reconnected,
        refused: counts.refused,
        lost: counts.lost,
        cut: counts.cut,
        reconnected: counts.reconnected,
        sessions_present: counts.sessions_present,
        wills: counts.wills,
        accepted_per_second: if seconds > 0.0 { counts.accepted as f64 / seconds } else { 0.0 },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::run::record::example;
    use crate::run::{Audience, Latency, Recorder, Unsent};

    const START_NS: u64 = 1_800_000_000_000_000_000;

    /// Outcome for messages published and received in each second by one publisher and one subscriber.
    fn outcome(seconds: &[(u32, u32)], ramps: (u32, u32)) -> Outcome {
        timed(seconds, ramps, Duration::from_secs(60))
    }

    fn timed(seconds: &[(u32, u32)], ramps: (u32, u32), time_limit: Duration) -> Outcome {
        let audience = Audience { count: 1, ..example::audience("all", "#") };
        let mut plan = example::plan(vec![audience]);
        (plan.schedule.ramp_up, plan.schedule.ramp_down) = ramps;
        plan.schedule.time_limit = time_limit;
        let layout = Arc::new(Layout::of(&plan).unwrap());
        let mut recorder = Recorder::new(layout.clone(), &plan, START_NS);
        let (mut published, mut received) = (0, 0);
        for (second, &(sent, came)) in seconds.iter().enumerate() {
            let now_ns = START_NS + second as u64 * 1_000_000_000 + 999_999_999;
            recorder.published(0, published..published + sent, now_ns);
            published += sent;
            for sequence in received..received + came {
                let due_ns = now_ns - (second as u64 + 1) * 1_000_000;
                recorder.arrived(0, &example::payload(&plan, 0, sequence, due_ns), false, now_ns);
            }
            received += came;
        }
        Outcome::of(&plan, &layout, recorder.into_part())
    }

    #[test]
    fn the_figures_of_mqttloaders_manual() {
        let published = [11955, 16427, 18430, 18030, 18622, 16536];
        let received = [11218, 16414, 18426, 18026, 18620, 17296];
        let seconds: Vec<_> = published.into_iter().zip(received).collect();
        let whole = outcome(&seconds, (0, 0));
        assert_eq!((whole.published.messages, whole.published.maximum_per_second), (100_000, 18622));
        assert_eq!((whole.received.messages, whole.received.maximum_per_second), (100_000, 18620));
        assert!((whole.received.average_per_second - 16666.666).abs() < 0.001, "{:?}", whole.received);
        assert_eq!((whole.verdict.expected, whole.verdict.lost, whole.verdict.exact), (100_000, 0, true));
        assert_eq!(whole.latency.map(|latency| (latency.count, latency.max)), Some((100_000, 6.0)));

        let trimmed = outcome(&seconds, (1, 2));
        assert_eq!(trimmed.received.seconds_range(), 1..4);
        assert_eq!((trimmed.received.messages, trimmed.received.maximum_per_second), (100_000, 18426));
        assert_eq!(trimmed.received.average_per_second, f64::from(16414 + 18426 + 18026) / 3.0);
        assert_eq!(trimmed.latency.map(|latency| (latency.min, latency.max)), Some((2.0, 4.0)));
        let counts: Vec<_> = trimmed.per_second.iter().map(|second| second.counts).collect();
        assert_eq!(counts, [false, true, true, true, false, false]);
        assert_eq!(trimmed.received_from("a"), 16414 + 18426 + 18026);
        assert_eq!(trimmed.verdict, whole.verdict);
    }

    #[test]
    fn ramps_begin_with_messages_and_inner_gaps_count() {
        let seconds = [(0, 0), (5, 4), (0, 0), (7, 6), (0, 0), (3, 2), (0, 1)];
        let outcome = outcome(&seconds, (1, 0));
        assert_eq!(outcome.published.seconds_range(), 3..6);
        assert_eq!(outcome.received.seconds_range(), 3..7);
        assert_eq!(
            (outcome.published.average_per_second, outcome.received.average_per_second),
            (10.0 / 3.0, 9.0 / 4.0)
        );
    }

    #[test]
    fn late_arrivals_count_for_latency_but_not_for_rates() {
        let seconds = [(10, 6), (10, 6), (1, 6), (0, 3)];
        for (limit, received) in [(Duration::from_secs(2), 0..2), (Duration::from_millis(1500), 0..2)] {
            let outcome = timed(&seconds, (0, 0), limit);
            assert_eq!((outcome.published.seconds_range(), outcome.received.seconds_range()), (0..2, received));
            assert_eq!((outcome.published.average_per_second, outcome.received.average_per_second), (10.0, 6.0));
            assert_eq!((outcome.received.messages, outcome.verdict.lost), (21, 0));
            assert_eq!(outcome.latency.map(|latency| (latency.count, latency.max)), Some((21, 4.0)));
        }
        let outcome = timed(&seconds, (0, 1), Duration::from_secs(2));
        assert_eq!(outcome.received.seconds_range(), 0..1);
        assert_eq!(outcome.latency.map(|latency| latency.count), Some(18));
    }

    #[test]
    fn receive_only_run_has_rates_and_latencies() {
        let mut plan = example::plan(vec![example::audience("all", "#")]);
        let of_another = example::payload(&Plan { tag: 99, ..plan.clone() }, 5, 7, START_NS);
        plan.publishers.count = 0;
        let layout = Arc::new(Layout::of(&plan).unwrap());
        let mut recorder = Recorder::new(layout.clone(), &plan, START_NS);
        let of_mqttloader = (START_NS / 1_000).to_be_bytes();
        for (payload, ms) in [(&of_another[..], 2), (&of_mqttloader, 4), (b"21.5 degrees", 6), (b"21.5", 8)] {
            recorder.arrived(0, payload, false, START_NS + ms * 1_000_000);
        }
        let outcome = Outcome::of(&plan, &layout, recorder.into_part());
        assert_eq!((outcome.received.messages, outcome.received.maximum_per_second), (2, 2));
        assert_eq!(outcome.latency.map(|latency| (latency.min, latency.max)), Some((2.0, 4.0)));
        assert_eq!(outcome.latency_uncorrected, None);
        assert_eq!(outcome.verdict, Verdict { foreign: 2, exact: true, ..Verdict::default() });
    }

    #[test]
    fn unacknowledged_and_refused_messages_are_counted() {
        let plan = example::plan(vec![Audience { count: 1, ..example::audience("all", "#") }]);
        let layout = Arc::new(Layout::of(&plan).unwrap());
        let mut recorder = Recorder::new(layout.clone(), &plan, START_NS);
        recorder.attempted(0, 0..10, START_NS);
        recorder.published(0, 0..4, START_NS);
        recorder.not_taken(0, 8, START_NS);
        let mut part = recorder.into_part();
        let mut other = Recorder::new(layout.clone(), &plan, START_NS);
        other.not_taken(0, 9, START_NS);
        part.merge(other.into_part());
        let outcome = Outcome::of(&plan, &layout, part);
        assert_eq!((outcome.unacknowledged, outcome.not_taken, outcome.verdict.expected), (4, 2, 4));
    }

    #[test]
    fn unsent_messages_count_with_their_waiting_time() {
        let plan = example::plan(vec![Audience { count: 2, ..example::audience("all", "#") }]);
        let layout = Arc::new(Layout::of(&plan).unwrap());
        let outcome = |ramp_down| {
            let mut plan = plan.clone();
            plan.schedule.ramp_down = ramp_down;
            let mut recorder = Recorder::new(layout.clone(), &plan, START_NS);
            for second in 0..3_u32 {
                let now_ns = START_NS + u64::from(second) * 1_000_000_000;
                recorder.published(0, second..second + 1, now_ns);
                let payload = example::payload(&plan, 0, second, now_ns - 1_000_000);
                for receiver in [0, 1] {
                    recorder.arrived(receiver, &payload, false, now_ns);
                }
            }
            let now_ns = START_NS + 3_000_000_000;
            let step_ns = 500_000_000;
            recorder.unsent(Unsent { messages: 3, deliveries: 2, first_due_ns: now_ns - 2 * step_ns, step_ns, now_ns });
            let mut part = recorder.into_part();
            part.merge(Recorder::new(layout.clone(), &plan, START_NS).into_part());
            Outcome::of(&plan, &layout, part)
        };
        for (ramp_down, count) in [(0, 12), (1, 10)] {
            let outcome = outcome(ramp_down);
            let figures = outcome.latency.map(|latency| (latency.count, latency.min, latency.max));
            // Two unsent messages had waited for half a second and for a whole one; the third was due at the end.
            assert_eq!((outcome.unsent, figures), (3, Some((count, 0.0, 1000.0))));
            assert_eq!(outcome.latency_uncorrected.map(|latency| latency.max), Some(1.0));
        }
    }

    #[test]
    fn a_run_shorter_than_its_ramps_has_no_rates() {
        for seconds in [&[(5, 5), (5, 5)][..], &[]] {
            let outcome = outcome(seconds, (1, 1));
            assert!(outcome.published.seconds_range().is_empty() && outcome.latency.is_none());
            assert_eq!((outcome.received.average_per_second, outcome.received.maximum_per_second), (0.0, 0));
            assert_eq!(outcome.received.messages, seconds.len() as u64 * 5);
        }
    }

    #[test]
    fn worker_waiting_time_is_per_member_and_in_total() {
        let plan = example::plan(vec![Audience { count: 3, ..example::audience("all", "#") }]);
        let layout = Arc::new(Layout::of(&plan).unwrap());
        let part = |receiver, waited_ms: &[u64]| {
            let mut recorder = Recorder::new(layout.clone(), &plan, START_NS);
            waited_ms.iter().for_each(|ms| recorder.taken(receiver, START_NS, START_NS + ms * 1_000_000));
            recorder.into_part()
        };
        let mut all = part(0, &[1, 2, 3]);
        all.merge(part(1, &[10]));
        let outcome = Outcome::of(&plan, &layout, all);
        let audience = &outcome.audiences[0];
        let figures = |waiting: &Option<Latency>| waiting.map(|waiting| (waiting.count, waiting.mean, waiting.max));
        let each: Vec<_> = audience.subscribers.iter().map(|one| figures(&one.waiting)).collect();
        assert_eq!(each, [Some((3, 2.0, 3.0)), Some((1, 10.0, 10.0)), None]);
        assert_eq!(figures(&audience.waiting), Some((4, 4.0, 10.0)));
    }

    #[test]
    fn reconnect_is_accepted_but_not_in_the_rate() {
        let plan = example::plan(vec![]);
        let layout = Arc::new(Layout::of(&plan).unwrap());
        let mut recorder = Recorder::new(layout.clone(), &plan, START_NS);
        let took = Duration::from_millis(500);
        (1..=4).for_each(|number| recorder.connected(took, START_NS + number * 500_000_000));
        recorder.reconnected(true, START_NS);
        recorder.reconnected(false, START_NS);
        let outcome = Outcome::of(&plan, &layout, recorder.into_part());
        let Connections { accepted, sessions_present, accepted_per_second, .. } = outcome.connections;
        assert_eq!((accepted, sessions_present, accepted_per_second), (6, 1, 2.0));
        assert_eq!((outcome.connects.map(|connects| connects.count), outcome.seconds), (Some(4), 2.0));
    }

    #[test]
    fn jains_index_is_1_if_equal_and_1_in_n_if_one_gets_all() {
        assert_eq!(jain(&[7, 7, 7]), Some(1.0));
        assert_eq!(jain(&[0, 9, 0, 0]), Some(0.25));
        assert_eq!(jain(&[0, 0]), None);
        assert_eq!(jain(&[]), None);
    }
}
