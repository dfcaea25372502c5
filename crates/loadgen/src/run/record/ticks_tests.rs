use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::example;
use super::*;
use crate::run::{Audience, Came, Layout, Part, Plan, Recorder};

const START_NS: u64 = 1_800_000_000_000_000_000;
const MS: u64 = 1_000_000;

/// A recorder of one stream to one receiver.
fn recorder() -> (Plan, Recorder) {
    let mut plan = example::plan(vec![Audience::new("all", 1, "#")]);
    plan.ticks = true;
    let recorder = Recorder::new(Arc::new(Layout::of(&plan).unwrap()), &plan, u64::MAX);
    (plan, recorder)
}

/// The ticks as a controller gets them.
fn finished(recorder: Recorder) -> Ticks {
    Part::from_bytes(&recorder.into_part().to_bytes()).unwrap().take_ticks()
}

proptest! {
    #[test]
    fn latencies_of_any_ticks_match_a_list(
        messages in vec((0..3_000_u64, 0..900_u64, any::<bool>()), 0..150), from in 0..320_u64, len in 0..100_u64,
    ) {
        let (plan, mut recorder) = recorder();
        recorder.start(START_NS);
        // By arrival, each with its due time.
        let mut events: Vec<_> = messages.iter().map(|&(due, took, acks)| (due + took, due, acks)).collect();
        events.sort_unstable();
        for (sequence, &(at, due, acks)) in (0..).zip(&events) {
            let (now_ns, due_ns) = (START_NS + at * MS, START_NS + due * MS);
            if acks {
                recorder.acknowledged(due_ns, now_ns);
                recorder.published(0, sequence..sequence + 1, now_ns);
            } else {
                let payload = example::payload(&plan, 0, sequence, due_ns);
                prop_assert_eq!(recorder.arrived(0, &payload, false, now_ns), Came::First);
                prop_assert_eq!(recorder.arrived(0, &payload, false, now_ns + 5), Came::Again);
            }
        }
        let ticks = finished(recorder);
        let windows = [(from, from + len), (from + len + 7, from + len + 20)];
        let in_ns = windows.map(|(from, to)| START_NS + from * Ticks::NS..START_NS + to * Ticks::NS);
        for (kind, found) in [(false, ticks.latency(&in_ns)), (true, ticks.acknowledgement(&in_ns))] {
            let is_in = |due: u64| windows.iter().any(|(from, to)| (*from..*to).contains(&(due / 10)));
            let mut wanted: Vec<_> =
                events.iter().filter(|(_, due, acks)| *acks == kind && is_in(*due)).map(|(at, due, _)| at - due).collect();
            wanted.sort_unstable();
            let sum: u64 = wanted.iter().sum();
            prop_assert_eq!(found.map_or(0, |found| found.count), wanted.len() as u64);
            if let Some(found) = found {
                let median = wanted[(wanted.len() - 1) / 2] as f64;
                prop_assert!((median..=median * 1.001).contains(&found.p50), "{:?}, median {}", found, median);
                prop_assert_eq!((found.min, found.max), (wanted[0] as f64, wanted[wanted.len() - 1] as f64));
                prop_assert!((found.mean - sum as f64 / wanted.len() as f64).abs() < 1e-6);
            }
        }
        let count = |kind| events.iter().filter(|(.., acks)| *acks == kind).count() as u32;
        prop_assert_eq!(ticks.arrived().map(|(_, count)| count).sum::<u32>(), count(false));
        prop_assert_eq!(ticks.answered().map(|(_, count)| count).sum::<u32>(), count(true));
        for (begin, arrived) in ticks.arrived() {
            let tick = (begin - START_NS) / Ticks::NS;
            let in_tick = events.iter().filter(|(at, _, acks)| !acks && at / 10 == tick).count();
            prop_assert_eq!(arrived as usize, in_tick);
        }
    }
}

#[test]
fn refusals_are_answers_and_have_no_time() {
    let (_, mut recorder) = recorder();
    recorder.start(START_NS);
    recorder.not_taken(0, 0, START_NS + 25 * MS);
    recorder.published(0, 1..4, START_NS + 29 * MS);
    let ticks = finished(recorder);
    assert_eq!(ticks.answered().collect::<Vec<_>>(), [(START_NS + 20 * MS, 4)]);
    let all = std::slice::from_ref(&(0..u64::MAX));
    assert_eq!((ticks.acknowledgement(all), ticks.latency(all)), (None, None));
}

#[test]
fn events_belong_to_their_own_tick_in_any_order() {
    let (plan, mut recorder) = recorder();
    recorder.start(START_NS);
    for (sequence, at) in [(0, 45), (1, 12), (2, 40), (3, 39)] {
        let now_ns = START_NS + at * MS;
        recorder.published(0, sequence..sequence + 1, now_ns);
        recorder.arrived(0, &example::payload(&plan, 0, sequence, START_NS), false, now_ns);
    }
    let ticks = finished(recorder);
    let wanted = [(10, 1), (30, 1), (40, 2)].map(|(ms, count)| (START_NS + ms * MS, count));
    assert_eq!(ticks.answered().collect::<Vec<_>>(), wanted);
    assert_eq!(ticks.arrived().collect::<Vec<_>>(), wanted);
}

#[test]
fn wrong_times_take_no_memory() {
    let (plan, mut recorder) = recorder();
    recorder.start(START_NS);
    // A damaged payload: due in the far future, or long ago.
    for (sequence, due_ns) in [(0, u64::MAX), (1, 0)] {
        recorder.arrived(0, &example::payload(&plan, 0, sequence, due_ns), false, START_NS + 15 * MS);
    }
    let part = recorder.into_part();
    assert_eq!(part.ticks.arrivals.iter().map(|(tick, _)| *tick).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(part.ticks.arrived, [(1, 2)]);
}

/// A minute of 50,000 messages a second, of which a stall of 5 s delays some; latencies differ by microseconds.
#[test]
fn a_message_takes_less_than_two_bytes() {
    let (plan, mut recorder) = recorder();
    recorder.start(START_NS);
    let messages = 600_000_u32;
    let mut payload = example::payload(&plan, 0, 0, 0);
    for sequence in 0..messages {
        let due_ns = START_NS + u64::from(sequence) * 20_000;
        let stall_ns = START_NS + 5_000 * MS;
        let took_ns = 200_000 + u64::from(sequence.wrapping_mul(0x9E37_79B9) >> 12);
        let now_ns = if due_ns < stall_ns { due_ns + took_ns } else { (due_ns + took_ns).max(stall_ns + 5_000 * MS) };
        crate::run::Stamp { due_ns, tag: plan.tag, stream: 0, sequence, late_us: 0 }.encode(&mut payload);
        recorder.arrived(0, &payload, false, now_ns);
    }
    let memory = |times: &PackedLatencies| size_of::<(u32, PackedLatencies)>() + times.heap_size();
    let part = recorder.into_part();
    let kept: usize = part.ticks.arrivals.iter().map(|(_, times)| memory(times)).sum();
    assert!(kept < 2 * messages as usize, "{kept} bytes in memory");
    let sent = part.to_bytes().len();
    assert!(sent < 2 * messages as usize, "{sent} bytes to a controller");
}
