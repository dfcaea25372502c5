use std::time::Duration;

use bytes::Bytes;
use tenbin_codec::{Packet, QoS, ReasonCode};
use tenbin_sn::DropCause;
use tenbin_sn_codec::v1_2::{self, Message, Publish, ShortName, Topic};

use crate::rig::{RETRY, Rig, ack, connack_with, connect, from_broker, gateway, id, ok, suback, to_broker};

const QOS_0: v1_2::QoS = v1_2::QoS::AtMostOnce;
const QOS_1: v1_2::QoS = v1_2::QoS::AtLeastOnce;
const QOS_2: v1_2::QoS = v1_2::QoS::ExactlyOnce;
const PREDEFINED: Topic = Topic::Predefined(1);

fn short(name: &str) -> Topic {
    Topic::Short(ShortName::new(name).expect("two bytes"))
}

/// The PUBLISH that the broker got, and no other packet.
fn published(rig: &mut Rig) -> (String, tenbin_codec::Publish) {
    match rig.packets().pop() {
        Some(Packet::Publish(publish)) => (publish.topic.text().as_str().to_owned(), publish),
        other => panic!("no PUBLISH: {other:?}"),
    }
}

#[test]
fn publish_carries_topic_qos_retain_dup_and_message_id() {
    let mut rig = Rig::active(|_| {});
    let registered = rig.register("a/b");
    for (topic, name) in [
        (Topic::Normal(registered), "a/b"),
        (PREDEFINED, "pre/defined"),
        (Topic::Predefined(2), "of/c"),
        (short("xy"), "xy"),
    ] {
        let mut publish = to_broker(topic, QOS_0, 0, b"21.5");
        rig.client(Message::Publish(publish));
        assert_eq!(rig.packets(), [from_broker(name, QoS::AtMostOnce, 0, b"21.5")]);
        publish.retain = true;
        rig.client(Message::Publish(publish));
        assert!(published(&mut rig).1.retain);
    }
    let mut message_id = 0x1234;
    for (qos, expected) in [(QOS_1, QoS::AtLeastOnce), (QOS_2, QoS::ExactlyOnce)] {
        for dup in [false, true] {
            message_id += 1;
            rig.client(Message::Publish(Publish { dup, ..to_broker(PREDEFINED, qos, message_id, b"x") }));
            let (_, publish) = published(&mut rig);
            assert_eq!((publish.qos, publish.dup), (expected, dup));
            assert_eq!(publish.packet_id.map(|id| id.get()), Some(message_id), "the id passes through");
        }
    }
    assert!(rig.sent().is_empty());
}

#[test]
fn large_payloads_pass_unchanged() {
    let mut rig = Rig::active(|_| {});
    let data: &'static [u8] = &[7; 10_000];
    rig.client(Message::Publish(to_broker(PREDEFINED, QOS_1, 1, data)));
    assert_eq!(published(&mut rig).1.payload, Bytes::from_static(data));
}

#[test]
fn unknown_topic_ids_are_answered_at_every_qos() {
    let mut rig = Rig::active(|_| {});
    rig.register("a");
    let topics = [
        (Topic::Normal(0), *b"\x00\x00"),
        (Topic::Normal(2), *b"\x00\x02"),
        (Topic::Normal(0xFFFF), *b"\xFF\xFF"),
        (Topic::Predefined(9), *b"\x00\x09"),
        (Topic::Reserved(1), *b"\x00\x01"),
        (short("a+"), *b"a+"),
    ];
    for (topic, [high, low]) in topics {
        for (qos, message_id) in [(QOS_0, 0), (QOS_1, 5), (QOS_2, 6)] {
            rig.client(Message::Publish(to_broker(topic, qos, message_id, b"hi")));
            assert_eq!(rig.sent(), [[7, 0x0D, high, low, 0, message_id as u8, 2]], "{topic:?}");
        }
    }
    assert!(rig.packets().is_empty());
    assert_eq!(rig.drops(DropCause::UnknownTopic), 18);
}

#[test]
fn qos_1_is_acknowledged_as_the_broker_does() {
    let mut rig = Rig::active(|_| {});
    for (message_id, reason, code) in [
        (1, ReasonCode::Success, 0),
        (2, ReasonCode::NoMatchingSubscribers, 0),
        (3, ReasonCode::QuotaExceeded, 1),
        (4, ReasonCode::TopicNameInvalid, 2),
        (5, ReasonCode::NotAuthorized, 3),
    ] {
        rig.client(Message::Publish(to_broker(PREDEFINED, QOS_1, message_id, b"hi")));
        assert!(rig.sent().is_empty());
        rig.broker(Packet::PubAck(ack(message_id, reason)));
        assert_eq!(rig.sent(), [[7, 0x0D, 0, 1, 0, message_id as u8, code]], "{reason}");
        rig.broker(Packet::PubAck(ack(message_id, reason)));
        assert!(rig.sent().is_empty(), "answered once");
    }
}

#[test]
fn qos_2_goes_through_all_four_steps() {
    let mut rig = Rig::active(|_| {});
    rig.client(Message::Publish(to_broker(PREDEFINED, QOS_2, 5, b"hi")));
    published(&mut rig);
    rig.broker(Packet::PubRec(ok(5)));
    assert_eq!(rig.sent(), [b"\x04\x0F\x00\x05"]);
    rig.client(Message::PubRel(id(5)));
    assert_eq!(rig.packets(), [Packet::PubRel(ok(5))]);
    rig.client(Message::PubRel(id(5)));
    assert!(rig.packets().is_empty() && rig.sent().is_empty(), "it is under way");
    rig.broker(Packet::PubComp(ok(5)));
    assert_eq!(rig.sent(), [b"\x04\x0E\x00\x05"]);
    rig.client(Message::PubRel(id(5)));
    assert_eq!(rig.sent(), [b"\x04\x0E\x00\x05"], "PUBCOMP was lost");
    assert!(rig.packets().is_empty());
}

#[test]
fn refused_qos_2_message_gets_puback() {
    let mut rig = Rig::active(|_| {});
    rig.client(Message::Publish(to_broker(PREDEFINED, QOS_2, 5, b"hi")));
    published(&mut rig);
    rig.broker(Packet::PubRec(ack(5, ReasonCode::NotAuthorized)));
    assert_eq!(rig.sent(), [b"\x07\x0D\x00\x01\x00\x05\x03"]);
    rig.client(Message::Publish(to_broker(PREDEFINED, QOS_2, 5, b"other")));
    published(&mut rig);
}

#[test]
fn pubrel_of_an_earlier_connection_reaches_the_broker() {
    let mut rig = Rig::active(|_| {});
    rig.client(Message::PubRel(id(9)));
    assert_eq!(rig.packets(), [Packet::PubRel(ok(9))]);
    rig.broker(Packet::PubComp(ack(9, ReasonCode::PacketIdentifierNotFound)));
    assert_eq!(rig.sent(), [b"\x04\x0E\x00\x09"]);
}

#[test]
fn repeated_messages_are_published_once() {
    for qos in [QOS_1, QOS_2] {
        let mut rig = Rig::active(|_| {});
        let publish = to_broker(PREDEFINED, qos, 5, b"hi");
        let again = Publish { dup: true, ..publish };
        rig.client(Message::Publish(publish));
        published(&mut rig);
        rig.client(Message::Publish(again));
        assert!(rig.packets().is_empty() && rig.sent().is_empty(), "under way");
        let (packet, answer) = match qos {
            QOS_1 => (Packet::PubAck(ok(5)), &b"\x07\x0D\x00\x01\x00\x05\x00"[..]),
            _ => (Packet::PubRec(ok(5)), &b"\x04\x0F\x00\x05"[..]),
        };
        rig.broker(packet);
        assert_eq!(rig.sent(), [answer]);
        rig.client(Message::Publish(again));
        assert_eq!(rig.sent(), [answer], "the answer was lost");
        assert!(rig.packets().is_empty());
    }
}

#[test]
fn reused_message_id_with_other_content_is_a_new_message() {
    let mut rig = Rig::active(|_| {});
    for data in [&b"one"[..], b"two", b"three"] {
        rig.client(Message::Publish(to_broker(PREDEFINED, QOS_1, 1, data)));
        assert_eq!(published(&mut rig).1.payload, data);
        rig.broker(Packet::PubAck(ok(1)));
    }
    rig.sent();
    rig.client(Message::Publish(to_broker(PREDEFINED, QOS_1, 1, b"four")));
    rig.packets();
    rig.client(Message::Publish(to_broker(PREDEFINED, QOS_1, 1, b"five")));
    assert!(rig.packets().is_empty() && rig.sent().is_empty(), "the id is in flight");
    assert_eq!(rig.drops(DropCause::MessageIdInUse), 1);
}

#[test]
fn answers_are_remembered_for_the_retry_time() {
    let mut rig = Rig::active_with(&gateway(|_| {}), v1_2::Connect { duration: 0, ..connect("c") }, None);
    let publish = to_broker(PREDEFINED, QOS_1, 1, b"hi");
    rig.client(Message::Publish(publish));
    rig.broker(Packet::PubAck(ok(1)));
    rig.packets();
    rig.pass(5 * RETRY - Duration::from_secs(1));
    rig.client(Message::Publish(Publish { dup: true, ..publish }));
    assert!(rig.packets().is_empty());
    rig.pass(Duration::from_secs(1));
    rig.client(Message::Publish(publish));
    published(&mut rig);
}

#[test]
fn messages_in_flight_are_bounded_by_congestion() {
    let mut rig = Rig::active(|settings| settings.inbound_in_flight = 2);
    for message_id in 1..=2 {
        rig.client(Message::Publish(to_broker(PREDEFINED, QOS_1, message_id, b"hi")));
    }
    assert_eq!(rig.packets().len(), 2);
    rig.client(Message::Publish(to_broker(PREDEFINED, QOS_1, 3, b"hi")));
    assert_eq!(rig.sent(), [b"\x07\x0D\x00\x01\x00\x03\x01"]);
    rig.client(Message::PubRel(id(4)));
    assert!(rig.packets().is_empty(), "nor are releases unbounded");
    rig.broker(Packet::PubAck(ok(1)));
    rig.client(Message::Publish(to_broker(PREDEFINED, QOS_1, 3, b"hi")));
    published(&mut rig);
}

#[test]
fn forgotten_qos_2_messages_make_room() {
    let settings = gateway(|settings| settings.inbound_in_flight = 1);
    let mut rig = Rig::active_with(&settings, v1_2::Connect { duration: 0, ..connect("c") }, None);
    rig.client(Message::Publish(to_broker(PREDEFINED, QOS_2, 1, b"hi")));
    rig.broker(Packet::PubRec(ok(1)));
    rig.packets();
    rig.client(Message::Publish(to_broker(PREDEFINED, QOS_2, 2, b"hi")));
    assert!(rig.packets().is_empty());
    rig.pass(5 * RETRY);
    rig.client(Message::Publish(to_broker(PREDEFINED, QOS_2, 2, b"hi")));
    published(&mut rig);
}

#[test]
fn limits_of_the_broker_are_kept() {
    let mut rig = Rig::accept(&gateway(|_| {}), connect("c"), None);
    rig.open();
    rig.broker(connack_with(false, |properties| {
        properties.maximum_qos = Some(QoS::AtLeastOnce);
        properties.retain_available = Some(false);
        properties.maximum_packet_size = std::num::NonZeroU32::new(100);
        properties.receive_maximum = std::num::NonZeroU16::new(1);
    }));
    rig.sent();
    let retained = Publish { retain: true, ..to_broker(PREDEFINED, QOS_0, 0, b"hi") };
    for publish in [to_broker(PREDEFINED, QOS_2, 1, b"hi"), retained, to_broker(PREDEFINED, QOS_0, 0, &[7; 90])] {
        rig.client(Message::Publish(publish));
        assert_eq!(rig.sent().pop().and_then(|puback| puback.last().copied()), Some(3));
    }
    assert!(rig.packets().is_empty());
    rig.client(Message::Publish(to_broker(PREDEFINED, QOS_1, 1, b"hi")));
    rig.client(Message::Publish(to_broker(PREDEFINED, QOS_1, 2, b"hi")));
    assert_eq!((rig.packets().len(), rig.sent().pop().and_then(|puback| puback.last().copied())), (1, Some(1)));
}

#[test]
fn qos_minus_one_is_off_and_never_for_registered_ids() {
    let minus_one = |topic| Publish { qos: None, ..to_broker(topic, QOS_0, 0, b"hi") };
    let mut rig = Rig::active(|_| {});
    rig.client(Message::Publish(minus_one(PREDEFINED)));
    assert_eq!((rig.packets().len(), rig.drops(DropCause::QoSMinusOne)), (0, 1));
    let mut rig = Rig::active(|settings| settings.qos_minus_one = true);
    let topic = rig.register("a");
    rig.client(Message::Publish(minus_one(Topic::Normal(topic))));
    assert_eq!((rig.packets().len(), rig.drops(DropCause::QoSMinusOne)), (0, 1));
    rig.client(Message::Publish(minus_one(PREDEFINED)));
    rig.client(Message::Publish(minus_one(short("xy"))));
    assert_eq!(rig.packets().len(), 2);
    rig.client(Message::Publish(minus_one(Topic::Predefined(9))));
    assert!(rig.sent().is_empty(), "never answered");
}

/// A button sends the same content under the same MsgId each time.
#[test]
fn constant_message_id_is_a_new_message_each_time() {
    for (qos, pause) in [(QOS_1, 0), (QOS_1, 1), (QOS_2, 0), (QOS_2, 1), (QOS_2, 3)] {
        let mut rig = Rig::active(|_| {});
        let mut arrived = 0;
        for _ in 0..5 {
            rig.client(Message::Publish(to_broker(PREDEFINED, qos, 7, b"pressed")));
            arrived += finish(&mut rig, qos, 7);
            rig.pass(Duration::from_secs(pause));
        }
        assert_eq!(arrived, 5, "{qos:?} every {pause} s");
    }
}

#[test]
fn equal_qos_2_messages_of_a_device_with_few_ids_all_arrive() {
    // After the ids of two SUBSCRIBEs, those of messages.
    let devices: [&[u16]; 4] = [&[1, 1, 1], &[1, 2, 3, 3, 2, 1], &[1, 2, 3, 4, 1, 2, 3, 4], &[7, 8, 9, 60_000, 60_000]];
    for ids in devices {
        let mut rig = Rig::active(|_| {});
        for message_id in [2, 3] {
            rig.client(Message::Subscribe(v1_2::Subscribe {
                dup: false,
                qos: QOS_0,
                message_id: id(message_id),
                topic: v1_2::Subscribed::Name("a/b"),
            }));
            rig.broker(suback(message_id, ReasonCode::Success));
        }
        rig.packets();
        rig.sent();
        for _ in 0..6 {
            for &message_id in ids {
                rig.client(Message::Publish(to_broker(PREDEFINED, QOS_2, message_id, b"pressed")));
                assert_eq!(finish(&mut rig, QOS_2, message_id), 1, "MsgId {message_id} of {ids:?}");
            }
        }
    }
}

/// Plays the broker, and a client that releases its QoS 2 message, until the exchange ends. Returns the PUBLISHes.
fn finish(rig: &mut Rig, qos: v1_2::QoS, message_id: u16) -> usize {
    let (mut published, mut is_answered) = (0, false);
    while !is_answered {
        let (packets, mut sent) = (rig.packets(), rig.sent());
        if packets.is_empty() && sent.is_empty() {
            rig.pass(RELEASE_TIME); // It may be a copy.
            sent = rig.sent();
            assert!(!sent.is_empty(), "the exchange stands still");
        }
        for packet in packets {
            match packet {
                Packet::Publish(_) if qos == QOS_1 => rig.broker(Packet::PubAck(ok(message_id))),
                Packet::Publish(_) => rig.broker(Packet::PubRec(ok(message_id))),
                Packet::PubRel(_) => {
                    rig.broker(Packet::PubComp(ok(message_id)));
                    continue;
                }
                other => panic!("unexpected {other:?}"),
            }
            published += 1;
        }
        for datagram in sent {
            match Message::decode(&datagram).expect("a legal message") {
                Message::PubRec(_) => rig.client(Message::PubRel(id(message_id))),
                Message::PubAck(_) | Message::PubComp(_) => is_answered = true,
                other => panic!("unexpected {other:?}"),
            }
        }
    }
    published
}

#[test]
fn constant_message_id_is_a_copy_only_with_dup() {
    let mut rig = Rig::active(|_| {});
    let publish = to_broker(PREDEFINED, QOS_1, 7, b"same");
    let mut send = |dup, pause| {
        rig.pass(Duration::from_secs(pause));
        rig.client(Message::Publish(Publish { dup, ..publish }));
        let is_passed_on = !rig.packets().is_empty();
        if is_passed_on {
            rig.broker(Packet::PubAck(ok(7)));
        }
        assert_eq!(rig.sent().len(), 1, "PUBACK");
        is_passed_on
    };
    assert!(send(false, 0));
    assert!(!send(true, 1), "repeated by the client");
    assert!(send(false, 1), "a new message with the same MsgId");
    assert!(!send(true, 49) && send(true, 51));
}

/// Time in which a release may belong to the message before.
const RELEASE_TIME: Duration = Duration::from_millis(500);

#[test]
fn copy_of_the_network_is_published_once_at_qos_2() {
    let mut rig = Rig::active(|_| {});
    for message_id in 1..=20 {
        let publish = Message::Publish(to_broker(PREDEFINED, QOS_2, message_id, b"on"));
        rig.client(publish);
        assert_eq!(finish(&mut rig, QOS_2, message_id), 1);
        rig.client(publish);
        // PUBCOMP is lost or late: the client releases the message before the copy once more.
        rig.client(Message::PubRel(id(message_id)));
        let sent: Vec<_> = rig.sent().into_iter().filter(|datagram| datagram[1] != 0x0F).collect();
        assert_eq!((sent, rig.packets().len()), (vec![vec![4, 0x0E, 0, message_id as u8]], 0), "PUBCOMP");
        rig.pass(RELEASE_TIME);
        let is_known_to_count = message_id >= 16;
        assert_eq!(rig.sent().len(), usize::from(!is_known_to_count), "PUBREC, which the client ignores");
        assert!(rig.packets().is_empty());
    }
}

#[test]
fn doubtful_message_is_answered_once_no_release_can_come() {
    let mut rig = Rig::active(|_| {});
    let publish = Message::Publish(to_broker(PREDEFINED, QOS_2, 7, b"on"));
    rig.client(publish);
    assert_eq!(finish(&mut rig, QOS_2, 7), 1);
    rig.pass(RELEASE_TIME / 2);
    rig.client(publish);
    rig.client(publish);
    assert!(rig.sent().is_empty());
    rig.client(Message::PubRel(id(7)));
    assert_eq!(rig.sent(), [b"\x04\x0E\x00\x07"], "PUBCOMP");
    rig.pass(RELEASE_TIME - Duration::from_millis(1));
    assert!(rig.sent().is_empty());
    rig.pass(Duration::from_millis(1));
    assert_eq!(rig.sent(), [b"\x04\x0F\x00\x07"], "PUBREC");
    rig.client(publish);
    assert_eq!(rig.sent(), [b"\x04\x0F\x00\x07"], "PUBREC of a repetition");
    rig.client(Message::PubRel(id(7)));
    assert_eq!(published(&mut rig).1.payload, b"on"[..]);
}

#[test]
fn doubtful_message_that_the_broker_refuses_gets_puback() {
    let mut rig = Rig::active(|_| {});
    let publish = Message::Publish(Publish { retain: true, ..to_broker(PREDEFINED, QOS_2, 1, b"on") });
    rig.client(publish);
    assert_eq!(finish(&mut rig, QOS_2, 1), 1);
    rig.client(publish);
    rig.pass(RELEASE_TIME);
    assert_eq!((rig.sent(), rig.packets().len()), (vec![b"\x04\x0F\x00\x01".to_vec()], 0));
    rig.client(Message::PubRel(id(1)));
    let (topic, publish) = published(&mut rig);
    assert_eq!(
        (&*topic, publish.retain, publish.qos, &publish.payload[..]),
        ("pre/defined", true, QoS::ExactlyOnce, &b"on"[..])
    );
    rig.broker(Packet::PubRec(ack(1, ReasonCode::NotAuthorized)));
    assert_eq!(rig.sent(), [b"\x07\x0D\x00\x01\x00\x01\x03"]);
}
