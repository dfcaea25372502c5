//! Events for services over HTTP.

use std::collections::BTreeSet;
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;
use tenbin_broker::hooks::{CopiesChange, LeaderChange};
use tenbin_broker::{Broker, Config};
use tenbin_codec::{Ack, Connect, Packet, ProtocolVersion, Publish, QoS, ReasonCode};

use crate::hooks::stage::Stage;
use crate::support::{PATIENCE, WebAnswer, WebRequest, WebServer, at_qos, lasting, message, text};

/// All events that a webhook may get.
const EVENTS: [&str; 16] = [
    "connected",
    "disconnected",
    "session_created",
    "session_expired",
    "subscribed",
    "unsubscribed",
    "published",
    "acknowledged",
    "dropped",
    "slow_begun",
    "slow_ended",
    "group_backlog",
    "dead_letter",
    "denied",
    "leader_changed",
    "copies_changed",
];

/// Checks the signature of a request as a service does.
fn check_signature(request: &WebRequest, secret: &str) {
    let header = request.header("tenbin-signature").expect("a signature");
    let (time, digits) = header.strip_prefix("t=").and_then(|rest| rest.split_once(",v1=")).expect(header);
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("any length");
    mac.update(format!("{time}.{}", request.body).as_bytes());
    let expected: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(digits, expected);
}

fn events_in(request: &WebRequest) -> Vec<Value> {
    assert_eq!(request.header("content-type"), Some("application/json"));
    serde_json::from_str(&request.body).expect("an array of events")
}

/// Waits for an event that has all fields of `wanted`, in the requests behind the first `skipped` ones.
fn wait_for(server: &WebServer, skipped: usize, wanted: &Value) {
    let wanted = wanted.as_object().expect("fields");
    let begin = Instant::now();
    loop {
        let requests = server.requests();
        let events: Vec<_> = requests.iter().skip(skipped).flat_map(events_in).collect();
        if events.iter().any(|event| wanted.iter().all(|(key, value)| &event[key] == value)) {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "no event {wanted:?} in {events:#?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn service_gets_each_event_signed_and_again_after_an_error() {
    let attempts = AtomicUsize::new(0);
    let server = WebServer::start(move |_| {
        let is_first = attempts.fetch_add(1, Ordering::Relaxed) == 0;
        WebAnswer::new(if is_first { 500 } else { 204 }, "")
    });
    let directory = tempfile::tempdir().expect("a directory");
    let secret_file = directory.path().join("secret");
    std::fs::write(&secret_file, "very secret\n").expect("a file");
    let keys = format!(
        "[queue]\nmessages_maximum = 40\n[[webhook]]\nurl = 'http://{}/events?from=tenbin'\nevents = {EVENTS:?}\n\
         filter = 'orders/#'\npayload_bytes_maximum = 4\nsecret_file = '{}'\n\
         [[share]]\ngroup = 'failing'\non_reject = 'dead_letter'\ndead_letter = ''\n\
         [[acl]]\ndeny = 'publish'\ntopic = 'orders/secret'\n[[acl]]\nallow = 'all'\ntopic = '#'\n",
        server.address(),
        secret_file.display()
    );
    let mut stage = Stage::start(&keys, |builder| builder);
    let _watcher = stage.connect("watcher");
    make_all_happen(&stage);
    for wanted in [
        json!({"event": "connected", "client_id": "visitor", "user": null, "version": "5.0",
            "session_present": false}),
        json!({"event": "session_created", "client_id": "visitor"}),
        json!({"event": "subscribed", "client_id": "visitor", "filter": "orders/#", "qos": 1}),
        json!({"event": "published", "client_id": "visitor", "topic": "orders/1", "qos": 1, "retain": false,
            "receivers": 1, "payload_bytes": 4, "payload": "four"}),
        json!({"event": "published", "topic": "orders/2", "payload_bytes": 5, "payload": null}),
        json!({"event": "published", "topic": "orders/3", "payload_base64": "/w=="}),
        json!({"event": "acknowledged", "client_id": "visitor", "topic": "orders/1"}),
        json!({"event": "unsubscribed", "client_id": "visitor", "filter": "orders/#"}),
        json!({"event": "dropped", "client_id": "sleeper", "topic": "orders/lost", "reason": "offline"}),
        json!({"event": "session_expired", "client_id": "brief"}),
        json!({"event": "slow_begun", "client_id": "slow"}),
        json!({"event": "group_backlog", "group": "$share/g/work", "is_over": false}),
        json!({"event": "dead_letter", "group": "$share/failing/orders/fail", "topic": "orders/fail", "reason": "rejected",
            "deliveries": 1, "client_id": "visitor"}),
        json!({"event": "leader_changed", "epoch": 7, "leader": "b", "previous": "a", "duration_ms": 400}),
        json!({"event": "copies_changed", "epoch": 8, "copies": 2, "node": "a"}),
        json!({"event": "denied", "client_id": "visitor", "user": null, "action": "publish", "topic": "orders/secret"}),
    ] {
        wait_for(&server, 1, &wanted);
    }
    stage.shutdown();
    // The last events come before the broker has stopped.
    let requests = server.requests();
    requests.iter().for_each(|request| check_signature(request, "very secret"));
    assert_eq!(requests[0].body, requests[1].body, "sent again after 500");
    let events: Vec<_> = requests.iter().skip(1).flat_map(events_in).collect();
    let names: BTreeSet<_> = events.iter().filter_map(|event| event["event"].as_str()).collect();
    assert_eq!(names, BTreeSet::from(EVENTS));
    assert!(events.iter().all(|event| event["time_ms"].as_u64() > Some(1_700_000_000_000)));
    assert!(!events.iter().any(|event| event["topic"] == "other"), "the filter leaves it out");
    let ended = |event: &&Value| event["event"] == "disconnected" && event["client_id"] == "watcher";
    let ended: Vec<_> = events.iter().filter(ended).collect();
    assert_eq!(ended.len(), 1);
    assert_eq!((&ended[0]["reason"], &ended[0]["by_client"]), (&json!(0x8b), &json!(false)));
    assert!(requests.iter().skip(1).all(|request| events_in(request).len() <= 256));
}

fn make_all_happen(stage: &Stage) {
    let mut visitor = stage.connect("visitor");
    visitor.subscribe("orders/#", QoS::AtLeastOnce);
    visitor.publish("orders/1", "four", QoS::AtLeastOnce);
    let order = visitor.receive_publish();
    visitor.acknowledge(&order);
    visitor.unsubscribe(&["orders/#"]);
    visitor.publish("orders/2", "fives", QoS::AtLeastOnce);
    visitor.publish_with(Publish { payload: vec![0xff].into(), ..message("orders/3", "") });
    visitor.publish("other", "1", QoS::AtLeastOnce);
    visitor.publish("orders/secret", "1", QoS::AtLeastOnce);

    visitor.subscribe("$share/failing/orders/fail", QoS::AtLeastOnce);
    visitor.publish("orders/fail", "1", QoS::AtLeastOnce);
    let failing = visitor.receive_publish();
    let id = failing.packet_id.expect("QoS 1");
    visitor.send(&Packet::PubAck(Ack::new(id, ReasonCode::UnspecifiedError)));
    visitor.unsubscribe(&["$share/failing/orders/fail"]);

    let mut sleeper = stage.connect_with(lasting(ProtocolVersion::V5, "sleeper"));
    sleeper.subscribe("orders/lost", QoS::AtMostOnce);
    sleeper.disconnect();
    visitor.publish("orders/lost", "1", QoS::AtMostOnce);

    let mut brief = lasting(ProtocolVersion::V5, "brief");
    brief.properties.session_expiry_interval = Some(1);
    stage.connect_with(brief).disconnect();

    // It accepts one message and does not acknowledge it, while a megabyte waits.
    let mut slow = Connect::new(ProtocolVersion::V5, text("slow"));
    slow.properties.receive_maximum = NonZeroU16::new(1);
    let mut slow = stage.connect_with(slow);
    slow.subscribe("bulk", QoS::AtLeastOnce);
    for _ in 0..30 {
        visitor.publish_with(at_qos("bulk", &"1".repeat(100_000), QoS::AtLeastOnce));
    }
    let begin = Instant::now();
    while stage.broker().metrics().watch_begun == 0 {
        assert!(begin.elapsed() < PATIENCE, "the client is not slow");
        std::thread::sleep(Duration::from_millis(10));
    }
    slow.cut();

    let mut member = stage.connect_with(lasting(ProtocolVersion::V5, "member"));
    member.subscribe("$share/g/work", QoS::AtLeastOnce);
    member.disconnect();
    let is_full = (0..200).any(|_| visitor.publish("work", "1", QoS::AtLeastOnce) == ReasonCode::QuotaExceeded);
    assert!(is_full, "the group's backlog has no bound");

    let change = LeaderChange { epoch: 7, leader: "b", previous: Some("a"), duration: Duration::from_millis(400) };
    stage.broker().leader_changed(&change);
    stage.broker().copies_changed(&CopiesChange { epoch: 8, copies: 2, node: "a" });
}

#[test]
fn oldest_events_go_while_the_service_is_gone() {
    // Only the super-user may listen on this port.
    let keys = "[[webhook]]\nurl = 'http://127.0.0.1:1/'\nevents = ['published']\n";
    let stage = Stage::start(keys, |builder| builder);
    let mut publisher = stage.connect("publisher");
    for _ in 0..10_400 {
        publisher.publish("orders", "1", QoS::AtMostOnce);
    }
    // No event was taken, and yet the publisher has its acknowledgement.
    assert_eq!(publisher.publish("orders", "1", QoS::AtLeastOnce), ReasonCode::NoMatchingSubscribers);
    // 10,000 events wait, and at most one batch is on its way.
    assert!(stage.broker().metrics().webhook_dropped >= 10_401 - 10_000 - 256);
}

#[test]
fn unusable_secret_keeps_the_broker_from_starting() {
    let config = "[[webhook]]\nurl = 'http://127.0.0.1:1/'\nevents = ['dropped']\nsecret_file = '/nowhere/secret'\n";
    let config = Config::parse(&format!("listen = ['127.0.0.1:0']\n{config}")).expect("legal keys");
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let error = runtime.block_on(Broker::builder().config(config).start()).expect_err("no secret").to_string();
    for word in ["webhook http://127.0.0.1:1:", "secret_file: /nowhere/secret"] {
        assert!(error.contains(word), "{error}");
    }
}
