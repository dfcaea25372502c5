//! Messages from the peer.

use super::*;

#[test]
fn mqtt_3_3_4_1_a_publish_is_answered_as_its_qos_asks() {
    for role in [Role::Server, Role::Client] {
        for (qos, answer) in
            [(QoS::AtMostOnce, None), (QoS::AtLeastOnce, Some(puback(7))), (QoS::ExactlyOnce, Some(pubrec(7)))]
        {
            let mut side = Side::new(role, ProtocolVersion::V5, Limits::default(), Session::new(), epoch());
            let publication = assert_new(side.take(Packet::Publish(publish(7, qos))));
            assert_eq!((publication.qos, &publication.payload[..]), (qos, &b"payload"[..]));
            assert!(side.written().is_empty(), "nothing before the message is safe");
            if let Some(ack) = publication.ack {
                side.connection.acknowledge(ack, ReasonCode::Success, side.now, &mut side.out);
            }
            assert_eq!(side.written().pop(), answer);
        }
    }
}

#[test]
fn mqtt_4_3_2_5_id_after_puback_is_new_message_despite_dup() {
    let mut side = Side::server(Limits::default());
    for dup in [false, true, true] {
        assert_new(side.take(Packet::Publish(Publish { dup, ..publish(7, QoS::AtLeastOnce) })));
        side.acknowledge(7, QoS::AtLeastOnce, ReasonCode::Success);
        assert_eq!(side.answer(), puback(7));
    }
}

#[test]
fn mqtt_4_3_3_10_id_before_pubrel_is_duplicate_despite_dup() {
    let mut side = Side::server(Limits::default());
    assert_new(side.take(Packet::Publish(publish(7, QoS::ExactlyOnce))));
    side.acknowledge(7, QoS::ExactlyOnce, ReasonCode::Success);
    assert_eq!(side.answer(), pubrec(7));
    for dup in [true, false] {
        let again = side.take(Packet::Publish(Publish { dup, ..publish(7, QoS::ExactlyOnce) }));
        let Ok(Event::Duplicate(ack)) = again else { panic!("{again:?}") };
        side.connection.acknowledge(ack, ReasonCode::Success, side.now, &mut side.out);
        assert_eq!(side.answer(), pubrec(7));
    }
    assert_eq!(side.connection.session().awaiting_release(), 1);
}

#[test]
fn mqtt_4_3_3_11_and_12_pubrel_gets_pubcomp_and_frees_id() {
    let mut side = Side::server(Limits::default());
    for _ in 0..3 {
        assert_new(side.take(Packet::Publish(publish(7, QoS::ExactlyOnce))));
        side.acknowledge(7, QoS::ExactlyOnce, ReasonCode::Success);
        assert_eq!(side.answer(), pubrec(7));
        side.handle(pubrel(7));
        assert_eq!(side.answer(), pubcomp(7));
        assert!(side.connection.session().is_empty());
    }
}

#[test]
fn mqtt_4_3_3_9_id_after_refusing_pubrec_is_new_message() {
    let mut side = Side::server(Limits::default());
    for reason in [ReasonCode::NotAuthorized, ReasonCode::QuotaExceeded, ReasonCode::Success] {
        assert_new(side.take(Packet::Publish(publish(7, QoS::ExactlyOnce))));
        side.acknowledge(7, QoS::ExactlyOnce, reason);
        assert_eq!(side.answer(), Packet::PubRec(refusal(7, reason)));
        assert_eq!(side.connection.session().is_empty(), reason.is_error());
    }
}

#[test]
fn unsent_refusal_leaves_no_state_for_next_connection() {
    let mut side = Side::server(Limits::default());
    for id in [7, 8] {
        assert_new(side.take(Packet::Publish(publish(id, QoS::ExactlyOnce))));
    }
    let ack = PendingAck { packet_id: packet_id(7), qos: QoS::ExactlyOnce };
    side.connection.forget_refused(ack, ReasonCode::NotAuthorized);
    assert_eq!(side.written(), []);
    side = side.reconnect(Limits::default());
    let again = |id| Packet::Publish(Publish { dup: true, ..publish(id, QoS::ExactlyOnce) });
    assert_new(side.take(again(7)));
    assert!(matches!(side.take(again(8)), Ok(Event::Duplicate(_))), "that one was not refused");
}

#[test]
fn mqtt_4_3_3_11_unknown_pubrel_gets_pubcomp() {
    let mut side = Side::server(Limits::default());
    side.handle(pubrel(9));
    assert_eq!(side.answer(), pubcomp(9));
    // A repeated PUBREL.
    assert_new(side.take(Packet::Publish(publish(7, QoS::ExactlyOnce))));
    side.handle(pubrel(7));
    side.handle(pubrel(7));
    assert_eq!(side.written(), [pubcomp(7), pubcomp(7)]);
}

#[test]
fn mqtt_3_3_1_1_second_qos_2_repeat_without_dup_is_violation() {
    let mut side = Side::server(Limits::default());
    let unmarked = || Packet::Publish(publish(7, QoS::ExactlyOnce));
    let marked = || Packet::Publish(Publish { dup: true, ..publish(7, QoS::ExactlyOnce) });
    assert_new(side.take(unmarked()));
    for again in [marked(), unmarked(), marked(), marked()] {
        assert!(matches!(side.take(again), Ok(Event::Duplicate(_))));
    }
    assert_violation(side.take(unmarked()), Violation::PacketIdInUse(packet_id(7)), 0x82);
    // A new connection resets the count, and so does a release.
    side = side.reconnect(Limits::default());
    for _ in 0..2 {
        assert!(matches!(side.take(unmarked()), Ok(Event::Duplicate(_))));
    }
    side.handle(pubrel(7));
    assert_new(side.take(unmarked()));
    assert!(matches!(side.take(unmarked()), Ok(Event::Duplicate(_))));
}

#[test]
fn mqtt_2_2_1_5_ids_of_both_directions_are_apart() {
    let mut side = Side::server(Limits::default());
    let ours = side.sent(QoS::ExactlyOnce).unwrap();
    assert_new(side.take(Packet::Publish(publish(ours, QoS::ExactlyOnce))));
    side.acknowledge(ours, QoS::ExactlyOnce, ReasonCode::Success);
    side.handle(pubrec(ours));
    side.handle(pubrel(ours));
    assert_eq!(side.written()[1..], [pubrec(ours), pubrel(ours), pubcomp(ours)]);
    assert_eq!((side.connection.session().in_flight(), side.connection.session().awaiting_release()), (1, 0));
    assert_delivered(side.take(pubcomp(ours)), ours, ReasonCode::Success);
    assert!(side.connection.session().is_empty());
}

#[test]
fn mqtt_3_3_4_6_subscription_identifier_from_client_is_error() {
    let marked = || Packet::Publish(Publish { subscription_identifiers: vec![3], ..publish(0, QoS::AtMostOnce) });
    let mut server = Side::server(Limits::default());
    assert_violation(server.take(marked()), Violation::SubscriptionIdentifier, 0x82);
    let mut client = Side::client(Limits::default());
    assert_eq!(assert_new(client.take(marked())).subscription_identifiers, [3]);
}

#[test]
fn mqtt_3_2_2_11_and_14_unsupported_qos_and_retain_are_refused() {
    for (maximum_qos, qos, is_legal) in [
        (QoS::AtMostOnce, QoS::AtMostOnce, true),
        (QoS::AtMostOnce, QoS::AtLeastOnce, false),
        (QoS::AtLeastOnce, QoS::AtLeastOnce, true),
        (QoS::AtLeastOnce, QoS::ExactlyOnce, false),
    ] {
        let mut side = Side::server(Limits { maximum_qos, ..Limits::default() });
        let event = side.take(Packet::Publish(publish(1, qos)));
        if is_legal {
            assert_new(event);
        } else {
            assert_violation(event, Violation::MaximumQoS, 0x9B);
        }
    }
    let mut side = Side::server(Limits { retain_available: false, ..Limits::default() });
    let retained = Packet::Publish(Publish { retain: true, ..publish(0, QoS::AtMostOnce) });
    assert_violation(side.take(retained), Violation::Retain, 0x9A);
}
