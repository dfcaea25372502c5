use tenbin_codec::{Packet, QoS, ReasonCode, UnsubAck};
use tenbin_sn::DropCause;
use tenbin_sn_codec::v1_2::{self, Message, ShortName, Subscribe, Subscribed, Topic, Unsubscribe};

use crate::rig::{Rig, from_broker, id, packet_id, suback, to_broker};

fn subscribe(topic: Subscribed<'_>, message_id: u16) -> Message<'_> {
    Message::Subscribe(Subscribe { dup: false, qos: v1_2::QoS::AtLeastOnce, message_id: id(message_id), topic })
}

/// Filter and QoS that the broker got.
fn filter(rig: &mut Rig) -> (String, QoS) {
    match &rig.packets()[..] {
        [Packet::Subscribe(subscribe)] => {
            let subscription = &subscribe.subscriptions[0];
            (subscription.filter.text().as_str().to_owned(), subscription.options.qos)
        }
        other => panic!("no SUBSCRIBE: {other:?}"),
    }
}

#[test]
fn subscribe_answers_with_granted_qos_and_topic_id() {
    let mut rig = Rig::active(|_| {});
    let short = Subscribed::Short(ShortName::new("xy").expect("two bytes"));
    let cases = [
        (Subscribed::Name("a/b"), "a/b", 1),
        (Subscribed::Name("a/#"), "a/#", 0),
        (Subscribed::Name("+"), "+", 0),
        (Subscribed::Name("$share/g/c/d"), "$share/g/c/d", 2),
        (Subscribed::Name("$share/g/c/+"), "$share/g/c/+", 0),
        (Subscribed::Predefined(1), "pre/defined", 1),
        (Subscribed::Predefined(2), "of/c", 2),
        (short, "xy", 0),
    ];
    for (message_id, (topic, expected, topic_id)) in (1_u16..).zip(cases) {
        rig.client(subscribe(topic, message_id));
        assert_eq!(filter(&mut rig), (expected.to_owned(), QoS::AtLeastOnce));
        rig.broker(suback(message_id, ReasonCode::Success));
        assert_eq!(rig.sent(), [[8, 0x13, 0, 0, topic_id, 0, message_id as u8, 0]], "QoS 0 is granted to {expected}");
    }
}

#[test]
fn subscribed_topic_needs_no_register() {
    let mut rig = Rig::active(|_| {});
    rig.client(subscribe(Subscribed::Name("$share/g/a/b"), 1));
    rig.broker(suback(1, ReasonCode::GrantedQoS1));
    assert_eq!(rig.sent(), [b"\x08\x13\x20\x00\x01\x00\x01\x00"]);
    rig.broker(from_broker("a/b", QoS::AtMostOnce, 0, b"hi"));
    assert_eq!(rig.sent(), [b"\x09\x0C\x00\x00\x01\x00\x00hi"]);
    rig.packets();
    rig.client(Message::Publish(to_broker(Topic::Normal(1), v1_2::QoS::AtMostOnce, 0, b"hi")));
    assert_eq!(rig.packets(), [from_broker("a/b", QoS::AtMostOnce, 0, b"hi")]);
}

#[test]
fn refused_and_illegal_subscriptions_have_their_codes() {
    let mut rig = Rig::active(|settings| settings.topics_maximum = 2);
    for (message_id, reason, code) in [
        (1, ReasonCode::QuotaExceeded, 1),
        (2, ReasonCode::TopicFilterInvalid, 2),
        (3, ReasonCode::NotAuthorized, 3),
        (4, ReasonCode::UnspecifiedError, 3),
    ] {
        rig.client(subscribe(Subscribed::Name("a/b"), message_id));
        filter(&mut rig);
        rig.broker(suback(message_id, reason));
        assert_eq!(rig.sent(), [[8, 0x13, 0, 0, 0, 0, message_id as u8, code]], "{reason}");
    }
    for topic in [Subscribed::Name("a#"), Subscribed::Name("$share/g"), Subscribed::Predefined(9)] {
        rig.client(subscribe(topic, 5));
        assert_eq!(rig.sent(), [b"\x08\x13\x00\x00\x00\x00\x05\x02"], "{topic:?}");
    }
    // The topics of refused subscriptions make room.
    rig.register("c/d");
    rig.register("c/e");
    rig.client(subscribe(Subscribed::Name("e/f"), 6));
    assert_eq!(rig.sent(), [b"\x08\x13\x00\x00\x00\x00\x06\x01"], "the table is full");
    assert!(rig.packets().is_empty());
}

#[test]
fn repeated_subscribe_is_answered_again_and_applied_once() {
    let mut rig = Rig::active(|_| {});
    let first = subscribe(Subscribed::Name("a/b"), 1);
    let again = Message::Subscribe(Subscribe {
        dup: true,
        qos: v1_2::QoS::AtLeastOnce,
        message_id: id(1),
        topic: Subscribed::Name("a/b"),
    });
    rig.client(first);
    filter(&mut rig);
    rig.client(again);
    assert!(rig.packets().is_empty() && rig.sent().is_empty(), "under way");
    rig.broker(suback(1, ReasonCode::GrantedQoS1));
    let answer = rig.sent();
    rig.client(again);
    assert_eq!(rig.sent(), answer);
    assert!(rig.packets().is_empty());
    rig.client(subscribe(Subscribed::Name("c/d"), 1));
    assert_eq!(filter(&mut rig).0, "c/d", "another filter is another message");
    rig.client(subscribe(Subscribed::Name("e/f"), 1));
    assert_eq!((rig.packets().len(), rig.drops(DropCause::MessageIdInUse)), (0, 1), "the id is in flight");
}

#[test]
fn unsubscribe_is_answered_as_the_broker_does() {
    let mut rig = Rig::active(|_| {});
    let short = Subscribed::Short(ShortName::new("xy").expect("two bytes"));
    let cases = [(Subscribed::Name("a/#"), "a/#"), (Subscribed::Predefined(2), "of/c"), (short, "xy")];
    for (message_id, (topic, filter)) in (1_u16..).zip(cases) {
        let message = Message::Unsubscribe(Unsubscribe { message_id: id(message_id), topic });
        rig.client(message);
        match &rig.packets()[..] {
            [Packet::Unsubscribe(packet)] => assert_eq!(packet.filters[0].text(), &filter),
            other => panic!("no UNSUBSCRIBE: {other:?}"),
        }
        rig.client(message);
        assert!(rig.packets().is_empty() && rig.sent().is_empty(), "under way");
        let (packet_id, reasons) = (packet_id(message_id), vec![ReasonCode::Success]);
        rig.broker(Packet::UnsubAck(UnsubAck { packet_id, properties: Default::default(), reasons }));
        let answer = [[4, 0x15, 0, message_id as u8]];
        assert_eq!(rig.sent(), answer);
        rig.client(message);
        assert_eq!((rig.packets().len(), rig.sent().len()), (1, 0), "UNSUBACK was lost, or it is another one");
    }
    rig.client(Message::Unsubscribe(Unsubscribe { message_id: id(9), topic: Subscribed::Predefined(9) }));
    assert_eq!(rig.sent(), [b"\x04\x15\x00\x09"], "no such subscription exists");
}

#[test]
fn subscription_after_an_unsubscribe_is_a_new_one() {
    let mut rig = Rig::active(|_| {});
    let subscribe = subscribe(Subscribed::Name("a/b"), 1);
    rig.client(subscribe);
    rig.broker(suback(1, ReasonCode::GrantedQoS1));
    rig.packets();
    rig.client(subscribe);
    assert_eq!(rig.packets().len(), 1, "without DUP it is another one, as for the retained messages");
    rig.broker(suback(1, ReasonCode::GrantedQoS1));
    rig.client(Message::Unsubscribe(Unsubscribe { message_id: id(2), topic: Subscribed::Name("a/b") }));
    rig.packets();
    rig.client(subscribe);
    assert_eq!(rig.packets().len(), 1);
}

#[test]
fn messages_of_a_subscription_follow_its_suback() {
    let mut rig = Rig::active(|_| {});
    rig.client(subscribe(Subscribed::Name("a/b"), 1));
    rig.client(subscribe(Subscribed::Name("c/#"), 2));
    rig.packets();
    for (topic, qos, packet_id) in
        [("a/b", QoS::AtLeastOnce, 1), ("c/d", QoS::AtMostOnce, 0), ("xy", QoS::AtMostOnce, 0)]
    {
        rig.broker(from_broker(topic, qos, packet_id, b"retained"));
    }
    assert_eq!(rig.sent(), Vec::<Vec<u8>>::new(), "before SUBACK");
    rig.broker(suback(1, ReasonCode::GrantedQoS1));
    assert_eq!(rig.sent(), [b"\x08\x13\x20\x00\x01\x00\x01\x00"], "the other one may have caused them");
    rig.broker(suback(2, ReasonCode::NotAuthorized));
    let sent: Vec<u8> = rig.sent().iter().map(|datagram| datagram[1]).collect();
    assert_eq!(sent, [0x13, 0x0C, 0x0A], "SUBACK, PUBLISH on the id of the first SUBACK, REGISTER of another topic");
    let code = v1_2::ReturnCode::Accepted;
    rig.client(Message::RegAck(v1_2::RegAck { topic_id: 2, message_id: Some(id(1)), code }));
    assert_eq!(rig.sent().len(), 2, "c/d and xy");
    // Unless the broker sends more than the buffer holds, since none is to be lost.
    rig.client(subscribe(Subscribed::Name("e/f"), 3));
    for _ in 0..100 {
        rig.broker(from_broker("xy", QoS::AtMostOnce, 0, b"many"));
        assert!(rig.peer.accepts_packets() || rig.peer.waiting().0 > 32);
    }
    assert_eq!(rig.drops(DropCause::BufferFull), 0);
}
