//! Clients that get a connection of their own in place of a trunk.

use std::num::{NonZeroU16, NonZeroU32};

use tenbin_codec::{Ack, ConnAck, Packet, PacketId, QoS as MqttQoS, ReasonCode, RetainHandling};
use tenbin_sn_codec::v1_2::{
    Message, MessageId, PubAck, Publish, QoS, ReturnCode, SubAck, Subscribe, Subscribed, Topic,
};
use tenbin_sn_gateway::Gateway;

use super::scripted_broker::{Connection, ScriptedBroker, ack};
use super::{ANYBODY, take_until, with_will};
use crate::client::{Client, gateway, wait_for};

/// A client on a trunk, with a subscription to `plant/+`.
struct Stand {
    broker: ScriptedBroker,
    gateway: Gateway,
    client: Client,
    trunk: Connection,
    /// Subscription Identifier on the trunk.
    identifier: Option<u32>,
}

fn stand() -> Stand {
    let broker = ScriptedBroker::start();
    let gateway = gateway(broker.address, "aggregate = 1", ANYBODY);
    let mut client = Client::new(gateway.address());
    client.send(&Message::Connect(tenbin_sn_codec::v1_2::Connect {
        will: false,
        clean_session: true,
        duration: 600,
        client_id: "worker",
    }));
    let (mut trunk, _) = broker.accept();
    trunk.connack(ReasonCode::Success);
    assert_eq!(client.receive(), Message::ConnAck(ReturnCode::Accepted));
    subscribe(&client, 8, "plant/+");
    let subscribed = trunk.receive_subscribe();
    trunk.suback(subscribed.packet_id, &[ReasonCode::GrantedQoS2]);
    assert_eq!(suback(&mut client), (8, ReturnCode::Accepted));
    Stand { broker, gateway, client, trunk, identifier: subscribed.subscription_identifier }
}

fn subscribe(client: &Client, id: u16, filter: &str) {
    let (message_id, topic) = (MessageId::new(id).expect("not 0"), Subscribed::Name(filter));
    client.send(&Message::Subscribe(Subscribe { dup: false, qos: QoS::ExactlyOnce, message_id, topic }));
}

fn suback(client: &mut Client) -> (u16, ReturnCode) {
    match client.receive_proven() {
        Message::SubAck(SubAck { message_id, code, .. }) => (message_id.get(), code),
        other => panic!("{other:?}"),
    }
}

fn puback(client: &mut Client) -> (Option<MessageId>, ReturnCode) {
    match client.receive_proven() {
        Message::PubAck(PubAck { message_id, code, .. }) => (message_id, code),
        other => panic!("{other:?}"),
    }
}

fn payloads(client: &mut Client, last: &str) -> Vec<String> {
    let taken = take_until(client, last.as_bytes());
    taken.into_iter().map(|(data, ..)| String::from_utf8(data).expect("text")).collect()
}

#[test]
fn replaced_trunk_loses_and_repeats_nothing() {
    let Stand { broker, gateway: _gateway, mut client, mut trunk, identifier } = stand();
    // The client has yet to release a message, and to acknowledge another one.
    let topic = Topic::Normal(client.register("plant/5"));
    client.publish(topic, QoS::ExactlyOnce, 5, b"to be released");
    let sent = trunk.receive_publish().packet_id.expect("QoS 2 has one").get();
    trunk.send(&Packet::PubRec(ack(sent)));
    assert_eq!(client.receive(), Message::PubRec(MessageId::new(5).expect("not 0")));
    assert_eq!(trunk.receive(), Packet::PubRel(ack(sent)));
    trunk.send(&Packet::PubComp(ack(sent)));
    trunk.publish(MqttQoS::ExactlyOnce, 11, identifier, "open");
    assert_eq!(trunk.receive(), Packet::PubRec(ack(11)));
    trunk.send(&Packet::PubRel(ack(11)));
    assert_eq!(trunk.receive(), Packet::PubComp(ack(11)));
    let Message::Publish(Publish { message_id: Some(open), data: b"open", .. }) = client.receive_proven() else {
        panic!("PUBLISH")
    };

    subscribe(&client, 9, "$share/group/work");
    let (mut own, connect) = broker.accept();
    assert_eq!(connect.client_id.as_str(), "worker");
    own.connack(ReasonCode::Success);
    let subscribed = own.receive_subscribe();
    let filters: Vec<_> =
        subscribed.subscriptions.iter().map(|subscription| subscription.filter.text().as_str()).collect();
    assert_eq!((subscribed.packet_id.get(), &filters[..]), (9, &["plant/+", "$share/group/work"][..]));
    assert_eq!(subscribed.subscriptions[0].options.retain_handling, RetainHandling::Never);

    // The broker has messages for both connections, and one that the trunk alone has got.
    trunk.publish(MqttQoS::AtLeastOnce, 12, identifier, "before");
    assert_eq!(trunk.receive(), Packet::PubAck(ack(12)));
    own.publish(MqttQoS::ExactlyOnce, 1, None, "both");
    own.suback(subscribed.packet_id, &[ReasonCode::GrantedQoS2, ReasonCode::GrantedQoS2]);
    assert_eq!(suback(&mut client), (9, ReturnCode::Accepted));
    assert!(matches!(trunk.receive(), Packet::PingReq(_)), "and no UNSUBSCRIBE");
    trunk.publish(MqttQoS::ExactlyOnce, 13, identifier, "both");
    assert_eq!(trunk.receive(), Packet::PubRec(ack(13)));
    trunk.send(&Packet::PingResp);
    assert!(matches!(trunk.receive(), Packet::Unsubscribe(_)));
    own.publish(MqttQoS::ExactlyOnce, 2, None, "after");

    client.send(&Message::PubRec(open));
    assert_eq!(payloads(&mut client, "after"), ["before", "both", "after"]);
    assert!(matches!(own.receive(), Packet::PingReq(_)));
    assert_eq!(own.receive(), Packet::PubRec(ack(1)), "of the copy");
    assert_eq!(own.receive(), Packet::PubRec(ack(2)));
    own.send(&Packet::PubRel(ack(1)));
    assert_eq!(own.receive(), Packet::PubComp(ack(1)));
    own.send(&Packet::PingResp);
    own.send(&Packet::PubRel(ack(2)));
    let after = MessageId::new(2).expect("not 0");
    assert_eq!(client.receive(), Message::PubRel(after));
    client.send(&Message::PubComp(after));
    assert_eq!(own.receive(), Packet::PubComp(ack(2)));
    // An equal message is another one from here on.
    own.publish(MqttQoS::ExactlyOnce, 3, None, "both");
    assert_eq!(payloads(&mut client, "both"), ["both"]);
    assert_eq!(own.receive(), Packet::PubRec(ack(3)));

    let released = MessageId::new(5).expect("not 0");
    client.send(&Message::PubRel(released));
    assert_eq!(client.receive(), Message::PubComp(released));
    client.publish(topic, QoS::AtLeastOnce, 6, b"next");
    assert_eq!(own.receive_publish().payload, "next", "and no PUBREL of the trunk's message");
}

#[test]
fn refused_replacement_leaves_the_client_on_its_trunk() {
    let Stand { broker, gateway: _gateway, mut client, mut trunk, identifier } = stand();
    let mut connack = ConnAck::new(false, ReasonCode::Success);
    connack.properties.shared_subscription_available = Some(false);
    let without_shared = Packet::ConnAck(Box::new(connack));
    type Refuse<'a> = &'a dyn Fn(Connection) -> Option<Connection>;
    let cases: [(Refuse<'_>, ReturnCode); 4] = [
        (
            &|mut own| {
                own.connack(ReasonCode::NotAuthorized);
                Some(own)
            },
            ReturnCode::NotSupported,
        ),
        (
            &|mut own| {
                own.send(&without_shared);
                Some(own)
            },
            ReturnCode::NotSupported,
        ),
        (
            &|mut own| {
                own.connack(ReasonCode::Success);
                let subscribed = own.receive_subscribe();
                own.suback(subscribed.packet_id, &[ReasonCode::GrantedQoS2, ReasonCode::NotAuthorized]);
                Some(own)
            },
            ReturnCode::NotSupported,
        ),
        (&|_closed| None, ReturnCode::Congestion),
    ];
    for ((refuse, code), number) in cases.into_iter().zip(20..) {
        subscribe(&client, number, "$share/group/work");
        let (own, _) = broker.accept();
        let own = refuse(own);
        assert_eq!(suback(&mut client), (number, code));
        if let Some(mut own) = own {
            assert!(matches!(own.read(), Some(Packet::Disconnect(_))), "nothing else was sent, and no Will is due");
        }
        trunk.publish(MqttQoS::AtLeastOnce, number, identifier, "still there");
        assert_eq!(trunk.receive(), Packet::PubAck(ack(number)));
        assert_eq!(payloads(&mut client, "still there"), ["still there"]);
    }
    let topic = Topic::Normal(client.register("plant/5"));
    client.publish(topic, QoS::AtLeastOnce, 6, b"on the trunk");
    assert_eq!(trunk.receive_publish().payload, "on the trunk");
}

#[test]
fn limits_of_the_new_connection_hold() {
    let Stand { broker, gateway: _gateway, mut client, mut trunk, identifier } = stand();
    // A wildcard would be refused there.
    let unsubscribe = tenbin_sn_codec::v1_2::Unsubscribe {
        message_id: MessageId::new(9).expect("not 0"),
        topic: Subscribed::Name("plant/+"),
    };
    client.send(&Message::Unsubscribe(unsubscribe));
    assert!(matches!(client.receive(), Message::UnsubAck(_)));
    assert!(matches!(trunk.receive(), Packet::Unsubscribe(_)));
    assert!(identifier.is_some());
    let topic = Topic::Normal(client.register("plant/5"));
    subscribe(&client, 10, "$share/group/work");
    let (mut own, _) = broker.accept();
    let mut connack = ConnAck::new(false, ReasonCode::Success);
    connack.properties.maximum_qos = Some(MqttQoS::AtLeastOnce);
    connack.properties.retain_available = Some(false);
    connack.properties.wildcard_subscription_available = Some(false);
    connack.properties.receive_maximum = NonZeroU16::new(1);
    connack.properties.maximum_packet_size = NonZeroU32::new(100);
    own.send(&Packet::ConnAck(Box::new(connack)));
    let subscribed = own.receive_subscribe();
    own.suback(subscribed.packet_id, &[ReasonCode::GrantedQoS1]);
    assert_eq!(suback(&mut client), (10, ReturnCode::Accepted));

    let publish = |qos, retain, id, data| {
        let message_id = MessageId::new(id);
        Message::Publish(Publish { dup: false, qos: Some(qos), retain, topic, message_id, data })
    };
    let large = [b'x'; 100];
    for message in [
        publish(QoS::ExactlyOnce, false, 11, b"QoS 2"),
        publish(QoS::AtLeastOnce, true, 11, b"retained"),
        publish(QoS::AtLeastOnce, false, 11, &large),
    ] {
        client.send(&message);
        assert_eq!(puback(&mut client), (MessageId::new(11), ReturnCode::NotSupported));
    }
    subscribe(&client, 12, "other/+");
    assert_eq!(suback(&mut client), (12, ReturnCode::NotSupported));
    client.send(&publish(QoS::AtLeastOnce, false, 13, b"taken"));
    client.send(&publish(QoS::AtLeastOnce, false, 14, b"beyond Receive Maximum"));
    assert_eq!(puback(&mut client), (MessageId::new(14), ReturnCode::Congestion));
    let taken = own.receive_publish();
    assert_eq!((taken.packet_id, &taken.payload[..]), (PacketId::new(13), &b"taken"[..]));
    own.send(&Packet::PubAck(ack(13)));
    assert_eq!(puback(&mut client), (MessageId::new(13), ReturnCode::Accepted));
    client.send(&publish(QoS::AtLeastOnce, false, 14, b"beyond Receive Maximum"));
    assert_eq!(own.receive_publish().packet_id, PacketId::new(14));
}

#[test]
fn keep_alive_of_the_new_connection_is_the_broker_s() {
    let Stand { broker, gateway: _gateway, mut client, trunk: _trunk, .. } = stand();
    subscribe(&client, 10, "$share/group/work");
    let (mut own, _) = broker.accept();
    let mut connack = ConnAck::new(false, ReasonCode::Success);
    connack.properties.server_keep_alive = Some(1);
    own.send(&Packet::ConnAck(Box::new(connack)));
    let subscribed = own.receive_subscribe();
    own.suback(subscribed.packet_id, &[ReasonCode::GrantedQoS2, ReasonCode::GrantedQoS2]);
    assert_eq!(suback(&mut client), (10, ReturnCode::Accepted));
    for _ in 0..2 {
        assert!(matches!(own.receive(), Packet::PingReq(_)));
        own.send(&Packet::PingResp);
    }
}

#[test]
fn trunk_goes_on_after_a_refused_will() {
    let Stand { broker: _broker, gateway, mut client, mut trunk, .. } = stand();
    let _lost = with_will(&gateway, "lost", 2, b"a will");
    let will = trunk.receive_publish();
    assert_eq!((will.topic.as_bytes(), &will.payload[..]), (&b"gone"[..], &b"a will"[..]));
    let id = will.packet_id.expect("QoS 1 has one");
    trunk.send(&Packet::PubAck(Ack::new(id, ReasonCode::NotAuthorized)));
    wait_for(&gateway, "aggregate_dropped", 1);
    let topic = Topic::Normal(client.register("plant/5"));
    client.publish(topic, QoS::AtLeastOnce, 6, b"next");
    let next = trunk.receive_publish().packet_id.expect("QoS 1 has one").get();
    trunk.send(&Packet::PubAck(ack(next)));
    assert_eq!(puback(&mut client), (MessageId::new(6), ReturnCode::Accepted));
}
