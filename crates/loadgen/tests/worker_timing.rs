//! Workers on a simulated queue: with exact timing the published experiment can be worked out by hand.

use std::time::Duration;

use tenbin_loadgen::scenario::{Schedule, Timeline};
use tenbin_loadgen::statistics::Summary;

/// Latencies in ms of each worker when messages go to the workers in turn, without any delay on the way.
fn in_turn(schedule: Schedule, services_ms: [u64; 3]) -> [Vec<f64>; 3] {
    let mut workers = services_ms.map(|service| Timeline::new(Duration::from_millis(service)));
    let mut latencies = [const { Vec::new() }; 3];
    for sequence in 0..schedule.messages {
        let worker = sequence as usize % 3;
        let created_ns = schedule.due_ns(sequence);
        let slot = workers[worker].take(created_ns, created_ns);
        latencies[worker].push((slot.taken_ns - created_ns) as f64 / 1e6);
    }
    latencies
}

fn mean(values: &[f64]) -> f64 {
    Summary::of(values).expect("values").mean
}

#[test]
fn a_worker_that_keeps_up_takes_messages_at_once() {
    let schedule = Schedule { interval: Duration::from_millis(10), messages: 1500 };
    for latencies in in_turn(schedule, [25, 25, 25]) {
        assert_eq!(Summary::of(&latencies), Some(Summary { n: 500, min: 0.0, max: 0.0, mean: 0.0, sd: 0.0 }));
    }
}

#[test]
fn a_slow_worker_in_turn_falls_behind_by_the_same_step_each_time() {
    // A message every 32.1 ms, 50 ms for each: message k waits k × 17.9 ms. Over 500 of them 4466.05 ms, over
    // all 1,500 messages a third of that: the published round robin is 1492.3 ms.
    let schedule = Schedule { interval: Duration::from_micros(10_700), messages: 1500 };
    let latencies = in_turn(schedule, [25, 25, 50]);
    for (k, latency) in latencies[2].iter().enumerate() {
        assert!((latency - k as f64 * 17.9).abs() < 1e-6, "{k}: {latency}");
    }
    assert_eq!((mean(&latencies[0]), mean(&latencies[1])), (0.0, 0.0));
    assert!((mean(&latencies.concat()) - 1_488.683_333).abs() < 1e-3);
}

#[test]
fn a_pause_in_the_queue_is_not_made_up_for() {
    const MS: u64 = 1_000_000;
    let mut worker = Timeline::new(Duration::from_millis(25));
    let taken: Vec<_> =
        [0, 1, 2, 200, 201].map(|received| worker.take(received * MS, received * MS).taken_ns / MS).into();
    assert_eq!(taken, [0, 25, 50, 200, 225]);
}

#[test]
fn a_message_is_not_taken_before_it_was_made() {
    let mut worker = Timeline::new(Duration::from_millis(25));
    assert_eq!(worker.take(10, 15).taken_ns, 15);
}
