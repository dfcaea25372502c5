//! Resumption of a session's in-flight messages on a new connection.

use super::*;

#[test]
fn mqtt_4_4_0_1_in_flight_is_resent_in_order_with_same_ids() {
    let mut side = Side::server(Limits::default());
    let ids: Vec<u16> =
        (0..6).map(|n| side.sent(if n % 2 == 0 { QoS::AtLeastOnce } else { QoS::ExactlyOnce }).unwrap()).collect();
    assert_delivered(side.take(puback(ids[2])), ids[2], ReasonCode::Success);
    for _ in 0..3 {
        side = side.reconnect(Limits::default());
        let open = [0, 1, 3, 4, 5].map(|n| (ids[n], true));
        assert_eq!(side.published(), open);
    }
    let next = side.sent(QoS::AtLeastOnce).unwrap();
    assert!(!ids.contains(&next), "no id is given twice");
    assert_eq!(side.published(), [(next, false)]);
}

#[test]
fn mqtt_4_3_3_6_only_pubrel_is_resent_after_pubrec() {
    let mut side = Side::server(Limits::default());
    let id = side.sent(QoS::ExactlyOnce).unwrap();
    side.handle(pubrec(id));
    for _ in 0..3 {
        side = side.reconnect(Limits::default());
        assert_eq!(side.answer(), pubrel(id));
    }
    assert_delivered(side.take(pubcomp(id)), id, ReasonCode::Success);
    assert!(side.reconnect(Limits::default()).written().is_empty());
}

#[test]
fn held_message_uses_no_quota_and_is_resent_once_freed() {
    let narrow = Limits { peer_receive_maximum: 1, ..Limits::default() };
    let is_held = |delivery: &Delivery| delivery.template.topic() == b"held";
    // From the beginning of the connection, or while they wait to be sent again.
    for is_late in [false, true] {
        let mut side = Side::server(Limits::default());
        let mut sent = |topic, qos| match side.send(delivery(topic, qos)) {
            Sent::Written(Some(id)) => id.get(),
            other => panic!("{other:?}"),
        };
        let first = sent("first", QoS::AtLeastOnce);
        let held = [sent("held", QoS::ExactlyOnce), sent("held", QoS::AtLeastOnce)];
        let last = sent("last", QoS::ExactlyOnce);
        side = side.reconnect_holding(narrow, |delivery| !is_late && is_held(delivery));
        assert_eq!(side.published(), [(first, true)]);
        assert_eq!(side.connection.hold_resends(is_held, side.now, &mut side.out), 2);
        let in_flight_bytes = side.connection.session().in_flight_bytes();
        assert!((1..in_flight_bytes).contains(&side.connection.held_bytes()));
        assert_delivered(side.take(puback(first)), first, ReasonCode::Success);
        assert_eq!(side.published(), [(last, true)]);
        side.handle(pubrec(last));
        assert_delivered(side.take(pubcomp(last)), last, ReasonCode::Success);
        assert_eq!((side.connection.send_quota(), side.connection.session().in_flight()), (1, 2));
        assert_eq!(side.connection.held_bytes(), side.connection.session().in_flight_bytes(), "only these");
        let new = side.sent(QoS::AtLeastOnce).unwrap();
        side.out.clear();
        assert_eq!(side.connection.hold_resends(|_| false, side.now, &mut side.out), 0);
        assert_eq!(side.connection.held_bytes(), 0);
        assert!(side.published().is_empty(), "no quota");
        assert_delivered(side.take(puback(new)), new, ReasonCode::Success);
        assert_eq!(side.published(), [(held[0], true)]);
        side.handle(pubrec(held[0]));
        assert_delivered(side.take(pubcomp(held[0])), held[0], ReasonCode::Success);
        assert_eq!(side.published(), [(held[1], true)]);
        assert_delivered(side.take(puback(held[1])), held[1], ReasonCode::Success);
        assert!(side.connection.session().is_empty());
        assert_eq!(side.connection.send_quota(), 1);
    }
}

#[test]
fn held_message_may_be_acknowledged_on_the_next_connection() {
    let mut side = Side::server(Limits::default());
    let ids: Vec<u16> = (0..3).map(|_| side.sent(QoS::ExactlyOnce).unwrap()).collect();
    side = side.reconnect_holding(Limits::default(), |_| true);
    assert!(side.published().is_empty());
    let held_bytes = side.connection.held_bytes();
    side.handle(pubrec(ids[1])); // late, of the connection before
    assert_eq!(side.connection.held_bytes(), held_bytes / 3 * 2);
    assert_delivered(side.take(pubcomp(ids[1])), ids[1], ReasonCode::Success);
    side.out.clear();
    side = side.reconnect_holding(Limits::default(), |_| true);
    assert!(side.published().is_empty());
    assert_eq!(side.connection.hold_resends(|_| false, side.now, &mut side.out), 0);
    assert_eq!(side.published(), [(ids[0], true), (ids[2], true)]);
    assert_eq!(side.connection.hold_resends(|_| true, side.now, &mut side.out), 0, "sent already");
}

#[test]
fn pubcomp_0x92_ends_a_message_that_the_peer_has_forgotten() {
    let mut side = Side::server(Limits::default());
    let id = side.sent(QoS::ExactlyOnce).unwrap();
    side.handle(pubrec(id));
    side = side.reconnect(Limits::default());
    let gone = ReasonCode::PacketIdentifierNotFound;
    assert_delivered(side.take(Packet::PubComp(refusal(id, gone))), id, gone);
    assert!(side.connection.session().is_empty());
}

#[test]
fn mqtt_3_3_4_9_smaller_quota_holds_resends_and_new_messages() {
    let mut side = Side::server(Limits::default());
    let ids: Vec<u16> = (0..4).map(|_| side.sent(QoS::AtLeastOnce).unwrap()).collect();
    side = side.reconnect(Limits { peer_receive_maximum: 2, ..Limits::default() });
    assert_eq!(side.published(), [(ids[0], true), (ids[1], true)]);
    assert!(side.is_blocked(QoS::AtLeastOnce));
    assert_eq!(side.sent(QoS::AtMostOnce), None, "QoS 0 is not held back");
    side.written();

    for (acknowledged, next) in [(0, Some(2)), (1, Some(3)), (2, None)] {
        assert_delivered(side.take(puback(ids[acknowledged])), ids[acknowledged], ReasonCode::Success);
        assert_eq!(side.published(), next.map(|n: usize| (ids[n], true)).into_iter().collect::<Vec<_>>());
    }
    assert_eq!(side.connection.send_quota(), 1);
    let new = side.sent(QoS::AtLeastOnce).unwrap();
    assert_eq!(side.published(), [(new, false)]);
    assert!(side.is_blocked(QoS::AtLeastOnce));
}

#[test]
fn mqtt_4_4_0_1_resending_needs_no_free_identifier() {
    let mut side = Side::server(Limits::default());
    let held: Vec<u16> = (0..65_535).map(|_| side.sent(QoS::AtLeastOnce).unwrap()).collect();
    side.out.clear();
    assert!(side.is_blocked(QoS::AtLeastOnce));

    side = side.reconnect(Limits { peer_receive_maximum: 20, ..Limits::default() });
    assert_eq!(side.published(), held[..20].iter().map(|&id| (id, true)).collect::<Vec<_>>());
    for (id, next) in held.iter().zip(&held[20..]) {
        assert_delivered(side.take(puback(*id)), *id, ReasonCode::Success);
        assert_eq!(side.published(), [(*next, true)]);
    }
    assert_eq!((side.connection.send_quota(), side.connection.session().in_flight()), (0, 20));
}

#[test]
fn mqtt_4_4_0_1_a_message_held_past_a_wrap_is_sent_again_first() {
    let limits = Limits { peer_receive_maximum: 20, ..Limits::default() };
    let mut side = Side::server(limits);
    let held = [side.sent(QoS::AtLeastOnce).unwrap(), side.sent(QoS::ExactlyOnce).unwrap()];
    side.handle(pubrec(held[1]));
    for _ in 0..70_000 {
        let id = side.sent(QoS::AtLeastOnce).unwrap();
        side.out.clear();
        assert_delivered(side.take(puback(id)), id, ReasonCode::Success);
    }
    let late = side.sent(QoS::AtLeastOnce).unwrap();
    side = side.reconnect(limits);
    assert_eq!(side.written()[0], pubrel(held[1]));
    side = side.reconnect(Limits { peer_receive_maximum: 2, ..limits });
    assert_eq!(side.written()[0], pubrel(held[1]));
    assert_delivered(side.take(puback(held[0])), held[0], ReasonCode::Success);
    assert_eq!(side.published(), [(late, true)]);
    assert_delivered(side.take(pubcomp(held[1])), held[1], ReasonCode::Success);
    assert_delivered(side.take(puback(late)), late, ReasonCode::Success);
    assert_eq!(side.connection.send_quota(), 2);
}

/// While a message waits to be sent again, new messages get no quota.
#[test]
fn mqtt_4_4_0_1_no_new_message_overtakes_beside_a_held_one() {
    let mut side = Side::server(Limits::default());
    for topic in ["held", "released", "kept"] {
        let qos = if topic == "released" { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
        assert!(matches!(side.send(delivery(topic, qos)), Sent::Written(Some(_))));
    }
    side.handle(pubrec(2));
    let is_held = |delivery: &Delivery| delivery.template.topic() == b"held";
    side = side.reconnect_holding(Limits { peer_receive_maximum: 1, ..Limits::default() }, is_held);
    assert_eq!(side.answer(), pubrel(2));
    assert!(side.is_blocked(QoS::AtLeastOnce));
    assert_delivered(side.take(pubcomp(2)), 2, ReasonCode::Success);
    assert_eq!(side.published(), [(3, true)]);
    assert!(side.is_blocked(QoS::AtLeastOnce));
}

#[test]
fn mqtt_3_3_4_10_pubrel_needs_no_quota_but_counts() {
    let mut side = Side::server(Limits::default());
    let ids: Vec<u16> = (0..4).map(|_| side.sent(QoS::ExactlyOnce).unwrap()).collect();
    ids[1..].iter().for_each(|&id| side.handle(pubrec(id)));
    side = side.reconnect(Limits { peer_receive_maximum: 1, ..Limits::default() });
    assert_eq!(side.written(), [pubrel(ids[1]), pubrel(ids[2]), pubrel(ids[3])]);
    for &id in &ids[1..] {
        assert!(side.published().is_empty());
        assert_delivered(side.take(pubcomp(id)), id, ReasonCode::Success);
    }
    assert_eq!(side.published(), [(ids[0], true)]);
    assert!(side.is_blocked(QoS::ExactlyOnce));
}

#[test]
fn acknowledging_waiting_resend_ends_it_without_quota() {
    let mut side = Side::server(Limits::default());
    let ids: Vec<u16> = [QoS::AtLeastOnce, QoS::AtLeastOnce, QoS::ExactlyOnce, QoS::ExactlyOnce, QoS::AtLeastOnce]
        .map(|qos| side.sent(qos).unwrap())
        .to_vec();
    side = side.reconnect(Limits { peer_receive_maximum: 1, ..Limits::default() });
    assert_eq!(side.published(), [(ids[0], true)]);

    assert_delivered(side.take(puback(ids[1])), ids[1], ReasonCode::Success);
    let refused = ReasonCode::UnspecifiedError;
    assert_delivered(side.take(Packet::PubRec(refusal(ids[2], refused))), ids[2], refused);
    side.handle(pubrec(ids[3]));
    assert_eq!(side.answer(), pubrel(ids[3]), "no PUBLISH: the quota is spent");

    assert_delivered(side.take(puback(ids[0])), ids[0], ReasonCode::Success);
    assert!(side.written().is_empty(), "the handshake that went on counts");
    assert_delivered(side.take(pubcomp(ids[3])), ids[3], ReasonCode::Success);
    assert_eq!(side.published(), [(ids[4], true)]);
    assert_delivered(side.take(puback(ids[4])), ids[4], ReasonCode::Success);
    assert_eq!(side.connection.send_quota(), 1);
}

#[test]
fn mqtt_4_3_3_10_qos_2_repeat_on_next_connection_is_duplicate() {
    // Cut after PUBREC, or before the application has acknowledged.
    for is_acknowledged in [true, false] {
        let mut side = Side::server(Limits { receive_maximum: 1, ..Limits::default() });
        assert_new(side.take(Packet::Publish(publish(7, QoS::ExactlyOnce))));
        if is_acknowledged {
            side.acknowledge(7, QoS::ExactlyOnce, ReasonCode::Success);
        }
        side = side.reconnect(Limits { receive_maximum: 1, ..Limits::default() });
        assert!(side.written().is_empty(), "the sender begins");
        let again = side.take(Packet::Publish(Publish { dup: true, ..publish(7, QoS::ExactlyOnce) }));
        assert!(matches!(again, Ok(Event::Duplicate(_))), "{again:?}");
        side.acknowledge(7, QoS::ExactlyOnce, ReasonCode::Success);
        side.handle(pubrel(7));
        assert_eq!(side.written(), [pubrec(7), pubcomp(7)]);
        assert_new(side.take(Packet::Publish(publish(7, QoS::ExactlyOnce))));
    }
}

#[test]
fn mqtt_4_3_2_4_unacknowledged_qos_1_repeat_is_new() {
    let mut side = Side::server(Limits { receive_maximum: 1, ..Limits::default() });
    for _ in 0..3 {
        assert_new(side.take(Packet::Publish(Publish { dup: true, ..publish(7, QoS::AtLeastOnce) })));
        side = side.reconnect(Limits { receive_maximum: 1, ..Limits::default() });
    }
}

#[test]
fn mqtt_4_9_0_1_old_pubcomp_may_raise_peers_quota() {
    let limits = Limits { receive_maximum: 1, ..Limits::default() };
    // PUBREL or PUBCOMP was lost in the cut.
    for is_released in [false, true] {
        let mut side = Side::server(limits);
        assert_new(side.take(Packet::Publish(publish(1, QoS::ExactlyOnce))));
        if is_released {
            side.handle(pubrel(1));
        }
        side = side.reconnect(limits);
        // PUBREL uses no quota, the next PUBLISH uses all of it, PUBCOMP returns one.
        side.handle(pubrel(1));
        assert_new(side.take(Packet::Publish(publish(2, QoS::ExactlyOnce))));
        assert_new(side.take(Packet::Publish(publish(3, QoS::ExactlyOnce))));
        let more = side.take(Packet::Publish(publish(4, QoS::ExactlyOnce)));
        assert_violation(more, Violation::ReceiveMaximum(1), 0x93);
    }
}

#[test]
fn mqtt_3_3_4_7_a_handshake_that_is_repeated_counts() {
    let limits = Limits { receive_maximum: 1, ..Limits::default() };
    let mut side = Side::server(limits);
    assert_new(side.take(Packet::Publish(publish(1, QoS::ExactlyOnce))));
    side = side.reconnect(limits);
    for _ in 0..3 {
        let again = Publish { dup: true, ..publish(1, QoS::ExactlyOnce) };
        assert!(matches!(side.take(Packet::Publish(again)), Ok(Event::Duplicate(_))));
    }
    let more = side.take(Packet::Publish(publish(2, QoS::AtLeastOnce)));
    assert_violation(more, Violation::ReceiveMaximum(1), 0x93);
}

#[test]
fn repeated_interruptions_leave_bounded_handshakes() {
    let limits = Limits { receive_maximum: 10, ..Limits::default() };
    let mut side = Side::server(limits);
    let mut id = 0;
    for _ in 0..20 {
        // PUBRELs of unknown identifiers must not raise the limit either.
        (60_000..60_050).for_each(|id| side.handle(pubrel(id)));
        loop {
            id += 1;
            if side.take(Packet::Publish(publish(id, QoS::ExactlyOnce))).is_err() {
                break;
            }
        }
        assert!(side.connection.session().awaiting_release() <= 20);
        side = side.reconnect(limits);
    }
}

#[test]
fn unknown_pubrels_raise_limit_at_most_to_twice_maximum() {
    let limits = Limits { receive_maximum: 10, ..Limits::default() };
    let mut side = Side::server(limits).reconnect(limits);
    (1..1000).for_each(|id| side.handle(pubrel(id)));
    let taken = (1..1000).take_while(|&id| side.take(Packet::Publish(publish(id, QoS::AtLeastOnce))).is_ok());
    assert_eq!(taken.count(), 20);
}

#[test]
fn reduced_receive_maximum_is_no_violation_by_the_peer() {
    let mut side = Side::server(Limits { receive_maximum: 3, ..Limits::default() });
    (1..=3).for_each(|id| drop(assert_new(side.take(Packet::Publish(publish(id, QoS::ExactlyOnce))))));
    // The refusal is lost in the cut: the peer sends the first message again, and here it is new.
    side.acknowledge(1, QoS::ExactlyOnce, ReasonCode::QuotaExceeded);
    side = side.reconnect(Limits { receive_maximum: 1, ..Limits::default() });
    assert_new(side.take(Packet::Publish(Publish { dup: true, ..publish(1, QoS::ExactlyOnce) })));
}
