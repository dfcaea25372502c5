use std::collections::HashMap;
use std::time::Duration;

use tenbin_codec::{Packet, QoS, ReasonCode, UnsubAck};
use tenbin_sn::{ClientState, DropCause};
use tenbin_sn_codec::v1_2::{self, Message, MessageId, PubAck, Publish, RegAck, Register, ReturnCode, Topic};

use crate::rig::{Rig, connect, from_broker, gateway, id, packet_id, suback, to_broker};

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
    assert_eq!(rig.drops(DropCause::TopicTableFull), 1);
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
    let mut known: Vec<_> =
        state.topics().map(|topic| (topic.id, topic.name.text().as_str(), topic.is_known)).collect();
    known.sort_unstable();
    assert_eq!(known, [(1, "a", true), (2, "b", true), (3, "new/topic", false)]);

    let restored = ClientState::restore(state.next_topic_id(), state.topics(), None, &gateway);
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
    let acknowledged = Packet::PubAck(crate::rig::ack(7, ReasonCode::TopicNameInvalid));
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

/// A client that answers all that comes, and knows topics by their ids.
#[derive(Default)]
struct Reader {
    names: HashMap<u16, String>,
    /// Ids that came a second time.
    reused: usize,
    /// Topics with payloads.
    messages: Vec<(String, Vec<u8>)>,
}

impl Reader {
    fn read(&mut self, rig: &mut Rig) {
        loop {
            let sent = rig.sent();
            if sent.is_empty() {
                return;
            }
            for datagram in sent {
                match Message::decode(&datagram).expect("a message") {
                    Message::Register(Register { topic_id, message_id, topic }) => {
                        self.reused += usize::from(self.names.insert(topic_id, topic.to_owned()).is_some());
                        rig.client(Message::RegAck(RegAck { topic_id, message_id, code: ReturnCode::Accepted }));
                    }
                    Message::Publish(Publish { topic: Topic::Normal(topic_id), message_id, data, .. }) => {
                        self.messages.push((self.names[&topic_id].clone(), data.to_vec()));
                        let code = ReturnCode::Accepted;
                        rig.client(Message::PubAck(PubAck { topic_id, message_id, code }));
                    }
                    other => panic!("unexpected {other:?}"),
                }
            }
        }
    }

    fn ids(&self, name: &str) -> Vec<u16> {
        let mut ids: Vec<u16> = self.names.iter().filter(|(_, known)| *known == name).map(|(&id, _)| id).collect();
        ids.sort_unstable();
        ids
    }
}

#[test]
fn subscriber_gets_messages_of_more_topics_than_fit() {
    let mut rig = Rig::active(|_| {});
    let (mut reader, mut expected) = (Reader::default(), Vec::new());
    // Twice, so that each topic has made room once.
    for number in (0..600).chain(0..600) {
        let topic = format!("plant/{number}");
        let qos = if number % 2 == 0 { QoS::AtLeastOnce } else { QoS::AtMostOnce };
        rig.broker(from_broker(&topic, qos, if number % 2 == 0 { 1 } else { 0 }, b"x"));
        reader.read(&mut rig);
        expected.push((topic, b"x".to_vec()));
    }
    assert_eq!(reader.messages.len(), expected.len());
    assert_eq!(reader.messages, expected);
    assert_eq!((reader.reused, rig.drops(DropCause::TopicTableFull), rig.output.topics_freed), (0, 0, 1200 - 256));
    // The client still knows the id of a topic that made room.
    rig.packets();
    rig.client(Message::Publish(to_broker(Topic::Normal(1), v1_2::QoS::AtLeastOnce, 7, b"hi")));
    assert_eq!((rig.sent(), rig.packets().len()), (vec![b"\x07\x0D\x00\x01\x00\x07\x02".to_vec()], 0));
    let (id, code) = regack(&mut rig, "plant/0");
    assert_eq!((code, reader.names.contains_key(&id)), (ReturnCode::Accepted, false));
    rig.client(Message::Publish(to_broker(Topic::Normal(id), v1_2::QoS::AtMostOnce, 0, b"hi")));
    assert_eq!(rig.packets(), [from_broker("plant/0", QoS::AtMostOnce, 0, b"hi")]);
}

#[test]
fn least_recently_used_topic_makes_room() {
    let mut rig = Rig::active(|settings| settings.topics_maximum = 3);
    let mut reader = Reader::default();
    for topic in ["a/1", "a/2", "a/3", "a/1", "a/4", "a/1", "a/3", "a/5", "a/3"] {
        rig.broker(from_broker(topic, QoS::AtMostOnce, 0, b""));
        reader.read(&mut rig);
    }
    let ids = ["a/1", "a/2", "a/3", "a/4", "a/5"].map(|topic| reader.ids(topic));
    assert_eq!(ids, [vec![1], vec![2], vec![3], vec![4], vec![5]], "2 and 4 made room");
    rig.broker(from_broker("a/2", QoS::AtMostOnce, 0, b""));
    reader.read(&mut rig);
    assert_eq!(reader.ids("a/2"), [2, 6]);
    // By bytes as well.
    let mut rig = Rig::active(|settings| settings.topic_bytes_maximum = 8);
    let mut reader = Reader::default();
    for topic in ["a/1", "a/2", "a/three"] {
        rig.broker(from_broker(topic, QoS::AtMostOnce, 0, b""));
        reader.read(&mut rig);
    }
    assert_eq!((reader.messages.len(), rig.output.topics_freed), (3, 2));
    rig.broker(from_broker("a/too/long", QoS::AtLeastOnce, 1, b""));
    assert_eq!((rig.sent().len(), rig.drops(DropCause::TopicTableFull)), (0, 1), "a name beyond all bounds");
    let refused = Packet::PubAck(crate::rig::ack(1, ReasonCode::QuotaExceeded));
    assert_eq!(rig.packets().pop(), Some(refused));
}

#[test]
fn topics_of_waiting_messages_keep_their_ids() {
    let mut rig = Rig::active(|settings| settings.topics_maximum = 2);
    rig.sleep(600);
    let topics = ["a/1", "a/2", "a/3", "a/4", "a/1"];
    for topic in topics {
        rig.broker(from_broker(topic, QoS::AtMostOnce, 0, topic.as_bytes()));
    }
    assert!(rig.sent().is_empty());
    rig.client(Message::Connect(connect("c")));
    assert_eq!(rig.sent().first().map(Vec::as_slice), Some(&b"\x03\x05\x00"[..]));
    let mut reader = Reader::default();
    // The REGISTER behind CONNACK.
    rig.pass(crate::rig::RETRY);
    reader.read(&mut rig);
    assert!(reader.messages.iter().all(|(topic, payload)| topic.as_bytes() == payload), "{:?}", reader.messages);
    assert_eq!(reader.messages.iter().map(|(topic, _)| topic.as_str()).collect::<Vec<_>>(), topics);
    // One in flight as well: the client answers it late.
    rig.broker(from_broker("a/4", QoS::AtLeastOnce, 1, b"a/4"));
    let unanswered = rig.sent();
    for topic in ["a/5", "a/6", "a/7"] {
        rig.broker(from_broker(topic, QoS::AtMostOnce, 0, topic.as_bytes()));
        reader.read(&mut rig);
    }
    let Ok(Message::Publish(publish)) = Message::decode(&unanswered[0]) else { panic!("{unanswered:?}") };
    let Topic::Normal(topic_id) = publish.topic else { panic!("{publish:?}") };
    let rejected = PubAck { topic_id, message_id: publish.message_id, code: ReturnCode::InvalidTopicId };
    rig.client(Message::PubAck(rejected));
    reader.read(&mut rig);
    assert_eq!(reader.messages.last(), Some(&("a/4".to_owned(), b"a/4".to_vec())), "registered again under its name");
}

#[test]
fn topics_that_a_client_uses_stay_for_an_hour() {
    let mut rig = Rig::active_with(
        &gateway(|settings| settings.topics_maximum = 2),
        v1_2::Connect { duration: 0, ..connect("c") },
        None,
    );
    assert_eq!([rig.register("a"), rig.register("b")], [1, 2]);
    let mut reader = Reader::default();
    for number in 0..5 {
        let topic = format!("new/{number}");
        rig.broker(from_broker(&topic, QoS::AtMostOnce, 0, b""));
        reader.read(&mut rig);
    }
    assert_eq!(reader.messages.len(), 5, "messages find room all the same");
    assert_eq!(regack(&mut rig, "c"), (0, ReturnCode::Congestion));
    rig.pass(Duration::from_secs(3500));
    let publish = |topic_id| Message::Publish(to_broker(Topic::Normal(topic_id), v1_2::QoS::AtMostOnce, 0, b"hi"));
    rig.client(publish(2));
    assert_eq!(rig.packets(), [from_broker("b", QoS::AtMostOnce, 0, b"hi")]);
    rig.pass(Duration::from_secs(200));
    let (id, code) = regack(&mut rig, "c");
    assert_eq!(code, ReturnCode::Accepted);
    rig.client(publish(1));
    assert_eq!(rig.sent(), [b"\x07\x0D\x00\x01\x00\x00\x02"], "so that the client registers it again");
    for (topic_id, topic) in [(2, "b"), (id, "c")] {
        rig.client(publish(topic_id));
        assert_eq!(rig.packets(), [from_broker(topic, QoS::AtMostOnce, 0, b"hi")]);
    }
}

#[test]
fn topic_on_which_a_client_publishes_is_its_own() {
    let mut rig = Rig::active(|settings| settings.topics_maximum = 2);
    let mut reader = Reader::default();
    for topic in ["a/1", "a/2"] {
        rig.broker(from_broker(topic, QoS::AtMostOnce, 0, b""));
        reader.read(&mut rig);
    }
    let publish = Message::Publish(to_broker(Topic::Normal(1), v1_2::QoS::AtMostOnce, 0, b"hi"));
    rig.client(publish);
    for number in 3..9 {
        rig.broker(from_broker(&format!("a/{number}"), QoS::AtMostOnce, 0, b""));
        reader.read(&mut rig);
    }
    rig.packets();
    rig.client(publish);
    assert_eq!(rig.packets(), [from_broker("a/1", QoS::AtMostOnce, 0, b"hi")]);
}

fn subscribe(rig: &mut Rig, filter: &str, number: u16) {
    let (qos, topic) = (v1_2::QoS::AtLeastOnce, v1_2::Subscribed::Name(filter));
    rig.client(Message::Subscribe(v1_2::Subscribe { dup: false, qos, message_id: id(number), topic }));
}

#[test]
fn topics_of_ended_subscriptions_make_room() {
    let mut rig = Rig::active(|settings| settings.topics_maximum = 2);
    let mut ids = Vec::new();
    for number in 1..=9 {
        let topic = if number % 2 == 0 { format!("reply/{number}") } else { format!("$share/g/reply/{number}") };
        subscribe(&mut rig, &topic, number);
        // Some are refused.
        let reason = if number % 3 == 0 { ReasonCode::NotAuthorized } else { ReasonCode::GrantedQoS1 };
        rig.broker(suback(number, reason));
        let Ok(Message::SubAck(suback)) = Message::decode(&rig.sent()[0]) else { panic!("no SUBACK") };
        if number % 3 == 0 {
            continue;
        }
        ids.push(suback.topic_id);
        let topic = v1_2::Subscribed::Name(&topic);
        rig.client(Message::Unsubscribe(v1_2::Unsubscribe { message_id: id(100 + number), topic }));
        let (packet_id, reasons) = (packet_id(100 + number), vec![ReasonCode::Success]);
        rig.broker(Packet::UnsubAck(UnsubAck { packet_id, properties: Default::default(), reasons }));
        rig.sent();
    }
    assert!(ids.iter().all(|&id| id > 0) && ids.is_sorted_by(|one, next| one < next), "{ids:?}");
    assert_eq!(rig.drops(DropCause::TopicTableFull), 0);
    for (number, code) in [(20, 0), (21, 0), (22, 1)] {
        subscribe(&mut rig, &format!("kept/{number}"), number);
        rig.broker(suback(number, ReasonCode::GrantedQoS1));
        assert_eq!(rig.sent()[0].last(), Some(&code), "subscriptions keep their ids");
    }
}

#[test]
fn topic_that_takes_anothers_place_is_not_stored() {
    let gateway = gateway(|settings| settings.topics_maximum = 2);
    let mut rig = Rig::active_with(&gateway, connect("c"), None);
    let mut reader = Reader::default();
    let mut version = 0;
    for number in 0..100 {
        rig.broker(from_broker(&format!("a/{number}"), QoS::AtMostOnce, 0, b""));
        reader.read(&mut rig);
        if number == 1 {
            version = rig.peer.state_version();
        }
    }
    assert_eq!((rig.peer.state_version(), rig.peer.topics().count()), (version, 0));
    let restored = ClientState::restore(3, rig.peer.topics(), None, &gateway);
    let mut rig = Rig::active_with(&gateway, connect("c"), Some(restored));
    rig.broker(from_broker("a/new", QoS::AtMostOnce, 0, b""));
    reader.read(&mut rig);
    assert_eq!(reader.reused, 0, "ids of before the restart are left out");
}
