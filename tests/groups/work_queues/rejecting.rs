//! Messages that members reject.

use std::time::{Duration, Instant};

use tenbin_codec::{ProtocolVersion, QoS, ReasonCode};

use super::{broker_with, config, join, join_as, next_of, payload, property, reject, reject_with};
use crate::support::{BrokerProcess, ConfigFile, DataDirectory, PATIENCE, RawClient};

const RETRY: &str = "on_reject = \"retry\"\nretry_delay_ms = 50";

/// The standard's rule [MQTT-4.8.2-6], without the keys.
#[test]
fn rejected_message_ends_without_a_rule() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let broker = broker_with("");
        let mut workers = ["one", "two"].map(|id| join(&broker, id));
        broker.v5("publisher").publish("jobs/a", "poison", qos);
        let (at, message) = next_of(&mut workers);
        reject_with(&mut workers[at], &message, &[("retry-after-ms", "0"), ("dead-letter", "why not")]);
        workers.iter_mut().for_each(|worker| worker.expect_nothing_for(Duration::from_millis(300)));
    }
}

#[test]
fn rejected_message_goes_to_another_member() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        for has_store in [false, true] {
            let file = config(RETRY);
            let directory = DataDirectory::new();
            let broker = match has_store {
                true => directory.start_with(&["--config", file.path()]),
                false => broker_with(RETRY),
            };
            let mut workers = ["one", "two"].map(|id| join(&broker, id));
            broker.v5("publisher").publish("jobs/a", "job", qos);
            let (first, message) = next_of(&mut workers);
            assert_eq!((property(&message, "deliveries"), message.dup), (None, false));
            reject(&mut workers[first], &message);
            let (second, again) = next_of(&mut workers);
            assert_ne!(first, second, "{qos} store {has_store}");
            assert_eq!((payload(&again).as_str(), again.qos, again.dup), ("job", qos, false));
            assert_eq!(property(&again, "deliveries"), Some("2"));
            workers[second].acknowledge(&again);
            workers.iter_mut().for_each(|worker| worker.expect_nothing_for(Duration::from_millis(200)));
        }
    }
}

#[test]
fn sole_member_gets_a_rejected_message_after_growing_pauses() {
    let broker = broker_with("on_reject = \"retry\"\nretry_delay_ms = 100\nretry_delay_maximum_ms = 200");
    let mut worker = join(&broker, "worker");
    broker.v5("publisher").publish("jobs/a", "job", QoS::AtLeastOnce);
    let mut message = worker.receive_publish();
    for (number, pause_ms) in [("2", 100), ("3", 200), ("4", 200)] {
        let begin = Instant::now();
        reject(&mut worker, &message);
        message = worker.receive_publish();
        let (waited, pause) = (begin.elapsed(), Duration::from_millis(pause_ms));
        assert!(waited >= pause && waited < pause + PATIENCE, "{number}: {waited:?}");
        assert_eq!((property(&message, "deliveries"), message.dup), (Some(number), false));
    }
    worker.acknowledge(&message);
    worker.expect_nothing_for(Duration::from_millis(300));
}

#[test]
fn member_sets_the_pause() {
    let broker = broker_with("on_reject = \"retry\"\nretry_delay_ms = 3600000");
    let mut worker = join(&broker, "worker");
    broker.v5("publisher").publish("jobs/a", "job", QoS::AtLeastOnce);
    let message = worker.receive_publish();
    reject_with(&mut worker, &message, &[("retry-after-ms", "100")]);
    assert_eq!(property(&worker.receive_publish(), "deliveries"), Some("2"));
}

#[test]
fn poison_message_stops_no_other() {
    let broker = broker_with("on_reject = \"retry\"\nretry_delay_ms = 50\nretry_delay_maximum_ms = 50");
    let mut worker = join(&broker, "worker");
    let mut publisher = broker.v5("publisher");
    publisher.publish("jobs/a", "poison", QoS::AtLeastOnce);
    (0..200).for_each(|number| _ = publisher.publish("jobs/a", &number.to_string(), QoS::AtLeastOnce));
    let mut good = Vec::new();
    let begin = Instant::now();
    while good.len() < 200 {
        assert!(begin.elapsed() < PATIENCE, "{} of 200", good.len());
        let message = worker.receive_publish();
        match payload(&message) {
            poison if poison == "poison" => reject(&mut worker, &message),
            number => {
                worker.acknowledge(&message);
                good.push(number);
            }
        }
    }
    assert_eq!(good, (0..200).map(|number| number.to_string()).collect::<Vec<_>>());
}

#[test]
fn member_of_3_1_1_gets_the_message_without_the_property() {
    let broker = broker_with(RETRY);
    let mut worker = join(&broker, "worker");
    broker.v5("publisher").publish("jobs/a", "job", QoS::AtLeastOnce);
    let message = worker.receive_publish();
    reject_with(&mut worker, &message, &[("retry-after-ms", "1000")]);
    worker.unsubscribe(&["$share/workers/jobs/#"]);
    let mut old: RawClient = join_as(&broker, "old", ProtocolVersion::V311);
    let again = old.receive_message();
    assert_eq!((payload(&again).as_str(), again.properties.is_none()), ("job", true));
}

/// A worker whose connection ends with the message has had it, and the worker may be the message's victim.
#[test]
fn delivery_counts_when_the_connection_ends() {
    let broker = broker_with(RETRY);
    let mut worker = join(&broker, "worker");
    broker.v5("publisher").publish("jobs/a", "job", QoS::AtLeastOnce);
    assert_eq!(property(&worker.receive_publish(), "deliveries"), None);
    worker.cut();
    let again = join(&broker, "another").receive_publish();
    assert_eq!((property(&again, "deliveries"), again.dup), (Some("2"), false));
}

/// As `docs/admin.md` says of messages that have ended as `delivered`.
#[test]
fn rejection_without_the_removed_rule_ends_the_message() {
    let file = config(RETRY);
    let broker = BrokerProcess::start(&["--ephemeral", "--config", file.path()]);
    let mut worker = join(&broker, "worker");
    broker.v5("publisher").publish("jobs/a", "job", QoS::AtLeastOnce);
    let message = worker.receive_publish();
    std::fs::write(file.path(), ConfigFile::DEFAULTS).expect("the file");
    broker.signal("HUP");
    broker.log().wait_for(&[" reloaded "], PATIENCE);
    reject(&mut worker, &message);
    worker.settle();
    worker.expect_nothing_for(Duration::from_millis(200));
}

#[test]
fn wrong_rules_are_refused_with_their_key() {
    for (keys, words) in [
        ("retry_delay_ms = 5", "retry_delay_ms: needs on_reject"),
        ("on_reject = \"retry\"\ndead_letter = \"jobs/dead\"", "its own dead letters"),
        ("on_reject = \"never\"", "on_reject"),
        ("deliveries_maximum = 3", "needs dead_letter"),
    ] {
        let file = config(keys);
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_tenbin"))
            .args(["broker", "--check", "--config", file.path()])
            .output()
            .expect("the broker's program");
        let told = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success() && told.contains(words), "{keys}: {told}");
    }
}

/// The publisher's acknowledgement says nothing about the worker.
#[test]
fn publisher_of_a_rejected_message_has_success() {
    let broker = broker_with(RETRY);
    let mut worker = join(&broker, "worker");
    let mut publisher = broker.v5("publisher");
    assert_eq!(publisher.publish("jobs/a", "job", QoS::AtLeastOnce), ReasonCode::Success);
    let message = worker.receive_publish();
    reject(&mut worker, &message);
    assert_eq!(publisher.publish("jobs/a", "next", QoS::AtLeastOnce), ReasonCode::Success);
}
