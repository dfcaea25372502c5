//! Compares the recorder with a naive model, which keeps a list of all events and searches it at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use tenbin_codec::{TopicFilter, TopicName};

use super::example;
use crate::run::{Audience, Layout, Outcome, Part, Plan, Recorder, Spread, Stamp, Verdict};

#[derive(Debug, Clone, Copy)]
enum Event {
    Attempted { stream: u32, upto: u32 },
    Published { stream: u32, from: u32, len: u32 },
    Arrived { receiver: u32, stamp: Stamp, dup: bool, is_whole: bool },
}

/// Classification of an arrival before the sent messages are known.
enum Arrival {
    Message,
    Foreign,
    Wrong,
}

const START_NS: u64 = 1_800_000_000_000_000_000;

fn plans() -> impl Strategy<Value = Plan> {
    let filter = prop_oneof![Just("#"), Just("t/+/0"), Just("t/1/+"), Just("t/{subscriber}/0"), Just("u")];
    let spread = || prop_oneof![3 => Just(Spread::InTurns), 1 => Just(Spread::Broker(0))];
    let audience = (filter, any::<bool>(), 0..4_u32, spread());
    let payload = prop_oneof![4 => Just(20), 1 => Just(33), 2 => Just(12)];
    (1..=2_usize, 1..=2_u32, 1..=2_u32, payload, spread(), vec(audience, 1..4)).prop_map(
        |(brokers, count, topics, payload, publisher_spread, audiences)| {
            let audience = |(number, (filter, shared, count, spread)): (usize, (&str, bool, u32, Spread))| Audience {
                count,
                spread,
                share: (shared && !filter.contains('{')).then(|| format!("g{number}")),
                ..example::audience(&format!("audience {number}"), filter)
            };
            let mut plan = example::plan(audiences.into_iter().enumerate().map(audience).collect());
            plan.brokers = ["a", "b"][..brokers].iter().map(|name| example::broker(name)).collect();
            plan.publishers.spread = publisher_spread;
            (plan.publishers.count, plan.publishers.topics, plan.publishers.payload) = (count, topics, payload);
            (plan.records, plan.ticks) = (true, true);
            (plan.schedule.ramp_up, plan.schedule.ramp_down) = (payload % 2, payload % 3);
            plan
        },
    )
}

/// Few sequence numbers, so that each arrives several times, in any order.
fn events() -> impl Strategy<Value = Vec<(Event, u64)>> {
    let attempted = (0..4_u32, 0..12_u32).prop_map(|(stream, upto)| Event::Attempted { stream, upto });
    let published =
        (0..4_u32, 0..10_u32, 0..4_u32).prop_map(|(stream, from, len)| Event::Published { stream, from, len });
    let stream = prop_oneof![20 => 0..4_u32, 1 => Just(4), 1 => Just(u32::MAX)];
    let sequence = prop_oneof![30 => 0..14_u32, 1 => Just(u32::MAX - 1), 1 => Just(u32::MAX)];
    let tag = prop_oneof![20 => Just(7), 1 => any::<u16>()];
    let stamp = (tag, stream, sequence, 0..5_000_u32, 0..2_000_000_000_u64).prop_map(
        |(tag, stream, sequence, late_us, ago_ns)| Stamp { due_ns: START_NS - ago_ns, tag, stream, sequence, late_us },
    );
    let arrived = (0..12_u32, stamp, any::<bool>(), prop::bool::weighted(0.97))
        .prop_map(|(receiver, stamp, dup, is_whole)| Event::Arrived { receiver, stamp, dup, is_whole });
    let event = prop_oneof![1 => attempted, 2 => published, 9 => arrived];
    vec((event, 0..400_000_000_u64), 0..120)
}

/// Keeps the events of streams and receivers that the layout has, and gives them rising times.
fn in_layout(layout: &Layout, events: Vec<(Event, u64)>) -> Vec<(Event, u64)> {
    let (streams, receivers) = (layout.streams(), layout.receivers().len() as u32);
    let mut now_ns = START_NS;
    let is_there = |event: &Event| match *event {
        Event::Attempted { stream, .. } | Event::Published { stream, .. } => stream < streams,
        Event::Arrived { receiver, .. } => receiver < receivers,
    };
    let timed = events.into_iter().filter(|(event, _)| is_there(event)).map(|(event, after_ns)| {
        now_ns += after_ns;
        (event, now_ns)
    });
    timed.collect()
}

fn record(plan: &Plan, recorder: &mut Recorder, event: Event, now_ns: u64) {
    match event {
        Event::Attempted { stream, upto } => recorder.attempted(stream, 0..upto, now_ns),
        Event::Published { stream, from, len } => recorder.published(stream, from..from + len, now_ns),
        Event::Arrived { receiver, stamp, dup, is_whole } => {
            let mut payload = vec![0; plan.publishers.payload as usize];
            stamp.encode(&mut payload);
            payload.resize(payload.len() + usize::from(!is_whole), 0);
            recorder.arrived(receiver, &payload, dup, now_ns);
        }
    }
}

/// Deals streams and receivers over several recorders; returns their parts after serialization.
fn dealt(plan: &Plan, layout: &Arc<Layout>, events: &[(Event, u64)], recorders: u32, deal: u32) -> Vec<Part> {
    let new = |_| Recorder::new(layout.clone(), plan, START_NS);
    let mut all: Vec<Recorder> = (0..recorders).map(new).collect();
    for &(event, now_ns) in events {
        let number = match event {
            Event::Attempted { stream, .. } | Event::Published { stream, .. } => stream + 1,
            Event::Arrived { receiver, .. } => receiver,
        };
        record(plan, &mut all[(number.wrapping_mul(deal) % recorders) as usize], event, now_ns);
    }
    let travel = |recorder: Recorder| Part::from_bytes(&recorder.into_part().to_bytes()).unwrap();
    all.into_iter().map(travel).collect()
}

fn merged(parts: impl IntoIterator<Item = Part>) -> Part {
    let mut whole = Part::default();
    parts.into_iter().for_each(|part| whole.merge(part));
    whole
}

/// Whether a stream is for a receiver, computed independently of the layout.
fn is_for(plan: &Plan, layout: &Layout, receiver: u32, stream: u32) -> bool {
    let receiver = &layout.receivers()[receiver as usize];
    let filter = TopicFilter::try_from(&receiver.filter[..]).unwrap();
    let filter = filter.shared().map_or(filter, |shared| shared.filter);
    let publisher = stream / plan.publishers.topics;
    let broker = match plan.publishers.spread {
        Spread::InTurns => publisher as usize % plan.brokers.len(),
        Spread::Broker(broker) => usize::from(broker),
    };
    let topic = format!("t/{publisher}/{}", stream % plan.publishers.topics);
    broker == receiver.broker && filter.matches(&TopicName::try_from(&topic[..]).unwrap())
}

struct Model<'a> {
    plan: &'a Plan,
    layout: &'a Layout,
    events: &'a [(Event, u64)],
}

impl Model<'_> {
    fn attempted(&self, stream: u32) -> u32 {
        let upto = self.events.iter().filter_map(|&(event, _)| match event {
            Event::Attempted { stream: of, upto } if of == stream => Some(upto),
            Event::Published { stream: of, from, len } if of == stream => Some(from + len),
            _ => None,
        });
        upto.max().unwrap_or(0)
    }

    fn published(&self, stream: u32) -> BTreeSet<u32> {
        let ranges = self.events.iter().filter_map(|&(event, _)| match event {
            Event::Published { stream: of, from, len } if of == stream => Some(from..from + len),
            _ => None,
        });
        ranges.flatten().collect()
    }

    fn arrival(&self, receiver: u32, stamp: &Stamp, is_whole: bool) -> Arrival {
        if (self.plan.publishers.payload as usize) < Stamp::LEN {
            return if is_whole { Arrival::Message } else { Arrival::Foreign };
        }
        if stamp.tag != self.plan.tag {
            return Arrival::Foreign;
        }
        let is_legal = is_whole && stamp.sequence < u32::MAX && stamp.stream < self.layout.streams();
        if is_legal && is_for(self.plan, self.layout, receiver, stamp.stream) {
            Arrival::Message
        } else {
            Arrival::Wrong
        }
    }

    /// Arrivals of this run's messages at these receivers, in order.
    fn messages<'b>(&'b self, receivers: &'b [u32]) -> impl Iterator<Item = (u32, Stamp, bool)> + 'b {
        self.events.iter().filter_map(|&(event, _)| match event {
            Event::Arrived { receiver, stamp, dup, is_whole } if receivers.contains(&receiver) => {
                matches!(self.arrival(receiver, &stamp, is_whole), Arrival::Message).then_some((receiver, stamp, dup))
            }
            _ => None,
        })
    }

    fn verdict(&self, receivers: &[u32], is_shared: bool) -> Verdict {
        let mut verdict = if self.plan.publishers.payload as usize >= Stamp::LEN {
            self.by_message(receivers, is_shared)
        } else if is_shared {
            self.by_number(receivers, receivers[0])
        } else {
            let mut all = Verdict::default();
            receivers.iter().for_each(|&receiver| all += self.by_number(&[receiver], receiver));
            all
        };
        for &(event, _) in self.events {
            let Event::Arrived { receiver, stamp, is_whole, .. } = event else { continue };
            match self.arrival(receiver, &stamp, is_whole) {
                Arrival::Foreign if receivers.contains(&receiver) => verdict.foreign += 1,
                Arrival::Wrong if receivers.contains(&receiver) => verdict.wrong += 1,
                _ => {}
            }
        }
        verdict
    }

    fn by_message(&self, receivers: &[u32], is_shared: bool) -> Verdict {
        let mut verdict = Verdict { exact: true, ..Verdict::default() };
        // By stream and number: the receivers that have the message, and whether their first copy was without DUP.
        let mut had: BTreeMap<(u32, u32), BTreeMap<u32, bool>> = BTreeMap::new();
        let mut highest: BTreeMap<(u32, u32), u32> = BTreeMap::new();
        for (receiver, stamp, dup) in self.messages(receivers) {
            let owners = had.entry((stamp.stream, stamp.sequence)).or_default();
            if owners.contains_key(&receiver) {
                verdict.duplicated += 1;
                verdict.duplicated_unmarked += u64::from(!dup);
                continue;
            }
            owners.insert(receiver, !dup);
            let highest = highest.entry((receiver, stamp.stream)).or_insert(0);
            verdict.out_of_order += u64::from(!dup && stamp.sequence < *highest);
            *highest = stamp.sequence.max(*highest);
        }
        let mut came: Vec<(u32, u32)> = Vec::new();
        for (message, owners) in &had {
            if is_shared {
                came.push(*message);
                let unmarked = owners.values().filter(|&&unmarked| unmarked).count();
                verdict.duplicated += owners.len() as u64 - 1;
                verdict.to_another_member += owners.len() as u64 - 1;
                verdict.duplicated_unmarked += unmarked.saturating_sub(1) as u64;
            } else {
                came.extend(owners.iter().map(|_| *message));
            }
        }
        for (stream, sequence) in came {
            if self.published(stream).contains(&sequence) {
                verdict.received += 1;
            } else if sequence < self.attempted(stream) {
                verdict.unconfirmed += 1;
            } else {
                verdict.wrong += 1;
            }
        }
        let wanting = if is_shared { &receivers[..1] } else { receivers };
        for (&receiver, stream) in
            wanting.iter().flat_map(|one| (0..self.layout.streams()).map(move |stream| (one, stream)))
        {
            if is_for(self.plan, self.layout, receiver, stream) {
                verdict.expected += self.published(stream).len() as u64;
            }
        }
        verdict.lost = verdict.expected - verdict.received;
        verdict
    }

    /// Verdict on receivers that together get the streams of receiver `one`.
    fn by_number(&self, receivers: &[u32], one: u32) -> Verdict {
        let streams = || (0..self.layout.streams()).filter(|&stream| is_for(self.plan, self.layout, one, stream));
        let expected: u64 = streams().map(|stream| self.published(stream).len() as u64).sum();
        let attempted: u64 = streams().map(|stream| u64::from(self.attempted(stream))).sum();
        let came = self.messages(receivers).count() as u64;
        let marked = self.messages(receivers).filter(|&(_, _, dup)| dup).count() as u64;
        let duplicated = came.saturating_sub(attempted);
        Verdict {
            expected,
            received: came.min(expected),
            lost: expected.saturating_sub(came),
            duplicated,
            duplicated_unmarked: duplicated.saturating_sub(marked),
            unconfirmed: came.min(attempted).saturating_sub(expected),
            ..Verdict::default()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn recorders_match_the_naive_model(
        plan in plans(), events in events(), recorders in 1..=4_u32, deal: u32, backwards: bool,
    ) {
        let layout = Arc::new(Layout::of(&plan).unwrap());
        let events = in_layout(&layout, events);
        let mut whole = dealt(&plan, &layout, &events, 1, 0).remove(0);
        let mut parts = dealt(&plan, &layout, &events, recorders, deal);
        if backwards {
            parts.reverse();
        }
        let mut merged = merged(parts);
        prop_assert_eq!(merged.take_records(), whole.take_records());
        prop_assert_eq!(merged.take_publish_records(), whole.take_publish_records());
        prop_assert_eq!(merged.take_ticks(), whole.take_ticks());
        let outcome = Outcome::of(&plan, &layout, whole);
        prop_assert_eq!(&Outcome::of(&plan, &layout, merged), &outcome);

        let model = Model { plan: &plan, layout: &layout, events: &events };
        let mut total = Verdict { exact: outcome.verdict.exact, ..Verdict::default() };
        let mut came = 0;
        for (unit, audience) in layout.units().iter().zip(&outcome.audiences) {
            prop_assert_eq!(audience.verdict, model.verdict(&unit.receivers, unit.is_shared), "{}", audience.name);
            total += audience.verdict;
            for (receiver, subscriber) in unit.receivers.iter().zip(&audience.subscribers) {
                let received = model.messages(&[*receiver]).count() as u64;
                prop_assert_eq!(subscriber.received, received);
                prop_assert_eq!(subscriber.per_second.iter().map(|&count| u64::from(count)).sum::<u64>(), received);
                came += received;
            }
        }
        prop_assert_eq!(outcome.verdict, total);
        prop_assert_eq!(outcome.received.messages, came);
        prop_assert_eq!(outcome.per_second.iter().map(|second| second.received).sum::<u64>(), came);
    }
}

/// A broker loses every tenth message, delivers every seventh twice, and swaps the two messages from every eighth on.
#[test]
fn losses_copies_and_reordering_are_counted_exactly() {
    let plan =
        example::plan(vec![Audience { count: 2, ..example::audience("all", "#") }, example::group("g", "t/#", 2)]);
    let layout = Arc::new(Layout::of(&plan).unwrap());
    let mut recorders = [(); 2].map(|()| Recorder::new(layout.clone(), &plan, START_NS));
    let (published, now_ns) = (1_000_u32, START_NS + 5_000_000);
    recorders[0].attempted(0, 0..published + 3, START_NS);
    recorders[0].published(0, 0..published, now_ns);
    let mut order: Vec<u32> = (0..published + 2).collect();
    (8..published as usize - 1).step_by(8).for_each(|at| order.swap(at, at + 1));
    let mut arrive = |receiver: u32, sequence: u32, dup: bool| {
        let payload = example::payload(&plan, 0, sequence, START_NS);
        recorders[receiver as usize % 2].arrived(receiver, &payload, dup, now_ns);
    };
    for sequence in order {
        for receiver in [0, 1] {
            if sequence % 10 != 0 {
                arrive(receiver, sequence, false);
            }
            if sequence % 7 == 0 && sequence % 10 != 0 {
                arrive(receiver, sequence, receiver == 1);
            }
        }
        if sequence % 10 != 0 {
            arrive(2 + sequence % 2, sequence, false);
        }
        if sequence % 100 == 1 {
            arrive(2 + (sequence + 1) % 2, sequence, false);
        }
    }
    let parts = recorders.map(Recorder::into_part);
    let outcome = Outcome::of(&plan, &layout, merged(parts));
    let [all, group] = &outcome.audiences[..] else { panic!("two audiences on one broker") };
    // Lost: 0, 10, … 990. Attempted only: 1000, 1001, 1002. Duplicated: 7, 14, … except 70, 140, …: 142 − 14, and 1001.
    // Swapped: 8 | 9, 16 | 17, … 992 | 993, 124 pairs. In every fifth pair one message is lost.
    let expected = Verdict {
        expected: 2 * 1000,
        received: 2 * 900,
        lost: 2 * 100,
        duplicated: 2 * (142 - 14 + 1),
        duplicated_unmarked: 142 - 14 + 1,
        out_of_order: 2 * (124 - 24),
        unconfirmed: 2,
        exact: true,
        ..Verdict::default()
    };
    assert_eq!(all.verdict, expected);
    let expected = Verdict {
        expected: 1000,
        received: 900,
        lost: 100,
        // 1, 101, … 1001.
        duplicated: 11,
        duplicated_unmarked: 11,
        to_another_member: 11,
        unconfirmed: 1,
        exact: true,
        ..Verdict::default()
    };
    assert_eq!(group.verdict, expected);
}
