//! What bounds and rules refuse is counted, logged with the key to raise, and told by `/readyz?verbose`.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use bytes::Bytes;
use tenbin_codec::{Connect, Packet, PacketType, ProtocolVersion, Publish, QoS, ReasonCode, Text, UserProperty, Will};

use crate::admin::stage::{Stage, wait_until};
use crate::support::{
    ConfigFile, DataDirectory, PATIENCE, RawClient, at_qos, hex, lasting, message, retained, subscription, text, topic,
};

/// A bound, the configuration that makes it low, and a client that hits it.
struct Row {
    key: &'static str,
    config: &'static str,
    hit: fn(SocketAddr),
    /// Words of its line in the log, beside the key.
    words: &'static [&'static str],
}

const fn row(key: &'static str, config: &'static str, hit: fn(SocketAddr), words: &'static [&'static str]) -> Row {
    Row { key, config, hit, words }
}

/// Nothing that a broker with small bounds on memory needs more for.
const USER: &str = "[connections]\npacket_bytes_maximum = 16384\nconnect_packet_bytes_maximum = 16384\n\
     [[listeners]]\naddress = \"127.0.0.1:0\"\nuser = \"sensors\"\n[limits]\nuser_bytes_maximum = 37400";
const LOOPBACK: &str = "[connections]\npacket_bytes_maximum = 16384\nconnect_packet_bytes_maximum = 16384\n\
     [limits]\nloopback_address_bytes_maximum = 37400";
const ALL: &str = "[connections]\npacket_bytes_maximum = 16384\nconnect_packet_bytes_maximum = 16384\n\
     [limits]\nbytes_maximum = 200000\nloopback_address_bytes_maximum = 0";

/// Bounds of addresses that are not of this machine: a proxy tells them.
const CONNECTIONS_OF_ADDRESS: &str = "[connections]\nper_address_maximum = 1\n[[listeners]]\n\
     name = \"afar\"\naddress = \"127.0.0.1:0\"\nanonymous = true\nproxy_from = [\"127.0.0.1\"]";
const SESSIONS_OF_ADDRESS: &str = "[sessions]\nper_address_maximum = 1\n[[listeners]]\n\
     name = \"afar\"\naddress = \"127.0.0.1:0\"\nanonymous = true\nproxy_from = [\"127.0.0.1\"]";
const MEMORY_OF_ADDRESS: &str = "[connections]\npacket_bytes_maximum = 16384\nconnect_packet_bytes_maximum = 16384\n\
     [limits]\naddress_bytes_maximum = 37400\n[[listeners]]\n\
     name = \"afar\"\naddress = \"127.0.0.1:0\"\nanonymous = true\nproxy_from = [\"127.0.0.1\"]";

/// Bounds with separate tests: one needs a file of users, the other a store that has no room.
const TESTED_APART: [&str; 2] = ["connections.failures_per_minute_per_address", "store.bytes_maximum"];

/// Bounds that a single client hits with few packets.
const ROWS: [Row; 32] = [
    row("connections.maximum", "[connections]\nmaximum = 1", connect_twice, CONNECTION),
    row("connections.per_address_maximum", CONNECTIONS_OF_ADDRESS, |address| connect_two(open_afar, address), AFAR),
    row(
        "connections.loopback_per_address_maximum",
        "[connections]\nloopback_per_address_maximum = 1",
        connect_twice,
        CONNECTION,
    ),
    row("connections.connects_per_second", "[connections]\nconnects_per_second = 1", connect_often, CONNECT),
    row(
        "connections.connects_per_second_per_address",
        "[connections]\nconnects_per_second_per_address = 1",
        connect_often,
        CONNECT,
    ),
    row("connections.packet_bytes_maximum", "[connections]\npacket_bytes_maximum = 1000", publish_much, CLIENT),
    row(
        "connections.connect_packet_bytes_maximum",
        "[connections]\nconnect_packet_bytes_maximum = 300",
        |address| try_connect(address, Connect::new(ProtocolVersion::V5, text(&"c".repeat(300)))),
        &["no legal CONNECT", "peer=127.0.0.1:"],
    ),
    row(
        "connections.user_properties_maximum",
        "[connections]\nuser_properties_maximum = 1",
        |address| {
            let mut connect = v5("client");
            connect.properties.user_properties = vec![UserProperty::new(Text::EMPTY, Text::EMPTY); 2];
            try_connect(address, connect);
        },
        &["no legal CONNECT", "peer=127.0.0.1:"],
    ),
    row("sessions.maximum", "[sessions]\nmaximum = 1", connect_twice, CONNECT),
    row(
        "sessions.per_address_maximum",
        SESSIONS_OF_ADDRESS,
        |address| connect_two(open_afar, address),
        &["CONNECT refused", "peer=192.0.2.1:", "client=\"other\""],
    ),
    row(
        "sessions.loopback_per_address_maximum",
        "[sessions]\nloopback_per_address_maximum = 1",
        connect_twice,
        CONNECT,
    ),
    row(
        "sessions.client_id_bytes_maximum",
        "[sessions]\nclient_id_bytes_maximum = 30",
        |address| try_connect(address, v5(&"c".repeat(31))),
        &["CONNECT refused", "client=\"ccc"],
    ),
    row(
        "sessions.will_bytes_maximum",
        "[sessions]\nwill_bytes_maximum = 100",
        |address| try_connect(address, Connect { will: Some(will(200)), ..v5("client") }),
        CONNECT,
    ),
    row("sessions.receive_maximum", "[sessions]\nreceive_maximum = 1", publish_without_release, CLIENT),
    row(
        "sessions.topic_alias_maximum",
        "[sessions]\ntopic_alias_maximum = 2",
        |address| {
            let (mut client, _) = RawClient::connect(address, v5("client"));
            client.send_bytes(&hex("30 07 00 01 74 03 23 00 03"));
            client.wait_for(PacketType::Disconnect);
        },
        CLIENT,
    ),
    row(
        "sessions.subscriptions_maximum",
        "[sessions]\nsubscriptions_maximum = 1",
        |address| subscribe(address, &["a", "b"]),
        SUBSCRIPTIONS,
    ),
    row(
        "sessions.subscription_bytes_maximum",
        "[sessions]\nsubscription_bytes_maximum = 1024",
        |address| subscribe(address, &["a", "1/2/3/4/5/6/7/8/9/+"]),
        SUBSCRIPTIONS,
    ),
    row(
        "sessions.wildcard_patterns_maximum",
        "[sessions]\nwildcard_patterns_maximum = 1",
        |address| subscribe(address, &["a/+", "+/a"]),
        SUBSCRIPTIONS,
    ),
    row("sessions.topic_bytes_maximum", "[sessions]\ntopic_bytes_maximum = 10", publish_deep, MESSAGE),
    row("sessions.topic_levels_maximum", "[sessions]\ntopic_levels_maximum = 3", publish_deep, MESSAGE),
    row(
        "limits.groups_per_topic_maximum",
        "[limits]\ngroups_per_topic_maximum = 1",
        |address| subscribe(address, &["$share/a/t", "$share/b/t"]),
        SUBSCRIPTIONS,
    ),
    row(
        "limits.address_bytes_maximum",
        MEMORY_OF_ADDRESS,
        |address| subscribe_to_many(open_afar(address)),
        &["subscriptions refused", "peer=192.0.2.1:", "client=\"client\"", "told=true"],
    ),
    row("limits.loopback_address_bytes_maximum", LOOPBACK, subscribe_much, SUBSCRIPTIONS),
    row("limits.user_bytes_maximum", USER, subscribe_much, SUBSCRIPTIONS),
    row("limits.bytes_maximum", ALL, subscribe_much, SUBSCRIPTIONS),
    row("queue.messages_maximum", "[queue]\nmessages_maximum = 4", publish_to_sleeper, SLEEPER),
    row("queue.bytes_maximum", "[queue]\nbytes_maximum = 40000", publish_to_sleeper, SLEEPER),
    row("queue.total_bytes_maximum", "[queue]\ntotal_bytes_maximum = 40000", publish_to_sleeper, SLEEPER),
    row("store.queue_bytes_maximum", "[store]\nqueue_bytes_maximum = 20000", publish_to_sleeper, SLEEPER),
    row("retained.messages_maximum", "[retained]\nmessages_maximum = 1", retain_much, RETAINED),
    row("retained.bytes_maximum", "[retained]\nbytes_maximum = 15000", retain_much, RETAINED),
    row(
        "queue.messages_maximum",
        "[queue]\nmessages_maximum = 4\n[[share]]\ngroup = \"pool\"\nfilter = \"t\"\nkeep_seconds = 600",
        publish_to_group,
        &["messages for share groups are refused", "group=$share/pool/t"],
    ),
];

const AFAR: &[&str] = &["PROXY header failed", "peer=127.0.0.1:", "too many connections of 192.0.2.1:"];
const CONNECTION: &[&str] = &["connection refused", "peer=127.0.0.1:"];
const CONNECT: &[&str] = &["CONNECT refused", "peer=127.0.0.1:", "client="];
const CLIENT: &[&str] = &["peer=127.0.0.1:", "client=\"client\""];
const SUBSCRIPTIONS: &[&str] = &["subscriptions refused", "peer=127.0.0.1:", "client=\"client\"", "told=true"];
const MESSAGE: &[&str] = &["message refused", "peer=127.0.0.1:", "client=\"client\"", "told=true"];
const SLEEPER: &[&str] = &["messages for the client are refused", "client=\"sleeper\""];
const RETAINED: &[&str] = &["messages are not retained", "topic=t/"];

fn v5(client_id: &str) -> Connect {
    Connect::new(ProtocolVersion::V5, text(client_id))
}

fn will(bytes: usize) -> Will {
    let payload = Bytes::from(vec![b'w'; bytes]);
    Will { qos: QoS::AtMostOnce, retain: false, topic: topic("w"), payload, delay_interval: None, properties: None }
}

/// Sends a CONNECT that is refused.
fn try_connect(address: SocketAddr, connect: Connect) {
    let mut client = RawClient::open(address, ProtocolVersion::V5);
    client.send(&Packet::Connect(Box::new(connect)));
    client.read_to_end();
}

fn open(address: SocketAddr) -> RawClient {
    RawClient::open(address, ProtocolVersion::V5)
}

/// Opens a connection through a proxy, which tells another machine's address.
fn open_afar(address: SocketAddr) -> RawClient {
    let mut client = open(address);
    client.send_bytes(b"PROXY TCP4 192.0.2.1 198.51.100.1 4660 1883\r\n");
    client
}

fn connect_twice(address: SocketAddr) {
    connect_two(open, address);
}

fn connect_two(open: fn(SocketAddr) -> RawClient, address: SocketAddr) {
    let _client = open(address).introduce(v5("client"));
    let mut other = open(address);
    other.try_send_bytes(&hex("10 12 00 04 4D 51 54 54 05 02 00 3C 00 00 05 6F 74 68 65 72"));
    other.read_to_end();
}

fn connect_often(address: SocketAddr) {
    let is_accepted = |number| {
        let (_, connack) = RawClient::try_connect(address, v5(&format!("client-{number}")));
        connack.reason == ReasonCode::Success
    };
    assert!(!(0..20).all(is_accepted));
}

fn publish_much(address: SocketAddr) {
    let (mut client, _) = RawClient::connect(address, v5("client"));
    client.send(&Packet::Publish(message("t", &"x".repeat(1000))));
    client.expect_end(ReasonCode::PacketTooLarge);
}

fn publish_without_release(address: SocketAddr) {
    let (mut client, _) = RawClient::connect(address, v5("client"));
    for _ in 0..2 {
        let packet_id = Some(client.next_id());
        client.send(&Packet::Publish(Publish { packet_id, ..at_qos("t", "x", QoS::ExactlyOnce) }));
    }
    client.wait_for(PacketType::Disconnect);
}

fn publish_deep(address: SocketAddr) {
    let (mut client, _) = RawClient::connect(address, v5("client"));
    assert_eq!(client.publish("a/b/c/d/e/f", "x", QoS::AtLeastOnce), ReasonCode::TopicNameInvalid);
}

fn subscribe(address: SocketAddr, filters: &[&str]) {
    subscribe_by(open(address), filters);
}

fn subscribe_by(client: RawClient, filters: &[&str]) {
    let (mut client, _) = client.introduce(v5("client"));
    let all = filters.iter().map(|filter| subscription(filter, QoS::AtMostOnce)).collect();
    let reasons = client.subscribe_to(None, all);
    assert_eq!((reasons[0], reasons.last()), (ReasonCode::Success, Some(&ReasonCode::QuotaExceeded)));
}

fn subscribe_much(address: SocketAddr) {
    subscribe_to_many(open(address));
}

fn subscribe_to_many(client: RawClient) {
    let filters: Vec<_> = (0..30).map(|number| format!("{number}{}/+", "/a".repeat(100))).collect();
    subscribe_by(client, &filters.iter().map(String::as_str).collect::<Vec<_>>());
}

fn publish_to_sleeper(address: SocketAddr) {
    let (mut sleeper, _) = RawClient::connect(address, lasting(ProtocolVersion::V5, "sleeper"));
    sleeper.subscribe("t", QoS::AtLeastOnce);
    sleeper.disconnect();
    publish_until_refused(address, 5000);
}

fn publish_to_group(address: SocketAddr) {
    publish_until_refused(address, 5000);
}

/// Publishes at most 400 messages of `bytes` bytes.
fn publish_until_refused(address: SocketAddr, bytes: usize) {
    let (mut client, _) = RawClient::connect(address, v5("client"));
    let payload = "x".repeat(bytes);
    let is_taken = |client: &mut RawClient| !client.publish("t", &payload, QoS::AtLeastOnce).is_error();
    assert!(!(0..400).all(|_| is_taken(&mut client)));
}

fn retain_much(address: SocketAddr) {
    let (mut client, _) = RawClient::connect(address, v5("client"));
    let reasons = [0, 1, 2].map(|number| client.publish_with(retained(&format!("t/{number}"), &"x".repeat(10_000))));
    assert_eq!(reasons[2], ReasonCode::QuotaExceeded);
}

/// Value of a sample; `None` if it is missing.
fn sample(stage: &Stage, name: &str) -> Option<u64> {
    let body = stage.get("/metrics").body;
    let value = body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    Some(value.parse().expect("a number"))
}

#[test]
fn each_bound_is_counted_logged_and_told_by_its_key() {
    for Row { key, config, hit, words } in ROWS {
        let file = ConfigFile::new(config);
        let data = DataDirectory::new();
        let store = if key.starts_with("store.") { &["--data", data.path_text()][..] } else { &["--ephemeral"] };
        let stage = Stage::start(&[&["--config", file.path()], store].concat());
        let counter = format!("tenbin_bounds_hit_total{{key=\"{key}\"}}");
        assert_eq!(sample(&stage, &counter), Some(0), "{key}");
        assert!(!stage.get("/readyz?verbose").body.contains("[!]"), "{key}");
        hit(stage.broker.last_address());
        wait_until(|| sample(&stage, &counter) > Some(0));
        // The line of a refused header has the key in its text.
        let limit = if words == AFAR { key.to_owned() } else { format!("limit=\"{key}\"") };
        stage.broker.log().wait_for(&[words, &[&limit[..]]].concat(), PATIENCE);
        let ready = stage.get("/readyz?verbose").body;
        assert!(ready.contains(&format!("[!] bounds: {key} was hit")), "{ready}");
        assert_eq!(ready.matches("[!]").count(), 1, "{ready}");
        assert_eq!(stage.get("/readyz").status, 200);
    }
}

#[test]
fn each_bound_has_a_row_or_a_test_apart() {
    let metrics = Stage::start(&["--ephemeral"]).get("/metrics").body;
    let key = |line: &str| Some(line.strip_prefix("tenbin_bounds_hit_total{key=\"")?.split_once('"')?.0.to_owned());
    let all: BTreeSet<String> = metrics.lines().filter_map(key).collect();
    let tested = ROWS.iter().map(|row| row.key).chain(TESTED_APART).map(str::to_owned).collect();
    assert_eq!(all, tested, "keys of the broker, and tested ones");
}

#[test]
fn messages_beyond_the_store_maximum_are_counted_by_its_key() {
    let file = ConfigFile::new("[store]\nbytes_maximum = 268435456\nsync = \"never\"\n");
    let data = DataDirectory::new();
    let stage = Stage::start(&["--config", file.path(), "--data", data.path_text()]);
    let address = stage.broker.last_address();
    let (mut sleeper, _) = RawClient::connect(address, lasting(ProtocolVersion::V5, "sleeper"));
    sleeper.subscribe("t", QoS::AtLeastOnce);
    sleeper.disconnect();
    publish_until_refused(address, 1_000_000);
    assert!(sample(&stage, "tenbin_bounds_hit_total{key=\"store.bytes_maximum\"}") > Some(0));
    stage.broker.log().wait_for(&[SLEEPER, &["limit=\"store.bytes_maximum\""]].concat(), PATIENCE);
}

#[test]
fn session_over_its_quota_has_one_line() {
    let file = ConfigFile::new("[sessions]\nloopback_per_address_maximum = 1\n");
    let stage = Stage::start(&["--config", file.path()]);
    connect_twice(stage.broker.last_address());
    stage
        .broker
        .log()
        .wait_for(&["CONNECT refused", "sessions.loopback_per_address_maximum", "client=\"other\""], PATIENCE);
    // The broker has answered, and logs before that.
    let lines = stage.broker.log().all().into_iter().filter(|line| line.contains("client=\"other\""));
    assert_eq!(lines.collect::<Vec<_>>().len(), 1);
}

#[test]
fn failed_logins_beyond_the_bound_are_counted() {
    let users = ConfigFile::new("# none\n");
    let file = ConfigFile::new(&format!(
        "[connections]\nfailures_per_minute_per_address = 1\n
         [[listeners]]\naddress = \"127.0.0.1:0\"\nname = \"users\"\npassword_file = {:?}\n",
        users.path()
    ));
    let stage = Stage::start(&["--config", file.path()]);
    let address = stage.broker.last_address();
    (0..2).for_each(|_| try_connect(address, v5("client")));
    stage.broker.log().wait_for(&["login refused", "client=\"client\"", "too many failed logins"], PATIENCE);
    let counter = "tenbin_bounds_hit_total{key=\"connections.failures_per_minute_per_address\"}";
    assert_eq!(sample(&stage, counter), Some(1));
}

#[test]
fn refusals_that_a_client_does_not_see_are_counted() {
    let file = ConfigFile::new(
        "[log]\nlines_per_second_per_address = 0\n[sessions]\ntopic_levels_maximum = 3\nsubscriptions_maximum = 1\n\
         [[acl]]\ndeny = \"all\"\ntopic = \"secret\"\n[[acl]]\nallow = \"all\"\ntopic = \"#\"\n",
    );
    let stage = Stage::start(&["--config", file.path()]);
    let unseen = || ["publish", "subscribe"].map(|action| sample(&stage, &unseen_total(action)).expect("it is there"));
    let mut refused = [0, 0];
    for (version, id, is_told) in [(ProtocolVersion::V5, "new", true), (ProtocolVersion::V311, "old", false)] {
        let mut client = stage.broker.client(version, id);
        let (told, client_id) = (format!("told={is_told}"), format!("client=\"{id}\""));
        for name in ["secret", "a/b/c/d", "$SYS/x"] {
            assert_eq!(client.publish(name, "x", QoS::AtLeastOnce).is_error(), is_told, "{version}, {name}");
        }
        client.publish("ours", "x", QoS::AtLeastOnce);
        let filters = ["a", "b", "secret"].map(|name| subscription(name, QoS::AtMostOnce)).to_vec();
        client.subscribe_to(None, filters);
        if !is_told {
            refused = [refused[0] + 3, refused[1] + 2];
        }
        wait_until(|| unseen() == refused);
        // QoS 0 has no answer.
        client.publish("secret", "x", QoS::AtMostOnce);
        refused[0] += 1;
        wait_until(|| unseen() == refused);
        for words in [
            ["publish denied", "topic=\"secret\"", &client_id, &told],
            ["message refused", "sessions.topic_levels_maximum", &client_id, &told],
            ["message refused", "topic=\"$SYS/x\"", &client_id, &told],
            ["subscriptions refused", "sessions.subscriptions_maximum", &client_id, &told],
            ["subscribe denied", "topic=\"secret\"", &client_id, &told],
        ] {
            stage.broker.log().wait_for(&words, PATIENCE);
        }
    }
}

/// Neither the store of retained messages nor a receiver has room for a message: the publisher misses one refusal.
#[test]
fn message_refused_twice_is_unseen_once() {
    let file = ConfigFile::new("[retained]\nmessages_maximum = 1\n[queue]\nmessages_maximum = 1\n");
    let stage = Stage::start(&["--ephemeral", "--config", file.path()]);
    let unseen = || sample(&stage, &unseen_total("publish"));
    let mut sleeper = stage.broker.connect(lasting(ProtocolVersion::V5, "sleeper"));
    sleeper.subscribe("full/#", QoS::AtLeastOnce);
    sleeper.disconnect();
    let mut reader = stage.broker.v5("reader");
    reader.subscribe("full/read", QoS::AtMostOnce);
    let mut client = stage.broker.v311("client");
    client.publish_with(retained("other", "x"));
    client.publish("full/1", "x", QoS::AtLeastOnce);
    assert_eq!(unseen(), Some(0));
    client.publish_with(retained("full/read", "x"));
    assert_eq!(unseen(), Some(1), "refused by both");
    client.publish_with(retained("unread", "x"));
    assert_eq!(unseen(), Some(2), "not retained");
    client.publish("full/read", "x", QoS::AtLeastOnce);
    assert_eq!(unseen(), Some(3), "refused by a receiver");
    client.publish_with(Publish { qos: QoS::AtMostOnce, ..retained("unread", "x") });
    wait_until(|| unseen() == Some(4));
    // Without an answer the client sends it again.
    let packet_id = Some(client.next_id());
    client.send(&Packet::Publish(Publish { packet_id, ..retained("full/1", "x") }));
    client.expect_closed();
    assert_eq!(unseen(), Some(4));
}

fn unseen_total(action: &str) -> String {
    format!("tenbin_refused_unseen_total{{action=\"{action}\"}}")
}

#[test]
fn refused_subscriptions_are_counted_by_cause() {
    let file = ConfigFile::new(
        "[capabilities]\nwildcard_subscriptions = false\nshared_subscriptions = false\n\
         [sessions]\nsubscriptions_maximum = 1\n\
         [[acl]]\ndeny = \"all\"\ntopic = \"secret\"\n[[acl]]\nallow = \"all\"\ntopic = \"#\"\n",
    );
    let stage = Stage::start(&["--config", file.path()]);
    let mut client = stage.broker.v311("client");
    let filters = ["a", "b", "a/#", "$share/g/a", "secret"];
    client.subscribe_to(None, filters.map(|filter| subscription(filter, QoS::AtMostOnce)).to_vec());
    client.send_bytes(&hex("82 08 00 07 00 03 61 23 62 00")); // a#b
    client.read_to_end();
    for (cause, count) in
        [("limit", 1), ("not_supported", 2), ("acl", 1), ("invalid_filter", 1), ("hook", 0), ("disk", 0)]
    {
        let counter = format!("tenbin_subscriptions_refused_total{{cause=\"{cause}\"}}");
        wait_until(|| sample(&stage, &counter) == Some(count));
    }
    stage.broker.log().wait_for(&["subscriptions refused", "capabilities", "subscriptions=2", "told=false"], PATIENCE);
}
