use std::num::NonZeroU16;
use std::time::Duration;

use bytes::Bytes;
use tenbin_codec::{Packet, QoS, ReasonCode, ReportCarriers};
use tenbin_sn::{Action, DropCause, End, SleepReports};
use tenbin_sn_codec::v1_2::{self, Connect, Disconnect, Message, PingReq, PubAck, ReturnCode, Topic};

use crate::delivering::accept_register;
use crate::rig::{RETRY, Rig, connack, connack_with, connect, from_broker, gateway, id, ok, to_broker};

const PINGRESP: &[u8] = b"\x02\x17";

/// Answers the peer's pings until none comes.
fn answer_pings(rig: &mut Rig) -> usize {
    let mut pings = 0;
    while matches!(rig.packets()[..], [Packet::PingReq(_)]) {
        pings += 1;
        rig.broker(Packet::PingResp);
    }
    pings
}

fn puback(rig: &mut Rig, message_id: u16) {
    rig.client(Message::PubAck(PubAck { topic_id: 0, message_id: Some(id(message_id)), code: ReturnCode::Accepted }));
}

#[test]
fn sleeping_client_gets_nothing_and_stays_upstream() {
    let mut rig = Rig::active(|_| {});
    rig.sleep(600);
    assert!(rig.peer.is_asleep() && rig.packets().is_empty());
    rig.broker(from_broker("a/b", QoS::AtMostOnce, 0, b"0"));
    rig.broker(from_broker("xy", QoS::AtLeastOnce, 1, b"1"));
    rig.broker(Packet::PubRel(ok(9)));
    rig.pass(Duration::from_secs(599));
    assert!(rig.sent().is_empty() && rig.packets().is_empty());
    assert_eq!(rig.action, Action::Continue);
}

#[test]
fn wake_delivers_in_order_and_ends_with_pingresp() {
    let mut rig = Rig::active(|_| {});
    rig.sleep(600);
    rig.broker(from_broker("a/b", QoS::AtMostOnce, 0, b"0"));
    rig.broker(from_broker("xy", QoS::AtLeastOnce, 1, b"1"));
    rig.broker(from_broker("xy", QoS::AtMostOnce, 0, b"2"));
    rig.wake();
    assert_eq!(rig.sent(), [b"\x09\x0A\x00\x01\x00\x01a/b"]);
    accept_register(&mut rig, 1, 1);
    let sent = rig.sent();
    assert_eq!(sent.iter().map(|datagram| datagram[datagram.len() - 1]).collect::<Vec<_>>(), b"012");
    assert!(rig.packets().is_empty(), "QoS 1 is not acknowledged yet");
    puback(&mut rig, 1);
    let packets = rig.packets();
    assert!(matches!(packets[..], [Packet::PubAck(_), Packet::PingReq(_)]), "{packets:?}");
    // The next message comes before the answer to the ping, or after it.
    rig.broker(from_broker("xy", QoS::AtLeastOnce, 2, b"3"));
    rig.broker(Packet::PingResp);
    assert_eq!(rig.sent().len(), 1);
    puback(&mut rig, 2);
    let packets = rig.packets();
    assert!(matches!(packets[..], [Packet::PubAck(_), Packet::PingReq(_)]), "{packets:?}");
    rig.broker(Packet::PingResp);
    rig.broker(from_broker("xy", QoS::AtLeastOnce, 3, b"4"));
    assert_eq!(rig.sent().len(), 1);
    rig.broker(Packet::PingResp);
    rig.packets();
    puback(&mut rig, 3);
    assert!(matches!(rig.packets()[..], [Packet::PubAck(_), Packet::PingReq(_)]));
    rig.broker(Packet::PingResp);
    assert!(rig.sent().is_empty(), "one quiet ping is not enough");
    assert_eq!(answer_pings(&mut rig), 1);
    assert_eq!(rig.sent(), [PINGRESP]);
    assert!(rig.peer.is_asleep());
    rig.broker(from_broker("xy", QoS::AtMostOnce, 0, b"5"));
    assert!(rig.sent().is_empty(), "it sleeps again");
}

#[test]
fn wake_without_messages_takes_two_pings() {
    let mut rig = Rig::active(|_| {});
    rig.sleep(600);
    rig.wake();
    assert_eq!(answer_pings(&mut rig), 2);
    assert_eq!(rig.sent(), [PINGRESP]);
    rig.wake();
    rig.wake();
    assert_eq!(answer_pings(&mut rig), 2, "a repeated PINGREQ changes nothing");
    assert_eq!(rig.sent(), [PINGRESP]);
}

#[test]
fn messages_of_a_wake_are_bounded() {
    let mut rig = Rig::active(|settings| settings.awake_messages = NonZeroU16::new(2));
    rig.sleep(600);
    for payload in [b"0", b"1", b"2"] {
        rig.broker(from_broker("xy", QoS::AtMostOnce, 0, payload));
    }
    rig.wake();
    let sent = rig.sent();
    assert_eq!((sent.len(), &sent[2][..]), (3, PINGRESP));
    rig.wake();
    assert_eq!(rig.sent(), [b"\x08\x0C\x02xy\x00\x002"]);
    assert_eq!(answer_pings(&mut rig), 2);
    assert_eq!(rig.sent(), [PINGRESP]);
}

#[test]
fn bounded_wake_waits_for_acknowledgements() {
    let mut rig = Rig::active(|settings| settings.awake_messages = NonZeroU16::new(1));
    rig.sleep(600);
    rig.broker(from_broker("xy", QoS::AtLeastOnce, 1, b"1"));
    rig.wake();
    assert_eq!(rig.sent().len(), 1);
    puback(&mut rig, 1);
    assert_eq!(rig.sent(), [PINGRESP]);
}

#[test]
fn sleep_buffer_drops_the_oldest_qos_0_messages() {
    let mut rig = Rig::active(|_| {});
    rig.sleep(600);
    rig.broker(from_broker("xy", QoS::AtLeastOnce, 1, b"first"));
    for _ in 0..100 {
        rig.broker(from_broker("xy", QoS::AtMostOnce, 0, b"x"));
    }
    assert_eq!((rig.peer.waiting(), rig.drops(DropCause::BufferFull)), ((64, 68), 37));
    assert!(rig.peer.accepts_packets());
    for _ in 0..20 {
        rig.broker(from_broker("xy", QoS::AtMostOnce, 0, &[7; 1000]));
    }
    let (messages, bytes) = rig.peer.waiting();
    assert!(messages <= 64 && bytes <= 16 * 1024);
    rig.wake();
    assert!(rig.sent()[0].ends_with(b"first"), "QoS 1 is never dropped");
}

#[test]
fn unanswered_messages_wait_for_the_next_wake() {
    let mut rig = Rig::active(|_| {});
    rig.broker(from_broker("xy", QoS::AtLeastOnce, 1, b"1"));
    rig.sent();
    rig.sleep(600);
    rig.pass(20 * RETRY);
    rig.tick();
    assert!(rig.sent().is_empty());
    rig.wake();
    assert_eq!(rig.sent(), [b"\x08\x0C\xA2xy\x00\x011"]);
    rig.pass(4 * RETRY);
    assert_eq!(rig.sent().len(), 4, "an awake client gets repetitions");
    rig.pass(RETRY);
    assert_eq!(rig.action, Action::Continue, "its sleep has a deadline of its own");
    rig.pass(20 * RETRY);
    assert!(rig.sent().is_empty());
    rig.wake();
    assert_eq!(rig.sent(), [b"\x08\x0C\xA2xy\x00\x011"]);
    rig.pass(Duration::from_secs(660));
    assert_eq!(rig.action, Action::End(End::Overslept));
}

#[test]
fn register_and_pubrel_under_way_are_repeated_at_the_wake() {
    let mut rig = Rig::active(|_| {});
    rig.broker(from_broker("a/b", QoS::AtMostOnce, 0, b"1"));
    rig.sent();
    rig.sleep(600);
    rig.broker(Packet::PubRel(ok(9)));
    rig.wake();
    assert_eq!(rig.sent(), [&b"\x04\x10\x00\x09"[..], b"\x09\x0A\x00\x01\x00\x01a/b"]);
}

#[test]
fn oversleeping_client_is_lost() {
    for (duration, lost_after) in [(10, 15_000), (1000, 1_100_000), (65_535, 72_088_500)] {
        let mut rig = Rig::active(|_| {});
        rig.sleep(duration);
        rig.pass(Duration::from_millis(lost_after - 1));
        assert_eq!(rig.action, Action::Continue, "{duration}");
        rig.pass(Duration::from_millis(1));
        assert_eq!(rig.action, Action::End(End::Overslept), "{duration}");
        assert!(rig.packets().is_empty(), "no DISCONNECT, so that the Will is published");
    }
}

#[test]
fn each_wake_begins_the_sleep_anew() {
    let mut rig = Rig::active(|_| {});
    rig.sleep(1000);
    for _ in 0..5 {
        rig.pass(Duration::from_secs(1050));
        rig.wake();
        rig.pass(Duration::from_secs(5));
        answer_pings(&mut rig);
        assert_eq!(rig.sent(), [PINGRESP]);
    }
    rig.pass(Duration::from_secs(1100));
    assert_eq!(rig.action, Action::End(End::Overslept));
}

#[test]
fn long_sleeps_are_shortened() {
    let mut rig = Rig::active(|settings| settings.sleep_maximum = Duration::from_secs(100));
    rig.sleep(u16::MAX);
    rig.pass(Duration::from_secs(110));
    assert_eq!(rig.action, Action::End(End::Overslept));
}

#[test]
fn connect_ends_sleep_and_delivers() {
    let mut rig = Rig::active(|_| {});
    rig.sleep(600);
    rig.broker(from_broker("xy", QoS::AtLeastOnce, 1, b"1"));
    rig.client(Message::Connect(Connect { duration: 30, ..connect("c") }));
    assert_eq!(rig.action, Action::Continue, "the upstream stays");
    assert_eq!(rig.sent(), [&b"\x03\x05\x00"[..], b"\x08\x0C\x22xy\x00\x011"]);
    assert!(!rig.peer.is_asleep());
    puback(&mut rig, 1);
    rig.pass(Duration::from_secs(45));
    assert_eq!(rig.action, Action::End(End::KeepAlive), "the new Duration counts");
}

#[test]
fn repeated_connect_after_sleep_repeats_connack() {
    for clean_session in [false, true] {
        let mut rig = Rig::active_with(&gateway(|_| {}), Connect { clean_session, ..connect("c") }, None);
        rig.sleep(600);
        rig.broker(from_broker("xy", QoS::AtLeastOnce, 1, b"1"));
        rig.client(Message::Connect(connect("c")));
        puback(&mut rig, 1);
        rig.sent();
        rig.client(Message::Connect(connect("c")));
        assert_eq!((rig.action, rig.sent()), (Action::Continue, vec![b"\x03\x05\x00".to_vec()]));
        assert_eq!(rig.peer.is_clean(), clean_session, "the session keeps its end");
        rig.client(Message::PingReq(PingReq { client_id: None }));
        rig.pass(Duration::from_secs(1));
        rig.client(Message::Connect(connect("c")));
        assert_eq!(rig.action, Action::End(End::NewConnection));
    }
}

#[test]
fn clean_connect_after_sleep_is_a_new_connection_without_will() {
    let mut rig = Rig::active(|_| {});
    rig.sleep(600);
    rig.client(Message::Connect(Connect { clean_session: true, ..connect("c") }));
    assert_eq!(rig.action, Action::End(End::NewConnection));
    assert!(matches!(&rig.packets()[..], [Packet::Disconnect(packet)] if packet.reason == ReasonCode::Success));
}

#[test]
fn sleeping_client_may_change_its_sleep_or_leave() {
    let mut rig = Rig::active(|_| {});
    rig.sleep(10);
    rig.sleep(1000);
    rig.pass(Duration::from_secs(1000));
    assert_eq!(rig.action, Action::Continue);
    rig.client(Message::Disconnect(Disconnect { duration: Some(0) }));
    assert_eq!((rig.sent(), rig.action), (vec![b"\x02\x18".to_vec()], Action::End(End::Disconnected)));
}

#[test]
fn messages_of_a_sleeping_client_are_served() {
    let mut rig = Rig::active(|_| {});
    rig.sleep(600);
    rig.client(Message::Publish(to_broker(Topic::Predefined(1), v1_2::QoS::AtLeastOnce, 1, b"hi")));
    assert_eq!(rig.packets().len(), 1);
    rig.broker(Packet::PubAck(ok(1)));
    assert_eq!(rig.sent(), [b"\x07\x0D\x00\x01\x00\x01\x00"]);
    assert!(rig.peer.is_asleep());
}

#[test]
fn ping_with_another_client_id_is_answered_by_disconnect() {
    let mut rig = Rig::active(|_| {});
    rig.client(Message::PingReq(PingReq { client_id: Some("d") }));
    assert_eq!(rig.sent(), [b"\x02\x18"]);
    assert_eq!(rig.action, Action::Continue);
}

#[test]
fn sleep_and_return_are_reported_if_the_broker_takes_reports() {
    let gateway = gateway(|settings| {
        let (asleep, active) = (Bytes::from_static(b"draining"), Bytes::from_static(b"ready"));
        settings.sleep_reports = Some(SleepReports { asleep, active });
    });
    for offers in [true, false] {
        let mut rig = Rig::accept(&gateway, connect("c"), None);
        assert!(ReportCarriers::are_asked_for(&rig.open().properties.user_properties));
        rig.broker(if offers {
            connack_with(false, |properties| properties.user_properties.extend(ReportCarriers::ALL.to_property()))
        } else {
            connack(ReasonCode::Success)
        });
        rig.sent();
        rig.sleep(600);
        rig.client(Message::Connect(connect("c")));
        let reports =
            [from_broker("$load", QoS::AtMostOnce, 0, b"draining"), from_broker("$load", QoS::AtMostOnce, 0, b"ready")];
        assert_eq!(rig.packets(), if offers { &reports[..] } else { &[] });
    }
}

#[test]
fn wake_under_steady_traffic_ends() {
    let mut rig = Rig::active(|_| {});
    rig.sleep(600);
    rig.wake();
    let mut delivered = 0;
    for _ in 0..600 {
        rig.pass(Duration::from_millis(100));
        rig.broker(from_broker("xy", QoS::AtMostOnce, 0, b"steady"));
        // The answer to the ping comes behind the message each time.
        if !rig.packets().is_empty() {
            rig.broker(Packet::PingResp);
        }
        let sent = rig.sent();
        if sent.iter().any(|datagram| datagram == PINGRESP) {
            break;
        }
        delivered += sent.len();
    }
    assert!((490..=510).contains(&delivered), "{delivered} messages in the time of all repetitions");
    assert!(rig.peer.is_asleep() && !rig.peer.is_awake());
}
