//! Small requests with large effects on memory and work.

use std::time::Instant;

use tenbin_codec::{
    Connect, MessageProperties, Packet, PacketType, ProtocolVersion, Publish, QoS, ReasonCode, Subscribe, Text,
    UserProperty, Will, WriteBuffer,
};

use crate::abuse::broker_with;
use crate::abuse::growth::Growth;
use crate::support::{BrokerProcess, PATIENCE, RawClient, encode, message, subscription, text, topic};

fn user_properties(count: usize) -> Publish {
    let user_properties = vec![UserProperty::new(Text::EMPTY, Text::EMPTY); count];
    let properties = MessageProperties { user_properties, ..Default::default() }.boxed();
    Publish { properties, ..message("t", "x") }
}

/// 100 packets of 200 KB, each with 40,000 User Properties: refused before they are parsed, growth ≤ 16 MiB.
#[test]
fn forty_thousand_user_properties_are_refused() {
    let broker = BrokerProcess::start(&[]);
    let mut growth = Growth::of(&broker);
    for _ in 0..100 {
        let mut client = broker.v5("client");
        client.send(&Packet::Publish(user_properties(40_000)));
        client.expect_end(ReasonCode::QuotaExceeded);
    }
    broker.assert_serves();
    growth.assert_within(16, "100 x 40,000 user properties");
}

/// Within the configured limit, such packets pass and cost no more than one packet: growth ≤ 64 MiB.
#[test]
fn forty_thousand_user_properties_pass_where_they_may() {
    let broker = broker_with("[connections]\nuser_properties_maximum = 40000");
    let mut growth = Growth::of(&broker);
    let mut client = broker.v5("client");
    client.subscribe("t", QoS::AtMostOnce);
    for _ in 0..20 {
        client.send(&Packet::Publish(user_properties(40_000)));
        let received = client.receive_publish();
        assert_eq!(received.properties.expect("properties").user_properties.len(), 40_000);
        growth.look();
    }
    growth.assert_within(64, "40,000 user properties");
}

/// 256 overlapping subscriptions with four-byte identifiers make 1.3 KB of each byte. 20,000 messages for a receiver
/// that does not read: growth ≤ 64 MiB, at most 10 s.
#[test]
fn overlapping_subscription_identifiers() {
    let broker = broker_with("[sessions]\nwildcard_patterns_maximum = 256");
    let mut growth = Growth::of(&broker);
    let mut client = broker.v5("client");
    let identifier = |number: u32| 200_000_000 + number;
    for number in 0..256u32 {
        let level = |bit: u32| if number >> bit & 1 == 0 { "a" } else { "+" };
        let filter = (0..8).map(level).collect::<Vec<_>>().join("/");
        client.subscribe_to(Some(identifier(number)), vec![subscription(&filter, QoS::AtMostOnce)]);
    }
    let topic = ["a"; 8].join("/");
    let mut publisher = broker.v5("publisher");
    let began = Instant::now();
    for _ in 0..100 {
        let mut out = WriteBuffer::new();
        (0..200).for_each(|_| Packet::Publish(message(&topic, "x")).encode(ProtocolVersion::V5, &mut out));
        publisher.send_bytes(&out.to_bytes());
        growth.look();
    }
    publisher.settle();
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    growth.assert_within(64, "20,000 messages x 256 identifiers");
    let mut identifiers = client.receive_publish().subscription_identifiers;
    identifiers.sort_unstable();
    assert_eq!(identifiers, (0..256).map(identifier).collect::<Vec<_>>(), "[MQTT-3.3.4-4]");
}

/// SUBSCRIBE packets with 10,000 filters, refused one by one beyond the limit, and with 500,000: growth ≤ 16 MiB.
#[test]
fn a_subscribe_of_half_a_million_filters() {
    let broker = broker_with("[sessions]\nsubscriptions_maximum = 1000");
    let mut growth = Growth::of(&broker);
    let mut client = broker.v5("client");
    let filters = (0..500_000).map(|number: u32| {
        let letter = |place: u32| char::from(b'a' + (number / 26u32.pow(place) % 26) as u8);
        subscription(&format!("{}{}{}{}", letter(0), letter(1), letter(2), letter(3)), QoS::AtMostOnce)
    });
    let filters: Vec<_> = filters.collect();
    let reasons = client.subscribe_to(None, filters[..10_000].to_vec());
    assert_eq!(reasons[..1000], [ReasonCode::Success; 1000]);
    assert_eq!(reasons[1000..], [ReasonCode::QuotaExceeded; 9000]);
    let subscribe = Subscribe {
        packet_id: client.next_id(),
        subscription_identifier: None,
        user_properties: Vec::new(),
        subscriptions: filters,
    };
    client.try_send_bytes(&encode(&Packet::Subscribe(subscribe), ProtocolVersion::V5));
    client.expect_end(ReasonCode::QuotaExceeded);
    growth.assert_within(16, "500,000 filters");
    broker.assert_serves();
}

/// 10,000 filters of 128 levels with a wildcard (1,280,000 nodes of the tree), then 10,000 of 5 KB without one. The
/// default bound is 64 MiB: growth ≤ 80 MiB each time, further filters are refused.
#[test]
fn long_filters_stay_within_the_memory_bound() {
    for (middle, last) in [("x/".repeat(126), "+"), ("x".repeat(5000), "")] {
        let broker = BrokerProcess::start(&[]);
        let mut growth = Growth::of(&broker);
        let mut client = broker.v5("client");
        let mut refused = 0;
        for packet in 0..100 {
            let filter = |number| format!("{packet}-{number}/{middle}{last}");
            let filters = (0..100).map(|number| subscription(&filter(number), QoS::AtMostOnce));
            let reasons = client.subscribe_to(None, filters.collect());
            refused += reasons.iter().filter(|&&reason| reason == ReasonCode::QuotaExceeded).count();
            growth.look();
        }
        growth.assert_within(80, "10,000 long filters");
        assert!((3000..10_000).contains(&refused), "{refused}");
        broker.assert_serves();
    }
}

/// 200 Wills of 60 KB, published at once to 20 receivers that do not read: shared, not copied, growth ≤ 64 MiB.
#[test]
fn wills_are_shared_among_subscribers() {
    let broker = BrokerProcess::start(&[]);
    let mut growth = Growth::of(&broker);
    let mut readers = (0..20).map(|number| broker.v5(&format!("reader-{number}"))).collect::<Vec<RawClient>>();
    readers.iter_mut().for_each(|reader| reader.subscribe("will", QoS::AtLeastOnce));
    let clients = (0..200).map(|number| {
        let will = Will {
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: topic("will"),
            payload: vec![b'w'; 60_000].into(),
            delay_interval: None,
            properties: None,
        };
        let id = text(&format!("client-{number}"));
        broker.connect(Connect { will: Some(will), ..Connect::new(ProtocolVersion::V5, id) })
    });
    drop(clients.collect::<Vec<_>>());
    for reader in &mut readers {
        for _ in 0..200 {
            assert!(
                matches!(reader.wait_for(PacketType::Publish), Packet::Publish(will) if will.payload.len() == 60_000)
            );
        }
        growth.look();
    }
    growth.assert_within(64, "200 wills x 20 subscribers");
}
