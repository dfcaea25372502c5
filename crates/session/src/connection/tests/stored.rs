//! Sessions that the application stores: the peer may forget nothing before the application confirms.

use super::*;
use crate::{Location, Restored, SentId, Stored};

const PLACE: Stored = Location::Own(7).to_stored();

fn stored(qos: QoS) -> Delivery {
    Delivery { stored: Some(PLACE), ..delivery("topic", qos) }
}

fn server(session: Session) -> Side {
    Side::new(Role::Server, ProtocolVersion::V5, Limits::default(), session, epoch())
}

fn sent(side: &mut Side, delivery: Delivery) -> u16 {
    match side.send(delivery) {
        Sent::Written(Some(id)) => id.get(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn pubrel_waits_until_pubrec_is_stored() {
    let mut side = server(Session::stored());
    let id = sent(&mut side, stored(QoS::ExactlyOnce));
    side.written();
    for _ in 0..2 {
        let event = side.take(pubrec(id));
        assert!(
            matches!(event, Ok(Event::Received { packet_id, stored: PLACE, share: None }) if packet_id.get() == id),
            "{event:?}"
        );
        assert!(side.written().is_empty());
    }
    side.connection.release(packet_id(id), side.now, &mut side.out);
    assert_eq!(side.answer(), pubrel(id));
    let event = side.take(pubcomp(id));
    assert!(matches!(event, Ok(Event::Delivered { stored: Some(PLACE), .. })), "{event:?}");
    side.connection.release(packet_id(id), side.now, &mut side.out);
    assert!(side.written().is_empty(), "it is over");
}

#[test]
fn unstored_messages_need_no_confirmation() {
    let mut side = server(Session::stored());
    let id = side.sent(QoS::ExactlyOnce).unwrap();
    side.written();
    side.handle(pubrec(id));
    assert_eq!(side.answer(), pubrel(id));
}

#[test]
fn end_of_message_returns_its_stored_copy() {
    let mut side = server(Session::stored());
    let id = sent(&mut side, stored(QoS::AtLeastOnce));
    let event = side.take(puback(id));
    assert!(matches!(event, Ok(Event::Delivered { stored: Some(PLACE), .. })), "{event:?}");
    let id = sent(&mut side, stored(QoS::ExactlyOnce));
    let event = side.take(Packet::PubRec(Ack::new(packet_id(id), ReasonCode::QuotaExceeded)));
    assert!(matches!(event, Ok(Event::Delivered { stored: Some(PLACE), .. })), "{event:?}");
    sent(&mut side, stored(QoS::AtLeastOnce));
    let mut side = side.reconnect(Limits { peer_maximum_packet_size: 5, ..Limits::default() });
    assert_eq!(side.connection.poll_dropped().and_then(|dropped| dropped.stored), Some(PLACE));
}

#[test]
fn pubcomp_waits_until_pubrel_is_stored() {
    let mut side = server(Session::stored());
    assert_new(side.take(Packet::Publish(publish(3, QoS::ExactlyOnce))));
    side.acknowledge(3, QoS::ExactlyOnce, ReasonCode::Success);
    side.written();
    // The second PUBREL may arrive before the first one's result is stored.
    for _ in 0..2 {
        let event = side.take(pubrel(3));
        assert!(matches!(event, Ok(Event::Released(id)) if id.get() == 3), "{event:?}");
        assert!(side.written().is_empty());
    }
    side.connection.complete(packet_id(3), side.now, &mut side.out);
    assert_eq!(side.answer(), pubcomp(3));
}

#[test]
fn restored_session_continues_in_flight_messages() {
    let mut session = Session::stored();
    let published = |qos| Restored::Published(stored(qos));
    let id = |id, round| SentId { packet_id: packet_id(id), round };
    // Beyond the last identifier, and with gaps from completed messages.
    assert!(session.restore_sent(id(65_534, 4), published(QoS::AtLeastOnce), epoch()));
    assert!(session.restore_sent(id(2, 5), Restored::Released(PLACE), epoch()));
    assert!(session.restore_sent(id(3, 5), published(QoS::ExactlyOnce), epoch()));
    for taken in [65_534, 2, 3] {
        assert!(!session.restore_sent(id(taken, 6), published(QoS::AtLeastOnce), epoch()), "{taken}");
    }
    assert_eq!(session.in_flight(), 3);
    session.restore_received(packet_id(9));
    let mut side = server(session);
    side.connection.resume(side.now, &mut side.out);
    let written = side.written();
    assert_eq!(written[0], pubrel(2));
    let again = written[1..].iter().map(|packet| match packet {
        Packet::Publish(publish) => (publish.packet_id.unwrap().get(), publish.dup),
        other => panic!("{other:?}"),
    });
    assert_eq!(again.collect::<Vec<_>>(), [(65_534, true), (3, true)]);
    assert_eq!(side.sent(QoS::AtLeastOnce), Some(4));
    let again = Packet::Publish(Publish { dup: true, ..publish(9, QoS::ExactlyOnce) });
    assert!(matches!(side.take(again), Ok(Event::Duplicate(_))), "it was taken in its earlier life");
    for id in [65_534, 4] {
        assert_delivered(side.take(puback(id)), id, ReasonCode::Success);
    }
}
