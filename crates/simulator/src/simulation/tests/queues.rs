//! Rejected and overdue messages.

use super::*;

const QUEUE: &str = "queue = { retry_delay = \"100ms\", retry_delay_maximum = \"300ms\", deliveries_maximum = 4, \
                     acknowledge_within = \"1s\" }\n";
const FAILER: &str = "[[workers]]\nservice = \"25ms\"\nrejects = \"1ms\"\n";

#[test]
fn rejected_message_comes_again_after_its_pause_until_the_limit() {
    let text = |queue: &str| format!("{queue}{}", burst(1, FAILER));
    let deliveries = run(&text(QUEUE), 1, ROUND_ROBIN);
    // 0.2 ms there, 1 ms of work and 0.2 ms back, four times; pauses of 100, 200 and 300 ms.
    assert_eq!(waits_ms(&deliveries), [604.4]);
    assert_eq!((deliveries[0].finished, deliveries[0].is_dead), (None, true));
    let discarded = run(&text(""), 1, ROUND_ROBIN);
    assert_eq!((waits_ms(&discarded), discarded[0].is_dead), (vec![0.2], true), "the standard");
    assert!(run(&text(QUEUE), 0, ROUND_ROBIN)[0].finished.is_none());
}

#[test]
fn poison_is_rejected_by_all_and_the_rest_is_finished_once() {
    let text = |poison: &str| {
        format!(
            "{QUEUE}{poison}messages = 1000\narrivals = {{ fixed = \"10ms\" }}\n[[workers]]\ncount = 3\nservice = \"25ms\""
        )
    };
    let deliveries = run(&text("poison = { share = 0.1, after = \"2ms\" }\n"), 1, Chooser::Policy(Policy::Adaptive));
    let dead = deliveries.iter().filter(|delivery| delivery.is_dead).count();
    assert!((70..130).contains(&dead), "{dead}");
    assert!(deliveries.iter().all(|delivery| delivery.is_dead != delivery.finished.is_some()));
    let without = run(&text(""), 1, Chooser::Policy(Policy::Adaptive));
    assert!(without.iter().all(|delivery| delivery.finished.is_some()));
}

#[test]
fn overdue_message_moves_and_its_late_end_counts_once() {
    let stuck = "[[workers]]\nservice = \"3s\"\n[[workers]]\nservice = \"25ms\"\n";
    let text = format!("{QUEUE}{}", burst(2, stuck));
    let deliveries = run(&text, 1, ROUND_ROBIN);
    // The first goes to the slow worker again, and once more to the other.
    assert!(deliveries.iter().all(|delivery| delivery.finished.is_some() && !delivery.is_dead), "{deliveries:?}");
    let without = run(&burst(2, stuck), 1, ROUND_ROBIN);
    assert_eq!(waits_ms(&without), [0.2, 0.2], "no time-out");
}
