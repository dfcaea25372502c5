//! Deliveries and pauses of messages across `kill -9`.

use std::time::{Duration, Instant};

use tenbin_codec::QoS;

use super::{config, join, payload, property, reject, reject_with};
use crate::support::{DataDirectory, share};

#[test]
fn restart_keeps_deliveries_and_due_time() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let file = config("on_reject = \"retry\"\nretry_delay_ms = 20");
        let directory = DataDirectory::new();
        let start = || directory.start_with(&["--config", file.path()]);
        let broker = start();
        let mut worker = join(&broker, "worker");
        let mut publisher = broker.v5("publisher");
        publisher.publish("jobs/a", "job", qos);
        let message = worker.receive_publish();
        reject(&mut worker, &message);
        let message = worker.receive_publish();
        assert_eq!(property(&message, "deliveries"), Some("2"));
        let rejected_at = Instant::now();
        reject_with(&mut worker, &message, &[("retry-after-ms", "3000")]);
        worker.settle();
        // It is stored behind the rejection.
        publisher.publish("jobs/a", "later", qos);
        assert_eq!(payload(&worker.receive_message()), "later");
        drop((worker, publisher, broker)); // as by `kill -9`

        let broker = start();
        let mut worker = join(&broker, "another");
        let mut again = worker.receive_publish();
        while payload(&again) == "later" {
            worker.acknowledge(&again); // its acknowledgement may not have been stored
            again = worker.receive_publish();
        }
        assert_eq!((payload(&again).as_str(), property(&again, "deliveries")), ("job", Some("3")), "{qos}");
        assert!(rejected_at.elapsed() >= Duration::from_millis(2900), "{:?}", rejected_at.elapsed());
        worker.acknowledge(&again);
        worker.expect_nothing_for(Duration::from_millis(200));
    }
}

/// A kill may repeat a letter, and loses none.
#[test]
fn dead_letters_survive_a_kill() {
    let file = config("on_reject = \"dead_letter\"\ndead_letter = \"dead/%g/%t\"");
    let directory = DataDirectory::new();
    let start = || directory.start_with(&["--config", file.path()]);
    let broker = start();
    let mut worker = join(&broker, "worker");
    let mut publisher = broker.v5("publisher");
    // More rejections in a row make the worker a suspect, which gets few messages.
    for number in 0..MESSAGES {
        publisher.publish("jobs/a", &number.to_string(), QoS::AtLeastOnce);
        let message = worker.receive_publish();
        reject(&mut worker, &message);
    }
    worker.settle();
    drop((worker, publisher, broker)); // as by `kill -9`

    let broker = start();
    let mut worker = join(&broker, "worker");
    let mut undertaker = broker.v5("undertaker");
    undertaker.subscribe(&share("dead", "dead/#"), QoS::AtLeastOnce);
    let (mut seen, begin) = (std::collections::BTreeSet::new(), Instant::now());
    while seen.len() < MESSAGES {
        assert!(begin.elapsed() < crate::support::PATIENCE, "{} letters", seen.len());
        // Those that were rejected and not letters yet come to the worker once more.
        while let Ok(tenbin_codec::Packet::Publish(message)) = worker.try_receive(Duration::from_millis(20)) {
            reject(&mut worker, &message);
        }
        while let Ok(tenbin_codec::Packet::Publish(letter)) = undertaker.try_receive(Duration::from_millis(20)) {
            undertaker.acknowledge(&letter);
            seen.insert(payload(&letter));
        }
    }
}

const MESSAGES: usize = 8;
