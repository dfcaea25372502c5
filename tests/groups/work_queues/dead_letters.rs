//! Messages that become dead letters.

use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use tenbin_codec::{Connect, MessageProperties, ProtocolVersion, Publish, QoS, ReasonCode, TopicName, UserProperty};

use super::{broker_with, config, join, next_of, payload, property, reject, reject_with};
use crate::support::{BrokerProcess, DataDirectory, PATIENCE, RawClient, lasting, share, text};

const LIMIT_OF_TWO: &str =
    "on_reject = \"retry\"\nretry_delay_ms = 20\ndeliveries_maximum = 2\ndead_letter = \"dead/%g/%t\"";

fn undertaker(broker: &BrokerProcess) -> RawClient {
    let mut undertaker = broker.v5("undertaker");
    undertaker.subscribe(&share("dead", "dead/#"), QoS::ExactlyOnce);
    undertaker
}

fn job(qos: QoS) -> Publish {
    let properties = MessageProperties {
        content_type: Some(text("text/plain")),
        correlation_data: Some(Bytes::from_static(b"corr")),
        response_topic: Some(text("answers/1")),
        message_expiry_interval: Some(1000),
        user_properties: vec![
            UserProperty::new(text("deliveries"), text("the publisher's")),
            UserProperty::new(text("dead-letter-reason"), text("an older letter's")),
        ],
        ..MessageProperties::default()
    };
    let topic = TopicName::try_from("jobs/a/b").expect("a topic");
    Publish { qos, properties: Some(Box::new(properties)), ..Publish::new(topic, Bytes::from_static(b"the payload")) }
}

#[test]
fn message_beyond_the_limit_is_one_letter_with_all_properties() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        for has_store in [false, true] {
            let (file, directory) = (config(LIMIT_OF_TWO), DataDirectory::new());
            let broker = match has_store {
                true => directory.start_with(&["--config", file.path()]),
                false => broker_with(LIMIT_OF_TWO),
            };
            let mut worker = join(&broker, "worker");
            let mut publisher = broker.v5("publisher");
            assert_eq!(publisher.publish_with(job(qos)), ReasonCode::Success);
            for _ in 0..2 {
                let message = worker.receive_publish();
                reject(&mut worker, &message);
            }
            let mut undertaker = undertaker(&broker);
            let letter = undertaker.receive_message();
            assert_eq!(
                (letter.topic.as_bytes(), letter.qos, letter.retain),
                (&b"dead/workers/jobs/a/b"[..], qos, false)
            );
            assert_eq!(payload(&letter), "the payload");
            let properties = letter.properties.as_ref().expect("properties");
            assert_eq!(properties.content_type.as_ref().map(|text| text.as_str()), Some("text/plain"));
            assert_eq!(properties.response_topic.as_ref().map(|text| text.as_str()), Some("answers/1"));
            assert_eq!(properties.correlation_data.as_deref(), Some(&b"corr"[..]));
            assert!(properties.message_expiry_interval.is_some_and(|left| (900..=1000).contains(&left)));
            for (name, value) in [
                ("deliveries", "the publisher's"),
                ("dead-letter-reason", "limit"),
                ("dead-letter-group", "workers"),
                ("dead-letter-topic", "jobs/a/b"),
                ("dead-letter-deliveries", "2"),
                ("dead-letter-client", "worker"),
            ] {
                assert_eq!(property(&letter, name), Some(value), "{name} store {has_store}");
            }
            let time: u64 = property(&letter, "dead-letter-time").expect("a time").parse().expect("milliseconds");
            assert!(time > 1_700_000_000_000);
            undertaker.expect_nothing_for(Duration::from_millis(200));
            worker.expect_nothing_for(Duration::from_millis(100));
        }
    }
}

#[test]
fn letter_after_lost_connections_names_the_last_worker() {
    for is_lasting in [false, true] {
        let (file, directory) = (config(LIMIT_OF_TWO), DataDirectory::new());
        let broker = directory.start_with(&["--config", file.path()]);
        broker.v5("publisher").publish("jobs/a", "job", QoS::AtLeastOnce);
        for client_id in ["one", "two"] {
            let connect = match is_lasting {
                true => lasting(ProtocolVersion::V5, client_id),
                false => Connect::new(ProtocolVersion::V5, text(client_id)),
            };
            let mut worker = broker.connect(connect);
            worker.subscribe(&share("workers", "jobs/#"), QoS::AtLeastOnce);
            assert_eq!(payload(&worker.receive_publish()), "job");
            worker.cut();
        }
        let letter = undertaker(&broker).receive_message();
        assert_eq!(property(&letter, "dead-letter-reason"), Some("limit"));
        assert_eq!(property(&letter, "dead-letter-client"), Some("two"), "lasting {is_lasting}");
    }
}

#[test]
fn member_names_the_reason_of_a_dead_letter() {
    let broker = broker_with(LIMIT_OF_TWO);
    let (mut worker, mut undertaker) = (join(&broker, "worker"), undertaker(&broker));
    broker.v5("publisher").publish("jobs/a", "job", QoS::AtLeastOnce);
    let message = worker.receive_publish();
    reject_with(&mut worker, &message, &[("dead-letter", "no such customer\u{7f}")]);
    let letter = undertaker.receive_message();
    assert_eq!(property(&letter, "dead-letter-reason"), Some("no such customer"));
    assert_eq!(property(&letter, "dead-letter-deliveries"), Some("1"));
}

#[test]
fn rejected_message_is_a_dead_letter_at_once_by_the_rule() {
    let broker = broker_with("on_reject = \"dead_letter\"\ndead_letter = \"dead/%t\"");
    let (mut worker, mut undertaker) = (join(&broker, "worker"), undertaker(&broker));
    broker.v5("publisher").publish("jobs/a", "job", QoS::AtLeastOnce);
    let message = worker.receive_publish();
    reject(&mut worker, &message);
    assert_eq!(property(&undertaker.receive_message(), "dead-letter-reason"), Some("rejected"));
    worker.expect_nothing_waiting();
}

#[test]
fn last_overdue_delivery_makes_a_dead_letter() {
    let broker = broker_with("acknowledge_within_ms = 1000\ndeliveries_maximum = 2\ndead_letter = \"dead/%t\"");
    let (mut workers, mut undertaker) = (["one", "two"].map(|id| join(&broker, id)), undertaker(&broker));
    broker.v5("publisher").publish("jobs/a", "job", QoS::AtLeastOnce);
    let (first, _) = next_of(&mut workers);
    let (second, _) = next_of(&mut workers);
    assert_ne!(first, second);
    let letter = undertaker.receive_message();
    assert_eq!(property(&letter, "dead-letter-reason"), Some("overdue"));
    assert_eq!(property(&letter, "dead-letter-deliveries"), Some("2"));
}

#[test]
fn expired_message_is_a_dead_letter_by_the_rule_alone() {
    for (keys, is_letter) in [
        ("on_reject = \"retry\"\ndead_letter = \"dead/%t\"\nexpired_to_dead_letter = true", true),
        ("on_reject = \"retry\"\ndead_letter = \"dead/%t\"", false),
    ] {
        for has_store in [false, true] {
            let (file, directory) = (config(keys), DataDirectory::new());
            let broker = match has_store {
                true => directory.start_with(&["--config", file.path()]),
                false => broker_with(keys),
            };
            let mut publisher = broker.v5("publisher");
            let mut job = job(QoS::AtLeastOnce);
            job.properties.get_or_insert_default().message_expiry_interval = Some(1);
            publisher.publish_with(job);
            std::thread::sleep(Duration::from_millis(1500));
            let mut worker = join(&broker, "worker");
            let mut undertaker = undertaker(&broker);
            if is_letter {
                let letter = undertaker.receive_message();
                assert_eq!(property(&letter, "dead-letter-reason"), Some("expired"));
                assert_eq!(letter.properties.as_ref().and_then(|one| one.message_expiry_interval), None);
            }
            undertaker.expect_nothing_for(Duration::from_millis(200));
            worker.expect_nothing_waiting();
        }
    }
}

/// A work queue, and a standing group for its letters that is full of some messages: without a store by 20 messages,
/// with one by 20,000 bytes.
fn start_full(directory: Option<&DataDirectory>) -> (BrokerProcess, usize) {
    let file = crate::support::ConfigFile::new(&format!(
        "[[share]]\ngroup = \"workers\"\nfilter = \"jobs/#\"\nkeep_seconds = 604800\n{LIMIT_OF_TWO}\n\
         [[share]]\ngroup = \"dead\"\nfilter = \"dead/#\"\nkeep_seconds = 604800\n[queue]\nmessages_maximum = 20\n\
         [store]\nqueue_bytes_maximum = 20000\n"
    ));
    let broker = match directory {
        Some(directory) => directory.start_with(&["--config", file.path()]),
        None => BrokerProcess::start(&["--ephemeral", "--config", file.path()]),
    };
    // Each publisher with little of the backlog has some room more, and so has the broker.
    let payload = "fills".repeat(if directory.is_some() { 200 } else { 1 });
    let fill = |number: usize| {
        let mut publisher = broker.v5(&format!("publisher-{number}"));
        let is_taken = |_: &usize| publisher.publish("dead/x", &payload, QoS::AtLeastOnce) == ReasonCode::Success;
        (0..100).take_while(is_taken).count()
    };
    let fills = (0..).map(fill).take_while(|fills| *fills > 0).sum();
    (broker, fills)
}

/// Has a worker reject a message as often as it may.
fn reject_twice(broker: &BrokerProcess, worker: &mut RawClient) {
    broker.v5("publisher").publish("jobs/a", "job", QoS::AtLeastOnce);
    for _ in 0..2 {
        let message = worker.receive_publish();
        reject(worker, &message);
    }
    worker.settle();
}

#[test]
fn refused_letter_is_published_once_there_is_room() {
    let (broker, fills) = start_full(None);
    reject_twice(&broker, &mut join(&broker, "worker"));
    let mut undertaker = undertaker(&broker);
    // Messages of different publishers have no order among each other.
    let all: Vec<_> = (0..=fills).map(|_| payload(&undertaker.receive_message())).collect();
    let jobs = all.iter().filter(|payload| *payload == "job").count();
    assert_eq!((jobs, all.len() - jobs), (1, fills));
    assert!(all.iter().all(|payload| payload == "job" || payload == "fills"));
}

#[test]
fn end_of_the_broker_tells_of_refused_letters_in_memory() {
    for has_store in [false, true] {
        let directory = DataDirectory::new();
        let (mut broker, _) = start_full(has_store.then_some(&directory));
        reject_twice(&broker, &mut join(&broker, "worker"));
        broker.signal("TERM");
        assert!(broker.wait_for_exit(PATIENCE).success());
        let words = "messages dropped: the broker ends before their dead letters were published";
        let lines = broker.log().to_end(PATIENCE);
        let told: Vec<_> = lines.iter().filter(|line| line.contains(words)).collect();
        assert_eq!(told.len(), usize::from(!has_store), "{lines:?}");
        assert!(told.iter().all(|line| line.contains("messages=1")), "{told:?}");
        if has_store {
            drop(broker);
            let (broker, _) = start_full(Some(&directory));
            assert_eq!(payload(&join(&broker, "worker").receive_publish()), "job");
        }
    }
}

#[test]
fn message_with_wrong_payload_format_has_a_letter() {
    let broker = broker_with("on_reject = \"dead_letter\"\ndead_letter = \"dead/%t\"");
    let (mut worker, mut undertaker) = (join(&broker, "worker"), undertaker(&broker));
    let mut job = job(QoS::AtLeastOnce);
    job.payload = Bytes::from_static(b"\xff\xfe");
    job.properties.get_or_insert_default().payload_format_indicator = Some(true);
    assert_eq!(broker.v5("publisher").publish_with(job), ReasonCode::Success);
    let message = worker.receive_publish();
    reject(&mut worker, &message);
    assert_eq!(undertaker.receive_message().payload[..], *b"\xff\xfe");
}

#[test]
fn second_delivery_without_room_for_its_number_lacks_it() {
    let broker = broker_with("on_reject = \"retry\"\nretry_delay_ms = 20");
    let mut connect = Connect::new(ProtocolVersion::V5, text("worker"));
    connect.properties.maximum_packet_size = NonZeroU32::new(100);
    let mut worker = broker.connect(connect);
    worker.subscribe(&share("workers", "jobs/#"), QoS::AtLeastOnce);
    // Topic, Packet Identifier and lengths take 13 bytes.
    let whole = "x".repeat(87);
    broker.v5("publisher").publish("jobs/a", &whole, QoS::AtLeastOnce);
    let first = worker.receive_publish();
    assert_eq!(payload(&first), whole);
    reject(&mut worker, &first);
    let second = worker.receive_publish();
    assert_eq!((payload(&second), property(&second, "deliveries")), (whole, None));
}
