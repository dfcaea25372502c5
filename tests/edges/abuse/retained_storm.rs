//! Wildcard subscriptions to all retained messages at once.

use std::collections::HashSet;
use std::time::Duration;

use tenbin_codec::{Packet, ProtocolVersion, Publish, QoS, WriteBuffer};

use crate::abuse::broker_with;
use crate::abuse::growth::Growth;
use crate::support::{BrokerProcess, RawClient, lasting, message, number_of};

const MESSAGES: usize = 50_000;

fn retain_many(broker: &BrokerProcess) {
    let mut publisher = broker.v5("publisher");
    let mut out = WriteBuffer::new();
    for number in 0..MESSAGES {
        let publish = message(&format!("kept/{}/{number}", number % 100), &number.to_string());
        Packet::Publish(Publish { retain: true, ..publish }).encode(ProtocolVersion::V5, &mut out);
    }
    publisher.send_bytes(&out.to_bytes());
    publisher.settle();
}

fn receive_all(client: &mut RawClient) -> HashSet<usize> {
    let mut numbers = HashSet::new();
    while numbers.len() < MESSAGES {
        let message = client.receive_message();
        assert!(message.retain && numbers.insert(number_of(&message)), "twice");
    }
    client.expect_nothing_waiting();
    numbers
}

/// More retained messages than a queue holds all arrive once, at any QoS. A second SUBSCRIBE brings them again.
#[test]
fn retained_messages_beyond_the_queue_limit_arrive() {
    let broker = broker_with("[queue]\nmessages_maximum = 100\n[sessions]\nin_flight_maximum = 50");
    retain_many(&broker);
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
        let mut client = broker.v5("client");
        client.subscribe("#", qos);
        // `receive_message` acknowledges at the QoS of the message. The publisher used QoS 0.
        receive_all(&mut client);
        client.subscribe("#", qos);
        receive_all(&mut client);
    }
}

/// QoS 1 messages that a session has not been sent yet wait for its next connection.
#[test]
fn unsent_retained_messages_wait_for_the_next_connection() {
    let broker = broker_with("[sessions]\nin_flight_maximum = 10");
    let mut publisher = broker.v5("publisher");
    for number in 0..100 {
        publisher.publish_with(crate::support::retained(&format!("kept/{number}"), &number.to_string()));
    }
    let mut client = broker.connect(lasting(ProtocolVersion::V5, "client"));
    client.subscribe("kept/+", QoS::AtLeastOnce);
    let mut numbers = (0..5).map(|_| number_of(&client.receive_message())).collect::<HashSet<_>>();
    client.cut();
    let mut client = broker.connect(lasting(ProtocolVersion::V5, "client"));
    while numbers.len() < 100 {
        numbers.insert(number_of(&client.receive_message()));
    }
    client.unsubscribe(&["kept/+"]);
    client.subscribe("kept/+", QoS::AtLeastOnce);
    client.unsubscribe(&["kept/+"]);
    // Only messages in flight arrive, not the rest.
    assert!(client.drain().len() < 30);
}

/// 50 clients request 50,000 messages five times each and read nothing: growth ≤ 64 MiB, and another client is served
/// after less than 2 s of CPU time.
#[test]
fn subscribers_that_do_not_read_use_little_memory() {
    let broker = BrokerProcess::start(&[]);
    retain_many(&broker);
    let mut growth = Growth::of(&broker);
    let mut storm = (0..50).map(|number| broker.v5(&format!("storm-{number}"))).collect::<Vec<_>>();
    let subscribe = crate::support::hex("82 07 00 01 00 00 01 23 00");
    let mut longest = Duration::ZERO;
    for _ in 0..5 {
        storm.iter_mut().for_each(|client| client.send_bytes(&subscribe));
        let began = broker.cpu_time();
        broker.assert_serves();
        longest = longest.max(broker.cpu_time() - began);
        growth.look();
    }
    assert!(longest < Duration::from_secs(2), "other clients wait while the broker works for {longest:?}");
    growth.assert_within(64, "50 x 5 x 50,000 retained messages");
    drop(storm);
    let mut client = broker.v5("client");
    client.subscribe("kept/#", QoS::AtMostOnce);
    receive_all(&mut client);
}

/// A sparse filter visits every topic and finds nothing. Other clients must run during the search.
#[test]
fn filter_without_matches_delays_no_other_client() {
    let broker = BrokerProcess::start(&[]);
    retain_many(&broker);
    let mut storm = (0..8).map(|number| broker.v5(&format!("storm-{number}"))).collect::<Vec<_>>();
    for number in 0..200 {
        let filter = format!("+/+/+/{number}");
        let packet = crate::support::encode(
            &Packet::Subscribe(tenbin_codec::Subscribe {
                packet_id: tenbin_codec::PacketId::new(number + 1).expect("not 0"),
                subscription_identifier: None,
                user_properties: Vec::new(),
                subscriptions: vec![crate::support::subscription(&filter, QoS::AtMostOnce)],
            }),
            ProtocolVersion::V5,
        );
        storm.iter_mut().for_each(|client| client.send_bytes(&packet));
    }
    let began = broker.cpu_time();
    broker.assert_serves();
    let worked = broker.cpu_time() - began;
    assert!(worked < Duration::from_secs(4), "other clients wait while the broker works for {worked:?}");
}

/// A subscriber sees the newest message of a topic last, however PUBLISH and SUBSCRIBE interleave.
#[test]
fn newest_retained_message_comes_last() {
    let broker = BrokerProcess::start(&[]);
    let mut publisher = broker.v5("publisher");
    let last = 2000;
    let address = broker.address();
    let readers = (0..4).map(|number| {
        std::thread::spawn(move || {
            let connect = tenbin_codec::Connect::new(ProtocolVersion::V5, crate::support::text(&format!("r{number}")));
            let (mut client, _) = RawClient::connect(address, connect);
            let mut newest = 0;
            while newest < last {
                client.subscribe("state", QoS::AtMostOnce);
                let mut seen = 0;
                for publish in client.drain() {
                    seen = number_of(&publish);
                }
                // The last message must not be older than one of an earlier round.
                assert!(seen == 0 || seen >= newest, "{seen} after {newest}");
                newest = newest.max(seen);
                client.unsubscribe(&["state"]);
                client.drain();
            }
        })
    });
    let readers = readers.collect::<Vec<_>>();
    for number in 1..=last {
        let publish = Publish { retain: true, ..message("state", &number.to_string()) };
        publisher.send(&Packet::Publish(publish));
        if number % 10 == 0 {
            publisher.settle();
        }
    }
    readers.into_iter().for_each(|reader| reader.join().expect("the newest comes last"));
}
