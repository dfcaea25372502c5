use std::time::Duration;

use tenbin_codec::{Packet, QoS, ReasonCode};
use tenbin_sn::{Action, DropCause, End};
use tenbin_sn_codec::v1_2::{Connect, Message, PingReq};

use crate::rig::{RETRY, Rig, connack, connack_with, connect, from_broker, gateway};

/// Size of the smallest CONNECT.
const CONNECT_SIZE: usize = 7;

/// A client of whom only CONNECT has come.
fn unconfirmed() -> Rig {
    let mut rig = Rig::accept(&gateway(|_| {}), connect("c"), None);
    rig.open();
    rig.broker(connack(ReasonCode::Success));
    rig
}

fn bytes(datagrams: &[Vec<u8>]) -> usize {
    datagrams.iter().map(Vec::len).sum()
}

#[test]
fn unconfirmed_client_gets_three_times_its_bytes_at_most() {
    let mut rig = unconfirmed();
    rig.broker(from_broker("xy", QoS::AtLeastOnce, 1, b"01234567"));
    rig.pass(4 * RETRY);
    let sent = rig.sent();
    assert!(sent.len() >= 2, "CONNACK and the message");
    assert!(bytes(&sent) <= 3 * CONNECT_SIZE, "{sent:?}");
    assert!(rig.drops(DropCause::Unconfirmed) > 0);
    assert!(!rig.peer.is_confirmed());

    let mut rig = Rig::accept(&gateway(|_| {}), Connect { will: true, ..connect("c") }, None);
    rig.pass(60 * RETRY);
    assert!(bytes(&rig.sent()) <= 3 * CONNECT_SIZE);
    assert_eq!(rig.action, Action::End(End::NoAnswer));
}

#[test]
fn unconfirmed_client_leaves_no_new_session_behind() {
    let ends = |session_present, clean_session, is_confirmed, is_evicted| {
        let connect = Connect { clean_session, ..connect("c") };
        let mut rig = Rig::accept(&gateway(|_| {}), connect, None);
        rig.open();
        rig.broker(connack_with(session_present, |_| {}));
        if is_confirmed {
            rig.client(Message::PingResp);
        }
        if is_evicted {
            rig.evict()
        } else {
            rig.pass(Duration::from_secs(90))
        }
        let end = if is_evicted { End::Closed } else { End::KeepAlive };
        assert_eq!((rig.action, rig.sent().len()), (Action::End(end), 1), "CONNACK only");
        match &rig.packets()[..] {
            [] => false,
            [Packet::Disconnect(disconnect)] => {
                let expiry = disconnect.properties.as_ref().and_then(|properties| properties.session_expiry_interval);
                assert_eq!((disconnect.reason, expiry), (ReasonCode::DisconnectWithWill, Some(0)));
                true
            }
            other => panic!("{other:?}"),
        }
    };
    for is_evicted in [true, false] {
        assert!(ends(false, false, false, is_evicted), "a forged CONNECT");
        assert!(!ends(true, false, false, is_evicted), "an old session");
        assert!(!ends(false, false, true, is_evicted), "a client that is there");
        assert!(ends(false, true, false, is_evicted) && ends(false, true, true, is_evicted), "Clean Session");
    }
}

#[test]
fn unconfirmed_client_gets_one_message_that_needs_an_answer() {
    let mut rig = unconfirmed();
    rig.broker(from_broker("xy", QoS::AtMostOnce, 0, b"0"));
    rig.broker(from_broker("xy", QoS::AtLeastOnce, 1, b"1"));
    assert_eq!(rig.sent(), [b"\x03\x05\x00"], "QoS 0 needs no answer, and the order stays");
    rig.client(Message::PingReq(PingReq { client_id: None }));
    assert!(rig.peer.is_confirmed());
    assert_eq!(rig.sent().len(), 3, "PINGRESP and both messages");

    let mut rig = unconfirmed();
    rig.broker(from_broker("xy", QoS::AtLeastOnce, 1, b"1"));
    rig.broker(from_broker("a/b", QoS::AtLeastOnce, 2, b"2"));
    rig.broker(from_broker("xy", QoS::AtMostOnce, 0, b"3"));
    assert_eq!(rig.sent().len(), 2, "CONNACK and one message");

    let mut rig = unconfirmed();
    rig.broker(from_broker("a/b", QoS::AtLeastOnce, 2, b"2"));
    rig.broker(from_broker("xy", QoS::AtLeastOnce, 1, b"1"));
    assert_eq!(rig.sent().len(), 2, "CONNACK and REGISTER");
}

#[test]
fn large_message_waits_for_confirmation() {
    let mut rig = unconfirmed();
    rig.broker(from_broker("xy", QoS::AtLeastOnce, 1, &[7; 1000]));
    assert_eq!(rig.sent().len(), 1, "CONNACK alone");
    rig.client(Message::PingReq(PingReq { client_id: None }));
    assert_eq!(rig.sent().len(), 2);
}

#[test]
fn repeated_connect_does_not_confirm() {
    let mut rig = unconfirmed();
    rig.sent();
    for _ in 0..3 {
        rig.client(Message::Connect(connect("c")));
    }
    assert_eq!(rig.sent().len(), 3);
    assert!(!rig.peer.is_confirmed());
    rig.broker(from_broker("xy", QoS::AtMostOnce, 0, b"0"));
    assert!(rig.sent().is_empty());
}

#[test]
fn wake_from_another_address_is_unconfirmed() {
    let mut rig = Rig::active(|_| {});
    rig.sleep(600);
    for message_id in 1..=2 {
        rig.broker(from_broker("xy", QoS::AtLeastOnce, message_id, b"x"));
    }
    rig.peer.rebind();
    rig.wake();
    assert!(rig.sent().is_empty() && !rig.peer.is_confirmed(), "three bytes allow nine");
    rig.wake();
    assert!(rig.peer.is_confirmed());
    assert_eq!(rig.sent().len(), 1);
}

#[test]
fn probe_asks_the_client_for_a_sign_of_life() {
    let mut rig = Rig::active(|_| {});
    rig.pass(Duration::from_secs(5));
    let asked = rig.now;
    rig.probe();
    assert_eq!(rig.sent(), [b"\x02\x16"]);
    assert!(rig.peer.last_received() < asked);
    rig.pass(Duration::from_secs(1));
    rig.client(Message::PingResp);
    assert!(rig.peer.last_received() > asked);
    assert!(rig.sent().is_empty());
}
