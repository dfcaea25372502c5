//! Messages of this side, on one connection.

use super::*;
use tenbin_codec::TopicFilter;

#[test]
fn mqtt_4_3_1_1_qos_0_has_no_id_and_no_dup_and_is_forgotten() {
    let mut side = Side::server(Limits::default());
    assert_eq!(side.sent(QoS::AtMostOnce), None);
    assert_eq!(side.answer(), Packet::Publish(publish(0, QoS::AtMostOnce)));
    assert!(side.connection.session().is_empty());
}

#[test]
fn mqtt_4_3_2_1_to_3_qos_1_holds_its_id_until_puback() {
    let mut side = Side::server(Limits::default());
    let (first, second) = (side.sent(QoS::AtLeastOnce).unwrap(), side.sent(QoS::AtLeastOnce).unwrap());
    assert_ne!(first, second);
    assert_eq!(side.published(), [(first, false), (second, false)]);
    assert_delivered(side.take(puback(first)), first, ReasonCode::Success);
    assert_eq!(side.connection.session().in_flight(), 1);
    assert_delivered(side.take(puback(second)), second, ReasonCode::Success);
    assert!(side.connection.session().is_empty());
    assert!(side.written().is_empty());
}

#[test]
fn mqtt_4_3_3_1_to_5_qos_2_is_publish_pubrec_pubrel_pubcomp() {
    let mut side = Side::client(Limits::default());
    let id = side.sent(QoS::ExactlyOnce).unwrap();
    assert_eq!(side.published(), [(id, false)]);
    side.handle(pubrec(id));
    assert_eq!(side.answer(), pubrel(id));
    assert_eq!(side.connection.session().in_flight(), 1);
    assert_delivered(side.take(pubcomp(id)), id, ReasonCode::Success);
    assert!(side.connection.session().is_empty());
    assert!(side.written().is_empty());
}

#[test]
fn mqtt_4_3_3_4_a_pubrec_that_comes_again_gets_pubrel_again() {
    let mut side = Side::server(Limits::default());
    let id = side.sent(QoS::ExactlyOnce).unwrap();
    side.written();
    side.handle(pubrec(id));
    side.handle(pubrec(id));
    assert_eq!(side.written(), [pubrel(id), pubrel(id)]);
    assert_delivered(side.take(pubcomp(id)), id, ReasonCode::Success);
    side.handle(pubcomp(id));
    assert!(side.written().is_empty());
}

#[test]
fn mqtt_4_4_0_2_a_refusal_ends_the_message() {
    for reason in [ReasonCode::UnspecifiedError, ReasonCode::NotAuthorized, ReasonCode::QuotaExceeded] {
        let mut side = Side::server(Limits { peer_receive_maximum: 2, ..Limits::default() });
        let (one, two) = (side.sent(QoS::AtLeastOnce).unwrap(), side.sent(QoS::ExactlyOnce).unwrap());
        side.written();
        assert_delivered(side.take(Packet::PubAck(refusal(one, reason))), one, reason);
        assert_delivered(side.take(Packet::PubRec(refusal(two, reason))), two, reason);
        assert!(side.written().is_empty(), "no PUBREL after a refusal");
        assert!(side.connection.session().is_empty());
        assert_eq!(side.connection.send_quota(), 2);
        assert!(side.reconnect(Limits::default()).written().is_empty());
    }
}

#[test]
fn mqtt_4_3_3_4_unknown_pubrec_gets_pubrel() {
    let mut side = Side::server(Limits::default());
    side.handle(pubrec(9));
    assert_eq!(side.answer(), pubrel(9));
    side.handle(puback(9));
    side.handle(pubcomp(9));
    side.handle(Packet::PubRec(refusal(9, ReasonCode::UnspecifiedError)));
    assert!(side.written().is_empty(), "only a PUBREC below 0x80 asks for PUBREL [MQTT-4.3.3-4]");
}

#[test]
fn mqtt_2_2_1_5_ack_of_wrong_qos_is_protocol_error() {
    for (qos, ack) in [
        (QoS::AtLeastOnce, pubrec as fn(u16) -> Packet),
        (QoS::AtLeastOnce, pubcomp),
        (QoS::ExactlyOnce, puback),
        (QoS::ExactlyOnce, pubcomp),
    ] {
        let mut side = Side::server(Limits::default());
        let id = side.sent(qos).unwrap();
        assert_violation(side.take(ack(id)), Violation::AckMismatch(packet_id(id)), 0x82);
        assert_eq!(side.connection.session().in_flight(), 1, "the message is not lost");
    }
}

#[test]
fn mqtt_2_2_1_4_an_id_is_free_again_when_its_message_is_done() {
    let mut side = Side::server(Limits::default());
    let mut seen = std::collections::HashSet::new();
    for round in 0..70_000u32 {
        let qos = if round % 2 == 0 { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
        let id = side.sent(qos).expect("all are free");
        seen.insert(id);
        if qos == QoS::AtLeastOnce {
            assert_delivered(side.take(puback(id)), id, ReasonCode::Success);
        } else {
            side.handle(pubrec(id));
            assert_delivered(side.take(pubcomp(id)), id, ReasonCode::Success);
        }
        side.out.clear();
    }
    assert_eq!(seen.len(), 65_535);
}

#[test]
fn mqtt_2_2_1_3_requests_and_messages_share_the_ids() {
    let mut side = Side::client(Limits::default());
    let filter = || TopicFilter::try_from("a/#").unwrap();
    let message = side.sent(QoS::AtLeastOnce).unwrap();
    let subscription = Subscription { filter: filter(), options: Default::default() };
    let request =
        side.connection.subscribe(vec![subscription], None, Vec::new(), side.now, &mut side.out).unwrap().get();
    let other = side.connection.unsubscribe(vec![filter()], side.now, &mut side.out).unwrap().get();
    assert!(message != request && request != other && message != other);
    assert_eq!(side.connection.session().in_flight(), 1, "a request is no message");
    assert!(matches!(side.written()[..], [Packet::Publish(_), Packet::Subscribe(_), Packet::Unsubscribe(_)]));

    let suback = |id| {
        let (properties, reasons) = (Default::default(), vec![ReasonCode::Success]);
        Packet::SubAck(tenbin_codec::SubAck { packet_id: packet_id(id), properties, reasons })
    };
    assert_violation(side.take(suback(message)), Violation::AckMismatch(packet_id(message)), 0x82);
    assert_eq!(side.connection.session().in_flight(), 1, "SUBACK ends no message");
    assert!(matches!(side.take(suback(request)), Ok(Event::SubAck(_))));
    assert!(matches!(side.take(suback(request)), Ok(Event::SubAck(_))), "again: nothing to end");
    assert_violation(side.take(puback(other)), Violation::AckMismatch(packet_id(other)), 0x82);
    // The next connection has forgotten the request.
    side = side.reconnect(Limits::default());
    assert_eq!(side.published(), [(message, true)]);
    side.handle(puback(other));
}
