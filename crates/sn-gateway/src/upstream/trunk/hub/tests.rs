//! The hub without sockets: packets go in, and packets come out.

use std::num::NonZeroU16;
use std::task::{Context, Poll, Waker};

use bytes::BytesMut;
use tenbin_codec::{
    Ack, AckProperties, ConnAck, Connect, Decoded, Decoder, Packet, PacketId, Publish, QoS, ReasonCode, SubAck,
    Subscribe, Subscription, SubscriptionOptions, Text, TopicFilter, TopicName, Will, WriteBuffer,
};

use super::requesting::IDS_MAXIMUM;
use super::{Hub, Key, VERSION};

fn id(id: u16) -> PacketId {
    PacketId::new(id).expect("not 0")
}

fn text(text: &str) -> Text {
    Text::try_from(text.to_owned()).expect("it has no NUL")
}

/// A hub whose broker takes this number of messages at a time.
fn hub(receive_maximum: u16) -> Hub {
    let mut hub = Hub::new(1 << 16);
    let mut connack = ConnAck::new(false, ReasonCode::Success);
    connack.properties.receive_maximum = NonZeroU16::new(receive_maximum);
    hub.up(connack);
    hub
}

fn join(hub: &mut Hub, client_id: &str) -> Key {
    let (key, _) = hub.join(&text(client_id), None);
    for_member(hub, key);
    key
}

fn decode(mut decoder: Decoder, bytes: &[u8]) -> Vec<Packet> {
    let mut bytes = BytesMut::from(bytes);
    let mut packets = Vec::new();
    while let Decoded::Packet(packet) = decoder.decode(&mut bytes).expect("legal") {
        packets.push(packet);
    }
    packets
}

/// Packets for the broker.
fn for_broker(hub: &mut Hub) -> Vec<Packet> {
    let mut cx = Context::from_waker(Waker::noop());
    let Poll::Ready(out) = hub.poll_take(&mut cx) else { return Vec::new() };
    hub.note_written(out.len());
    // The decoder learns the version from CONNECT.
    let mut bytes = WriteBuffer::new();
    Packet::Connect(Box::new(Connect::new(VERSION, text("trunk")))).encode(VERSION, &mut bytes);
    bytes.append(out);
    decode(Decoder::server(1 << 20), &bytes.to_bytes()).split_off(1)
}

/// Packets for a member.
fn for_member(hub: &mut Hub, key: Key) -> Vec<Packet> {
    let mut cx = Context::from_waker(Waker::noop());
    let mut bytes = Vec::new();
    let _ = hub.poll_read(key, usize::MAX, |part| bytes.extend_from_slice(part), &mut cx);
    decode(Decoder::client(VERSION, 1 << 20), &bytes)
}

fn publish(qos: QoS, packet_id: Option<u16>, identifiers: &[u32]) -> Publish {
    Publish {
        dup: false,
        qos,
        retain: false,
        topic: TopicName::new(text("plant/1")).expect("a topic"),
        packet_id: packet_id.map(id),
        topic_alias: None,
        subscription_identifiers: identifiers.to_vec(),
        properties: None,
        payload: "data".into(),
    }
}

fn subscribe(hub: &mut Hub, key: Key, own_id: u16, qos: QoS) {
    let filter = TopicFilter::try_from("plant/+").expect("a filter");
    let subscriptions = vec![Subscription { filter, options: SubscriptionOptions::at(qos) }];
    let subscribe =
        Subscribe { packet_id: id(own_id), subscription_identifier: None, user_properties: Vec::new(), subscriptions };
    hub.handle_member(key, Packet::Subscribe(subscribe)).expect("legal");
}

/// Answers the SUBSCRIBE that the broker has got. Returns its Subscription Identifier.
fn grant(hub: &mut Hub) -> u32 {
    let packets = for_broker(hub);
    let [Packet::Subscribe(subscribe)] = &packets[..] else { panic!("{packets:?}") };
    let reasons = vec![ReasonCode::GrantedQoS2];
    let suback = SubAck { packet_id: subscribe.packet_id, properties: AckProperties::default(), reasons };
    hub.handle_broker(Packet::SubAck(suback)).expect("legal");
    subscribe.subscription_identifier.expect("a trunk's SUBSCRIBE has one")
}

/// Sends a message of a member, and returns the trunk's Packet Identifier, if it was sent to the broker.
fn send(hub: &mut Hub, key: Key, own_id: u16) -> Option<PacketId> {
    hub.handle_member(key, Packet::Publish(publish(QoS::AtLeastOnce, Some(own_id), &[]))).expect("legal");
    match &for_broker(hub)[..] {
        [] => None,
        [Packet::Publish(publish)] => publish.packet_id,
        packets => panic!("{packets:?}"),
    }
}

fn puback(hub: &mut Hub, packet_id: PacketId) {
    hub.handle_broker(Packet::PubAck(Ack::new(packet_id, ReasonCode::Success))).expect("legal");
}

/// A hub whose Packet Identifiers are all in use, and the member that has them: the first for a SUBSCRIBE, and the others
/// for messages. The broker takes further messages.
fn hub_without_identifiers() -> (Hub, Key) {
    let mut hub = hub(u16::MAX);
    let busy = join(&mut hub, "busy");
    subscribe(&mut hub, busy, 1, QoS::AtMostOnce);
    for_broker(&mut hub);
    for number in 2..=u16::MAX {
        assert_eq!(send(&mut hub, busy, number), Some(id(number)));
    }
    (hub, busy)
}

#[test]
fn refused_will_is_counted_and_harms_nobody() {
    let mut hub = hub(2);
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let topic = TopicName::new(text("forbidden")).expect("a topic");
        let (retain, payload, delay_interval, properties) = (false, "gone".into(), None, None);
        let will = Will { qos, retain, topic, payload, delay_interval, properties };
        let (lost, _) = hub.join(&text("lost"), Some(will));
        hub.leave(lost, true);
    }
    let packets = for_broker(&mut hub);
    let [Packet::Publish(at_least_once), Packet::Publish(exactly_once)] = &packets[..] else { panic!("{packets:?}") };
    let refusal = |publish: &Publish| Ack::new(publish.packet_id.expect("it has one"), ReasonCode::NotAuthorized);
    hub.handle_broker(Packet::PubAck(refusal(at_least_once))).expect("the trunk goes on");
    hub.handle_broker(Packet::PubRec(refusal(exactly_once))).expect("the trunk goes on");
    assert_eq!(hub.dropped(), 2);
    assert!(for_broker(&mut hub).is_empty(), "no PUBREL");
    // Both have left the broker's window of two.
    let other = join(&mut hub, "other");
    for own_id in [5, 6] {
        let sent = send(&mut hub, other, own_id).expect("sent");
        puback(&mut hub, sent);
    }
    assert_eq!(for_member(&mut hub, other).len(), 2);
}

#[test]
fn message_without_a_free_identifier_waits_for_one() {
    let (mut hub, busy) = hub_without_identifiers();
    let other = join(&mut hub, "other");
    assert_eq!(send(&mut hub, other, 7), None);
    puback(&mut hub, id(300));
    let packets = for_broker(&mut hub);
    let [Packet::Publish(sent)] = &packets[..] else { panic!("{packets:?}") };
    assert_eq!(sent.packet_id, Some(id(300)), "the only one that is not in use");
    puback(&mut hub, id(300));
    let packets = for_member(&mut hub, other);
    assert_eq!(packets, [Packet::PubAck(Ack::new(id(7), ReasonCode::Success))]);
    assert_eq!(for_member(&mut hub, busy).len(), 1);
    assert_eq!(hub.dropped(), 0);
}

#[test]
fn subscribe_without_a_free_identifier_is_answered() {
    let (mut hub, _) = hub_without_identifiers();
    let other = join(&mut hub, "other");
    subscribe(&mut hub, other, 9, QoS::AtLeastOnce);
    let packets = for_member(&mut hub, other);
    let [Packet::SubAck(suback)] = &packets[..] else { panic!("{packets:?}") };
    assert_eq!((suback.packet_id, &suback.reasons[..]), (id(9), &[ReasonCode::QuotaExceeded][..]));
    puback(&mut hub, id(2));
    subscribe(&mut hub, other, 9, QoS::AtLeastOnce);
    grant(&mut hub);
}

#[test]
fn unsubscribe_without_a_free_identifier_waits_for_one() {
    let mut hub = hub(u16::MAX);
    let leaving = join(&mut hub, "leaving");
    subscribe(&mut hub, leaving, 9, QoS::AtLeastOnce);
    grant(&mut hub);
    let busy = join(&mut hub, "busy");
    let ids: Vec<PacketId> = (1..=u16::MAX).map(|own_id| send(&mut hub, busy, own_id).expect("sent")).collect();
    hub.leave(leaving, false);
    assert!(for_broker(&mut hub).is_empty());
    puback(&mut hub, ids[0]);
    let packets = for_broker(&mut hub);
    assert!(matches!(&packets[..], [Packet::Unsubscribe(_)]), "{packets:?}");
}

#[test]
fn identifiers_of_the_broker_s_messages_skip_those_in_use() {
    let mut hub = hub(10);
    let member = join(&mut hub, "member");
    subscribe(&mut hub, member, 9, QoS::AtLeastOnce);
    let identifier = grant(&mut hub);
    for_member(&mut hub, member);
    let mut deliver = |is_acknowledged: bool| {
        hub.handle_broker(Packet::Publish(publish(QoS::AtLeastOnce, Some(1), &[identifier]))).expect("legal");
        for_broker(&mut hub);
        let packets = for_member(&mut hub, member);
        let [Packet::Publish(publish)] = &packets[..] else { panic!("{packets:?}") };
        let id = publish.packet_id.expect("QoS 1 has one");
        if is_acknowledged {
            hub.handle_member(member, Packet::PubAck(Ack::new(id, ReasonCode::Success))).expect("legal");
        }
        id
    };
    let kept = [deliver(false), deliver(false)];
    for _ in 0..IDS_MAXIMUM * 2 {
        assert!(!kept.contains(&deliver(true)));
    }
}

#[test]
fn subscription_of_many_members_has_their_highest_qos() {
    let mut hub = hub(10);
    let keys: Vec<Key> = (0..1000).map(|number| join(&mut hub, &number.to_string())).collect();
    for (&key, number) in keys.iter().zip(0..) {
        subscribe(&mut hub, key, 9, if number == 500 { QoS::ExactlyOnce } else { QoS::AtMostOnce });
        let packets = for_broker(&mut hub);
        let [Packet::Subscribe(subscribe)] = &packets[..] else { panic!("{packets:?}") };
        let expected = if number < 500 { QoS::AtMostOnce } else { QoS::ExactlyOnce };
        assert_eq!(subscribe.subscriptions[0].options.qos, expected);
    }
    subscribe(&mut hub, keys[500], 10, QoS::AtLeastOnce);
    subscribe(&mut hub, keys[0], 10, QoS::AtMostOnce);
    let packets = for_broker(&mut hub);
    let [.., Packet::Subscribe(subscribe)] = &packets[..] else { panic!("{packets:?}") };
    assert_eq!(subscribe.subscriptions[0].options.qos, QoS::AtLeastOnce);
    // A message that names two identifiers of the filter comes once.
    let identifier = subscribe.subscription_identifier.expect("it has one");
    let message = publish(QoS::AtMostOnce, None, &[identifier, identifier - 1]);
    hub.handle_broker(Packet::Publish(message)).expect("legal");
    assert!(keys.iter().all(|&key| for_member(&mut hub, key).len() == 1));
    let (last, others) = keys.split_last().expect("members");
    others.iter().for_each(|&key| hub.leave(key, false));
    assert!(for_broker(&mut hub).is_empty());
    hub.leave(*last, false);
    assert!(matches!(&for_broker(&mut hub)[..], [Packet::Unsubscribe(_)]));
}
