//! The peer's Maximum Packet Size.

use super::*;
use tenbin_codec::{AckProperties, SubAck, TopicFilter};

/// Size of `delivery` as a packet without alias, in bytes.
fn size_of_packet(delivery: &Delivery) -> u32 {
    let mut side = Side::server(Limits::default());
    assert!(matches!(side.send(delivery.clone()), Sent::Written(_)));
    side.out.len() as u32
}

fn limited(peer_maximum_packet_size: u32) -> Limits {
    Limits { peer_maximum_packet_size, ..Limits::default() }
}

#[test]
fn mqtt_3_1_2_24_message_above_maximum_size_is_dropped() {
    for qos in QOS {
        let size = size_of_packet(&delivery("topic", qos));
        for (maximum, fits) in [(size + 1, true), (size, true), (size - 1, false), (1, false)] {
            let mut side = Side::server(limited(maximum));
            let sent = side.send(delivery("topic", qos));
            assert_eq!(matches!(sent, Sent::Written(_)), fits, "{sent:?}");
            assert_eq!(matches!(sent, Sent::TooLarge), !fits, "{sent:?}");
            assert_eq!(side.out.is_empty(), !fits);
        }
    }
}

#[test]
fn mqtt_3_1_2_25_a_dropped_message_takes_no_id_and_no_quota() {
    let size = size_of_packet(&delivery("topic", QoS::AtLeastOnce));
    let mut side = Side::server(Limits { peer_receive_maximum: 1, ..limited(size) });
    for _ in 0..5 {
        assert!(matches!(side.send(delivery("a/longer/topic", QoS::AtLeastOnce)), Sent::TooLarge));
    }
    assert_eq!(side.connection.send_quota(), 1);
    assert_eq!(side.sent(QoS::AtLeastOnce), Some(1));
}

#[test]
fn maximum_applies_to_the_packet_as_sent() {
    let long = "a/topic/longer/than/its/alias";
    let size = size_of_packet(&delivery(long, QoS::AtMostOnce));
    let take = |side: &mut Side| matches!(side.send(delivery(long, QoS::AtMostOnce)), Sent::Written(_));

    // A new alias would exceed the maximum, so the packet has none.
    let mut side = Side::server(Limits { peer_topic_alias_maximum: 1, ..limited(size) });
    assert!(take(&mut side));
    assert!(matches!(side.answer(), Packet::Publish(Publish { topic_alias: None, .. })));
    // Another topic can still get the alias.
    assert!(matches!(side.send(delivery("b", QoS::AtMostOnce)), Sent::Written(_)));
    assert!(matches!(side.answer(), Packet::Publish(Publish { topic_alias: Some(_), .. })));
    // No alias is left, so the packet has no alias property.
    assert!(take(&mut side));

    // A known alias makes room for properties.
    let mut side = Side::server(Limits { peer_topic_alias_maximum: 1, ..limited(size + 3) });
    assert!(take(&mut side));
    let identified = Delivery { extras: crate::Extras::identifiers([1, 2, 3, 4]), ..delivery(long, QoS::AtMostOnce) };
    assert!(size_of_packet(&identified) > size + 3);
    assert!(matches!(side.send(identified), Sent::Written(_)));
}

#[test]
fn mqtt_3_1_2_25_too_large_resend_is_dropped_and_reported() {
    let mut side = Side::server(Limits::default());
    let small = size_of_packet(&delivery("topic", QoS::ExactlyOnce));
    let large = |side: &mut Side| match side.send(delivery("a/longer/topic", QoS::ExactlyOnce)) {
        Sent::Written(Some(id)) => id,
        other => panic!("{other:?}"),
    };
    let first = side.sent(QoS::ExactlyOnce).unwrap();
    let (second, third) = (large(&mut side), large(&mut side));
    let last = side.sent(QoS::ExactlyOnce).unwrap();
    side = side.reconnect(Limits { peer_receive_maximum: 1, ..limited(small) });
    assert_eq!(side.published(), [(first, true)]);
    assert_eq!(side.connection.poll_dropped(), None);
    side.handle(pubrec(first));
    assert_delivered(side.take(pubcomp(first)), first, ReasonCode::Success);
    assert_eq!(side.published(), [(last, true)]);
    assert_eq!(
        [(); 3].map(|()| side.connection.poll_dropped().map(|dropped| dropped.packet_id)),
        [Some(second), Some(third), None]
    );
    assert_eq!(side.connection.session().in_flight(), 1);
}

#[test]
fn mqtt_3_1_2_24_other_packets_above_maximum_are_not_sent() {
    let suback = |codes| SubAck {
        packet_id: packet_id(1),
        properties: Default::default(),
        reasons: vec![ReasonCode::Success; codes],
    };
    let mut side = Side::server(limited(10));
    // Two bytes of header, three before the codes.
    assert!(side.connection.write(&Packet::SubAck(suback(5)), side.now, &mut side.out));
    assert_eq!(side.answer(), Packet::SubAck(suback(5)));
    assert!(!side.connection.write(&Packet::SubAck(suback(6)), side.now, &mut side.out));
    assert!(side.written().is_empty());

    let mut side = Side::client(limited(10));
    let filters = |name| vec![TopicFilter::try_from(name).unwrap()];
    assert!(side.connection.unsubscribe(filters("a"), side.now, &mut side.out).is_some());
    assert!(side.connection.unsubscribe(filters("a/b/c/d/e"), side.now, &mut side.out).is_none());
    assert!(matches!(side.answer(), Packet::Unsubscribe(_)));
}

#[test]
fn mqtt_3_4_2_3_and_3_5_2_3_too_large_ack_omits_properties() {
    for (qos, plain) in [(QoS::AtLeastOnce, puback(7)), (QoS::ExactlyOnce, pubrec(7))] {
        for (version, maximum, carries) in [
            (ProtocolVersion::V5, u32::MAX, true),
            (ProtocolVersion::V5, 22, true),
            (ProtocolVersion::V5, 21, false),
            (ProtocolVersion::V311, u32::MAX, false),
        ] {
            let mut side = Side::new(Role::Client, version, limited(maximum), Session::new(), epoch());
            assert!(matches!(side.take(Packet::Publish(publish(7, qos))), Ok(Event::Publish(_))));
            let properties = AckProperties::with_load_report(Text::from_static("{12345}"));
            let ack = PendingAck { packet_id: packet_id(7), qos };
            let (now, out) = (side.now, &mut side.out);
            side.connection.acknowledge_with(ack, ReasonCode::Success, properties.clone(), now, out);
            match side.answer() {
                Packet::PubAck(ack) | Packet::PubRec(ack) if carries => {
                    assert_eq!(ack.properties.as_deref(), Some(&properties));
                }
                other => assert_eq!(other, plain, "{version} {maximum}"),
            }
        }
    }
}
