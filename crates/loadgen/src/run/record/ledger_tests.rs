//! Compares the ledger with a list of all events, which is searched for each window.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::example;
use crate::run::{Audience, DueTimes, Layout, Ledger, LedgerCounts, Pace, Part, Plan, Recorder};

#[derive(Debug, Clone, Copy)]
enum Event {
    Acknowledged { stream: u32, sequence: u32 },
    Refused { stream: u32, sequence: u32 },
    Arrived { receiver: u32, stream: u32, sequence: u32, dup: bool },
}

const START_NS: u64 = 1_800_000_000_000_000_000;

/// Messages of each stream.
const SENT: u32 = 12;

/// Two publishers with two topics each, two subscribers to all topics, and a share group of two.
fn plan(pace: Pace) -> Plan {
    let all = Audience { count: 2, ..example::audience("all", "#") };
    let mut plan = example::plan(vec![all, example::group("g", "t/+/1", 2)]);
    (plan.publishers.count, plan.publishers.topics, plan.publishers.pace) = (2, 2, pace);
    plan
}

fn open_loop() -> Plan {
    plan(Pace::Open { interval: Duration::from_millis(7) })
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let message = || (0..4_u32, 0..SENT);
    let acknowledged = message().prop_map(|(stream, sequence)| Event::Acknowledged { stream, sequence });
    let refused = message().prop_map(|(stream, sequence)| Event::Refused { stream, sequence });
    let arrived = (0..4_u32, message(), any::<bool>()).prop_map(|(receiver, (stream, sequence), dup)| Event::Arrived {
        receiver,
        stream,
        sequence,
        dup,
    });
    vec(prop_oneof![4 => acknowledged, 1 => refused, 8 => arrived], 0..200)
}

/// Keeps the first fate of each message, and the arrivals that the layout allows.
fn possible(events: Vec<Event>) -> Vec<Event> {
    let mut decided = BTreeSet::new();
    let is_possible = |event: &Event| match *event {
        Event::Acknowledged { stream, sequence } | Event::Refused { stream, sequence } => {
            decided.insert((stream, sequence))
        }
        Event::Arrived { receiver, stream, .. } => receiver < 2 || stream % 2 == 1,
    };
    let mut events = events;
    events.retain(is_possible);
    events
}

fn record(plan: &Plan, layout: &Arc<Layout>, events: &[Event], recorders: u32) -> Part {
    let mut all: Vec<_> = (0..recorders).map(|_| Recorder::new(layout.clone(), plan, START_NS)).collect();
    for stream in 0..layout.streams() {
        all[(stream % recorders) as usize].attempted(stream, 0..SENT, START_NS);
    }
    for (now_ns, event) in (START_NS + 1_000_000_000..).zip(events) {
        match *event {
            Event::Acknowledged { stream, sequence } => {
                all[(stream % recorders) as usize].published(stream, sequence..sequence + 1, now_ns);
            }
            Event::Refused { stream, sequence } => {
                all[(stream % recorders) as usize].not_taken(stream, sequence, now_ns);
            }
            Event::Arrived { receiver, stream, sequence, dup } => {
                let payload = example::payload(plan, stream, sequence, START_NS);
                all[(receiver % recorders) as usize].arrived(receiver, &payload, dup, now_ns);
            }
        }
    }
    let mut whole = Part::default();
    all.into_iter().for_each(|recorder| whole.merge(Part::from_bytes(&recorder.into_part().to_bytes()).unwrap()));
    whole
}

/// Counts of the messages whose due time `is_in` the window.
fn expected(events: &[Event], is_in: impl Fn(u32, u32) -> bool) -> LedgerCounts {
    let mut counts = LedgerCounts::default();
    let (mut acknowledged, mut refused) = (BTreeSet::new(), BTreeSet::new());
    // By message: arrivals at each receiver.
    let mut came: BTreeMap<(u32, u32), BTreeMap<u32, u64>> = BTreeMap::new();
    let mut highest = BTreeMap::new();
    for event in events {
        match *event {
            Event::Acknowledged { stream, sequence } => drop(acknowledged.insert((stream, sequence))),
            Event::Refused { stream, sequence } => drop(refused.insert((stream, sequence))),
            Event::Arrived { receiver, stream, sequence, dup } => {
                let arrivals = came.entry((stream, sequence)).or_default().entry(receiver).or_insert(0);
                *arrivals += 1;
                if *arrivals == 1 {
                    let highest = highest.entry((receiver, stream)).or_insert(0);
                    counts.out_of_order += u64::from(!dup && sequence < *highest && is_in(stream, sequence));
                    *highest = sequence.max(*highest);
                }
            }
        }
    }
    for message in (0..4).flat_map(|stream| (0..SENT).map(move |sequence| (stream, sequence))) {
        if !is_in(message.0, message.1) {
            continue;
        }
        let (is_acknowledged, is_refused) = (acknowledged.contains(&message), refused.contains(&message));
        counts.published += 1;
        counts.acknowledged += u64::from(is_acknowledged);
        counts.refused += u64::from(is_refused);
        counts.unconfirmed += u64::from(!is_acknowledged && !is_refused);
        let at = |receiver| came.get(&message).and_then(|came| came.get(&receiver)).copied().unwrap_or(0);
        let mut deliveries = vec![at(0), at(1)];
        if message.0 % 2 == 1 {
            deliveries.push(at(2) + at(3));
        }
        for copies in deliveries {
            let has_come = u64::from(copies > 0);
            counts.duplicated += copies.saturating_sub(1);
            if is_acknowledged {
                counts.expected += 1;
                counts.received += has_come;
                counts.lost += 1 - has_come;
            } else if is_refused {
                counts.refused_arrived += has_come;
            } else {
                counts.unconfirmed_arrived += has_come;
                counts.unconfirmed_missing += 1 - has_come;
            }
        }
    }
    counts
}

proptest! {
    #[test]
    fn each_window_matches_the_list_of_events(
        events in events(), from_ms in 0..200_u64, len_ms in 0..120_u64, recorders in 1..4_u32,
    ) {
        let plan = open_loop();
        let layout = Arc::new(Layout::of(&plan).unwrap());
        let events = possible(events);
        let ledger = Ledger::of(&plan, layout.clone(), record(&plan, &layout, &events, recorders)).unwrap();
        let window = START_NS + from_ms * 1_000_000..START_NS + (from_ms + len_ms) * 1_000_000;
        let due_ns = |stream: u32, sequence: u32| {
            let mut due_times = DueTimes::of(&plan, stream / 2).unwrap();
            due_times.start(START_NS);
            due_times.due_ns(u64::from(sequence * 2 + stream % 2))
        };
        let is_in = |stream, sequence| window.contains(&due_ns(stream, sequence));
        prop_assert_eq!(ledger.window(window.clone()), expected(&events, is_in));
        prop_assert_eq!(ledger.published(window.clone()), ledger.window(window.clone()).published);
        prop_assert_eq!(ledger.whole(), expected(&events, |_, _| true));
        prop_assert_eq!(ledger.due_ns(2, 5), Some(due_ns(2, 5)));
        prop_assert_eq!(ledger.due_ns(2, SENT), None);
    }

    #[test]
    fn windows_of_a_closed_loop_share_no_message(events in events(), cuts in vec(0..60_u64, 0..5)) {
        let plan = plan(Pace::Closed { window: 10 });
        let layout = Arc::new(Layout::of(&plan).unwrap());
        let mut recorder = Recorder::new(layout.clone(), &plan, START_NS);
        for (stream, sequence) in (0..4).flat_map(|stream| (0..SENT).map(move |sequence| (stream, sequence))) {
            recorder.attempted(stream, sequence..sequence + 1, START_NS + u64::from(sequence) * 4_000_000);
        }
        let mut part = record(&plan, &layout, &possible(events), 1);
        // The times of the first recorder are all alike.
        part.streams.clear();
        part.merge(recorder.into_part());
        let ledger = Ledger::of(&plan, layout, part).unwrap();
        let mut cuts: Vec<_> = cuts.into_iter().chain([0, 60]).map(|ms| START_NS + ms * 1_000_000).collect();
        cuts.sort_unstable();
        let mut sum = LedgerCounts::default();
        cuts.windows(2).for_each(|pair| sum += ledger.window(pair[0]..pair[1]));
        prop_assert_eq!(sum, ledger.whole());
    }
}

#[test]
fn lost_messages_are_listed_with_their_due_times() {
    let plan = open_loop();
    let layout = Arc::new(Layout::of(&plan).unwrap());
    let mut events: Vec<_> = (0..SENT).map(|sequence| Event::Acknowledged { stream: 1, sequence }).collect();
    let to = |receiver, sequence| Event::Arrived { receiver, stream: 1, sequence, dup: false };
    events.extend((0..SENT).filter(|sequence| ![3, 7].contains(sequence)).map(|sequence| to(0, sequence)));
    // One member of the share group has even numbers, the other has odd ones but 9.
    events.extend((0..SENT).filter(|sequence| *sequence != 9).map(|sequence| to(2 + sequence % 2, sequence)));
    let ledger = Ledger::of(&plan, layout.clone(), record(&plan, &layout, &events, 1)).unwrap();
    assert_eq!(ledger.lost(1, 0).collect::<Vec<_>>(), [3, 7]);
    assert_eq!([2, 3].map(|member| ledger.lost(1, member).collect::<Vec<_>>()), [[9], [9]]);
    assert_eq!((ledger.lost(0, 2).count(), ledger.lost(1, 1).count()), (0, SENT as usize));
    assert_eq!(ledger.due_ns(1, 3), Some(START_NS + 7 * 7_000_000));
}

#[test]
fn small_payloads_have_no_ledger() {
    let mut plan = open_loop();
    plan.publishers.payload = 19;
    let layout = Arc::new(Layout::of(&plan).unwrap());
    assert!(Ledger::of(&plan, layout, Part::default()).is_none());
}
