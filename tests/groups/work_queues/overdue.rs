//! Messages that members do not acknowledge in time.

use std::num::NonZeroU16;
use std::time::Duration;

use tenbin_codec::{Connect, ProtocolVersion, QoS, ReasonCode};

use super::{broker_with, config, join, join_as, next_of, payload, property};
use crate::support::{DataDirectory, RawClient, share, text};

/// A member is disconnected after three seconds.
const LIMIT: &str = "acknowledge_within_ms = 1500";
const LATER: Duration = Duration::from_millis(500);

#[test]
fn overdue_message_moves_and_its_late_puback_is_accepted() {
    for version in [ProtocolVersion::V5, ProtocolVersion::V311] {
        for has_store in [false, true] {
            let (file, directory) = (config(LIMIT), DataDirectory::new());
            let broker = match has_store {
                true => directory.start_with(&["--config", file.path()]),
                false => broker_with(LIMIT),
            };
            let mut workers = ["one", "two"].map(|id| join_as(&broker, id, version));
            let mut publisher = broker.v5("publisher");
            publisher.publish("jobs/a", "job", QoS::AtLeastOnce);
            let (first, message) = next_of(&mut workers);
            let (second, again) = next_of(&mut workers);
            assert_ne!(first, second, "{version:?} store {has_store}");
            let deliveries = (version == ProtocolVersion::V5).then_some("2");
            assert_eq!((payload(&again).as_str(), again.dup), ("job", false));
            assert_eq!(property(&again, "deliveries"), deliveries);
            workers[second].acknowledge(&again);
            // A message that comes in between has another identifier.
            publisher.publish("jobs/a", "between", QoS::AtLeastOnce);
            let (index, between) = next_of(&mut workers);
            assert!(index != first || between.packet_id != message.packet_id);
            workers[index].acknowledge(&between);
            // The identifier is in use until this PUBACK, which ends nothing else.
            workers[first].acknowledge(&message);
            workers[first].settle();
            for number in 0..10 {
                publisher.publish("jobs/a", &number.to_string(), QoS::AtLeastOnce);
                let (index, message) = next_of(&mut workers);
                workers[index].acknowledge(&message);
            }
            workers.iter_mut().for_each(|worker| worker.expect_nothing_for(LATER));
        }
    }
}

#[test]
fn overdue_message_of_a_former_member_moves() {
    for others_first in [true, false] {
        let broker = broker_with(LIMIT);
        let mut former = join(&broker, "former");
        broker.v5("publisher").publish("jobs/a", "job", QoS::AtLeastOnce);
        let message = former.receive_publish();
        let before = others_first.then(|| join(&broker, "other"));
        former.unsubscribe(&[&share("workers", "jobs/#")]);
        let mut other = before.unwrap_or_else(|| join(&broker, "other"));
        let again = other.receive_publish();
        assert_eq!((payload(&again).as_str(), property(&again, "deliveries")), ("job", Some("2")));
        other.acknowledge(&again);
        former.acknowledge(&message);
        former.settle();
        other.settle();
    }
}

#[test]
fn stuck_member_gets_nothing_more_and_is_disconnected() {
    let broker = broker_with(LIMIT);
    let mut connect = Connect::new(ProtocolVersion::V5, text("stuck"));
    connect.properties.receive_maximum = NonZeroU16::new(1);
    let mut stuck = broker.connect(connect);
    stuck.subscribe(&share("workers", "jobs/#"), QoS::AtLeastOnce);
    let mut publisher = broker.v5("publisher");
    publisher.publish("jobs/a", "first", QoS::AtLeastOnce);
    assert_eq!(payload(&stuck.receive_publish()), "first");
    let mut other = join(&broker, "other");
    let first = other.receive_publish();
    assert_eq!((payload(&first).as_str(), property(&first, "deliveries")), ("first", Some("2")));
    other.acknowledge(&first);
    for number in 0..20 {
        publisher.publish("jobs/a", &number.to_string(), QoS::AtLeastOnce);
        assert_eq!(payload(&other.receive_message()), number.to_string());
    }
    stuck.expect_end(ReasonCode::KeepAliveTimeout);
    other.expect_nothing_for(LATER);
}

#[test]
fn exactly_once_message_ends_the_connection_and_stays() {
    let broker = broker_with(LIMIT);
    let mut workers = ["one", "two"].map(|id| join(&broker, id));
    broker.v5("publisher").publish("jobs/a", "once", QoS::ExactlyOnce);
    let (first, _) = next_of(&mut workers);
    let [one, two] = workers;
    let (mut stuck, mut other): (RawClient, RawClient) = if first == 0 { (one, two) } else { (two, one) };
    stuck.expect_end(ReasonCode::KeepAliveTimeout);
    other.expect_nothing_for(LATER);
}

#[test]
fn stuck_member_of_3_1_1_is_closed_without_a_packet() {
    let broker = broker_with(LIMIT);
    let mut stuck = join_as(&broker, "stuck", ProtocolVersion::V311);
    broker.v5("publisher").publish("jobs/a", "job", QoS::AtLeastOnce);
    assert_eq!(payload(&stuck.receive_publish()), "job");
    let mut other = join(&broker, "other");
    assert_eq!(payload(&other.receive_message()), "job");
    stuck.expect_closed();
}

#[test]
fn member_that_acknowledges_in_time_keeps_its_messages() {
    let broker = broker_with(LIMIT);
    let mut workers = ["one", "two"].map(|id| join(&broker, id));
    let mut publisher = broker.v5("publisher");
    for number in 0..10 {
        publisher.publish("jobs/a", &number.to_string(), QoS::AtLeastOnce);
        let (index, message) = next_of(&mut workers);
        std::thread::sleep(Duration::from_millis(150));
        assert_eq!(property(&message, "deliveries"), None);
        workers[index].acknowledge(&message);
    }
}
