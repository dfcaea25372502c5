//! Keep Alive and PINGREQ.

use super::*;

const KEEP_ALIVE: Duration = Duration::from_secs(10);

fn limits() -> Limits {
    Limits { keep_alive: KEEP_ALIVE, ..Limits::default() }
}

#[test]
fn mqtt_3_1_2_22_server_closes_after_1_5_keep_alives() {
    for (seconds, milliseconds) in [(1, 1500), (10, 15_000), (65_535, 98_302_500)] {
        let keep_alive = Duration::from_secs(seconds);
        let mut side = Side::server(Limits { keep_alive, ..Limits::default() });
        let deadline = side.now + Duration::from_millis(milliseconds);
        assert_eq!(side.connection.poll_timeout(), Some(deadline));
        side.now = deadline - Duration::from_millis(1);
        assert_eq!(side.handle_timeout(), Ok(()));
        side.now = deadline;
        assert_eq!(side.handle_timeout(), Err(Violation::KeepAlive));
        assert_eq!(Violation::KeepAlive.reason().byte(), 0x8D);
    }
}

#[test]
fn mqtt_3_1_2_22_any_received_packet_resets_keep_alive() {
    let received: [fn(u16) -> Packet; 4] =
        [|_| Packet::PingReq(PingReq::PLAIN), pubrel, puback, |_| Packet::Publish(publish(0, QoS::AtMostOnce))];
    for packet in received {
        let mut side = Side::server(limits());
        side.now += KEEP_ALIVE;
        side.take(packet(1)).unwrap();
        assert_eq!(side.connection.poll_timeout(), Some(side.now + KEEP_ALIVE * 3 / 2));
    }
    let mut side = Side::server(limits());
    let deadline = side.connection.poll_timeout();
    side.now += KEEP_ALIVE;
    for qos in QOS {
        side.sent(qos);
    }
    side.connection.write(&Packet::PingResp, side.now, &mut side.out);
    assert_eq!(side.connection.poll_timeout(), deadline, "what is sent does not count");
}

#[test]
fn unread_input_does_not_expire_keep_alive() {
    let mut side = Side::server(limits());
    side.now += KEEP_ALIVE * 2;
    side.connection.not_read(side.now);
    assert_eq!(side.handle_timeout(), Ok(()));
    assert_eq!(side.connection.poll_timeout(), Some(side.now + KEEP_ALIVE * 3 / 2));
    side.now += KEEP_ALIVE * 2;
    assert_eq!(side.handle_timeout(), Err(Violation::KeepAlive));
}

#[test]
fn keep_alive_0_is_off() {
    for mut side in [Side::server(Limits::default()), Side::client(Limits::default())] {
        assert_eq!(side.connection.poll_timeout(), None);
        side.now += Duration::from_secs(1_000_000);
        assert_eq!(side.handle_timeout(), Ok(()));
        assert!(side.written().is_empty());
    }
    let mut client = Side::client(Limits::default());
    client.connection.ping(PingReq::PLAIN, client.now, &mut client.out);
    client.now += Duration::from_secs(1_000_000);
    assert_eq!((client.connection.poll_timeout(), client.handle_timeout()), (None, Ok(())));
}

#[test]
fn mqtt_3_1_2_20_a_silent_client_pings() {
    let mut side = Side::client(limits());
    for _ in 0..3 {
        let due = side.connection.poll_timeout().unwrap();
        assert_eq!(due, side.now + KEEP_ALIVE);
        side.now = due - Duration::from_millis(1);
        assert_eq!(side.handle_timeout(), Ok(()));
        assert!(side.written().is_empty());
        side.now = due;
        assert_eq!(side.handle_timeout(), Ok(()));
        assert_eq!(side.answer(), Packet::PingReq(PingReq::PLAIN));
        assert!(matches!(side.take(Packet::PingResp), Ok(Event::PingResp)));
    }
}

#[test]
fn mqtt_3_1_2_20_any_sent_packet_postpones_ping() {
    type Step = fn(&mut Side);
    let steps: [(&str, Step); 6] = [
        ("QoS 0", |side| assert_eq!(side.sent(QoS::AtMostOnce), None)),
        ("QoS 1", |side| assert_eq!(side.sent(QoS::AtLeastOnce), Some(1))),
        ("PUBACK", |side| side.acknowledge(1, QoS::AtLeastOnce, ReasonCode::Success)),
        ("PUBREL", |side| side.handle(pubrec(9))),
        ("PUBCOMP", |side| side.handle(pubrel(9))),
        ("UNSUBSCRIBE", |side| {
            let filters = vec!["a".try_into().unwrap()];
            side.connection.unsubscribe(filters, side.now, &mut side.out).unwrap();
        }),
    ];
    for (name, step) in steps {
        let mut side = Side::client(limits());
        side.now += Duration::from_secs(7);
        step(&mut side);
        assert_eq!(side.connection.poll_timeout(), Some(side.now + KEEP_ALIVE), "{name}");
    }
    let mut side = Side::client(limits());
    let due = side.connection.poll_timeout();
    side.now += Duration::from_secs(7);
    assert_new(side.take(Packet::Publish(publish(0, QoS::AtMostOnce))));
    assert_eq!(side.connection.poll_timeout(), due, "what is received does not");
}

#[test]
fn missing_pingresp_ends_connection_of_sending_client() {
    let mut side = Side::client(limits());
    side.connection.ping(PingReq::PLAIN, side.now, &mut side.out);
    let deadline = side.now + KEEP_ALIVE;
    for _ in 0..9 {
        side.now += Duration::from_secs(1);
        side.sent(QoS::AtMostOnce);
        side.connection.ping(PingReq::with_payload(Bytes::from_static(b"load")), side.now, &mut side.out);
        assert_eq!((side.connection.poll_timeout(), side.handle_timeout()), (Some(deadline), Ok(())));
    }
    side.now = deadline;
    assert_eq!(side.handle_timeout(), Err(Violation::PingResponse));
    assert_eq!(Violation::PingResponse.reason(), ReasonCode::UnspecifiedError);
}

#[test]
fn mqtt_3_12_4_1_pingreq_is_answered_and_body_is_an_event() {
    let mut side = Side::server(limits());
    for ping in [PingReq::PLAIN, PingReq::with_payload(Bytes::from_static(b"load"))] {
        let Ok(Event::Ping(told)) = side.take(Packet::PingReq(ping.clone())) else { panic!() };
        assert_eq!(told, ping);
        assert_eq!(side.answer(), Packet::PingResp);
    }
}
