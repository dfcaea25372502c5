use tenbin_codec::{Packet, QoS, ReasonCode};
use tenbin_sn::{Action, End};
use tenbin_sn_codec::v1_2::{Connect, Message, PubAck, ReturnCode};

use crate::delivering::accept_register;
use crate::rig::{RETRY, Rig, ack, connect, from_broker, gateway, id, ok};

/// An active client without keep alive, so that only retries end it.
fn patient() -> Rig {
    Rig::active_with(&gateway(|_| {}), Connect { duration: 0, ..connect("c") }, None)
}

#[test]
fn unanswered_messages_are_repeated_and_the_client_is_lost() {
    type Start = fn(&mut Rig);
    let starts: [(Start, &[u8]); 4] = [
        (|rig| rig.broker(from_broker("a/b", QoS::AtMostOnce, 0, b"hi")), b"\x09\x0A\x00\x01\x00\x01a/b"),
        (|rig| rig.broker(from_broker("xy", QoS::AtLeastOnce, 5, b"hi")), b"\x09\x0C\xA2xy\x00\x05hi"),
        (|rig| rig.broker(from_broker("xy", QoS::ExactlyOnce, 5, b"hi")), b"\x09\x0C\xC2xy\x00\x05hi"),
        (|rig| rig.broker(Packet::PubRel(ok(5))), b"\x04\x10\x00\x05"),
    ];
    for (start, repetition) in starts {
        let mut rig = patient();
        start(&mut rig);
        assert_eq!(rig.sent().len(), 1);
        for number in 1..=4 {
            rig.pass(RETRY - std::time::Duration::from_millis(1));
            assert!(rig.sent().is_empty());
            rig.pass(std::time::Duration::from_millis(1));
            let mut sent = rig.sent();
            if number == 4 && repetition[1] == 0x0A {
                assert_eq!(sent.pop().as_deref(), Some(&b"\x02\x16"[..]), "some clients ignore REGISTER");
            }
            assert_eq!(sent, [repetition], "with DUP where there is one");
        }
        rig.pass(RETRY);
        assert_eq!(rig.action, Action::End(End::NoAnswer));
        assert!(rig.packets().is_empty(), "no DISCONNECT, so that the Will is published");
    }
}

/// As RIOT's emcute, which subscribes with wildcards and ignores REGISTER: its other messages go on.
#[test]
fn client_that_lives_and_ignores_register_refuses_the_topic() {
    let mut rig = patient();
    rig.broker(from_broker("a/b", QoS::AtLeastOnce, 5, b"hi"));
    rig.broker(from_broker("xy", QoS::AtMostOnce, 0, b"hi"));
    for _ in 0..5 {
        rig.sent();
        rig.pass(RETRY);
        rig.client(Message::PingResp);
    }
    assert_eq!(rig.action, Action::Continue);
    assert_eq!(rig.sent().last().map(Vec::as_slice), Some(&b"\x09\x0C\x02xy\x00\x00hi"[..]));
    assert_eq!(rig.packets(), [Packet::PubAck(ack(5, ReasonCode::TopicNameInvalid))]);
}

#[test]
fn answers_end_repetitions() {
    let mut rig = patient();
    rig.broker(from_broker("a/b", QoS::ExactlyOnce, 5, b"hi"));
    rig.pass(2 * RETRY);
    accept_register(&mut rig, 1, 1);
    rig.pass(2 * RETRY);
    rig.client(Message::PubRec(id(5)));
    rig.sent();
    rig.pass(20 * RETRY);
    assert!(rig.sent().is_empty(), "the broker's PUBREL is due");
    rig.broker(Packet::PubRel(ok(5)));
    rig.pass(4 * RETRY);
    assert_eq!(rig.sent().len(), 5);
    rig.client(Message::PubComp(id(5)));
    rig.pass(20 * RETRY);
    assert!(rig.sent().is_empty());
    assert_eq!(rig.action, Action::Continue);
}

#[test]
fn congestion_of_the_client_delays_the_message() {
    let mut rig = patient();
    rig.broker(from_broker("xy", QoS::AtLeastOnce, 5, b"hi"));
    let code = ReturnCode::Congestion;
    rig.client(Message::PubAck(PubAck { topic_id: 0, message_id: Some(id(5)), code }));
    rig.sent();
    rig.pass(RETRY);
    assert_eq!(rig.sent(), [b"\x09\x0C\xA2xy\x00\x05hi"]);
    rig.client(Message::PubAck(PubAck { topic_id: 0, message_id: Some(id(5)), code: ReturnCode::Accepted }));
    assert_eq!(rig.packets(), [Packet::PubAck(ok(5))]);
}

#[test]
fn copies_of_a_message_under_way_are_not_sent() {
    let mut rig = patient();
    for _ in 0..2 {
        rig.broker(from_broker("xy", QoS::AtLeastOnce, 5, b"hi"));
    }
    assert_eq!(rig.sent().len(), 1);
    for _ in 0..2 {
        rig.broker(from_broker("xy", QoS::AtLeastOnce, 6, b"ho"));
    }
    rig.client(Message::PubAck(PubAck { topic_id: 0, message_id: Some(id(5)), code: ReturnCode::Accepted }));
    rig.client(Message::PubAck(PubAck { topic_id: 0, message_id: Some(id(6)), code: ReturnCode::Accepted }));
    assert_eq!(rig.sent(), [b"\x09\x0C\x22xy\x00\x06ho"]);
}
