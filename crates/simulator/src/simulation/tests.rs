//! Small runs, worked out by hand. Waiting times are in ms. A message takes 0.2 ms to its worker unless a scenario says
//! otherwise.

use std::sync::Arc;

use tenbin_balancer::Policy;

mod acknowledgements;
mod queues;

use super::*;
use crate::scenario::Scenario;

const ROUND_ROBIN: Chooser = Chooser::Policy(Policy::RoundRobin);
const THESIS_SCORE: Chooser = Chooser::Policy(Policy::ThesisScore);

fn run(text: &str, qos: u8, chooser: Chooser) -> Vec<Delivery> {
    let scenario = Scenario::parse("test", text).unwrap();
    simulate(&Plan::new(&scenario, 1), qos > 0, chooser, &Arc::default()).deliveries
}

fn waits_ms(deliveries: &[Delivery]) -> Vec<f64> {
    let wait = |delivery: &Delivery| Some((delivery.taken?.0 - delivery.arrived.0) as f64 / 1e6);
    deliveries.iter().map(|delivery| wait(delivery).unwrap_or(f64::NAN)).collect()
}

fn by(deliveries: &[Delivery]) -> Vec<Option<u32>> {
    deliveries.iter().map(|delivery| delivery.worker).collect()
}

/// A scenario with messages at one instant.
fn burst(messages: u32, rest: &str) -> String {
    format!("messages = {messages}\narrivals = {{ bursts = {{ messages = {messages}, every = \"1s\" }} }}\n{rest}")
}

#[test]
fn round_robin_drowns_the_slow_worker_of_scenario_2() {
    let text = "messages = 1500\narrivals = { fixed = \"10ms\" }\n\
                [[workers]]\ncount = 2\nservice = \"25ms\"\n[[workers]]\nservice = \"50ms\"";
    let deliveries = run(text, 0, ROUND_ROBIN);
    for (number, wait_ms) in waits_ms(&deliveries).into_iter().enumerate() {
        let expected_ms = if number % 3 == 2 { 0.2 + 20.0 * (number / 3) as f64 } else { 0.2 };
        assert!((wait_ms - expected_ms).abs() < 1e-9, "message {number} waited {wait_ms}, not {expected_ms}");
    }
}

#[test]
fn threads_take_from_one_queue() {
    let deliveries = run(&burst(5, "[[workers]]\nservice = \"25ms\"\nthreads = 2"), 0, ROUND_ROBIN);
    assert_eq!(waits_ms(&deliveries), [0.2, 0.2, 25.2, 25.2, 50.2]);
}

#[test]
fn central_queue_serves_free_workers_fastest_first() {
    let text = burst(5, "[[workers]]\nservice = \"25ms\"\n[[workers]]\nservice = \"10ms\"");
    let deliveries = run(&text, 0, Chooser::CentralQueue);
    assert_eq!(waits_ms(&deliveries), [0.0, 0.0, 10.0, 20.0, 25.0]);
    assert_eq!(by(&deliveries), [1, 0, 1, 1, 0].map(Some));
}

#[test]
fn messages_of_a_dead_worker_are_lost_or_redelivered() {
    let text = burst(6, "[[workers]]\nservice = \"25ms\"\ndies = \"30ms\"\n[[workers]]\nservice = \"10ms\"");
    let lost = run(&text, 0, ROUND_ROBIN);
    let unfinished: Vec<_> = (0..6).filter(|&message| lost[message].finished.is_none()).collect();
    assert_eq!((unfinished, lost[4].taken), (vec![2, 4], None), "the second was under way, the third in the queue");

    let handed_over = run(&text, 1, ROUND_ROBIN);
    assert_eq!(by(&handed_over), [0, 1, 1, 1, 1, 1].map(Some));
    assert_eq!(waits_ms(&handed_over), [0.2, 0.2, 30.2, 10.2, 40.2, 20.2]);
}

#[test]
fn leaving_worker_finishes_its_messages_and_gets_no_more() {
    let text = "messages = 4\narrivals = { fixed = \"10ms\" }\n\
                [[workers]]\nservice = \"50ms\"\nleaves = \"15ms\"\n[[workers]]\nservice = \"1ms\"";
    let deliveries = run(text, 1, ROUND_ROBIN);
    assert_eq!(by(&deliveries), [0, 1, 1, 1].map(Some));
    assert!(deliveries.iter().all(|delivery| delivery.finished.is_some()));
}

#[test]
fn messages_wait_for_the_first_member() {
    for chooser in [ROUND_ROBIN, Chooser::CentralQueue] {
        let delay_ms = if chooser == ROUND_ROBIN { 0.2 } else { 0.0 };
        let deliveries = run(&burst(2, "[[workers]]\nservice = \"25ms\"\njoins = \"1s\""), 0, chooser);
        assert_eq!(waits_ms(&deliveries), [1000.0 + delay_ms, 1025.0 + delay_ms], "{chooser}");
    }
}

#[test]
fn pause_delays_current_and_queued_messages() {
    let text = burst(3, "[[workers]]\nservice = \"25ms\"\npauses = [{ at = \"30ms\", for = \"100ms\" }]");
    assert_eq!(waits_ms(&run(&text, 0, ROUND_ROBIN)), [0.2, 25.2, 150.2]);
    assert_eq!(waits_ms(&run(&text, 0, Chooser::CentralQueue)), [0.0, 25.0, 150.0]);
}

#[test]
fn a_step_counts_for_messages_taken_after_it() {
    let text = burst(4, "[[workers]]\nservice = \"25ms\"\nsteps = [{ at = \"40ms\", service = \"200ms\" }]");
    assert_eq!(waits_ms(&run(&text, 0, ROUND_ROBIN)), [0.2, 25.2, 50.2, 250.2]);
}

#[test]
fn reports_reach_the_balancer_and_silence_is_round_robin() {
    let text = |reports: &str| {
        format!(
            "messages = 1000\narrivals = {{ fixed = \"11ms\" }}\n\
             [[workers]]\ncount = 2\nservice = \"25ms\"\nreports = {reports}\n\
             [[workers]]\nservice = \"50ms\"\nreports = {reports}"
        )
    };
    let (honest, silent) = (text("\"honest\""), text("\"never\""));
    assert_eq!(run(&silent, 0, THESIS_SCORE), run(&silent, 0, ROUND_ROBIN));
    let slow = |text: &str| by(&run(text, 0, THESIS_SCORE)).iter().filter(|worker| **worker == Some(2)).count();
    assert_eq!(slow(&silent), 333);
    assert!((190..260).contains(&slow(&honest)), "{}", slow(&honest));
}

#[test]
fn a_run_can_be_repeated() {
    let text = "messages = 2000\narrivals = { poisson = \"5ms\" }\nchurn = { every = \"1s\", dies = true }\n\
                pings = { eager = true }\n\
                [[workers]]\ncount = 4\nservice = \"15ms\"\ndistribution = { pareto = 2.0 }\ndelay = \"3ms\"";
    for chooser in Policy::ALL.map(Chooser::Policy).into_iter().chain([Chooser::CentralQueue]) {
        let once = run(text, 1, chooser);
        assert_eq!(once, run(text, 1, chooser), "{chooser}");
        assert!(once.iter().all(|delivery| delivery.finished.is_some()), "{chooser}: at QoS 1 nothing is lost");
    }
}

#[test]
fn jitter_changes_the_way_of_each_message_but_no_order() {
    let text = |jitter: &str, interval: &str| {
        let worker = format!("[[workers]]\nservice = \"1us\"\ndelay = \"10ms\"\n{jitter}");
        format!("messages = 1000\narrivals = {{ fixed = \"{interval}\" }}\n{worker}")
    };
    let far_apart = waits_ms(&run(&text("jitter = 0.3", "20ms"), 1, ROUND_ROBIN));
    let (least, most) = far_apart.iter().fold((f64::MAX, 0.0_f64), |(least, most), &ms| (least.min(ms), most.max(ms)));
    assert!((7.0..7.1).contains(&least) && (12.9..=13.0).contains(&most), "{least} to {most}");
    let mean = far_apart.iter().sum::<f64>() / 1000.0;
    assert!((9.8..10.2).contains(&mean), "{mean}");
    assert_eq!(far_apart, waits_ms(&run(&text("jitter = 0.3", "20ms"), 1, ROUND_ROBIN)), "the seed decides");

    let dense = run(&text("jitter = 0.3", "1ms"), 1, ROUND_ROBIN);
    assert!(dense.windows(2).all(|pair| pair[0].taken < pair[1].taken), "a connection keeps the order");
    assert!(waits_ms(&dense).iter().sum::<f64>() > far_apart.iter().sum(), "the longest way holds others up");
    assert!(waits_ms(&run(&text("", "1ms"), 1, ROUND_ROBIN)).iter().all(|&ms| ms == 10.0));
}

#[test]
fn thread_steps_change_how_many_messages_are_in_work() {
    let worker = "[[workers]]\nservice = \"25ms\"\nthreads = 2\nthread_steps = [";
    let more = burst(6, &format!("{worker}{{ at = \"30ms\", threads = 4 }}]"));
    for (chooser, way_ms) in [(ROUND_ROBIN, 0.2), (Chooser::CentralQueue, 0.0)] {
        let expected = [0.0, 0.0, 25.0, 25.0, 30.0 - way_ms, 30.0 - way_ms].map(|ms| ms + way_ms);
        assert_eq!(waits_ms(&run(&more, 0, chooser)), expected, "{chooser}");
    }
    let fewer = burst(6, &format!("{worker}{{ at = \"30ms\", threads = 1 }}]"));
    assert_eq!(waits_ms(&run(&fewer, 0, ROUND_ROBIN)), [0.2, 0.2, 25.2, 25.2, 50.2, 75.2]);
    let clairvoyant = Chooser::Rival(crate::Rival::Clairvoyant);
    let two = format!("{fewer}\n[[workers]]\nservice = \"40ms\"");
    assert_eq!(by(&run(&two, 0, clairvoyant)).iter().filter(|by| **by == Some(0)).count(), 4);
}
