use std::time::Duration;

use tenbin_codec::{Packet, ProtocolVersion, ReasonCode};
use tenbin_sn::{Action, End};
use tenbin_sn_codec::v1_2::{Connect, Disconnect, Message, PingReq, ReturnCode};

use crate::rig::{RETRY, Rig, connack, connack_with, connect, gateway};

#[test]
fn connack_follows_the_brokers() {
    let mut rig = Rig::accept(&gateway(|_| {}), connect("sensor-7"), None);
    assert!(rig.sent().is_empty());
    let upstream = rig.open();
    assert_eq!((upstream.client_id.as_str(), upstream.version), ("sensor-7", ProtocolVersion::V5));
    assert_eq!((upstream.clean_start, upstream.keep_alive, upstream.will), (false, 0, None));
    assert_eq!(upstream.properties.session_expiry_interval, Some(24 * 3600));
    assert_eq!(upstream.properties.receive_maximum.map(|maximum| maximum.get()), Some(1));
    assert!(upstream.properties.maximum_packet_size.is_some_and(|bytes| bytes.get() == 1398));
    assert!(rig.sent().is_empty() && !rig.peer.is_connected());
    rig.broker(connack(ReasonCode::Success));
    assert_eq!(rig.sent(), [b"\x03\x05\x00"]);
    assert!(rig.peer.is_connected());
}

#[test]
fn clean_session_starts_and_ends_clean() {
    let terms = Connect { clean_session: true, ..connect("c") };
    let mut rig = Rig::accept(&gateway(|_| {}), terms, None);
    let upstream = rig.open();
    assert!(upstream.clean_start);
    assert!(upstream.properties.session_expiry_interval >= Some(60), "it outlives a Will update");
    rig.broker(connack(ReasonCode::Success));
    rig.client(Message::Disconnect(Disconnect { duration: None }));
    assert_eq!(rig.action, Action::End(End::Disconnected));
    let Some(Packet::Disconnect(disconnect)) = rig.packets().pop() else { panic!("no DISCONNECT") };
    assert_eq!(disconnect.reason, ReasonCode::Success);
    assert_eq!(disconnect.properties.and_then(|properties| properties.session_expiry_interval), Some(0));
    assert!(rig.peer.into_state().is_none());
}

#[test]
fn refusals_of_the_broker_are_mapped() {
    for (reason, code) in [
        (ReasonCode::ServerBusy, ReturnCode::Congestion),
        (ReasonCode::QuotaExceeded, ReturnCode::Congestion),
        (ReasonCode::NotAuthorized, ReturnCode::NotSupported),
        (ReasonCode::ClientIdentifierNotValid, ReturnCode::NotSupported),
    ] {
        let mut rig = Rig::accept(&gateway(|_| {}), connect("c"), None);
        rig.open();
        rig.broker(connack(reason));
        assert_eq!(rig.sent(), [[3, 5, code as u8]], "{reason}");
        assert_eq!(rig.action, Action::End(End::Refused(code)));
    }
}

#[test]
fn client_ids_of_1_to_255_bytes_are_accepted() {
    let long = "x".repeat(256);
    for client_id in ["", &long] {
        let mut rig = Rig::accept(&gateway(|_| {}), connect(client_id), None);
        assert_eq!(rig.action, Action::End(End::Refused(ReturnCode::NotSupported)), "{} bytes", client_id.len());
        assert_eq!(rig.sent(), [b"\x03\x05\x03"]);
    }
    for client_id in ["x", &long[..255]] {
        let rig = Rig::accept(&gateway(|_| {}), connect(client_id), None);
        assert_eq!(rig.action, Action::OpenUpstream);
    }
}

#[test]
fn repeated_connect_repeats_connack_until_another_message() {
    let mut rig = Rig::accept(&gateway(|_| {}), connect("c"), None);
    rig.client(Message::Connect(connect("c")));
    assert_eq!(rig.action, Action::Continue, "the broker has not answered");
    rig.action = Action::OpenUpstream;
    rig.open();
    rig.broker(connack(ReasonCode::Success));
    rig.sent();
    rig.client(Message::Connect(connect("c")));
    assert_eq!(rig.sent(), [b"\x03\x05\x00"]);
    assert_eq!(rig.action, Action::Continue);
    rig.client(Message::PingReq(PingReq { client_id: None }));
    rig.sent();
    rig.pass(Duration::from_millis(999));
    rig.client(Message::Connect(connect("c")));
    assert_eq!((rig.action, rig.sent().len()), (Action::Continue, 1), "a copy of the network");
    rig.pass(Duration::from_millis(1));
    rig.client(Message::Connect(connect("c")));
    assert_eq!(rig.action, Action::End(End::NewConnection));
    assert!(rig.packets().is_empty(), "the stream closes without DISCONNECT");
}

#[test]
fn connect_with_other_terms_is_a_new_connection() {
    let mut rig = Rig::accept(&gateway(|_| {}), connect("c"), None);
    rig.client(Message::Connect(Connect { duration: 61, ..connect("c") }));
    assert_eq!(rig.action, Action::End(End::NewConnection));
    let mut rig = Rig::accept(&gateway(|_| {}), connect("c"), None);
    rig.client(Message::Connect(connect("d")));
    assert_eq!(rig.action, Action::End(End::NewConnection));
}

#[test]
fn another_client_at_the_address_ends_a_clean_session() {
    let clean = |client_id| Connect { clean_session: true, ..connect(client_id) };
    let mut rig = Rig::active_with(&gateway(|_| {}), clean("c"), None);
    rig.client(Message::Connect(clean("d")));
    assert_eq!(rig.action, Action::End(End::NewConnection));
    let packets = rig.packets();
    let [Packet::Disconnect(disconnect)] = &packets[..] else { panic!("{packets:?}") };
    let properties = disconnect.properties.as_ref().expect("an expiry");
    assert_eq!((disconnect.reason, properties.session_expiry_interval), (ReasonCode::DisconnectWithWill, Some(0)));
}

#[test]
fn disconnect_is_answered_and_ends_the_upstream_normally() {
    let mut rig = Rig::active(|_| {});
    rig.client(Message::Disconnect(Disconnect { duration: None }));
    assert_eq!(rig.sent(), [b"\x02\x18"]);
    assert_eq!(rig.action, Action::End(End::Disconnected));
    let Some(Packet::Disconnect(disconnect)) = rig.packets().pop() else { panic!("no DISCONNECT") };
    assert_eq!((disconnect.reason, disconnect.properties), (ReasonCode::Success, None));
    assert_eq!(rig.peer.poll_timeout(), None);
    assert!(rig.peer.into_state().is_some());
}

#[test]
fn silent_client_is_lost_after_keep_alive_and_tolerance() {
    for (duration, lost_after) in [(10, 15), (60, 90), (61, 67), (1000, 1100)] {
        let lost_after = if duration == 61 { Duration::from_millis(67_100) } else { Duration::from_secs(lost_after) };
        let mut rig = Rig::active_with(&gateway(|_| {}), Connect { duration, ..connect("c") }, None);
        rig.pass(lost_after - Duration::from_millis(1));
        assert_eq!(rig.action, Action::Continue, "{duration}");
        rig.client(Message::PingReq(PingReq { client_id: None }));
        assert_eq!(rig.sent(), [b"\x02\x17"]);
        rig.pass(lost_after - Duration::from_millis(1));
        assert_eq!(rig.action, Action::Continue, "{duration}");
        rig.pass(Duration::from_millis(1));
        assert_eq!(rig.action, Action::End(End::KeepAlive), "{duration}");
        assert!(rig.packets().is_empty(), "no DISCONNECT, so that the Will is published");
    }
}

#[test]
fn silent_client_with_duration_0_is_asked_whether_it_is_there() {
    let mut rig = Rig::active_with(&gateway(|_| {}), Connect { duration: 0, ..connect("c") }, None);
    for _ in 0..3 {
        rig.pass(Duration::from_secs(3600) - Duration::from_millis(1));
        assert!(rig.sent().is_empty());
        rig.pass(Duration::from_millis(1));
        assert_eq!(rig.sent(), [b"\x02\x16"]);
        rig.client(Message::PingResp);
    }
    rig.pass(Duration::from_secs(3600) + 5 * RETRY - Duration::from_millis(1));
    assert_eq!((rig.action, rig.sent().len()), (Action::Continue, 5));
    rig.pass(Duration::from_millis(1));
    assert_eq!(rig.action, Action::End(End::KeepAlive));
}

#[test]
fn lost_clean_client_ends_its_session_with_the_will() {
    let terms = Connect { clean_session: true, ..connect("c") };
    let mut rig = Rig::active_with(&gateway(|_| {}), terms, None);
    rig.pass(Duration::from_secs(90));
    assert_eq!(rig.action, Action::End(End::KeepAlive));
    let Some(Packet::Disconnect(disconnect)) = rig.packets().pop() else { panic!("no DISCONNECT") };
    assert_eq!(disconnect.reason, ReasonCode::DisconnectWithWill);
    assert_eq!(disconnect.properties.and_then(|properties| properties.session_expiry_interval), Some(0));
}

#[test]
fn lost_broker_disconnects_the_client() {
    let mut rig = Rig::active(|_| {});
    rig.close_upstream();
    assert_eq!(rig.sent(), [b"\x02\x18"]);
    assert_eq!(rig.action, Action::End(End::Upstream(None)));

    let mut rig = Rig::active(|_| {});
    let disconnect = tenbin_codec::Disconnect::new(ReasonCode::SessionTakenOver);
    rig.broker(Packet::Disconnect(disconnect));
    assert_eq!(rig.sent(), [b"\x02\x18"]);
    assert_eq!(rig.action, Action::End(End::Upstream(Some(ReasonCode::SessionTakenOver))));
}

#[test]
fn absent_broker_is_congestion() {
    let mut rig = Rig::accept(&gateway(|_| {}), connect("c"), None);
    rig.close_upstream();
    assert_eq!(rig.sent(), [b"\x03\x05\x01"]);
    assert_eq!(rig.action, Action::End(End::Upstream(None)));

    let mut rig = Rig::accept(&gateway(|_| {}), connect("c"), None);
    rig.open();
    rig.pass(Duration::from_secs(10));
    assert_eq!(rig.sent(), [b"\x03\x05\x01"]);
    assert_eq!(rig.action, Action::End(End::Upstream(None)));
}

#[test]
fn peer_pings_a_broker_with_keep_alive() {
    let mut rig = Rig::accept(&gateway(|_| {}), Connect { duration: 0, ..connect("c") }, None);
    rig.open();
    rig.broker(connack_with(false, |properties| properties.server_keep_alive = Some(30)));
    rig.pass(Duration::from_secs(30));
    assert!(matches!(rig.packets()[..], [Packet::PingReq(_)]));
    rig.broker(Packet::PingResp);
    rig.pass(Duration::from_secs(30));
    assert!(matches!(rig.packets()[..], [Packet::PingReq(_)]));
    rig.pass(Duration::from_secs(10));
    assert_eq!(rig.action, Action::End(End::Upstream(None)), "no PINGRESP");
}

#[test]
fn messages_before_connack_are_dropped() {
    let mut rig = Rig::accept(&gateway(|_| {}), connect("c"), None);
    rig.datagram(b"\x09\x0C\x01\x00\x01\x00\x00hi");
    rig.action = Action::OpenUpstream;
    rig.open();
    rig.datagram(b"\x08\x12\x00\x00\x01a/b");
    assert!(rig.sent().is_empty() && rig.packets().is_empty());
    assert_eq!(rig.drops(tenbin_sn::DropCause::Unexpected), 2);
}

#[test]
fn every_message_in_every_state_is_survived() {
    let messages: &[&[u8]] = &[
        b"\x05\x00\x07\x03\x84",
        b"\x03\x01\x02",
        b"\x03\x02\x07",
        b"\x07\x04\x00\x01\x00\x3Cc",
        b"\x03\x05\x00",
        b"\x02\x06",
        b"\x06\x07\x30a/b",
        b"\x02\x07",
        b"\x06\x09gone",
        b"\x09\x0A\x00\x00\x00\x05a/b",
        b"\x07\x0B\x00\x01\x00\x01\x00",
        b"\x09\x0C\x41\x00\x01\x00\x09hi",
        b"\x07\x0D\x00\x01\x00\x09\x02",
        b"\x04\x0E\x00\x09",
        b"\x04\x0F\x00\x09",
        b"\x04\x10\x00\x09",
        b"\x08\x12\xA0\x00\x06a/#",
        b"\x08\x13\x20\x00\x01\x00\x06\x00",
        b"\x08\x14\x00\x00\x07a/b",
        b"\x04\x15\x00\x07",
        b"\x02\x16",
        b"\x03\x16c",
        b"\x02\x17",
        b"\x04\x18\x00\x10",
        b"\x06\x1A\x50a/b",
        b"\x03\x1B\x00",
        b"\x06\x1Cgone",
        b"\x03\x1D\x01",
    ];
    let starts: [fn() -> Rig; 5] = [
        || Rig::accept(&gateway(|_| {}), Connect { will: true, ..connect("c") }, None),
        || Rig::accept(&gateway(|_| {}), connect("c"), None),
        || Rig::active(|_| {}),
        || {
            let mut rig = Rig::active(|_| {});
            rig.sleep(60);
            rig
        },
        || {
            let mut rig = Rig::active(|_| {});
            rig.sleep(60);
            rig.wake();
            rig
        },
    ];
    for start in starts {
        for first in messages {
            for second in messages {
                let mut rig = start();
                rig.datagram(first);
                rig.datagram(second);
                rig.pass(Duration::from_secs(300));
            }
        }
    }
}
