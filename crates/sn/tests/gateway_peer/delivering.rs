use std::num::{NonZeroU16, NonZeroU32};
use std::time::Duration;

use tenbin_codec::{Packet, ProtocolVersion, QoS, ReasonCode};
use tenbin_sn::DropCause;
use tenbin_sn_codec::v1_2::{Message, MessageId, PubAck, RegAck, ReturnCode};

use crate::rig::{Rig, ack, from_broker, id, ok};

pub(crate) fn accept_register(rig: &mut Rig, topic_id: u16, message_id: u16) {
    let code = ReturnCode::Accepted;
    rig.client(Message::RegAck(RegAck { topic_id, message_id: MessageId::new(message_id), code }));
}

fn puback(rig: &mut Rig, topic_id: u16, message_id: u16, code: ReturnCode) {
    rig.client(Message::PubAck(PubAck { topic_id, message_id: MessageId::new(message_id), code }));
}

#[test]
fn new_topic_is_registered_before_its_first_publish() {
    let mut rig = Rig::active(|_| {});
    rig.broker(from_broker("a/b", QoS::AtMostOnce, 0, b"1"));
    rig.broker(from_broker("a/b", QoS::AtMostOnce, 0, b"2"));
    rig.broker(from_broker("c/d", QoS::AtMostOnce, 0, b"3"));
    rig.broker(from_broker("pre/defined", QoS::AtMostOnce, 0, b"4"));
    assert_eq!(rig.sent(), [b"\x09\x0A\x00\x01\x00\x01a/b"], "one REGISTER, and later messages behind it");
    accept_register(&mut rig, 1, 1);
    let sent = rig.sent();
    assert_eq!(sent[..2], [b"\x08\x0C\x00\x00\x01\x00\x001", b"\x08\x0C\x00\x00\x01\x00\x002"]);
    assert_eq!(sent[2..], [b"\x09\x0A\x00\x02\x00\x02c/d"]);
    accept_register(&mut rig, 2, 2);
    assert_eq!(rig.sent(), [b"\x08\x0C\x00\x00\x02\x00\x003", b"\x08\x0C\x01\x00\x01\x00\x004"]);
    rig.broker(from_broker("a/b", QoS::AtMostOnce, 0, b"5"));
    assert_eq!(rig.sent(), [b"\x08\x0C\x00\x00\x01\x00\x005"]);
}

#[test]
fn topics_use_registered_short_and_predefined_ids_in_turn() {
    let mut rig = Rig::active(|_| {});
    rig.broker(from_broker("xy", QoS::AtMostOnce, 0, b"1"));
    rig.broker(from_broker("of/c", QoS::AtMostOnce, 0, b"2"));
    assert_eq!(rig.sent(), [b"\x08\x0C\x02xy\x00\x001", b"\x08\x0C\x01\x00\x02\x00\x002"]);
    for topic in ["xy", "of/c"] {
        let topic_id = rig.register(topic) as u8;
        rig.broker(from_broker(topic, QoS::AtMostOnce, 0, b"3"));
        assert_eq!(rig.sent(), [[8, 0x0C, 0, 0, topic_id, 0, 0, b'3']], "{topic} is registered");
    }
    rig.broker(from_broker("of/d", QoS::AtMostOnce, 0, b"4"));
    assert_eq!(rig.sent(), [b"\x0A\x0A\x00\x03\x00\x01of/d"], "of another client");
}

#[test]
fn qos_1_message_is_acknowledged_by_the_client() {
    let mut rig = Rig::active(|_| {});
    let Packet::Publish(mut publish) = from_broker("xy", QoS::AtLeastOnce, 0x1234, b"hi") else { panic!() };
    (publish.retain, publish.dup) = (true, true);
    rig.broker(Packet::Publish(publish));
    assert_eq!(rig.sent(), [b"\x09\x0C\xB2xy\x12\x34hi"]);
    assert!(rig.packets().is_empty());
    puback(&mut rig, u16::from_be_bytes(*b"xy"), 0x1234, ReturnCode::Accepted);
    assert_eq!(rig.packets(), [Packet::PubAck(ok(0x1234))]);
    puback(&mut rig, u16::from_be_bytes(*b"xy"), 0x1234, ReturnCode::Accepted);
    assert!(rig.packets().is_empty());
}

#[test]
fn qos_2_message_goes_through_all_four_steps() {
    let mut rig = Rig::active(|_| {});
    rig.broker(from_broker("xy", QoS::ExactlyOnce, 5, b"hi"));
    assert_eq!(rig.sent(), [b"\x09\x0C\x42xy\x00\x05hi"]);
    rig.client(Message::PubRec(id(5)));
    assert_eq!(rig.packets(), [Packet::PubRec(ok(5))]);
    rig.client(Message::PubRec(id(5)));
    rig.client(Message::PubComp(id(5)));
    assert!(rig.packets().is_empty() && rig.sent().is_empty(), "the broker's PUBREL is due");
    rig.broker(Packet::PubRel(ok(5)));
    assert_eq!(rig.sent(), [b"\x04\x10\x00\x05"]);
    rig.client(Message::PubRec(id(5)));
    assert_eq!(rig.sent(), [b"\x04\x10\x00\x05"], "PUBREL was lost");
    rig.client(Message::PubComp(id(5)));
    assert_eq!(rig.packets(), [Packet::PubComp(ok(5))]);
    rig.client(Message::PubComp(id(5)));
    rig.client(Message::PubRec(id(5)));
    assert!(rig.packets().is_empty() && rig.sent().is_empty());
}

#[test]
fn release_of_an_earlier_connection_is_passed_on() {
    let mut rig = Rig::active(|_| {});
    rig.broker(Packet::PubRel(ok(9)));
    assert_eq!(rig.sent(), [b"\x04\x10\x00\x09"]);
    rig.client(Message::PubComp(id(9)));
    assert_eq!(rig.packets(), [Packet::PubComp(ok(9))]);
}

#[test]
fn pubrel_behind_many_messages_is_read() {
    let mut rig = Rig::active(|settings| settings.upstream_version = ProtocolVersion::V311);
    for message_id in 1..=20 {
        rig.broker(from_broker("xy", QoS::ExactlyOnce, message_id, &[7; 500]));
    }
    assert_eq!(rig.sent().len(), 1);
    assert!(!rig.peer.accepts_packets(), "the client is behind");
    rig.client(Message::PubRec(id(1)));
    assert!(rig.peer.accepts_packets());
    rig.broker(Packet::PubRel(ok(1)));
    assert_eq!(rig.sent(), [b"\x04\x10\x00\x01"]);
    assert!(!rig.peer.accepts_packets());
}

#[test]
fn window_bounds_the_messages_under_way() {
    for window in [1_u16, 3] {
        let mut rig = Rig::active(|settings| settings.in_flight = NonZeroU16::new(window).expect("not 0"));
        for message_id in 1..=4 {
            rig.broker(from_broker("xy", QoS::AtLeastOnce, message_id, b"hi"));
        }
        assert_eq!(rig.sent().len(), usize::from(window));
        puback(&mut rig, 0, 1, ReturnCode::Accepted);
        let sent = rig.sent();
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0][6], window as u8 + 1, "in order");
    }
}

#[test]
fn rejected_topic_id_is_registered_again() {
    let mut rig = Rig::active(|_| {});
    let topic_id = rig.register("a/b");
    rig.broker(from_broker("a/b", QoS::AtLeastOnce, 5, b"hi"));
    assert_eq!(rig.sent(), [b"\x09\x0C\x20\x00\x01\x00\x05hi"]);
    puback(&mut rig, topic_id, 5, ReturnCode::InvalidTopicId);
    assert_eq!(rig.sent(), [b"\x09\x0A\x00\x01\x00\x01a/b"]);
    assert!(rig.packets().is_empty());
    accept_register(&mut rig, 1, 1);
    assert_eq!(rig.sent(), [b"\x09\x0C\xA0\x00\x01\x00\x05hi"], "the same message, with DUP");
    puback(&mut rig, topic_id, 5, ReturnCode::InvalidTopicId);
    assert_eq!(rig.packets(), [Packet::PubAck(ack(5, ReasonCode::ImplementationSpecificError))], "once is enough");
    assert_eq!(rig.drops(DropCause::MessageRefused), 1);
}

#[test]
fn rejected_qos_0_message_registers_the_next_one() {
    let mut rig = Rig::active(|_| {});
    let topic_id = rig.register("a/b");
    rig.broker(from_broker("a/b", QoS::AtMostOnce, 0, b"1"));
    puback(&mut rig, topic_id, 0, ReturnCode::InvalidTopicId);
    rig.sent();
    rig.broker(from_broker("a/b", QoS::AtMostOnce, 0, b"2"));
    assert_eq!(rig.sent(), [b"\x09\x0A\x00\x01\x00\x01a/b"]);
}

#[test]
fn refused_messages_are_dropped_and_told_to_the_broker() {
    let mut rig = Rig::active(|_| {});
    let refused = |id| ack(id, ReasonCode::ImplementationSpecificError);
    rig.broker(from_broker("xy", QoS::AtLeastOnce, 1, b"hi"));
    puback(&mut rig, 0, 1, ReturnCode::NotSupported);
    assert_eq!(rig.packets(), [Packet::PubAck(refused(1))]);
    rig.broker(from_broker("xy", QoS::ExactlyOnce, 2, b"hi"));
    puback(&mut rig, 0, 2, ReturnCode::NotSupported);
    assert_eq!(rig.packets(), [Packet::PubRec(refused(2))]);
    assert_eq!(rig.drops(DropCause::MessageRefused), 2);
}

#[test]
fn too_large_messages_are_dropped() {
    let mut rig = Rig::active(|settings| settings.datagram_bytes_maximum = 100);
    rig.broker(from_broker("xy", QoS::AtLeastOnce, 1, &[7; 91]));
    assert_eq!(rig.sent().pop().map(|datagram| datagram.len()), Some(98));
    puback(&mut rig, 0, 1, ReturnCode::Accepted);
    rig.packets();
    rig.broker(from_broker("xy", QoS::AtLeastOnce, 1, &[7; 92]));
    assert!(rig.sent().is_empty());
    assert_eq!((rig.drops(DropCause::TooLarge), rig.packets().len()), (1, 1));
}

#[test]
fn pace_bounds_qos_0_and_holds_the_broker_back() {
    let mut rig = Rig::active(|settings| settings.pace_bytes_per_second = NonZeroU32::new(1000));
    let payload: &[u8] = &[7; 91];
    for _ in 0..12 {
        rig.broker(from_broker("xy", QoS::AtMostOnce, 0, payload));
    }
    assert_eq!(rig.sent().len(), 11, "a second's bytes at once");
    assert!(rig.peer.accepts_packets());
    for _ in 0..32 {
        rig.broker(from_broker("xy", QoS::AtMostOnce, 0, payload));
    }
    assert!(!rig.peer.accepts_packets());
    rig.broker(from_broker("xy", QoS::AtLeastOnce, 1, b"hi"));
    assert!(rig.sent().is_empty(), "order stays");
    rig.pass(Duration::from_secs(1));
    assert_eq!(rig.sent().len(), 10);
    assert!(rig.peer.accepts_packets());
    rig.pass(Duration::from_secs(3));
    let sent = rig.sent();
    assert_eq!((sent.len(), sent.last().map(|datagram| datagram[6])), (24, Some(1)), "all, the last at QoS 1");
}

#[test]
fn slow_client_gets_the_latest_qos_0_messages() {
    let mut rig = Rig::active(|settings| settings.sleep_messages = 4);
    for _ in 0..6 {
        rig.broker(from_broker("a/b", QoS::AtMostOnce, 0, b"old"));
    }
    for _ in 0..3 {
        rig.broker(from_broker("a/b", QoS::AtMostOnce, 0, b"new"));
    }
    assert_eq!((rig.drops(DropCause::BufferFull), rig.peer.waiting()), (5, (4, 12)));
    rig.sent();
    accept_register(&mut rig, 1, 1);
    let sent = rig.sent();
    assert_eq!(sent.len(), 4);
    assert!(sent[0].ends_with(b"old") && sent[1..].iter().all(|datagram| datagram.ends_with(b"new")));
}

/// MQTT 3.1.1 has no refusal in PUBREC: the broker releases the message, and waits.
#[test]
fn release_of_a_message_that_was_given_up_is_completed() {
    let mut rig = Rig::active(|settings| settings.upstream_version = ProtocolVersion::V311);
    rig.broker(from_broker("xy", QoS::ExactlyOnce, 3, &[7; 1400]));
    assert_eq!(rig.drops(DropCause::TooLarge), 1);
    assert_eq!(rig.packets().len(), 1, "PUBREC");
    rig.broker(Packet::PubRel(ok(3)));
    assert_eq!(rig.packets(), [Packet::PubComp(ok(3))]);
    assert!(rig.sent().is_empty());
}

#[test]
fn topic_name_longer_than_a_datagram_is_dropped() {
    let mut rig = Rig::active(|settings| settings.upstream_version = ProtocolVersion::V311);
    let topic = "a".repeat(1393);
    rig.broker(from_broker(&topic, QoS::AtMostOnce, 0, b"1"));
    assert_eq!((rig.drops(DropCause::TooLarge), rig.sent().len()), (1, 0));
    rig.broker(from_broker(&topic[1..], QoS::AtMostOnce, 0, b"1"));
    assert_eq!(rig.sent()[0].len(), 1400);
}
