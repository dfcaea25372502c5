//! Data for a share group at the end of a delivery.

use std::num::NonZeroU64;
use std::time::Duration;

use tenbin_codec::UserProperty;

use super::*;
use crate::SharedDelivery;

#[test]
fn end_of_delivery_returns_last_send_time() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let mut side = Side::server(Limits::default());
        let sent_at = side.now;
        let id = shared(&mut side, qos);
        side.now += Duration::from_secs(3);
        assert_eq!(ended(&mut side, id, qos), Some(about(sent_at)), "{qos}");
        assert_eq!(side.connection.session().shared_in_flight().count(), 0);
    }
}

#[test]
fn resent_delivery_has_its_new_send_time() {
    let mut side = Side::server(Limits::default());
    let (first, second) = (shared(&mut side, QoS::AtLeastOnce), shared(&mut side, QoS::ExactlyOnce));
    side.now += Duration::from_secs(3);
    let mut side = side.reconnect(Limits { peer_receive_maximum: 1, ..Limits::default() });
    let again = side.now;
    assert_eq!(side.published(), [(first, true)]);
    side.now += Duration::from_secs(3);
    assert_eq!(ended(&mut side, first, QoS::AtLeastOnce), Some(about(again)));
    assert_eq!(ended(&mut side, second, QoS::ExactlyOnce), Some(about(again + Duration::from_secs(3))));
}

#[test]
fn refusal_returns_group_data_only_for_group_deliveries() {
    let mut side = Side::server(Limits::default());
    let refused = shared(&mut side, QoS::ExactlyOnce);
    let own = side.sent(QoS::AtLeastOnce).unwrap();
    assert_eq!(side.connection.session().shared_in_flight().collect::<Vec<_>>(), [about(side.now)]);
    match side.take(Packet::PubRec(refusal(refused, ReasonCode::QuotaExceeded))) {
        Ok(Event::Rejected(rejected)) => assert_eq!(rejected.shared, about(side.now)),
        other => panic!("{other:?}"),
    }
    assert_eq!(ended(&mut side, own, QoS::AtLeastOnce), None);
}

#[test]
fn released_or_dropped_delivery_returns_group_data() {
    let mut side = Side::server(Limits::default());
    let (released, large) = (shared(&mut side, QoS::ExactlyOnce), shared(&mut side, QoS::ExactlyOnce));
    side.handle(pubrec(released));
    assert_eq!(side.connection.session().shared_in_flight().count(), 2);
    let mut side = side.reconnect(Limits { peer_maximum_packet_size: 8, ..Limits::default() });
    let dropped = side.connection.poll_dropped().map(|dropped| (dropped.packet_id.get(), dropped.shared.is_some()));
    assert_eq!(dropped, Some((large, true)));
    assert_eq!(side.connection.session().shared_in_flight().count(), 1);
    match side.take(pubcomp(released)) {
        Ok(Event::Delivered { shared, .. }) => assert!(shared.is_some()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn mqtt_4_4_0_1_returned_message_keeps_its_id_and_has_dup() {
    let mut numbers = 5;
    let mut take = |session: &mut Session| {
        let reserve = |count| {
            numbers += count;
            numbers - count
        };
        session.withdraw(|delivery| delivery.share.is_some(), reserve)
    };
    for between in [0, 1, 300, 40_000, 65_531] {
        let mut side = Side::server(Limits::default());
        let _own = side.sent(QoS::AtLeastOnce);
        let ids: Vec<_> = (0..4).map(|_| shared(&mut side, QoS::AtLeastOnce)).collect();
        assert_delivered(side.take(puback(ids[1])), ids[1], ReasonCode::Success);
        let mut session = side.connection.into_session();
        let withdrawn = take(&mut session);
        assert_eq!(withdrawn.len(), 3);
        let mut other = Side::server(Limits::default());
        let mut side = Side::new(Role::Server, ProtocolVersion::V5, Limits::default(), session, side.now);
        side.connection.resume(side.now, &mut side.out);
        assert_eq!(side.published().len(), 1);
        // Other messages come first; those open at last have the identifiers that follow.
        for _ in 0..between {
            let id = side.sent(QoS::AtLeastOnce).unwrap();
            assert_delivered(side.take(puback(id)), id, ReasonCode::Success);
            side.out.clear();
        }
        let [first, second, third] = <[Delivery; 3]>::try_from(withdrawn).unwrap();
        side.send(first.clone());
        assert_eq!(side.published(), [(ids[0], true)], "{between}");
        let open = side.sent(QoS::AtLeastOnce).unwrap();
        assert_ne!(open, ids[0]);
        assert_eq!(side.published(), [(open, false)]);
        // Another session, another QoS, and a message that another session had sent: new deliveries.
        other.send(third.clone());
        assert_eq!(other.published(), [(1, false)]);
        let once = Delivery { qos: QoS::ExactlyOnce, ..second };
        side.send(once);
        assert!(!side.published()[0].1);
        let again = take(&mut other.connection.into_session()).remove(0);
        assert_ne!(again.message, third.message);
        side.send(again);
        assert!(!side.published()[0].1);
        assert_delivered(side.take(puback(ids[0])), ids[0], ReasonCode::Success);
        // The same again: it is in the order of sending.
        side.send(first);
        assert_eq!(side.published(), [(ids[0], true)]);
        let mut side = side.reconnect(Limits::default());
        let resent = side.published();
        assert_eq!(resent.len(), 5, "{resent:?}");
        assert!(resent.iter().all(|(_, dup)| *dup));
        assert_eq!(resent[1].0, ids[0], "{between}");
    }
}

#[test]
fn mqtt_4_6_0_1_returned_messages_are_resent_in_sending_order() {
    for done in [None, Some(1), Some(2)] {
        let mut side = Side::server(Limits::default());
        let sent: Vec<_> = (0..6).map(|place| (shared(&mut side, QOS[1 + place % 2]), true)).collect();
        if let Some(id @ 1) = done {
            assert_delivered(side.take(puback(id)), id, ReasonCode::Success);
        } else if let Some(id) = done {
            side.handle(pubrec(id));
        }
        let mut session = side.connection.into_session();
        let withdrawn = session.withdraw(|delivery| delivery.share.is_some(), |_| 0);
        let new = Delivery { message: 0, ..withdrawn[0].clone() };
        assert!(!session.may_put_back(&new));
        assert!(session.put_back(new, side.now).is_some());
        for delivery in withdrawn {
            assert!(session.may_put_back(&delivery));
            assert!(session.put_back(delivery.clone(), side.now).is_none());
            assert!(session.put_back(delivery, side.now).is_some(), "its identifier is in use");
        }
        let mut side = Side::new(Role::Server, ProtocolVersion::V5, Limits::default(), session, side.now);
        side.connection.resume(side.now, &mut side.out);
        let expected: Vec<_> = sent.into_iter().filter(|(id, _)| Some(*id) != done).collect();
        assert_eq!(side.published(), expected);
    }
}

#[test]
fn rejection_returns_the_message_and_its_user_properties() {
    let mut side = Side::server(Limits::default());
    for (qos, properties, retry_after, dead_letter) in [
        (QoS::AtLeastOnce, &[][..], None, None),
        (
            QoS::AtLeastOnce,
            &[("retry-after-ms", "250"), ("dead-letter", "no such user")],
            Some(250),
            Some("no such user"),
        ),
        (QoS::ExactlyOnce, &[("retry-after-ms", "soon"), ("other", "1")], None, None),
    ] {
        let id = shared(&mut side, qos);
        let mut ack = refusal(id, ReasonCode::UnspecifiedError);
        let text = |text: &str| Text::try_from(text).unwrap();
        let user = properties.iter().map(|(name, value)| UserProperty::new(text(name), text(value)));
        ack.properties.get_or_insert_default().user_properties.extend(user);
        let packet = if qos == QoS::AtLeastOnce { Packet::PubAck(ack) } else { Packet::PubRec(ack) };
        let Ok(Event::Rejected(rejected)) = side.take(packet) else { panic!("{qos}") };
        assert_eq!((rejected.packet_id.get(), rejected.delivery.qos), (id, qos));
        assert_eq!(rejected.retry_after, retry_after.map(Duration::from_millis));
        assert_eq!(rejected.dead_letter.as_ref().map(|text| text.as_str()), dead_letter);
        assert_eq!(side.connection.session().in_flight(), 0);
    }
}

#[test]
fn taken_message_keeps_its_identifier_until_it_is_acknowledged() {
    let mut side = Side::server(Limits { peer_receive_maximum: 2, ..Limits::default() });
    let (late, once) = (shared(&mut side, QoS::AtLeastOnce), shared(&mut side, QoS::ExactlyOnce));
    let seen = |side: &Side| -> Vec<_> {
        let all = side.connection.unacknowledged();
        all.map(|message| (message.packet_id.get(), message.may_be_taken, message.is_late)).collect()
    };
    assert_eq!(seen(&side), [(late, true, false), (once, false, false)]);
    let id = |id| PacketId::new(id).unwrap();
    assert!(side.connection.take_late(id(once)).is_none());
    let taken = side.connection.take_late(id(late)).unwrap();
    assert_eq!((taken.share, taken.qos), (Some(GROUP), QoS::AtLeastOnce));
    assert!(side.connection.take_late(id(late)).is_none(), "once");
    assert_eq!(seen(&side), [(late, false, true), (once, false, false)]);
    assert_eq!((side.connection.session().shared_in_flight().count(), side.connection.send_quota()), (1, 0));
    let Ok(Event::Late { packet_id, reason, shared }) = side.take(puback(late)) else { panic!() };
    assert_eq!((packet_id.get(), reason, shared), (late, ReasonCode::Success, about(side.now)));
    assert_eq!((seen(&side), side.connection.send_quota()), (vec![(once, false, false)], 1));
    assert!(matches!(side.take(puback(late)), Ok(Event::Handled)));
}

#[test]
fn taken_message_ends_with_the_connection() {
    let mut side = Side::server(Limits::default());
    let late = shared(&mut side, QoS::AtLeastOnce);
    side.connection.take_late(PacketId::new(late).unwrap()).unwrap();
    let mut session = side.connection.into_session();
    assert_eq!(session.end_late(), [about(side.now)]);
    assert!(session.is_empty() && session.end_late().is_empty());
    let mut side = Side::new(Role::Server, ProtocolVersion::V5, Limits::default(), session, side.now);
    side.connection.resume(side.now, &mut side.out);
    assert_eq!(side.published(), []);
    assert_ne!(shared(&mut side, QoS::AtLeastOnce), late);
}

#[test]
fn second_delivery_says_so_and_is_no_duplicate() {
    let mut side = Side::server(Limits::default());
    shared(&mut side, QoS::AtLeastOnce);
    let first = Delivery { share: Some(GROUP), ..delivery("topic", QoS::AtLeastOnce) };
    for (number, delivery) in [(None, first.clone()), (Some("2"), first.taken_back(3, None))] {
        side.published();
        side.send(delivery);
        let [Packet::Publish(publish)] = &side.written()[..] else { panic!() };
        let property = publish.properties.iter().flat_map(|properties| &properties.user_properties).next();
        assert_eq!(
            property.map(|property| (property.name.as_str(), property.value.as_str())),
            number.map(|number| ("deliveries", number))
        );
        assert!(!publish.dup);
    }
}

/// Sends a message whose receiver a group chose.
fn shared(side: &mut Side, qos: QoS) -> u16 {
    let delivery = Delivery { share: Some(GROUP), share_key: Some(KEY), ..delivery("topic", qos) };
    match side.send(delivery) {
        Sent::Written(Some(id)) => id.get(),
        other => panic!("{other:?}"),
    }
}

/// Completes the handshake, and returns the data for the share group.
fn ended(side: &mut Side, id: u16, qos: QoS) -> Option<SharedDelivery> {
    let last = if qos == QoS::AtLeastOnce {
        puback(id)
    } else {
        side.handle(pubrec(id));
        pubcomp(id)
    };
    match side.take(last) {
        Ok(Event::Delivered { packet_id, shared, .. }) if packet_id.get() == id => shared,
        other => panic!("{other:?}"),
    }
}

fn about(sent_at: Instant) -> SharedDelivery {
    let template_bytes = delivery("topic", QoS::AtMostOnce).template.len();
    SharedDelivery { template_bytes, sent_at, share: GROUP, share_key: Some(KEY) }
}

const GROUP: NonZeroU64 = NonZeroU64::new(7).unwrap();
const KEY: NonZeroU64 = NonZeroU64::new(99).unwrap();
