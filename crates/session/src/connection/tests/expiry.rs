//! Message Expiry.

use super::*;
use tenbin_codec::MessageProperties;

fn expiring(side: &Side, qos: QoS, left: Duration) -> Delivery {
    Delivery { expires_at: Some(side.now + left), ..delivery("topic", qos) }
}

/// Returns the Message Expiry Interval of the only PUBLISH written.
fn told(side: &mut Side) -> Option<u32> {
    match side.answer() {
        Packet::Publish(publish) => publish.properties.and_then(|properties| properties.message_expiry_interval),
        other => panic!("{other:?}"),
    }
}

#[test]
fn mqtt_3_3_2_5_an_expired_message_is_not_sent() {
    for qos in QOS {
        for waited in [10_000, 10_001, 99_999] {
            let mut side = Side::server(Limits::default());
            let delivery = expiring(&side, qos, Duration::from_secs(10));
            side.now += Duration::from_millis(waited);
            assert!(matches!(side.send(delivery), Sent::Expired(_)));
            assert!(side.written().is_empty() && side.connection.session().is_empty());
        }
    }
}

#[test]
fn mqtt_3_3_2_6_remaining_seconds_are_sent() {
    for (waited, left) in [(0, 10), (400, 10), (1000, 9), (9000, 1), (9999, 1)] {
        let mut side = Side::server(Limits::default());
        let delivery = expiring(&side, QoS::AtMostOnce, Duration::from_secs(10));
        side.now += Duration::from_millis(waited);
        assert!(matches!(side.send(delivery), Sent::Written(None)));
        assert_eq!(told(&mut side), Some(left), "after {waited} ms");
    }
    let mut side = Side::server(Limits::default());
    assert_eq!(side.sent(QoS::AtMostOnce), None);
    assert_eq!(told(&mut side), None);
}

#[test]
fn mqtt_4_3_3_7_expiry_does_not_cut_a_handshake_that_has_begun() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let mut side = Side::server(Limits::default());
        assert!(matches!(side.send(expiring(&side, qos, Duration::from_secs(10))), Sent::Written(Some(_))));
        side.now += Duration::from_secs(6);
        side = side.reconnect(Limits::default());
        side.now += Duration::from_secs(6);
        assert_eq!(told(&mut side.reconnect(Limits::default())), Some(0));
    }
}

#[test]
fn mqtt_4_3_3_13_expired_message_of_peer_is_acknowledged() {
    let mut side = Side::server(Limits::default());
    let properties = MessageProperties { message_expiry_interval: Some(1), ..Default::default() };
    let publish = Publish { properties: properties.boxed(), ..publish(7, QoS::ExactlyOnce) };
    let publication = assert_new(side.take(Packet::Publish(publish)));
    assert_eq!(publication.expires_at, Some(side.now + Duration::from_secs(1)));
    side.now += Duration::from_secs(5);
    side.acknowledge(7, QoS::ExactlyOnce, ReasonCode::Success);
    side.handle(pubrel(7));
    assert_eq!(side.written(), [pubrec(7), pubcomp(7)]);
}

#[test]
fn a_blocked_message_expires_while_it_waits() {
    let mut side = Side::server(Limits { peer_receive_maximum: 1, ..Limits::default() });
    let id = side.sent(QoS::AtLeastOnce).unwrap();
    let Sent::Blocked(delivery) = side.send(expiring(&side, QoS::AtLeastOnce, Duration::from_secs(1))) else {
        panic!("quota is 0");
    };
    side.now += Duration::from_secs(1);
    assert_delivered(side.take(puback(id)), id, ReasonCode::Success);
    assert!(matches!(side.send(delivery), Sent::Expired(_)));
}
