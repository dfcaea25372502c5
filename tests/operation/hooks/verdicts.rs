//! Decisions of hooks, and their changes.

use std::num::NonZeroU16;

use tenbin_broker::hooks::{
    Client, Connecting, Events, Hooks, Packet, Publication, ReasonCode, Subscribing, Targets, Text, TopicFilter,
    TopicName, Verdict,
};
use tenbin_codec::{Connect, PingReq, ProtocolVersion, Publish, QoS, Will};

use crate::hooks::recorder::{Everything, Recorder};
use crate::hooks::stage::Stage;
use crate::support::{
    RawClient, Silence, VERSIONS, at_qos, encode, filter, lasting, message, retained, subscription, text, topic,
};

/// Decides by names.
struct Censor(Recorder);

impl Hooks for Censor {
    fn wants(&self) -> Events {
        Events::CONNECT
            | Events::PACKET_READ
            | Events::SUBSCRIBE
            | Events::UNSUBSCRIBE
            | Events::PUBLISH
            | Events::SELECT
            | Events::WILL
    }

    fn connect(&self, client: &Connecting<'_>) -> Verdict {
        match client.client_id.as_str() {
            "banned" => Verdict::Refuse(ReasonCode::Banned),
            "ignored" => Verdict::Drop,
            _ => Verdict::Go,
        }
    }

    fn packet_read(&self, client: &Client, packet: &Packet) -> Verdict {
        match (client.id().as_str(), packet) {
            ("unheard", Packet::PingReq(_)) => Verdict::Drop,
            (_, Packet::Publish(publish)) if publish.payload == "ignored" => Verdict::Drop,
            ("silenced", Packet::PingReq(_)) => Verdict::Refuse(ReasonCode::AdministrativeAction),
            _ => Verdict::Go,
        }
    }

    fn subscribe(&self, _client: &Client, subscription: &mut Subscribing) -> Verdict {
        match subscription.filter.as_bytes() {
            b"secret" => Verdict::Refuse(ReasonCode::NotAuthorized),
            b"short" => {
                subscription.filter = filter("tenant/short");
                subscription.options.qos = QoS::AtMostOnce;
                Verdict::Go
            }
            _ => Verdict::Go,
        }
    }

    fn unsubscribe(&self, _client: &Client, filter: &TopicFilter) -> Verdict {
        if filter.as_bytes() == b"compulsory" { Verdict::Refuse(ReasonCode::NotAuthorized) } else { Verdict::Go }
    }

    fn publish(&self, _client: &Client, message: &mut Publication) -> Verdict {
        match message.topic.as_bytes() {
            b"refused" => Verdict::Refuse(ReasonCode::QuotaExceeded),
            b"swallowed" => Verdict::Drop,
            b"changed" => {
                message.topic = topic("tenant/changed");
                message.payload = "other".into();
                message.retain = false;
                Verdict::Go
            }
            b"reserved" => {
                message.topic = topic("$SYS/forged");
                Verdict::Go
            }
            b"report" => {
                message.topic = topic("$load");
                Verdict::Go
            }
            b"deep" => {
                message.topic = topic(&"a/".repeat(1000));
                Verdict::Go
            }
            b"huge" => {
                message.payload = vec![0; 5 << 20].into();
                Verdict::Go
            }
            _ => Verdict::Go,
        }
    }

    fn select(&self, topic: &TopicName, receivers: &mut Targets) {
        self.0.note("select", topic);
        receivers.retain_clients(|client_id| client_id.as_str() != "hidden");
        receivers.retain_groups(|group| !group.starts_with("$share/hidden/"));
    }

    fn will(&self, client_id: &Text, will: &mut Publication) -> Verdict {
        will.payload = format!("of {client_id}").into();
        if will.topic.as_bytes() == b"forged" {
            will.topic = topic("$SYS/forged");
        }
        if will.topic.as_bytes() == b"secret" { Verdict::Drop } else { Verdict::Go }
    }
}

fn stage() -> (Stage, Recorder) {
    let recorder = Recorder::default();
    (Stage::start("", |builder| builder.hooks(Censor(recorder.clone()))), recorder)
}

#[test]
fn client_is_refused_with_the_reason_of_the_hook() {
    let (stage, _) = stage();
    let connect = |client_id| Connect::new(ProtocolVersion::V5, text(client_id));
    let (_, connack) = RawClient::try_connect(stage.address(), connect("banned"));
    assert_eq!(connack.reason, ReasonCode::Banned);
    let mut ignored = RawClient::open(stage.address(), ProtocolVersion::V5);
    ignored.send(&Packet::Connect(Box::new(connect("ignored"))));
    ignored.expect_closed();
    assert_eq!(stage.broker().sessions(), 0);
}

#[test]
fn packet_is_ignored_or_ends_the_connection() {
    let (stage, _) = stage();
    let mut unheard = stage.connect("unheard");
    unheard.send(&Packet::PingReq(PingReq::PLAIN));
    unheard.subscribe("a", QoS::AtMostOnce);
    assert_eq!(unheard.try_receive(std::time::Duration::ZERO), Err(Silence::TimedOut), "no PINGRESP before SUBACK");
    let mut silenced = stage.connect("silenced");
    silenced.send(&Packet::PingReq(PingReq::PLAIN));
    silenced.expect_end(ReasonCode::AdministrativeAction);
}

#[test]
fn subscriptions_are_refused_and_changed() {
    let (stage, _) = stage();
    let mut client = stage.connect("client");
    let asked = ["secret", "short", "open"].map(|filter| subscription(filter, QoS::AtLeastOnce));
    let reasons = client.subscribe_to(None, asked.to_vec());
    assert_eq!(reasons, [ReasonCode::NotAuthorized, ReasonCode::Success, ReasonCode::GrantedQoS1]);
    client.publish("tenant/short", "1", QoS::AtLeastOnce);
    client.publish("secret", "2", QoS::AtLeastOnce);
    client.publish("open", "3", QoS::AtLeastOnce);
    assert_eq!(client.drain_payloads(), ["1", "3"]);
    client.subscribe("compulsory", QoS::AtMostOnce);
    let reasons = client.unsubscribe(&["compulsory", "open"]);
    assert_eq!(reasons, [ReasonCode::NotAuthorized, ReasonCode::Success]);
    client.publish("compulsory", "4", QoS::AtLeastOnce);
    assert_eq!(client.drain_payloads(), ["4"]);
}

#[test]
fn messages_are_refused_swallowed_and_changed() {
    let (stage, _) = stage();
    for version in VERSIONS {
        let mut client = stage.connect_with(Connect::new(version, text("client")));
        client.subscribe("#", QoS::ExactlyOnce);
        let told = |reason| if version.is_v5() { reason } else { ReasonCode::Success };
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            assert_eq!(client.publish("refused", "1", qos), told(ReasonCode::QuotaExceeded));
            assert_eq!(client.publish("swallowed", "2", qos), ReasonCode::Success);
            assert_eq!(client.publish("reserved", "3", qos), told(ReasonCode::NotAuthorized));
        }
        client.publish("refused", "4", QoS::AtMostOnce);
        client.publish_with(retained("changed", "5"));
        let messages = client.drain();
        let [changed] = &messages[..] else { panic!("{messages:?}") };
        assert_eq!((changed.topic.as_bytes(), &changed.payload[..]), (&b"tenant/changed"[..], &b"other"[..]));
        client.unsubscribe(&["#"]);
        client.subscribe("#", QoS::ExactlyOnce);
        client.expect_nothing_waiting(); // the hook has taken its retain flag
        client.disconnect();
    }
}

#[test]
fn illegal_changes_refuse_the_message() {
    let (stage, _) = stage();
    let mut client = stage.connect("client");
    client.subscribe("#", QoS::AtLeastOnce);
    for (name, reason) in [
        ("report", ReasonCode::TopicNameInvalid),
        ("deep", ReasonCode::TopicNameInvalid),
        ("huge", ReasonCode::ImplementationSpecificError),
    ] {
        assert_eq!(client.publish(name, "1", QoS::AtLeastOnce), reason, "{name}");
    }
    client.publish("legal", "2", QoS::AtLeastOnce);
    assert_eq!(client.drain_payloads(), ["2"]);
}

#[test]
fn unsubscribe_ends_the_subscription_that_a_hook_has_renamed() {
    let (stage, _) = stage();
    let mut connect = lasting(ProtocolVersion::V5, "client");
    let mut client = stage.connect_with(connect.clone());
    client.subscribe("short", QoS::AtMostOnce);
    client.disconnect();
    connect.clean_start = false;
    let mut client = stage.connect_with(connect);
    client.publish("tenant/short", "1", QoS::AtLeastOnce);
    assert_eq!(client.drain_payloads(), ["1"]);
    assert_eq!(client.unsubscribe(&["short"]), [ReasonCode::Success]);
    assert_eq!(client.publish("tenant/short", "2", QoS::AtLeastOnce), ReasonCode::NoMatchingSubscribers);
    assert_eq!(client.unsubscribe(&["short"]), [ReasonCode::NoSubscriptionExisted]);
}

#[test]
fn ignored_message_keeps_its_topic_alias() {
    let (stage, _) = stage();
    let mut client = stage.connect("client");
    client.subscribe("news", QoS::AtMostOnce);
    let alias = NonZeroU16::new(1);
    client.send(&Packet::Publish(Publish { topic_alias: alias, ..message("news", "ignored") }));
    let by_alias = Publish { topic_alias: alias, topic: TopicName::ALIASED, ..message("news", "2") };
    client.send(&Packet::Publish(by_alias));
    let news = client.receive_message();
    assert_eq!((news.topic.as_bytes(), &news.payload[..]), (&b"news"[..], &b"2"[..]));
}

#[test]
fn published_counts_receivers_after_all_refusals() {
    let recorder = Recorder::default();
    let hooks = Everything(recorder.clone());
    let stage = Stage::start("[queue]\nmessages_maximum = 1\n", |builder| builder.hooks(hooks));
    let mut sleeper = stage.connect_with(lasting(ProtocolVersion::V5, "sleeper"));
    sleeper.subscribe("news", QoS::AtLeastOnce);
    sleeper.disconnect();
    let mut publisher = stage.connect("publisher");
    // One write: the queue is full when the batch ends, which routing does not know.
    let packets =
        [(); 2].map(|()| Publish { packet_id: Some(publisher.next_id()), ..at_qos("news", "1", QoS::AtLeastOnce) });
    let bytes = packets.map(|publish| encode(&Packet::Publish(publish), ProtocolVersion::V5)).concat();
    publisher.send_bytes(&bytes);
    publisher.settle();
    recorder.wait_for("published publisher news 0");
    assert_eq!(recorder.count("published publisher news 1"), 1);
    assert_eq!(recorder.count("published publisher news 0"), 1);
}

#[test]
fn receivers_are_left_out_and_routes_remembered() {
    let (stage, recorder) = stage();
    let mut clients = ["hidden", "seen", "publisher"].map(|client_id| stage.connect(client_id));
    let [hidden, seen, publisher] = &mut clients;
    hidden.subscribe("news", QoS::AtLeastOnce);
    seen.subscribe("news", QoS::AtLeastOnce);
    seen.subscribe("$share/hidden/news", QoS::AtLeastOnce);
    for number in 0..5 {
        publisher.publish("news", &number.to_string(), QoS::AtLeastOnce);
    }
    assert_eq!(seen.drain_payloads(), ["0", "1", "2", "3", "4"]);
    hidden.expect_nothing_waiting();
    assert_eq!(recorder.count("select news"), 1, "asked when the route is made");
    stage.broker().handle().invalidate_routes();
    publisher.publish("news", "5", QoS::AtLeastOnce);
    assert_eq!(recorder.count("select news"), 2);
}

#[test]
fn will_is_changed_or_dropped() {
    let (stage, _) = stage();
    let mut heir = stage.connect_with(lasting(ProtocolVersion::V5, "heir"));
    heir.subscribe("#", QoS::AtLeastOnce);
    heir.subscribe("$SYS/forged", QoS::AtLeastOnce);
    for name in ["secret", "forged", "open"] {
        let (qos, payload) = (QoS::AtLeastOnce, "1".into());
        let mut connect = Connect::new(ProtocolVersion::V5, text(name));
        let will = Will { qos, retain: false, topic: topic(name), payload, delay_interval: None, properties: None };
        connect.will = Some(will);
        stage.connect_with(connect).cut();
    }
    let will = heir.receive_message();
    heir.expect_nothing_waiting();
    assert_eq!((will.topic.as_bytes(), &will.payload[..]), (&b"open"[..], &b"of open"[..]));
}
