//! Receive Maximum in both directions (MQTT 5.0 §4.9).

use std::num::NonZeroU64;

use super::*;

#[test]
fn mqtt_3_3_4_7_more_than_the_receive_maximum_is_0x93() {
    for role in [Role::Server, Role::Client] {
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let limits = Limits { receive_maximum: 3, ..Limits::default() };
            let mut side = Side::new(role, ProtocolVersion::V5, limits, Session::new(), epoch());
            (1..=3).for_each(|id| drop(assert_new(side.take(Packet::Publish(publish(id, qos))))));
            assert_new(side.take(Packet::Publish(publish(0, QoS::AtMostOnce))));
            assert_violation(side.take(Packet::Publish(publish(4, qos))), Violation::ReceiveMaximum(3), 0x93);
        }
    }
}

#[test]
fn mqtt_3_3_4_7_completed_messages_return_quota_to_peer() {
    type Step = fn(&mut Side);
    let steps: [(&str, QoS, Step, bool); 6] = [
        ("PUBACK", QoS::AtLeastOnce, |s| s.acknowledge(1, QoS::AtLeastOnce, ReasonCode::Success), true),
        ("refusing PUBACK", QoS::AtLeastOnce, |s| s.acknowledge(1, QoS::AtLeastOnce, ReasonCode::NotAuthorized), true),
        ("PUBREC", QoS::ExactlyOnce, |s| s.acknowledge(1, QoS::ExactlyOnce, ReasonCode::Success), false),
        ("refusing PUBREC", QoS::ExactlyOnce, |s| s.acknowledge(1, QoS::ExactlyOnce, ReasonCode::NotAuthorized), true),
        ("PUBCOMP", QoS::ExactlyOnce, |s| s.handle(pubrel(1)), true),
        ("unknown PUBREL", QoS::ExactlyOnce, |s| s.handle(pubrel(2)), false),
    ];
    for (name, qos, step, gives_back) in steps {
        let mut side = Side::server(Limits { receive_maximum: 1, ..Limits::default() });
        assert_new(side.take(Packet::Publish(publish(1, qos))));
        step(&mut side);
        assert_eq!(side.take(Packet::Publish(publish(3, qos))).is_ok(), gives_back, "{name}");
    }
}

#[test]
fn duplicate_uses_no_additional_quota() {
    let mut side = Side::server(Limits { receive_maximum: 1, ..Limits::default() });
    assert_new(side.take(Packet::Publish(publish(1, QoS::ExactlyOnce))));
    for _ in 0..5 {
        let again = Publish { dup: true, ..publish(1, QoS::ExactlyOnce) };
        assert!(matches!(side.take(Packet::Publish(again)), Ok(Event::Duplicate(_))));
    }
    side.handle(pubrel(1));
    assert_new(side.take(Packet::Publish(publish(2, QoS::ExactlyOnce))));
    assert!(side.take(Packet::Publish(publish(3, QoS::ExactlyOnce))).is_err());
}

#[test]
fn mqtt_4_9_0_2_zero_quota_blocks_all_but_qos_0() {
    let mut side = Side::client(Limits { peer_receive_maximum: 2, ..Limits::default() });
    let (one, two) = (side.sent(QoS::AtLeastOnce).unwrap(), side.sent(QoS::ExactlyOnce).unwrap());
    assert_eq!(side.connection.send_quota(), 0);
    assert!(side.is_blocked(QoS::AtLeastOnce) && side.is_blocked(QoS::ExactlyOnce));
    assert_eq!(side.sent(QoS::AtMostOnce), None);
    side.handle(pubrec(two));
    assert!(side.is_blocked(QoS::AtLeastOnce), "PUBREC gives nothing back");
    assert_delivered(side.take(puback(one)), one, ReasonCode::Success);
    assert!(side.sent(QoS::AtLeastOnce).is_some() && side.is_blocked(QoS::AtLeastOnce));
    assert_delivered(side.take(pubcomp(two)), two, ReasonCode::Success);
    assert!(side.sent(QoS::ExactlyOnce).is_some() && side.is_blocked(QoS::ExactlyOnce));
}

#[test]
fn mqtt_4_9_0_3_other_packets_need_no_quota() {
    let mut side = Side::server(Limits { peer_receive_maximum: 1, ..Limits::default() });
    let ours = side.sent(QoS::ExactlyOnce).unwrap();
    side.written();
    assert_new(side.take(Packet::Publish(publish(1, QoS::AtLeastOnce))));
    side.acknowledge(1, QoS::AtLeastOnce, ReasonCode::Success);
    assert_new(side.take(Packet::Publish(publish(2, QoS::ExactlyOnce))));
    side.acknowledge(2, QoS::ExactlyOnce, ReasonCode::Success);
    side.handle(pubrel(2));
    side.handle(pubrec(ours));
    assert!(matches!(side.take(Packet::PingReq(PingReq::PLAIN)), Ok(Event::Ping(_))));
    assert_eq!(side.written(), [puback(1), pubrec(2), pubcomp(2), pubrel(ours), Packet::PingResp]);
}

#[test]
fn mqtt_4_9_0_1_the_quota_is_never_above_its_start() {
    let mut side = Side::server(Limits { peer_receive_maximum: 2, ..Limits::default() });
    let id = side.sent(QoS::ExactlyOnce).unwrap();
    side.handle(pubrec(id));
    side = side.reconnect(Limits { peer_receive_maximum: 2, ..Limits::default() });
    assert_delivered(side.take(pubcomp(id)), id, ReasonCode::Success);
    side.handle(pubcomp(id));
    side.handle(puback(id));
    assert_eq!(side.connection.send_quota(), 2);

    // A peer that acknowledges messages before this side has resumed.
    let session = {
        let mut side = Side::server(Limits::default());
        (1..=3).for_each(|id| assert_eq!(side.sent(QoS::AtLeastOnce), Some(id)));
        side.connection.into_session()
    };
    let limits = Limits { peer_receive_maximum: 2, ..Limits::default() };
    let mut side = Side::new(Role::Server, ProtocolVersion::V5, limits, session, epoch());
    for id in 1..=3 {
        assert_delivered(side.take(puback(id)), id, ReasonCode::Success);
        assert_eq!(side.connection.send_quota(), 2);
    }
}

#[test]
fn mqtt_2_2_1_4_withheld_ack_blocks_no_later_message() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let mut side = Side::server(Limits { peer_receive_maximum: 2, ..Limits::default() });
        let held = side.sent(qos).unwrap();
        for _ in 0..140_000 {
            let id = side.sent(QoS::AtLeastOnce).expect("an identifier is unused");
            assert_ne!(id, held);
            side.out.clear();
            side.take(puback(id)).unwrap();
            assert_eq!(side.connection.send_quota(), 1);
        }
        assert_eq!(side.connection.session().in_flight(), 1);
        if qos == QoS::ExactlyOnce {
            side.handle(pubrec(held));
            assert_eq!(side.answer(), pubrel(held));
            assert_delivered(side.take(pubcomp(held)), held, ReasonCode::Success);
        } else {
            assert_delivered(side.take(puback(held)), held, ReasonCode::Success);
        }
        assert_eq!((side.connection.send_quota(), side.connection.session().in_flight_bytes()), (2, 0));
    }
}

#[test]
fn only_unacknowledged_qos_1_messages_are_withdrawn() {
    let mut side = Side::server(Limits::default());
    for (qos, share) in [(QoS::AtLeastOnce, 1), (QoS::ExactlyOnce, 1), (QoS::AtLeastOnce, 0), (QoS::AtLeastOnce, 1)] {
        let delivery = Delivery { share: NonZeroU64::new(share), ..delivery("t", qos) };
        assert!(matches!(side.send(delivery), Sent::Written(Some(_))));
    }
    side.take(puback(1)).unwrap();
    let mut session = side.connection.into_session();
    let withdrawn = session.withdraw(|delivery| delivery.share.is_some(), |_| 0);
    assert_eq!(withdrawn.len(), 1, "one is acknowledged, one is of QoS 2, one is not shared");
    assert_eq!(session.in_flight(), 2);
}
