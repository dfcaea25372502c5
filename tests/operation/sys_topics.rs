//! `$SYS` topics: the broker's reports on itself.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::support::{
    BrokerProcess, ConfigFile, DataDirectory, RawClient, VERSIONS, at_qos, lasting, message, retained, text, topic,
};
use tenbin_codec::{Connect, MessageProperties, ProtocolVersion, Publish, QoS, ReasonCode, Will};

/// A broker that publishes its figures each second.
fn broker() -> BrokerProcess {
    let file = ConfigFile::new("[sys]\ninterval_seconds = 1");
    BrokerProcess::start(&["--config", file.path()])
}

/// Retained values, by their topic after `$SYS/broker/`.
fn values(broker: &BrokerProcess) -> BTreeMap<String, String> {
    let mut reader = broker.v5("sys-reader");
    reader.subscribe("$SYS/broker/#", QoS::AtMostOnce);
    let values = reader.drain().into_iter().map(|publish| {
        let name = text_of(publish.topic.as_bytes());
        let name = name.strip_prefix("$SYS/broker/").expect("all are below it").to_owned();
        (name, text_of(&publish.payload))
    });
    let values = values.collect();
    reader.disconnect();
    values
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// The values, once `name` is among them.
fn told(broker: &BrokerProcess, name: &str) -> BTreeMap<String, String> {
    let until = Instant::now() + crate::support::PATIENCE;
    loop {
        let values = values(broker);
        if values.contains_key(name) {
            return values;
        }
        assert!(Instant::now() < until, "nothing is published");
    }
}

/// Waits until the named figures have these values.
fn wait_for(broker: &BrokerProcess, expected: &[(&str, u64)]) {
    let until = Instant::now() + crate::support::PATIENCE;
    loop {
        let values = values(broker);
        let value = |name| values.get(name).map_or(0, |value: &String| value.parse().expect("a number"));
        let found = expected.iter().map(|(name, _)| (*name, value(*name)));
        let found = found.collect::<Vec<(_, u64)>>();
        if found == expected {
            return;
        }
        assert!(Instant::now() < until, "{found:?} instead of {expected:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn common_sys_topics_exist_from_the_start() {
    let broker = BrokerProcess::start(&[]);
    let values = told(&broker, "load/bytes/sent/15min");
    for name in [
        "version",
        "uptime",
        "clients/connected",
        "clients/disconnected",
        "clients/total",
        "clients/maximum",
        "clients/expired",
        "messages/received",
        "messages/sent",
        "publish/messages/received",
        "publish/messages/sent",
        "publish/messages/dropped",
        "bytes/received",
        "bytes/sent",
        "subscriptions/count",
        "retained messages/count",
        "store/messages/count",
        "store/messages/bytes",
        "load/messages/received/1min",
        "load/bytes/sent/15min",
    ] {
        assert!(values.contains_key(name), "{name}");
    }
    assert!(values["version"].starts_with("tenbin version "));
    assert!(values["uptime"].ends_with(" seconds"));
}

#[test]
fn sys_figures_follow_the_traffic() {
    let broker = broker();
    let mut sleeper = broker.connect(lasting(ProtocolVersion::V5, "sleeper"));
    sleeper.subscribe("queued", QoS::AtLeastOnce);
    sleeper.disconnect();
    let mut short = broker.connect(Connect {
        properties: tenbin_codec::ConnectProperties { session_expiry_interval: Some(1), ..Default::default() },
        ..Connect::new(ProtocolVersion::V5, text("short"))
    });
    short.subscribe("gone/+", QoS::AtMostOnce);
    short.disconnect();
    let mut client = broker.v311("client");
    client.subscribe("a/#", QoS::AtMostOnce);
    for number in 0..3 {
        client.publish_with(retained(&format!("kept/{number}"), "x"));
        client.publish("queued", "x", QoS::AtLeastOnce);
        client.publish("a/b", "x", QoS::AtMostOnce);
        client.receive_message();
    }
    // The reader counts as a client with a subscription, too.
    wait_for(
        &broker,
        &[
            ("clients/expired", 1),
            ("clients/maximum", 2),
            ("retained messages/count", 3),
            ("queued messages/count", 3),
            ("store/messages/count", 6),
            ("publish/messages/received", 9),
        ],
    );
    client.publish_with(retained("kept/0", ""));
    client.unsubscribe(&["a/#"]);
    client.disconnect();
    broker.connect(lasting(ProtocolVersion::V5, "sleeper")).drain();
    std::thread::sleep(Duration::from_millis(1500));
    let mut idle = broker.connect(lasting(ProtocolVersion::V5, "sleeper"));
    wait_for(&broker, &[("retained messages/count", 2), ("queued messages/count", 0)]);
    idle.unsubscribe(&["queued"]);
    let values = values(&broker);
    for name in ["bytes/received", "bytes/sent", "messages/received", "messages/sent", "publish/messages/sent"] {
        assert!(values[name].parse::<u64>().expect("a number") > 10, "{name}");
    }
}

#[test]
fn expired_retained_messages_leave_the_count() {
    let broker = broker();
    let mut reader = broker.v5("reader");
    reader.subscribe("$SYS/broker/retained messages/count", QoS::AtMostOnce);
    let mut client = broker.v5("client");
    client.publish_with(retained("stays", "x"));
    for number in 0..20 {
        let publish = retained(&format!("gone/{number}/x"), "x");
        let properties = MessageProperties { message_expiry_interval: Some(4), ..Default::default() };
        client.publish_with(Publish { properties: properties.boxed(), ..publish });
    }
    // The count is published each second, also before the messages expire.
    for expected in ["21", "1"] {
        while reader.receive_message().payload != expected {}
    }
    wait_for(&broker, &[("retained messages/count", 1), ("store/messages/count", 1)]);
}

#[test]
fn sys_topics_report_store_state_and_stored_messages() {
    let file = ConfigFile::new("[sys]\ninterval_seconds = 1");
    let stage = DataDirectory::new();
    let broker = stage.start_with(&["--config", file.path()]);
    let mut sleeper = broker.connect(lasting(ProtocolVersion::V5, "sleeper"));
    sleeper.subscribe("queued", QoS::AtLeastOnce);
    sleeper.disconnect();
    let mut client = broker.v5("client");
    for _ in 0..3 {
        client.publish("queued", &"x".repeat(1000), QoS::AtLeastOnce);
    }
    wait_for(&broker, &[("store/spool/waiting/count", 3), ("store/spool/segments", 1)]);
    let values = values(&broker);
    let value = |name: &str| values[&format!("store/{name}")].parse::<u64>().expect("a number");
    assert!((3000..4000).contains(&value("spool/waiting/bytes")), "{values:?}");
    assert!(value("spool/bytes") >= value("spool/waiting/bytes"), "{values:?}");
    assert!(value("spool/commits") >= 3 && value("state/commits") >= 2, "{values:?}");
    assert!(value("spool/commits/microseconds") >= value("spool/commits/mean/microseconds"), "{values:?}");
    assert!(value("spool/commits/mean/microseconds") > 0, "{values:?}");
    for name in ["spool/pending/bytes", "spool/failures", "state/failures"] {
        assert_eq!(value(name), 0, "{name}");
    }
    assert_eq!([&values["store/spool/health"], &values["store/state/health"]], ["writing"; 2]);
    let mut sleeper = broker.connect(lasting(ProtocolVersion::V5, "sleeper"));
    (0..3).for_each(|_| drop(sleeper.receive_message()));
    wait_for(&broker, &[("store/spool/waiting/count", 0), ("store/spool/waiting/bytes", 0)]);
}

#[test]
fn sys_topics_omit_the_store_without_one() {
    let broker = broker();
    let values = told(&broker, "load/bytes/sent/15min");
    assert!(values.contains_key("version") && !values.keys().any(|name| name.starts_with("store/s")), "{values:?}");
}

#[test]
fn group_backlog_is_counted() {
    let broker = broker();
    let member = |broker: &BrokerProcess| broker.connect(lasting(ProtocolVersion::V5, "member"));
    let mut first = member(&broker);
    first.subscribe("$share/group/queued", QoS::AtLeastOnce);
    first.disconnect();
    let mut client = broker.v5("client");
    for _ in 0..3 {
        client.publish("queued", "x", QoS::AtLeastOnce);
    }
    wait_for(&broker, &[("queued messages/count", 3), ("store/messages/count", 3), ("messages/stored", 3)]);
    assert_eq!(member(&broker).drain().len(), 3);
    wait_for(&broker, &[("queued messages/count", 0), ("store/messages/count", 0)]);
}

#[test]
fn drops_are_counted_by_cause() {
    let file = ConfigFile::new("[sys]\ninterval_seconds = 1\n[queue]\nmessages_maximum = 5");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let mut sleeper = broker.connect(lasting(ProtocolVersion::V5, "sleeper"));
    sleeper.subscribe("#", QoS::AtLeastOnce);
    sleeper.disconnect();
    let mut client = broker.v5("client");
    for _ in 0..7 {
        client.publish("q1", "x", QoS::AtLeastOnce);
    }
    client.publish("q0", "x", QoS::AtMostOnce);
    wait_for(
        &broker,
        &[
            ("publish/messages/refused/over_quota", 2),
            ("publish/messages/dropped/offline", 1),
            ("publish/messages/dropped", 1),
        ],
    );
}

#[test]
fn mqtt_4_7_2_1_leading_wildcards_do_not_match_sys() {
    let broker = broker();
    for version in VERSIONS {
        let mut client = broker.client(version, "");
        for filter in ["#", "+/#", "+/broker/version", "+/broker/#"] {
            client.subscribe(filter, QoS::AtMostOnce);
        }
        client.expect_nothing_for(Duration::from_millis(1200));
        client.subscribe("$SYS/+/version", QoS::AtMostOnce);
        assert!(client.receive_message().retain);
    }
}

#[test]
fn only_changed_figures_are_published_again() {
    let broker = broker();
    let mut client = broker.v5("client");
    client.subscribe("$SYS/broker/version", QoS::AtMostOnce);
    client.subscribe("$SYS/broker/uptime", QoS::AtMostOnce);
    let mut versions = 0;
    for _ in 0..4 {
        versions += usize::from(client.receive_message().topic == topic("$SYS/broker/version"));
    }
    assert_eq!(versions, 1, "the retained one");
}

#[test]
fn clients_cannot_publish_to_sys() {
    let broker = broker();
    let mut client = broker.v5("client");
    for name in ["$SYS", "$SYS/broker/version", "$SYS/mine", "$share/g/x"] {
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let publish = Publish { retain: true, ..at_qos(name, "forged", qos) };
            assert_eq!(client.publish_with(publish), ReasonCode::NotAuthorized, "{name}");
        }
        client.publish_with(Publish { retain: true, ..message(name, "") });
        let will = Will {
            qos: QoS::AtMostOnce,
            retain: true,
            topic: topic(name),
            payload: "forged".into(),
            delay_interval: None,
            properties: None,
        };
        let connect = Connect { will: Some(will), ..Connect::new(ProtocolVersion::V5, text("forger")) };
        let (_, connack) = RawClient::try_connect(broker.address(), connect);
        assert_eq!(connack.reason, ReasonCode::TopicNameInvalid, "{name}");
    }
    let values = told(&broker, "version");
    assert!(values["version"].starts_with("tenbin version "));
    assert!(!values.values().any(|value| value == "forged"));
}

#[test]
fn client_names_do_not_appear_in_sys_topics() {
    let broker = broker();
    let names = ["#", "+/+", "$SYS/broker/version", "a\u{7}\u{1b}[31mb", "canary/canary"];
    let _clients = names.map(|name| {
        let mut client = broker.v5(name);
        client.subscribe("canary/#", QoS::AtMostOnce);
        client.publish_with(retained("canary/canary", "canary"));
        client
    });
    std::thread::sleep(Duration::from_millis(1500));
    for (name, value) in values(&broker) {
        assert!(!name.contains(['#', '+', '\u{7}']) && !name.contains("canary"), "{name}");
        assert!(value.chars().all(|c| c.is_ascii_graphic() || c == ' ') && !value.contains("canary"), "{value}");
    }
}

#[test]
fn an_interval_of_0_publishes_nothing() {
    let file = ConfigFile::new("[sys]\ninterval_seconds = 0");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    std::thread::sleep(Duration::from_millis(300));
    assert!(values(&broker).is_empty());
}
