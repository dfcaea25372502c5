use tenbin_codec::QoS;
use tenbin_sn::{ClientState, DropCause};
use tenbin_sn_codec::v1_2::{self, Message, MessageId, RegAck, Register, ReturnCode, Topic};

use crate::rig::{Rig, connect, from_broker, gateway, to_broker};

/// REGACK to a REGISTER of the client.
fn regack(rig: &mut Rig, topic: &str) -> (u16, ReturnCode) {
    rig.client(Message::Register(Register { topic_id: 0, message_id: MessageId::new(5), topic }));
    let sent = rig.sent();
    let Ok(Message::RegAck(regack)) = Message::decode(&sent[0]) else { panic!("no REGACK: {sent:?}") };
    assert_eq!((sent.len(), regack.message_id), (1, MessageId::new(5)));
    (regack.topic_id, regack.code)
}

#[test]
fn names_get_dense_ids_and_keep_them() {
    let mut rig = Rig::active(|_| {});
    for (topic, id) in [("a", 1), ("b", 2), ("a", 1), ("c/d", 3), ("b", 2)] {
        assert_eq!(regack(&mut rig, topic), (id, ReturnCode::Accepted), "{topic}");
    }
    assert!(rig.packets().is_empty(), "the broker is not asked");
}

#[test]
fn wildcards_and_shares_cannot_be_registered() {
    let mut rig = Rig::active(|_| {});
    for topic in ["a/#", "+", "a+b"] {
        assert_eq!(regack(&mut rig, topic), (0, ReturnCode::InvalidTopicId), "{topic}");
    }
    assert_eq!(regack(&mut rig, "$share/g/a"), (0, ReturnCode::NotSupported));
    assert_eq!(regack(&mut rig, "a"), (1, ReturnCode::Accepted));
}

#[test]
fn topics_of_a_client_are_bounded_in_number_and_bytes() {
    let mut rig = Rig::active(|settings| settings.topics_maximum = 2);
    assert_eq!(regack(&mut rig, "a").1, ReturnCode::Accepted);
    assert_eq!(regack(&mut rig, "b").1, ReturnCode::Accepted);
    assert_eq!(regack(&mut rig, "c"), (0, ReturnCode::Congestion));
    assert_eq!(regack(&mut rig, "b"), (2, ReturnCode::Accepted));
    rig.broker(from_broker("new/topic", QoS::AtMostOnce, 0, b""));
    assert_eq!((rig.drops(DropCause::TopicTableFull), rig.sent().len()), (1, 0));
    let mut rig = Rig::active(|settings| settings.topic_bytes_maximum = 5);
    assert_eq!(regack(&mut rig, "aaa").1, ReturnCode::Accepted);
    assert_eq!(regack(&mut rig, "bbb").1, ReturnCode::Congestion);
    assert_eq!(regack(&mut rig, "bb").1, ReturnCode::Accepted);
}

#[test]
fn topic_ids_survive_a_connection_without_clean_session() {
    let gateway = gateway(|_| {});
    let mut rig = Rig::active_with(&gateway, connect("c"), None);
    rig.register("a");
    rig.register("b");
    // A name that the client does not know yet keeps its position.
    rig.broker(from_broker("new/topic", QoS::AtMostOnce, 0, b""));
    let state = rig.peer.into_state().expect("no Clean Session");
    let stored: Vec<_> = state.topics().map(|(name, is_known)| (name.clone(), is_known)).collect();
    let known: Vec<_> = stored.iter().map(|(name, is_known)| (name.text().as_str(), *is_known)).collect();
    assert_eq!(known, [("a", true), ("b", true), ("new/topic", false)]);

    let restored = ClientState::restore(1, stored.iter().map(|(name, is_known)| (name, *is_known)), None, &gateway);
    let mut rig = Rig::active_with(&gateway, connect("c"), Some(restored));
    rig.client(Message::Publish(to_broker(Topic::Normal(2), v1_2::QoS::AtMostOnce, 0, b"hi")));
    assert_eq!(rig.packets(), [from_broker("b", QoS::AtMostOnce, 0, b"hi")]);
    rig.client(Message::Publish(to_broker(Topic::Normal(3), v1_2::QoS::AtMostOnce, 0, b"hi")));
    assert_eq!(rig.sent(), [b"\x07\x0D\x00\x03\x00\x00\x02"]);
    rig.broker(from_broker("new/topic", QoS::AtMostOnce, 0, b""));
    assert_eq!(rig.sent(), [b"\x0F\x0A\x00\x03\x00\x01new/topic"]);
}

#[test]
fn state_version_changes_with_topics_and_will() {
    let mut rig = Rig::active(|_| {});
    let mut versions = vec![rig.peer.state_version()];
    let mut changed = |rig: &Rig| {
        let version = rig.peer.state_version();
        let is_new = !versions.contains(&version);
        versions.push(version);
        is_new
    };
    rig.register("a");
    assert!(changed(&rig));
    rig.register("a");
    rig.client(Message::Publish(to_broker(Topic::Normal(1), v1_2::QoS::AtMostOnce, 0, b"hi")));
    assert!(!changed(&rig));
    rig.broker(from_broker("new/topic", QoS::AtMostOnce, 0, b""));
    assert!(changed(&rig), "a position is taken");
    let code = ReturnCode::Accepted;
    rig.client(Message::RegAck(RegAck { topic_id: 2, message_id: MessageId::new(1), code }));
    assert!(changed(&rig), "the client knows it");
    let will = v1_2::WillTopic { qos: v1_2::QoS::AtMostOnce, retain: false, topic: "gone" };
    rig.client(Message::WillTopicUpd(Some(will)));
    assert!(changed(&rig));
    assert_eq!(rig.peer.will().map(|will| will.topic.text().as_str()), Some("gone"));
}

#[test]
fn idle_peer_takes_little_memory() {
    assert!(size_of::<tenbin_sn::GatewayPeer>() <= 768, "{} bytes", size_of::<tenbin_sn::GatewayPeer>());
}

#[test]
fn clean_session_discards_topic_ids() {
    let gateway = gateway(|_| {});
    let mut rig = Rig::active_with(&gateway, connect("c"), None);
    rig.register("a");
    let state = rig.peer.into_state();
    let mut rig = Rig::active_with(&gateway, v1_2::Connect { clean_session: true, ..connect("c") }, state);
    rig.client(Message::Publish(to_broker(Topic::Normal(1), v1_2::QoS::AtMostOnce, 0, b"hi")));
    assert_eq!(rig.sent(), [b"\x07\x0D\x00\x01\x00\x00\x02"]);
}

#[test]
fn refused_register_drops_the_messages_of_its_topic() {
    let mut rig = Rig::active(|_| {});
    rig.broker(from_broker("a/b", QoS::AtMostOnce, 0, b"1"));
    rig.broker(from_broker("a/b", QoS::AtLeastOnce, 7, b"2"));
    rig.broker(from_broker("xy", QoS::AtMostOnce, 0, b"3"));
    assert_eq!(rig.sent(), [b"\x09\x0A\x00\x01\x00\x01a/b"]);
    let code = ReturnCode::NotSupported;
    rig.client(Message::RegAck(RegAck { topic_id: 1, message_id: MessageId::new(1), code }));
    assert_eq!(rig.sent(), [b"\x08\x0C\x02xy\x00\x003"], "other topics follow");
    assert_eq!(rig.drops(DropCause::TopicRefused), 2);
    let acknowledged = tenbin_codec::Packet::PubAck(crate::rig::ack(7, tenbin_codec::ReasonCode::TopicNameInvalid));
    assert_eq!(rig.packets(), [acknowledged]);
    rig.broker(from_broker("a/b", QoS::AtMostOnce, 0, b"4"));
    assert_eq!((rig.sent().len(), rig.drops(DropCause::TopicRefused)), (0, 3), "never sent on the id");
}

#[test]
fn foreign_regacks_change_nothing() {
    let mut rig = Rig::active(|_| {});
    rig.broker(from_broker("a/b", QoS::AtMostOnce, 0, b"1"));
    rig.sent();
    let code = ReturnCode::Accepted;
    for (topic_id, message_id) in [(2, 1), (1, 2), (1, 0)] {
        rig.client(Message::RegAck(RegAck { topic_id, message_id: MessageId::new(message_id), code }));
    }
    assert!(rig.sent().is_empty());
    rig.client(Message::RegAck(RegAck { topic_id: 1, message_id: MessageId::new(1), code }));
    assert_eq!(rig.sent(), [b"\x08\x0C\x00\x00\x01\x00\x001"]);
}

#[test]
fn lost_ids_are_no_other_topics() {
    let topics = || tenbin_sn::PredefinedTopics::new([(1, "pre/defined")]).expect("legal");
    let settings = || tenbin_sn::Settings { trusts_addresses: true, ..tenbin_sn::Settings::default() };
    let start = |first| std::sync::Arc::new(tenbin_sn::Gateway::new(settings(), topics()).with_first_topic_id(first));
    let mut rig = Rig::active_with(&start(65_533), connect("c"), None);
    let ids = ["a", "b", "c"].map(|topic| rig.register(topic));
    assert_eq!(ids, [65_533, 65_534, 1]);
    for (topic_id, topic) in ids.into_iter().zip(["a", "b", "c"]) {
        rig.client(Message::Publish(to_broker(Topic::Normal(topic_id), v1_2::QoS::AtMostOnce, 0, b"hi")));
        assert_eq!(rig.packets(), [from_broker(topic, QoS::AtMostOnce, 0, b"hi")]);
    }
    // The gateway starts again, without its state.
    let mut rig = Rig::active_with(&start(7), connect("c"), None);
    assert_eq!(rig.register("b"), 7);
    for topic_id in [65_533, 65_534, 1, 0, 8, u16::MAX] {
        rig.client(Message::Publish(to_broker(Topic::Normal(topic_id), v1_2::QoS::AtMostOnce, 0, b"hi")));
        assert!(rig.packets().is_empty(), "{topic_id}");
    }
    let clean = v1_2::Connect { clean_session: true, ..connect("c") };
    assert_eq!(Rig::active_with(&start(7), clean, None).register("b"), 1);
}
