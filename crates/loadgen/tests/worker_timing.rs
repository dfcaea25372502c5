//! Workers on a simulated queue: with exact timing, the published experiment can be computed by hand.

use std::time::Duration;

use tenbin_loadgen::run::timeline::{Speed, Timeline};
use tenbin_loadgen::statistics::Summary;
use tenbin_simulator::Scenario;

/// Latencies in ms of each worker if messages go to the workers in turn, without any delay on the way.
fn in_turn(interval: Duration, services_ms: [u64; 3]) -> [Vec<f64>; 3] {
    let mut workers = services_ms.map(|service| Timeline::new(Speed::steady(Duration::from_millis(service))));
    let mut latencies = [const { Vec::new() }; 3];
    for sequence in 0..1500 {
        let worker = sequence as usize % 3;
        let created_ns = interval.as_nanos() as u64 * sequence;
        let slot = workers[worker].take(sequence, created_ns, created_ns);
        latencies[worker].push((slot.taken_ns - created_ns) as f64 / 1e6);
    }
    latencies
}

fn mean(values: &[f64]) -> f64 {
    Summary::of(values).expect("values").mean
}

#[test]
fn a_worker_that_keeps_up_takes_messages_at_once() {
    for latencies in in_turn(Duration::from_millis(10), [25, 25, 25]) {
        let summary = Summary::of(&latencies).expect("values");
        assert_eq!((summary.n, summary.max), (500, 0.0));
    }
}

#[test]
fn slow_worker_in_turn_falls_behind_by_equal_steps() {
    // A message every 32.1 ms, 50 ms for each: message k waits k × 17.9 ms. The mean of 500 of them is 4466.05 ms, and
    // of all 1,500 messages a third of that. The published round robin has 1492.3 ms.
    let latencies = in_turn(Duration::from_micros(10_700), [25, 25, 50]);
    for (k, latency) in latencies[2].iter().enumerate() {
        assert!((latency - k as f64 * 17.9).abs() < 1e-6, "{k}: {latency}");
    }
    assert_eq!((mean(&latencies[0]), mean(&latencies[1])), (0.0, 0.0));
    assert!((mean(&latencies.concat()) - 1_488.683_333).abs() < 1e-3);
}

#[test]
fn gap_in_arrivals_is_not_made_up_for() {
    let mut worker = Timeline::new(Speed::steady(Duration::from_millis(25)));
    let taken: Vec<_> =
        [0, 1, 2, 200, 201].map(|received| worker.take(0, received * MS, received * MS).taken_ns / MS).into();
    assert_eq!(taken, [0, 25, 50, 200, 225]);
}

#[test]
fn message_goes_to_the_hand_that_is_free_first() {
    let speed = Speed::steady(Duration::from_millis(25));
    let mut worker = Timeline::parallel(speed, 2);
    let slots: Vec<_> = [0, 10, 11, 12, 100].map(|at| worker.take(0, at * MS, at * MS)).into();
    let ms: Vec<_> = slots.into_iter().map(|slot| (slot.taken_ns / MS, slot.finished_ns / MS)).collect();
    assert_eq!(ms, [(0, 25), (10, 35), (25, 50), (35, 60), (100, 125)]);
}

#[test]
fn a_message_is_not_taken_before_it_was_made() {
    let mut worker = Timeline::new(Speed::steady(Duration::from_millis(25)));
    assert_eq!(worker.take(0, 10, 15).taken_ns, 15);
}

/// Start and end of processing in ms, for a worker described as in a scenario file. The first message is due at 1000
/// ms.
fn slots(worker: &str, received_ms: &[u64]) -> Vec<(u64, u64)> {
    let text = format!("messages = 1\narrivals = {{ fixed = \"1ms\" }}\n[[workers]]\nservice = \"25ms\"\n{worker}");
    let scenario = Scenario::parse("test", &text).expect("a worker");
    let mut timeline = Timeline::new(Speed::of(&scenario.workers[0], 1000 * MS, 0));
    let mut take = |received_ms: u64| timeline.take(0, received_ms * MS, 0);
    received_ms.iter().map(|&at| take(at)).map(|slot| (slot.taken_ns / MS, slot.finished_ns / MS)).collect()
}

#[test]
fn service_time_is_fixed_when_a_message_is_taken() {
    let steps = "steps = [{ at = \"100ms\", service = \"200ms\" }, { at = \"500ms\", service = \"25ms\" }]";
    let expected = [(1090, 1115), (1115, 1315), (1315, 1515), (1515, 1540)];
    assert_eq!(slots(steps, &[1090, 1091, 1092, 1093]), expected);
}

#[test]
fn nothing_is_taken_or_done_while_a_worker_stands_still() {
    let pauses = "pauses = [{ at = \"100ms\", for = \"2s\" }]";
    // Interrupted in the middle; begun at the end; taken later.
    assert_eq!(slots(pauses, &[1090, 1200, 3200]), [(1090, 3115), (3115, 3140), (3200, 3225)]);
    assert_eq!(slots(pauses, &[1075, 1080, 3000]), [(1075, 1100), (3100, 3125), (3125, 3150)]);
}

#[test]
fn random_times_belong_to_the_message_and_not_to_the_worker() {
    let text =
        "messages = 1\narrivals = { fixed = \"1ms\" }\n[[workers]]\nservice = \"25ms\"\ndistribution = \"exponential\"";
    let scenario = Scenario::parse("test", text).expect("a worker");
    let service = |sequence, seed| {
        let slot = Timeline::new(Speed::of(&scenario.workers[0], 0, seed)).take(sequence, 0, 0);
        slot.finished_ns - slot.taken_ns
    };
    assert_eq!(service(7, 1), service(7, 1));
    assert_ne!(service(7, 1), service(8, 1));
    assert_ne!(service(7, 1), service(7, 100));
}

const MS: u64 = 1_000_000;
