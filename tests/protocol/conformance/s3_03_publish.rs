//! §3.3 PUBLISH.

use tenbin_codec::{
    Connect, ConnectProperties, MessageProperties, Packet, PacketType, ProtocolVersion, Publish, QoS, ReasonCode,
    Subscription, SubscriptionOptions,
};

use crate::conformance::byte_client::{ByteClient, ack_reason, connect_v5, disconnect_reason, packet, string};
use crate::support::{BrokerProcess, QOS_ALL, RawClient, at_qos, filter, retained, share, subscription, text};

#[test]
fn mqtt_3_3_1_2_and_4_illegal_first_bytes_are_malformed() {
    let broker = BrokerProcess::start(&[]);
    for first in 0x30..=0x3F {
        let (dup, qos) = (first & 8 != 0, (first >> 1) & 3);
        let legal = qos < 3 && !(dup && qos == 0);
        let mut client = ByteClient::v5(&broker, "client");
        let id: &[u8] = if qos > 0 { &[0, 1] } else { &[] };
        client.send(&packet(first, &[&string("a"), id, &[0]]));
        if legal {
            let answers: Vec<u8> = client.all_waiting().iter().map(|packet| packet[0]).collect();
            let expected: &[u8] = [&[][..], &[0x40], &[0x50]][usize::from(qos)];
            assert_eq!(answers, expected, "{first:#X} [MQTT-3.3.4-1]");
        } else {
            assert_eq!(disconnect_reason(&client.receive()), 0x81, "{first:#X}");
            assert_eq!(client.receive_or_end(), None, "{first:#X}");
        }
        if first & 1 != 0 {
            ByteClient::v5(&broker, "client").send(&packet(0x31, &[&string("a"), &[0]]));
        }
    }
}

#[test]
fn mqtt_3_3_1_3_dup_is_not_passed_on() {
    let broker = BrokerProcess::start(&[]);
    let mut subscriber = broker.v5("subscriber");
    subscriber.subscribe("topic", QoS::ExactlyOnce);
    let mut publisher = broker.v5("publisher");
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let packet_id = Some(publisher.next_id());
        publisher.send(&Packet::Publish(Publish { dup: true, packet_id, ..at_qos("topic", "x", qos) }));
        assert!(!subscriber.receive_message().dup);
    }
}

#[test]
fn mqtt_3_3_2_8_and_9_illegal_aliases_are_refused() {
    let broker = BrokerProcess::start(&[]);
    let (client, connack) = RawClient::connect(broker.address(), Connect::new(ProtocolVersion::V5, text("asks")));
    let maximum = connack.properties.topic_alias_maximum.unwrap_or(0);
    client.disconnect();
    for alias in [0, maximum + 1, u16::MAX] {
        for topic in ["a", ""] {
            let mut client = ByteClient::v5(&broker, "client");
            client.send(&packet(0x30, &[&string(topic), &[3, 0x23], &alias.to_be_bytes()]));
            let reason = disconnect_reason(&client.receive());
            // The standard names a code only for aliases that are too high.
            assert!(reason == 0x94 || alias == 0 && reason == 0x82, "{alias}, {topic:?}: {reason:#X}");
            assert_eq!(client.receive_or_end(), None);
        }
    }
}

#[test]
fn mqtt_3_3_2_13_and_14_illegal_response_topics_are_refused() {
    let broker = BrokerProcess::start(&[]);
    for topic in [&b"#"[..], b"+", b"a/#", b"a/+/b", b"", b"\xFF", b"a\0"] {
        let property = [&[0x08], &string(topic)[..]].concat();
        let mut client = ByteClient::v5(&broker, "client");
        client.send(&packet(0x30, &[&string("a"), &[property.len() as u8], &property]));
        assert!([0x81, 0x82].contains(&disconnect_reason(&client.receive())), "{topic:02X?}");
        assert_eq!(client.receive_or_end(), None);
    }
}

#[test]
fn mqtt_3_3_2_2_wildcards_in_a_topic_end_the_connection() {
    let broker = BrokerProcess::start(&[]);
    let mut witness = broker.v5("witness");
    witness.subscribe("#", QoS::AtMostOnce);
    for topic in ["#", "+", "a/#", "a/+", "+/a", "a#", "a+b"] {
        let mut client = ByteClient::v5(&broker, "client");
        client.send(&packet(0x30, &[&string(topic), &[0]]));
        assert!([0x81, 0x82, 0x90].contains(&disconnect_reason(&client.receive())), "{topic}");
        assert_eq!(client.receive_or_end(), None);
    }
    witness.expect_nothing_waiting();
}

#[test]
fn mqtt_3_3_4_1_each_qos_has_its_answer() {
    let broker = BrokerProcess::start(&[]);
    let mut client = ByteClient::v5(&broker, "client");
    client.send(&packet(0x30, &[&string("a"), &[0]]));
    assert_eq!(client.all_waiting(), Vec::<Vec<u8>>::new());
    client.send(&packet(0x32, &[&string("a"), &[0, 1, 0]]));
    let puback = client.receive();
    assert_eq!((puback[0], ack_reason(&puback)), (0x40, 0x10));
    client.send(&packet(0x34, &[&string("a"), &[0, 1, 0]]));
    let pubrec = client.receive();
    assert_eq!((pubrec[0], ack_reason(&pubrec)), (0x50, 0x10));
    client.send(&packet(0x62, &[&[0, 1]]));
    let pubcomp = client.receive();
    assert_eq!((pubcomp[0], ack_reason(&pubcomp)), (0x70, 0));
}

#[test]
fn mqtt_3_3_4_5_each_copy_carries_its_subscription_identifier() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.v5("client");
    // Shared subscriptions are separate from others, and each brings a copy.
    for (identifier, filter) in [(1, "a".to_owned()), (2, share("one", "a")), (3, share("two", "+"))] {
        client.subscribe_to(Some(identifier), vec![subscription(&filter, QoS::AtLeastOnce)]);
    }
    broker.v5("publisher").publish("a", "x", QoS::AtLeastOnce);
    let mut identifiers: Vec<_> = client.drain().into_iter().map(|message| message.subscription_identifiers).collect();
    identifiers.sort();
    assert_eq!(identifiers, [[1], [2], [3]]);
}

#[test]
fn mqtt_3_3_4_10_exhausted_receive_maximum_blocks_only_publish() {
    let broker = BrokerProcess::start(&[]);
    let (mut client, _) = ByteClient::connect(&broker, &connect_v5(0x02, &[0x21, 0, 1], &[&string("client")]));
    client.subscribe("a", 2);
    let mut publisher = broker.v5("publisher");
    publisher.publish("a", "1", QoS::ExactlyOnce);
    publisher.publish("a", "2", QoS::ExactlyOnce);
    let open = client.receive();
    assert_eq!(open[0], 0x34);
    client.send(&packet(0x82, &[&[0, 2, 0], &string("b"), &[0]]));
    client.expect(&[0x90, 4, 0, 2, 0, 0]);
    client.send(&packet(0xA2, &[&[0, 3, 0], &string("b")]));
    client.expect(&[0xB0, 4, 0, 3, 0, 0]);
    client.send(&packet(0x32, &[&string("other"), &[0, 4, 0]]));
    assert_eq!(client.receive()[0], 0x40);
    client.send(&packet(0x34, &[&string("other"), &[0, 5, 0]]));
    assert_eq!(client.receive()[0], 0x50);
    client.send(&packet(0x62, &[&[0, 5]]));
    assert_eq!(client.receive()[0], 0x70);
    assert_eq!(client.all_waiting(), Vec::<Vec<u8>>::new());
    // PUBREL needs no quota either. The next message follows PUBCOMP.
    let id = open[5..7].to_vec();
    client.send(&packet(0x50, &[&id]));
    assert_eq!(client.receive()[0], 0x62);
    assert_eq!(client.all_waiting(), Vec::<Vec<u8>>::new());
    client.send(&packet(0x70, &[&id]));
    assert_eq!(client.receive()[0], 0x34);
}

#[test]
fn mqtt_3_3_4_9_receive_maximum_defaults_to_the_brokers_bound() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.v5("client");
    client.subscribe("a", QoS::AtLeastOnce);
    let mut publisher = broker.v5("publisher");
    for _ in 0..200 {
        publisher.publish("a", "x", QoS::AtLeastOnce);
    }
    for _ in 0..200 {
        client.receive_publish();
    }
}

#[test]
fn mqtt_3_3_1_5_to_8_retained_messages_of_each_qos() {
    let broker = BrokerProcess::start(&[]);
    let mut publisher = broker.v5("publisher");
    let stored = |broker: &BrokerProcess| {
        let mut late = broker.v5("late");
        late.subscribe("state", QoS::ExactlyOnce);
        late.drain_payloads()
    };
    for qos in QOS_ALL {
        publisher.publish_with(Publish { qos, ..retained("state", "kept") });
        publisher.publish_with(Publish { qos, retain: false, ..retained("state", "passes") });
        publisher.settle();
        assert_eq!(stored(&broker), ["kept"], "QoS {qos} [MQTT-3.3.1-8]");
        publisher.publish_with(Publish { qos, ..retained("state", "") });
        publisher.settle();
        assert_eq!(stored(&broker), Vec::<String>::new(), "QoS {qos} [MQTT-3.3.1-6]");
    }
}

#[test]
fn mqtt_3_3_1_13_retain_as_published_0_clears_forwarded_retain() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.v5("client");
    client.publish_with(retained("state", "before"));
    client.subscribe("state", QoS::AtLeastOnce);
    assert!(client.receive_message().retain, "sent because of the subscription");
    client.publish_with(retained("state", "now"));
    assert!(!client.receive_message().retain, "forwarded [MQTT-3.3.1-12]");
    let options = SubscriptionOptions {
        retain_as_published: true,
        retain_handling: tenbin_codec::RetainHandling::Never,
        qos: QoS::AtLeastOnce,
        ..SubscriptionOptions::default()
    };
    client.subscribe_to(None, vec![Subscription { filter: filter("state"), options }]);
    client.publish_with(retained("state", "again"));
    assert!(client.receive_message().retain, "as published");
}

/// §3.3.2.3.2: the broker may check the payload, and by default does not.
#[test]
fn payload_format_indicator_is_forwarded_unchecked_by_default() {
    let broker = BrokerProcess::start(&[]);
    let mut client = ByteClient::v5(&broker, "client");
    client.subscribe("a", 0);
    for indicator in [0, 1] {
        for payload in [&b"text"[..], b"\xFF\xC3\0", b""] {
            let publish = packet(0x30, &[&string("a"), &[2, 0x01, indicator], payload]);
            client.send(&publish);
            client.expect(&publish);
        }
    }
}

/// §3.3.2.3.4: an alias of one direction has no meaning in the other, and none before its introduction.
#[test]
fn mqtt_3_3_2_7_aliases_are_per_direction_and_connection() {
    let broker = BrokerProcess::start(&[]);
    let (mut client, _) = ByteClient::connect(&broker, &connect_v5(0x02, &[0x22, 0, 5], &[&string("client")]));
    client.subscribe("a", 0);
    client.send(&packet(0x30, &[&string("a"), &[0], b"1"]));
    let message = client.receive();
    assert_eq!(message[0], 0x30);
    // The client's alias of this number is undefined, even if the broker has just sent the same one.
    client.send(&packet(0x30, &[&string(""), &[3, 0x23, 0, 1]]));
    assert!([0x82, 0x94].contains(&disconnect_reason(&client.receive())));
    assert_eq!(client.receive_or_end(), None);
}

#[test]
fn mqtt_3_3_2_5_expired_copy_is_dropped_before_delivery() {
    let broker = BrokerProcess::start(&[]);
    let properties = ConnectProperties { receive_maximum: 1.try_into().ok(), ..ConnectProperties::default() };
    let mut slow = broker.connect(Connect { properties, ..Connect::new(ProtocolVersion::V5, text("slow")) });
    slow.subscribe("topic", QoS::AtLeastOnce);
    let mut quick = broker.v5("quick");
    quick.subscribe("topic", QoS::AtLeastOnce);
    let mut publisher = broker.v5("publisher");
    publisher.publish("topic", "open", QoS::AtLeastOnce);
    let properties = MessageProperties { message_expiry_interval: Some(1), ..MessageProperties::default() };
    publisher.publish_with(Publish { properties: properties.boxed(), ..at_qos("topic", "short", QoS::AtLeastOnce) });
    let open = slow.receive_publish();
    assert_eq!(quick.drain_payloads(), ["open", "short"], "who is quick gets it");
    std::thread::sleep(std::time::Duration::from_millis(1200)); // the time that is measured
    slow.acknowledge(&open);
    slow.expect_nothing_waiting();
    publisher.publish("topic", "next", QoS::AtLeastOnce);
    assert_eq!(slow.drain_payloads(), ["next"], "the place is free");
}

#[test]
fn mqtt_3_3_4_7_publish_beyond_receive_maximum_gets_0x93() {
    let file = crate::support::ConfigFile::new("[sessions]\nreceive_maximum = 2");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let mut witness = broker.v5("witness");
    witness.subscribe("a", QoS::AtMostOnce);
    let mut client = broker.v5("client");
    for payload in ["1", "2"] {
        let packet_id = Some(client.next_id());
        client.send(&Packet::Publish(Publish { packet_id, ..at_qos("a", payload, QoS::ExactlyOnce) }));
        client.wait_for(PacketType::PubRec);
    }
    let packet_id = Some(client.next_id());
    client.send(&Packet::Publish(Publish { packet_id, ..at_qos("a", "3", QoS::AtLeastOnce) }));
    client.expect_end(ReasonCode::ReceiveMaximumExceeded);
    assert_eq!(witness.drain_payloads(), ["1", "2"]);
}
