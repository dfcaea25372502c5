//! Every denial, refusal and drop moves a counter, writes a line, and is in the API.

use std::time::Duration;

use tenbin_codec::{Connect, Packet, ProtocolVersion, QoS, ReasonCode};

use crate::admin::stage::{Stage, wait_until};
use crate::support::{ConfigFile, PATIENCE, RawClient, at_qos, hex, lasting, message, subscription, text, with_expiry};

/// A cause, what a client does, and where operators see it.
struct Row {
    cause: &'static str,
    /// `USERS` stands for a password file without users.
    config: &'static str,
    act: fn(&Stage),
    /// Beginning of a sample's name and labels.
    counter: &'static str,
    /// Words of its line in the log.
    line: &'static [&'static str],
    shown: Shown,
}

/// Place in the API.
enum Shown {
    /// Kind of a finding, with its key.
    Finding(&'static str, Option<&'static str>),
    /// A counter of `/api/v1/status`.
    Counter(&'static str),
}

use Shown::{Counter, Finding};

const RULES: &str = "[[acl]]\ndeny = \"all\"\ntopic = \"secret/#\"\n[[acl]]\nallow = \"all\"\ntopic = \"#\"\n";
const DENIED: Shown = Finding("denied", None);

const ROWS: [Row; 15] = [
    Row {
        cause: "publish denied by rules, 5.0",
        config: RULES,
        act: |stage| publish_secret(stage, ProtocolVersion::V5),
        counter: "tenbin_denied_total{action=\"publish\"",
        line: &["publish denied", "client=\"client\"", "topic=\"secret/1\"", "told=true"],
        shown: DENIED,
    },
    Row {
        cause: "publish denied by rules, 3.1.1",
        config: RULES,
        act: |stage| publish_secret(stage, ProtocolVersion::V311),
        counter: "tenbin_denied_total{action=\"publish\"",
        line: &["publish denied", "client=\"client\"", "topic=\"secret/1\"", "told=false"],
        shown: DENIED,
    },
    Row {
        cause: "subscription denied by rules, 5.0",
        config: RULES,
        act: |stage| subscribe_secret(stage, ProtocolVersion::V5),
        counter: "tenbin_denied_total{action=\"subscribe\"",
        line: &["subscribe denied", "client=\"client\"", "topic=\"secret/#\"", "told=true"],
        shown: DENIED,
    },
    Row {
        cause: "subscription denied by rules, 3.1.1",
        config: RULES,
        act: |stage| subscribe_secret(stage, ProtocolVersion::V311),
        counter: "tenbin_subscriptions_refused_total{cause=\"acl\"}",
        line: &["subscribe denied", "client=\"client\"", "topic=\"secret/#\"", "told=false"],
        shown: DENIED,
    },
    Row {
        cause: "password refused",
        config: "[[listeners]]\naddress = \"127.0.0.1:0\"\nauth = [\"users\"]\n[[auth]]\nname = \"users\"\n\
                 kind = \"passwords\"\nfile = \"USERS\"\n",
        act: refused,
        counter: "tenbin_connects_total{result=\"login_refused\"}",
        line: &["login refused", "client=\"client\"", "user=\"anna\""],
        shown: Counter("logins_refused"),
    },
    Row {
        cause: "banned client",
        config: "[[ban]]\nclient_id = \"client\"\n",
        act: refused,
        counter: "tenbin_connects_total{result=\"login_refused\"}",
        line: &["login refused", "client=\"client\"", "reason=\"banned\""],
        shown: Counter("logins_refused"),
    },
    Row {
        cause: "sessions above the maximum",
        config: "[sessions]\nmaximum = 1\n",
        act: |stage| {
            let _other = stage.broker.v5("other");
            refused(stage);
        },
        counter: "tenbin_bounds_hit_total{key=\"sessions.maximum\"}",
        line: &["CONNECT refused", "client=\"client\"", "limit=\"sessions.maximum\""],
        shown: Finding("refused", Some("sessions.maximum")),
    },
    Row {
        cause: "packet too large for the broker",
        config: "[connections]\npacket_bytes_maximum = 1000\n",
        act: |stage| {
            let mut client = stage.broker.v5("client");
            client.send(&Packet::Publish(message("t", &"x".repeat(2000))));
            client.expect_end(ReasonCode::PacketTooLarge);
        },
        counter: "tenbin_violations_total",
        line: &["client=\"client\"", "limit=\"connections.packet_bytes_maximum\""],
        shown: Finding("refused", Some("connections.packet_bytes_maximum")),
    },
    Row {
        cause: "subscription above a bound",
        config: "[sessions]\nsubscriptions_maximum = 1\n",
        act: |stage| {
            let filters = ["a", "b"].map(|filter| subscription(filter, QoS::AtMostOnce));
            stage.broker.v311("client").subscribe_to(None, filters.to_vec());
        },
        counter: "tenbin_subscriptions_refused_total{cause=\"limit\"}",
        line: &["subscriptions refused", "client=\"client\"", "told=false"],
        shown: Finding("refused", Some("sessions.subscriptions_maximum")),
    },
    Row {
        cause: "illegal Topic Filter",
        config: ConfigFile::DEFAULTS,
        act: |stage| {
            let mut client = stage.broker.v311("client");
            client.send_bytes(&hex("82 08 00 07 00 03 61 23 62 00")); // a#b
            client.read_to_end();
        },
        counter: "tenbin_subscriptions_refused_total{cause=\"invalid_filter\"}",
        line: &["client=\"client\""],
        shown: Counter("subscriptions_invalid"),
    },
    Row {
        cause: "Topic Name with too many levels",
        config: "[sessions]\ntopic_levels_maximum = 3\n",
        act: |stage| {
            stage.broker.v311("client").publish("a/b/c/d/e", "x", QoS::AtLeastOnce);
        },
        counter: "tenbin_refused_unseen_total{action=\"publish\"}",
        line: &["message refused", "client=\"client\"", "sessions.topic_levels_maximum", "told=false"],
        shown: Finding("refused", Some("sessions.topic_levels_maximum")),
    },
    Row {
        cause: "Topic Name with a wildcard",
        config: ConfigFile::DEFAULTS,
        act: |stage| {
            let mut client = stage.broker.v311("client");
            client.send_bytes(&hex("30 05 00 03 61 2F 23")); // a/#
            client.read_to_end();
        },
        counter: "tenbin_violations_total",
        line: &["peer=127.0.0.1:", "client=\"client\""],
        shown: Counter("violations"),
    },
    Row {
        cause: "full queue",
        config: "[queue]\nmessages_maximum = 4\n",
        act: |stage| {
            sleeper(stage);
            let mut client = stage.broker.v5("client");
            let mut reasons = (0..10).map(|_| client.publish("t", "x", QoS::AtLeastOnce));
            assert!(reasons.any(|reason| reason == ReasonCode::QuotaExceeded));
        },
        counter: "tenbin_refused_over_quota_total",
        line: &["messages for the client are refused", "client=\"sleeper\"", "limit=\"queue.messages_maximum\""],
        shown: Finding("refused", Some("queue.messages_maximum")),
    },
    Row {
        cause: "expired message",
        config: ConfigFile::DEFAULTS,
        act: |stage| {
            sleeper(stage);
            let mut client = stage.broker.v5("client");
            client.publish_with(with_expiry(at_qos("t", "x", QoS::AtLeastOnce), 1));
            std::thread::sleep(Duration::from_millis(1100));
            stage.broker.connect(lasting(ProtocolVersion::V5, "sleeper")).expect_nothing_waiting();
        },
        counter: "tenbin_dropped_total{reason=\"expired\"}",
        line: &["messages dropped: they have expired", "messages=1"],
        shown: Counter("dropped_expired"),
    },
    Row {
        cause: "message too large for its receiver",
        config: ConfigFile::DEFAULTS,
        act: |stage| {
            let mut connect = Connect::new(ProtocolVersion::V5, text("small"));
            connect.properties.maximum_packet_size = std::num::NonZeroU32::new(100);
            let mut small = stage.broker.connect(connect);
            small.subscribe("t", QoS::AtLeastOnce);
            stage.broker.v5("client").publish("t", &"x".repeat(200), QoS::AtLeastOnce);
            small.expect_nothing_waiting();
        },
        counter: "tenbin_dropped_total{reason=\"too_large\"}",
        line: &["messages dropped: they exceed the Maximum Packet Size of their receivers", "messages=1"],
        shown: Counter("dropped_too_large"),
    },
];

fn publish_secret(stage: &Stage, version: ProtocolVersion) {
    stage.broker.client(version, "client").publish("secret/1", "x", QoS::AtLeastOnce);
}

fn subscribe_secret(stage: &Stage, version: ProtocolVersion) {
    let filters = vec![subscription("secret/#", QoS::AtMostOnce)];
    assert!(stage.broker.client(version, "client").subscribe_to(None, filters)[0].is_error());
}

/// Sends a CONNECT with a wrong password at the last listener.
fn refused(stage: &Stage) {
    let mut connect = Connect::new(ProtocolVersion::V5, text("client"));
    connect.user_name = Some(text("anna"));
    connect.password = Some("wrong".into());
    assert!(RawClient::try_connect(stage.broker.last_address(), connect).1.reason.is_error());
}

/// Leaves a session with a subscription.
fn sleeper(stage: &Stage) {
    let mut sleeper = stage.broker.connect(lasting(ProtocolVersion::V5, "sleeper"));
    sleeper.subscribe("t", QoS::AtLeastOnce);
    sleeper.disconnect();
}

/// Sum of the samples that begin with this text.
fn sum(stage: &Stage, beginning: &str) -> f64 {
    let body = stage.get("/metrics").body;
    let samples = body.lines().filter(|line| line.starts_with(beginning));
    samples.map(|line| line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()).expect("a number")).sum()
}

fn is_shown(stage: &Stage, shown: &Shown) -> bool {
    match shown {
        Counter(name) => stage.get_json("/api/v1/status")["counters"][name].as_u64().is_some_and(|count| count > 0),
        Finding(kind, key) => {
            let found = stage.get_json("/api/v1/findings");
            let mut found = found["items"].as_array().expect("a list").iter();
            found.any(|found| found["kind"] == *kind && found["key"].as_str() == *key)
        }
    }
}

#[test]
fn each_refusal_is_counted_logged_and_in_the_api() {
    for Row { cause, config, act, counter, line, shown } in ROWS {
        let users = ConfigFile::new("# none\n");
        let file = ConfigFile::new(&config.replace("USERS", users.path()));
        let stage = Stage::start(&["--config", file.path()]);
        assert_eq!((sum(&stage, counter), is_shown(&stage, &shown)), (0.0, false), "{cause}");
        act(&stage);
        wait_until(|| sum(&stage, counter) > 0.0);
        stage.broker.log().wait_for(line, PATIENCE);
        wait_until(|| is_shown(&stage, &shown));
    }
}
