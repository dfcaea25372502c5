//! Limits on counts.

use std::time::Instant;

use tenbin_codec::{Connect, Packet, ProtocolVersion, Publish, QoS, ReasonCode, Subscribe};

use crate::limits::broker_with;
use crate::support::{PATIENCE, RawClient, Silence, VERSIONS, at_qos, hex, lasting, retained, subscription, text};

#[test]
fn connections_of_one_address() {
    let broker = broker_with("[connections]\nloopback_per_address_maximum = 2");
    let mut first = broker.v5("first");
    let second = broker.v5("second");
    // The broker closes without an answer: the client has sent no packet yet.
    broker.open(ProtocolVersion::V5).expect_closed();
    broker.log().wait_for(&["connection refused", "limit=\"connections.loopback_per_address_maximum\""], PATIENCE);
    first.settle();
    second.disconnect();
    let until = Instant::now() + PATIENCE;
    loop {
        let mut third = broker.open(ProtocolVersion::V5);
        third.try_send_bytes(&hex("10 0D 00 04 4D 51 54 54 05 02 00 3C 00 00 00"));
        match third.try_receive(PATIENCE) {
            Ok(Packet::ConnAck(connack)) => break assert_eq!(connack.reason, ReasonCode::Success),
            Err(Silence::Closed) => assert!(Instant::now() < until, "no place after one has left"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn sessions() {
    let broker = broker_with("[sessions]\nmaximum = 2");
    broker.connect(lasting(ProtocolVersion::V5, "asleep")).disconnect();
    let awake = broker.v5("awake");
    for version in [ProtocolVersion::V5, ProtocolVersion::V311] {
        let (mut client, connack) = RawClient::try_connect(broker.address(), Connect::new(version, text("third")));
        let expected = if version.is_v5() { ReasonCode::QuotaExceeded } else { ReasonCode::ServerUnavailable };
        assert_eq!(connack.reason, expected, "{version}");
        client.expect_closed();
    }
    // Existing sessions are served, connected or not.
    broker.connect(lasting(ProtocolVersion::V5, "asleep")).disconnect();
    broker.v5("awake").disconnect();
    drop(awake);
    broker.v5("third").settle();
}

#[test]
fn subscriptions_of_one_client() {
    let broker = broker_with("[sessions]\nsubscriptions_maximum = 3");
    let mut client = broker.v5("client");
    let all = ["a", "b", "$share/g/c", "d"].map(|filter| subscription(filter, QoS::AtMostOnce));
    let reasons = client.subscribe_to(None, all.to_vec());
    assert_eq!(reasons[..3], [ReasonCode::Success; 3]);
    assert_eq!(reasons[3], ReasonCode::QuotaExceeded);
    client.subscribe("a", QoS::AtLeastOnce); // replaced, not added
    client.unsubscribe(&["b"]);
    client.subscribe("d", QoS::AtMostOnce);
    broker.v5("other").subscribe("d", QoS::AtMostOnce);
}

#[test]
fn client_restores_in_one_packet_what_it_may_hold() {
    let broker = broker_with("");
    let filters: Vec<_> = (0..12_000).map(|number| subscription(&format!("f/{number}"), QoS::AtMostOnce)).collect();
    for version in VERSIONS {
        let count = |client: &mut RawClient, size| {
            let reasons = filters.chunks(size).flat_map(|some| client.subscribe_to(None, some.to_vec()));
            reasons.filter(|reason| !reason.is_error()).count()
        };
        let mut client = broker.client(version, "client");
        assert_eq!(count(&mut client, 500), 10_000, "{version}");
        let mut client = broker.client(version, "client");
        assert_eq!(count(&mut client, 12_000), 10_000, "{version}, in one packet");
        assert_eq!(client.publish("f/9999", "the last", QoS::AtMostOnce), ReasonCode::Success);
        assert_eq!(client.receive_message().payload, "the last");
    }
}

#[test]
fn packet_with_filters_far_beyond_the_bound_ends_the_connection() {
    let broker = broker_with("[sessions]\nsubscriptions_maximum = 3");
    let all = |count| (0..count).map(|number| subscription(&format!("{number}"), QoS::AtMostOnce)).collect();
    let mut client = broker.v5("client");
    let reasons = client.subscribe_to(None, all(10_000));
    assert_eq!(reasons[..3], [ReasonCode::Success; 3]);
    assert!(reasons[3..].iter().all(|reason| *reason == ReasonCode::QuotaExceeded));
    let packet_id = client.next_id();
    client.send(&Packet::Subscribe(Subscribe {
        packet_id,
        subscription_identifier: None,
        user_properties: Vec::new(),
        subscriptions: all(10_001),
    }));
    client.expect_end(ReasonCode::QuotaExceeded);
}

#[test]
fn wildcard_patterns_beyond_the_bound_are_refused() {
    let broker = broker_with("[sessions]\nwildcard_patterns_maximum = 2");
    let mut client = broker.v5("client");
    let all = ["a/+/c", "a/#", "b/+/d", "+/b/c", "a/b", "$share/g/x/+/y", "$share/g/x/y/+"];
    let reasons = client.subscribe_to(None, all.map(|filter| subscription(filter, QoS::AtMostOnce)).to_vec());
    let refused = reasons.iter().map(|reason| *reason == ReasonCode::QuotaExceeded).collect::<Vec<_>>();
    assert_eq!(refused, [false, false, false, true, false, false, true]);
}

#[test]
fn bytes_of_the_subscriptions_of_one_client() {
    // Four filters of ten levels with a wildcard, or twenty-four without.
    let broker = broker_with("[sessions]\nsubscription_bytes_maximum = 8000");
    for (last, fit) in [("x", 24), ("+", 4)] {
        let mut client = broker.v5("client");
        let filter = |number: usize| format!("{number}/1/2/3/4/5/6/7/8/{last}");
        let subscribe = |client: &mut RawClient, number| {
            client.subscribe_to(None, vec![subscription(&filter(number), QoS::AtMostOnce)])[0]
        };
        for number in 0..fit {
            assert_eq!(subscribe(&mut client, number), ReasonCode::Success, "{last}, {number}");
        }
        assert_eq!(subscribe(&mut client, fit), ReasonCode::QuotaExceeded, "{last}");
        assert_eq!(subscribe(&mut client, 0), ReasonCode::Success, "replaced, not added");
        client.unsubscribe(&[&filter(1)]);
        assert_eq!(subscribe(&mut client, fit), ReasonCode::Success, "there is room again");
        client.disconnect();
    }
}

#[test]
fn unacknowledged_messages_of_a_client() {
    let broker = broker_with("[sessions]\nreceive_maximum = 5");
    let mut client = broker.v5("client");
    for qos in [QoS::ExactlyOnce; 5] {
        let publish = Publish { packet_id: Some(client.next_id()), ..at_qos("t", "x", qos) };
        client.send(&Packet::Publish(publish));
    }
    client.settle();
    let publish = Publish { packet_id: Some(client.next_id()), ..at_qos("t", "x", QoS::ExactlyOnce) };
    client.send(&Packet::Publish(publish));
    let packets = client.read_to_end();
    match packets.last() {
        Some(Packet::Disconnect(disconnect)) => assert_eq!(disconnect.reason, ReasonCode::ReceiveMaximumExceeded),
        other => panic!("{other:?} instead of DISCONNECT"),
    }
}

#[test]
fn unacknowledged_messages_to_a_client() {
    let broker = broker_with("[sessions]\nin_flight_maximum = 3");
    for version in [ProtocolVersion::V5, ProtocolVersion::V311] {
        let mut client = broker.client(version, "client");
        client.subscribe("t", QoS::AtLeastOnce);
        let mut publisher = broker.v5("publisher");
        for number in 0..10 {
            publisher.publish("t", &number.to_string(), QoS::AtLeastOnce);
        }
        let first = (0..3).map(|_| client.receive_publish()).collect::<Vec<_>>();
        client.expect_nothing_waiting();
        first.iter().for_each(|publish| client.acknowledge(publish));
        for number in 3..10 {
            assert_eq!(client.receive_message().payload, number.to_string());
        }
        client.expect_nothing_waiting();
    }
}

#[test]
fn queued_messages_of_a_session() {
    let broker = broker_with("[queue]\nmessages_maximum = 4");
    let mut sleeper = broker.connect(lasting(ProtocolVersion::V5, "sleeper"));
    sleeper.subscribe("t", QoS::ExactlyOnce);
    sleeper.disconnect();
    let mut publisher = broker.v5("publisher");
    for number in 0..10 {
        publisher.publish("t", &number.to_string(), QoS::AtLeastOnce);
    }
    let mut sleeper = broker.connect(lasting(ProtocolVersion::V5, "sleeper"));
    assert_eq!(sleeper.drain_payloads(), ["0", "1", "2", "3"]);
}

#[test]
fn queued_bytes_of_all_sessions() {
    let broker = broker_with("[queue]\ntotal_bytes_maximum = 130000");
    for number in 0..10 {
        let mut sleeper = broker.connect(lasting(ProtocolVersion::V5, &format!("sleeper-{number}")));
        sleeper.subscribe(&format!("t/{number}"), QoS::AtLeastOnce);
        sleeper.disconnect();
    }
    let mut publisher = broker.v5("publisher");
    for number in 0..10 {
        publisher.publish(&format!("t/{number}"), &"x".repeat(30_000), QoS::AtLeastOnce);
    }
    let waiting = || {
        let counts = (0..10).map(|number| {
            let mut sleeper = broker.connect(lasting(ProtocolVersion::V5, &format!("sleeper-{number}")));
            let count = sleeper.drain().len();
            sleeper.disconnect();
            count
        });
        counts.sum::<usize>()
    };
    assert_eq!(waiting(), 3, "as many as there is room for");
    publisher.publish("t/9", &"x".repeat(30_000), QoS::AtLeastOnce);
    assert_eq!(waiting(), 1, "what was taken out has made room");
}

#[test]
fn retained_messages_and_bytes() {
    for (config, fit) in [("messages_maximum = 3", 3), ("bytes_maximum = 25000", 2)] {
        let broker = broker_with(&format!("[retained]\n{config}"));
        let mut client = broker.v5("client");
        let payload = "x".repeat(10_000);
        for number in 0..5 {
            let reason = client.publish_with(retained(&format!("t/{number}"), &payload));
            let expected = if number < fit { ReasonCode::Success } else { ReasonCode::QuotaExceeded };
            assert_eq!(reason, expected, "{config}, {number}");
        }
        client.publish_with(retained("t/0", ""));
        assert_eq!(client.publish_with(retained("t/4", &payload)), ReasonCode::Success, "there is room again");
        client.subscribe("t/#", QoS::AtMostOnce);
        assert_eq!(client.drain().len(), fit);
    }
}
