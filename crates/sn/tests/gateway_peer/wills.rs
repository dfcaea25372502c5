use std::time::Duration;

use tenbin_codec::{Packet, ProtocolVersion, QoS, ReasonCode, Will};
use tenbin_sn::{Action, End, Settings};
use tenbin_sn_codec::v1_2::{self, Connect, Message, ReturnCode, Topic, WillTopic};

use crate::rig::{RETRY, Rig, connack, connack_with, connect, gateway, id, ok, to_broker};

const WITH_WILL: Connect<'static> = Connect { will: true, clean_session: false, duration: 60, client_id: "c" };
const TOPIC: WillTopic<'static> = WillTopic { qos: v1_2::QoS::AtLeastOnce, retain: true, topic: "gone/c" };

fn shown(will: Option<&Will>) -> Option<(String, QoS, bool, Vec<u8>)> {
    will.map(|will| (will.topic.text().as_str().to_owned(), will.qos, will.retain, will.payload.to_vec()))
}

fn usual() -> Option<(String, QoS, bool, Vec<u8>)> {
    Some(("gone/c".to_owned(), QoS::AtLeastOnce, true, b"bye".to_vec()))
}

/// An active client with a Will.
fn with_will(change: impl FnOnce(&mut Settings)) -> Rig {
    let mut rig = Rig::accept(&gateway(change), WITH_WILL, None);
    rig.client(Message::WillTopic(Some(TOPIC)));
    rig.client(Message::WillMsg(b"bye"));
    rig.open();
    rig.broker(connack(ReasonCode::Success));
    rig.sent();
    rig
}

#[test]
fn will_is_asked_for_before_the_upstream_connect() {
    let mut rig = Rig::accept(&gateway(|_| {}), WITH_WILL, None);
    assert_eq!((rig.action, rig.sent()), (Action::Continue, vec![b"\x02\x06".to_vec()]));
    rig.client(Message::WillTopic(Some(TOPIC)));
    assert_eq!((rig.action, rig.sent()), (Action::Continue, vec![b"\x02\x08".to_vec()]));
    rig.client(Message::WillMsg(b"bye"));
    assert_eq!(rig.action, Action::OpenUpstream);
    assert_eq!(shown(rig.open().will.as_ref()), usual());
}

#[test]
fn repeated_connect_repeats_the_open_will_request() {
    let mut rig = Rig::accept(&gateway(|_| {}), WITH_WILL, None);
    rig.client(Message::Connect(WITH_WILL));
    assert_eq!(rig.sent(), [b"\x02\x06", b"\x02\x06"]);
    rig.client(Message::WillTopic(Some(TOPIC)));
    rig.client(Message::Connect(WITH_WILL));
    rig.client(Message::WillTopic(Some(TOPIC)));
    assert_eq!(rig.sent(), [b"\x02\x08", b"\x02\x08", b"\x02\x08"]);
    assert_eq!(rig.action, Action::Continue);
}

#[test]
fn unanswered_will_requests_are_repeated_and_given_up() {
    for answers in 0..2 {
        let mut rig = Rig::accept(&gateway(|_| {}), WITH_WILL, None);
        if answers == 1 {
            rig.client(Message::WillTopic(Some(TOPIC)));
        }
        let request = rig.sent().pop().expect("a request");
        rig.pass(4 * RETRY);
        assert_eq!(rig.sent(), vec![request; 4]);
        assert_eq!(rig.action, Action::Continue);
        rig.pass(RETRY);
        assert_eq!(rig.action, Action::End(End::NoAnswer));
    }
}

#[test]
fn four_cases_of_clean_session_and_will() {
    let first = || with_will(|_| {}).peer.into_state().expect("no Clean Session");
    let gateway = gateway(|_| {});

    let mut stored = Rig::accept(&gateway, connect("c"), Some(first()));
    assert_eq!(shown(stored.open().will.as_ref()), usual(), "Clean 0, Will 0: the stored Will");

    let clean = Connect { clean_session: true, ..connect("c") };
    let mut rig = Rig::accept(&gateway, clean, Some(first()));
    assert_eq!(rig.open().will, None, "Clean 1, Will 0: no Will");

    for clean_session in [false, true] {
        let mut rig = Rig::accept(&gateway, Connect { clean_session, ..WITH_WILL }, Some(first()));
        assert_eq!(rig.sent(), [b"\x02\x06"]);
        rig.client(Message::WillTopic(Some(WillTopic { retain: false, ..TOPIC })));
        rig.client(Message::WillMsg(b"new"));
        let (topic, qos, retain, _) = usual().expect("it is there");
        assert_eq!(shown(rig.open().will.as_ref()), Some((topic, qos, !retain, b"new".to_vec())), "Will 1: a new Will");
    }
}

#[test]
fn empty_will_topic_is_no_will() {
    let state = with_will(|_| {}).peer.into_state();
    let mut rig = Rig::accept(&gateway(|_| {}), WITH_WILL, state);
    rig.client(Message::WillTopic(None));
    assert_eq!(rig.action, Action::OpenUpstream);
    assert_eq!(rig.open().will, None);
}

#[test]
fn illegal_and_large_wills_are_not_supported() {
    let refused = Action::End(End::Refused(ReturnCode::NotSupported));
    let mut rig = Rig::accept(&gateway(|_| {}), WITH_WILL, None);
    rig.client(Message::WillTopic(Some(WillTopic { topic: "gone/#", ..TOPIC })));
    assert_eq!(rig.action, refused);
    let mut rig = Rig::accept(&gateway(|_| {}), WITH_WILL, None);
    rig.client(Message::WillTopic(Some(TOPIC)));
    rig.sent();
    rig.client(Message::WillMsg(&[7; 1024 - 5]));
    assert_eq!((rig.action, rig.sent()), (refused, vec![b"\x03\x05\x03".to_vec()]));
    let mut rig = Rig::accept(&gateway(|_| {}), WITH_WILL, None);
    rig.client(Message::WillTopic(Some(TOPIC)));
    rig.client(Message::WillMsg(&[7; 1024 - 6]));
    assert_eq!(rig.action, Action::OpenUpstream);
}

#[test]
fn will_update_reconnects_upstream_and_keeps_the_session() {
    for clean_session in [false, true] {
        let terms = Connect { clean_session, ..connect("c") };
        let mut rig = Rig::active_with(&gateway(|_| {}), terms, None);
        let topic_id = rig.register("a/b");
        rig.packets();
        rig.client(Message::WillTopicUpd(Some(TOPIC)));
        assert_eq!(rig.action, Action::ReopenUpstream);
        let Some(Packet::Disconnect(disconnect)) = rig.packets().pop() else { panic!("no DISCONNECT") };
        assert_eq!((disconnect.reason, disconnect.properties), (ReasonCode::Success, None), "the session stays");
        assert!(rig.sent().is_empty());
        let upstream = rig.open();
        assert!(!upstream.clean_start);
        assert_eq!(shown(upstream.will.as_ref()).expect("a Will").0, "gone/c");
        rig.broker(connack_with(true, |_| {}));
        assert_eq!(rig.sent(), [b"\x03\x1B\x00"]);
        rig.client(Message::WillMsgUpd(b"bye"));
        assert_eq!(rig.action, Action::ReopenUpstream);
        rig.packets();
        assert_eq!(shown(rig.open().will.as_ref()), usual());
        rig.broker(connack_with(true, |_| {}));
        assert_eq!(rig.sent(), [b"\x03\x1D\x00"]);
        rig.client(Message::Publish(to_broker(Topic::Normal(topic_id), v1_2::QoS::AtMostOnce, 0, b"hi")));
        assert_eq!(rig.packets().len(), 1, "the topic id is still known");
    }
}

#[test]
fn empty_will_update_deletes_the_will() {
    let mut rig = with_will(|_| {});
    rig.client(Message::WillTopicUpd(None));
    assert_eq!(rig.action, Action::ReopenUpstream);
    rig.packets();
    assert_eq!(rig.open().will, None);
}

#[test]
fn unchanged_and_impossible_will_updates_need_no_broker() {
    let mut rig = with_will(|_| {});
    rig.client(Message::WillTopicUpd(Some(TOPIC)));
    rig.client(Message::WillTopicUpd(Some(WillTopic { topic: "a/#", ..TOPIC })));
    rig.client(Message::WillMsgUpd(&[7; 1024]));
    assert_eq!(rig.sent(), [b"\x03\x1B\x00", b"\x03\x1B\x03", b"\x03\x1D\x03"]);
    assert_eq!(rig.action, Action::Continue);
    let mut rig = Rig::active(|_| {});
    rig.client(Message::WillMsgUpd(b"bye"));
    assert_eq!(rig.sent(), [b"\x03\x1D\x03"]);
    let v311 = gateway(|settings| settings.upstream_version = ProtocolVersion::V311);
    let mut rig = Rig::active_with(&v311, Connect { clean_session: true, ..connect("c") }, None);
    rig.client(Message::WillTopicUpd(Some(TOPIC)));
    assert_eq!(rig.sent(), [b"\x03\x1B\x03"], "the session would end");
}

#[test]
fn will_update_waits_for_the_brokers_answers() {
    let mut rig = Rig::active(|_| {});
    let topic = Topic::Predefined(1);
    rig.client(Message::Publish(to_broker(topic, v1_2::QoS::AtLeastOnce, 5, b"one")));
    rig.client(Message::WillTopicUpd(Some(TOPIC)));
    rig.client(Message::Publish(to_broker(topic, v1_2::QoS::AtLeastOnce, 6, b"two")));
    assert_eq!((rig.action, rig.packets().len()), (Action::Continue, 1));
    rig.broker(Packet::PubAck(ok(5)));
    assert_eq!(rig.action, Action::ReopenUpstream);
    assert_eq!(rig.sent().len(), 1, "PUBACK");
    rig.packets();
    rig.open();
    rig.client(Message::WillTopicUpd(Some(TOPIC)));
    assert_eq!(rig.action, Action::Continue, "a repetition changes nothing");
    rig.broker(connack_with(true, |_| {}));
    assert_eq!(rig.sent(), [b"\x03\x1B\x00"]);
    rig.client(Message::Publish(to_broker(topic, v1_2::QoS::AtLeastOnce, 6, b"two")));
    assert_eq!(rig.packets().len(), 1);
}

#[test]
fn messages_under_way_survive_a_will_update() {
    let mut rig = Rig::active(|_| {});
    rig.broker(crate::rig::from_broker("ab", QoS::ExactlyOnce, 3, b"hi"));
    assert_eq!(rig.sent(), [b"\x09\x0C\x42ab\x00\x03hi"]);
    rig.client(Message::WillTopicUpd(Some(TOPIC)));
    rig.packets();
    rig.open();
    rig.client(Message::PubRec(id(3)));
    assert!(rig.packets().is_empty(), "no stream");
    rig.broker(connack_with(true, |_| {}));
    rig.sent();
    let Packet::Publish(mut again) = crate::rig::from_broker("ab", QoS::ExactlyOnce, 3, b"hi") else { panic!() };
    again.dup = true;
    rig.broker(Packet::Publish(again));
    assert!(rig.sent().is_empty(), "the client has it");
    assert_eq!(rig.packets(), [Packet::PubRec(ok(3))]);
}

#[test]
fn lost_session_at_a_will_update_disconnects_the_client() {
    let mut rig = Rig::active(|_| {});
    rig.client(Message::WillTopicUpd(Some(TOPIC)));
    rig.packets();
    rig.open();
    rig.broker(connack_with(false, |_| {}));
    assert_eq!(rig.sent(), [b"\x02\x18"]);
    assert!(matches!(rig.action, Action::End(End::Upstream(_))));
}

#[test]
fn will_of_a_lost_client_is_left_to_the_broker() {
    let mut rig = with_will(|_| {});
    rig.pass(Duration::from_secs(90));
    assert_eq!(rig.action, Action::End(End::KeepAlive));
    assert!(rig.packets().is_empty());
}
