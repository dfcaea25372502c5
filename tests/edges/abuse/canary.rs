//! No receiver sees a byte of another client, except in that client's published messages.

use bytes::Bytes;
use tenbin_codec::{Connect, MessageProperties, Packet, ProtocolVersion, Publish, QoS, Text, UserProperty, Will};

use crate::support::{BrokerProcess, RawClient, lasting, text, topic};

/// Sizes around every threshold of copying and sharing.
const SIZES: [usize; 14] = [0, 1, 2, 127, 128, 4000, 4095, 4096, 4097, 16_383, 65_535, 65_536, 300_000, 1_000_000];

/// Each of twelve clients fills everything it sends with a different letter. Every part of a received message (live,
/// retained, queued or Will) must hold the letter of its topic.
#[test]
fn every_message_is_made_of_its_publisher_s_bytes() {
    let broker = BrokerProcess::start(&[]);
    let letters = b'A'..=b'L';
    for letter in letters.clone() {
        let mut sleeper = broker.connect(lasting(ProtocolVersion::V5, &id(b's', letter)));
        sleeper.subscribe(&format!("{}/#", char::from(letter)), QoS::AtLeastOnce);
        sleeper.disconnect();
    }
    std::thread::scope(|scope| {
        for letter in letters.clone() {
            let broker = &broker;
            scope.spawn(move || publish_and_watch(broker, letter));
        }
    });
    for letter in letters {
        let mut sleeper = broker.connect(lasting(ProtocolVersion::V5, &id(b's', letter)));
        // All messages in order, except the Will, which may arrive later.
        for _ in 0..3 {
            for size in SIZES {
                let publish = sleeper.receive_message();
                assert_eq!(publish.payload.len(), size);
                check(&publish, letter);
            }
        }
        check(&sleeper.receive_message(), letter);
        let mut late = broker.v5(&id(b'l', letter));
        late.subscribe(&format!("{}/#", char::from(letter)), QoS::AtMostOnce);
        for _ in 0..SIZES.len() - 1 {
            let publish = late.receive_message();
            assert!(publish.retain);
            check(&publish, letter);
        }
        late.expect_nothing_waiting();
    }
}

fn publish_and_watch(broker: &BrokerProcess, letter: u8) {
    let mut reader = broker.v5(&id(b'r', letter));
    reader.subscribe(&format!("{}/#", char::from(letter)), QoS::AtMostOnce);
    let will = Will {
        qos: QoS::AtLeastOnce,
        retain: false,
        topic: topic(&filled(letter, 3)),
        payload: filled(letter, 5000).into(),
        delay_interval: None,
        properties: properties(letter),
    };
    let mut connect = Connect::new(ProtocolVersion::V5, text(&id(b'p', letter)));
    connect.user_name = Some(text(&filled(letter, 200)));
    connect.password = Some(filled(letter, 200).into());
    connect.will = Some(will);
    let mut publisher = broker.connect(connect);
    for round in 0..3 {
        for size in SIZES {
            let mut publish = Publish::new(topic(&name(letter, size)), Bytes::from(vec![letter; size]));
            publish.qos = QoS::AtLeastOnce;
            publish.retain = true;
            publish.properties = properties(letter);
            publisher.publish_with(publish);
            let received = reader.receive_message();
            assert_eq!(received.payload.len(), size, "round {round}");
            check(&received, letter);
        }
    }
    publisher.cut();
    check(&reader.receive_message(), letter);
    reader.expect_nothing_waiting();
}

/// Topic name for a letter and a payload size.
fn name(letter: u8, size: usize) -> String {
    format!("{}/{size}", char::from(letter))
}

fn id(kind: u8, letter: u8) -> String {
    format!("{}-{}", char::from(kind), char::from(letter))
}

fn filled(letter: u8, count: usize) -> String {
    if count == 3 {
        format!("{0}/{0}", char::from(letter))
    } else {
        String::from_utf8(vec![letter; count]).expect("ASCII")
    }
}

fn properties(letter: u8) -> Option<Box<MessageProperties>> {
    let value = text(&filled(letter, 40));
    MessageProperties {
        content_type: Some(value.clone()),
        response_topic: Some(value.clone()),
        correlation_data: Some(filled(letter, 40).into()),
        user_properties: vec![UserProperty::new(value, Text::EMPTY)],
        ..MessageProperties::default()
    }
    .boxed()
}

fn check(publish: &Publish, letter: u8) {
    let is_ours = |bytes: &[u8]| bytes.iter().all(|&byte| byte == letter);
    assert_eq!(publish.topic.as_bytes()[0], letter);
    assert!(is_ours(&publish.payload), "payload of {} bytes", publish.payload.len());
    let properties = publish.properties.as_ref().expect("properties");
    assert_eq!(properties.correlation_data.as_ref().expect("there").len(), 40);
    assert!(is_ours(properties.correlation_data.as_ref().expect("there")));
    assert!(is_ours(properties.content_type.as_ref().expect("there").as_bytes()));
    assert!(is_ours(properties.response_topic.as_ref().expect("there").as_bytes()));
    assert!(is_ours(properties.user_properties[0].name.as_bytes()));
}

/// Answers repeat no bytes of a refused packet, and none of other clients.
#[test]
fn answers_hold_no_canary() {
    let broker = BrokerProcess::start(&[]);
    let mut publisher = broker.v5("publisher");
    publisher.publish("t", &"CANARY".repeat(10_000), QoS::AtLeastOnce);
    for packet in ["30 03 00 01 43", "82 06 00 01 00 00 01 43", "F0 00", "C0 07 43 41 4E 41 52 59 21", "62 02 00 09"] {
        let mut client = broker.v5("client");
        client.send_bytes(&crate::support::hex(packet));
        client.try_send_bytes(&crate::support::encode(
            &Packet::Publish(crate::support::message("t", "CANARY")),
            ProtocolVersion::V5,
        ));
        let answers = client.half_close();
        assert!(!format!("{answers:?}").contains("CANARY"), "{answers:?}");
    }
    let _: &mut RawClient = &mut publisher;
}
