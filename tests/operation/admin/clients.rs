//! Clients as operators see and end them.

use serde_json::{Value, json};
use tenbin_codec::{Connect, ProtocolVersion, QoS};

use crate::admin::stage::{self, Stage, disconnect_of, for_a_minute, wait_until};
use crate::support::{BrokerProcess, DataDirectory, PATIENCE, RawClient, share, text};

fn names(page: &Value) -> Vec<&str> {
    page["items"].as_array().expect("a list").iter().filter_map(|item| item["client"].as_str()).collect()
}

#[test]
fn clients_are_listed_page_by_page() {
    let stage = Stage::start(&[]);
    let clients: Vec<_> = (0..25).map(|number| stage.broker.v311(&format!("c{number:02}"))).collect();
    let (mut found, mut path) = (Vec::new(), "/api/v1/clients?limit=10".to_owned());
    let mut pages = 0;
    loop {
        let page = stage.get_json(&path);
        assert!(names(&page).len() <= 10);
        found.extend(names(&page).into_iter().map(str::to_owned));
        pages += 1;
        let Some(cursor) = page["cursor"].as_str() else { break };
        path = format!("/api/v1/clients?limit=10&cursor={cursor}");
    }
    found.sort();
    assert_eq!(found, (0..25).map(|number| format!("c{number:02}")).collect::<Vec<_>>());
    assert_eq!(pages, 3);
    drop(clients);
    let connected = || stage.get_json("/api/v1/clients?state=connected")["items"].as_array().map_or(0, Vec::len);
    wait_until(|| connected() == 0);
}

#[test]
fn client_is_shown_with_its_connection_and_subscriptions() {
    let stage = Stage::start(&[]);
    let mut client = stage.broker.connect(for_a_minute("a b/ü"));
    for filter in ["b/#", "a/+", "c"] {
        client.subscribe(filter, QoS::AtLeastOnce);
    }
    let path = "/api/v1/clients/a%20b%2F%C3%BC";
    let shown = stage.get_json(path);
    assert_eq!(
        (&shown["client"], &shown["state"], &shown["subscriptions"]),
        (&json!("a b/ü"), &json!("ready"), &json!(3))
    );
    assert_eq!((&shown["connection"]["version"], &shown["connection"]["transport"]), (&json!("5.0"), &json!("tcp")));
    assert!(shown["connection"]["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")), "{shown}");
    let page = stage.get_json(&format!("{path}/subscriptions?limit=2"));
    let filters = |page: &Value| -> Vec<String> {
        let items = page["items"].as_array().expect("a list");
        items.iter().filter_map(|item| item["filter"].as_str().map(str::to_owned)).collect()
    };
    assert_eq!((filters(&page), &page["cursor"]), (vec!["a/+".to_owned(), "b/#".to_owned()], &json!("2")));
    assert_eq!(filters(&stage.get_json(&format!("{path}/subscriptions?cursor=2"))), ["c"]);
    drop(client);
    wait_until(|| stage.get_json(path)["state"] == "offline");
    let away = stage.get_json(path);
    assert_eq!((&away["connection"], &away["subscriptions"]), (&Value::Null, &json!(3)));
    assert!(away["expires_in_seconds"].as_u64().is_some_and(|seconds| seconds <= 60), "{away}");
}

#[test]
fn kicked_client_gets_the_reason_and_keeps_its_session() {
    let stage = Stage::start(&[]);
    let mut client = stage.broker.connect(for_a_minute("c"));
    let kicked = stage.ask("DELETE", "/api/v1/clients/c");
    assert_eq!(stage::json(&kicked), json!({ "connected": true, "session_ended": false }));
    assert_eq!(disconnect_of(&mut client).reason.byte(), 0x98);
    assert_eq!(stage.get_json("/api/v1/clients/c")["state"], "offline");
    let ended = stage.ask("DELETE", "/api/v1/clients/c?session=true");
    assert_eq!(stage::json(&ended), json!({ "connected": false, "session_ended": true }));
    assert_eq!(stage.get("/api/v1/clients/c").status, 404);
    let mut client = stage.broker.connect(for_a_minute("c"));
    let ended = stage.ask("DELETE", "/api/v1/clients/c?session=true&reason=151");
    assert_eq!(stage::json(&ended), json!({ "connected": true, "session_ended": true }));
    assert_eq!(disconnect_of(&mut client).reason.byte(), 151);
}

#[test]
fn ban_ends_connections_until_it_is_removed() {
    let stage = Stage::start(&[]);
    let mut client = stage.broker.v5("worm");
    let made = stage::json(&stage.tell("POST", "/api/v1/bans", &json!({ "client": "worm" })));
    assert_eq!(disconnect_of(&mut client).reason.byte(), 0x87);
    let list = stage.get_json("/api/v1/bans");
    assert_eq!(list["items"][0], made);
    assert_eq!(stage.ask("DELETE", &format!("/api/v1/bans/{}", made["number"])).status, 204);
    let _again = stage.broker.v5("worm");
    assert_eq!(stage.get_json("/api/v1/clients/worm")["state"], "ready");
}

#[test]
fn bans_survive_a_restart_until_they_end() {
    let data = DataDirectory::new();
    let start = || Stage::start(&["--data", data.path_text()]);
    let stop = |mut stage: Stage| {
        stage.broker.signal("TERM");
        stage.broker.wait_for_exit(PATIENCE);
    };
    let is_banned = |stage: &Stage| {
        let connect = Connect::new(ProtocolVersion::V5, text("worm"));
        RawClient::try_connect(stage.broker.address(), connect).1.reason.byte() == 0x8A
    };
    let first = start();
    assert!(!is_banned(&first));
    let made = stage::json(&first.tell("POST", "/api/v1/bans", &json!({ "client": "worm" })));
    // This one is over at once.
    first.tell("POST", "/api/v1/bans", &json!({ "client": "worm", "network": "127.0.0.0/8", "until": 1 }));
    assert!(is_banned(&first));
    stop(first);
    let second = start();
    assert!(is_banned(&second));
    assert_eq!(second.get_json("/api/v1/bans")["items"], json!([made]));
    assert_eq!(second.ask("DELETE", &format!("/api/v1/bans/{}", made["number"])).status, 204);
    assert!(!is_banned(&second));
    stop(second);
    let third = start();
    assert!(!is_banned(&third));
    let next = stage::json(&third.tell("POST", "/api/v1/bans", &json!({ "user": "eve" })));
    assert_eq!(next["number"], 3, "no number comes twice");
    stop(third);
    std::fs::write(data.path().join("bans.json"), "{").expect("written");
    let refused = BrokerProcess::fail_to_start(&["--listen", "127.0.0.1:0", "--data", data.path_text()]);
    assert!(refused.1.iter().any(|line| line.contains("bans.json")), "{refused:?}");
}

#[test]
fn ban_that_cannot_be_stored_is_in_effect_and_told() {
    let data = DataDirectory::new();
    let stage = Stage::start(&["--data", data.path_text()]);
    // A directory in the way of the new file.
    let obstacle = data.path().join("bans.new");
    std::fs::create_dir(&obstacle).expect("a directory");
    let mut client = stage.broker.v5("worm");
    let make = || stage.tell("POST", "/api/v1/bans", &json!({ "client": "worm" }));
    let told = make();
    assert!(told.status == 503 && told.body.contains("not stored"), "{}", told.body);
    assert_eq!(disconnect_of(&mut client).reason.byte(), 0x87);
    let number = stage.get_json("/api/v1/bans")["items"][0]["number"].clone();
    assert_eq!(stage.ask("DELETE", &format!("/api/v1/bans/{number}")).status, 503);
    let _again = stage.broker.v5("worm");
    std::fs::remove_dir(&obstacle).expect("removed");
    assert_eq!(make().status, 201);
    for key in ["client", "user"] {
        let told = stage.tell("POST", "/api/v1/bans", &json!({ key: "x".repeat(65_536) }));
        assert!(told.status == 400 && told.body.contains("65535 bytes"), "{}", told.body);
    }
}

#[test]
fn receivers_of_a_topic_are_listed_by_filter() {
    let stage = Stage::start(&[]);
    let mut client = stage.broker.v5("c");
    let mut member = stage.broker.v5("m");
    for filter in ["a/b", "a/+", "a/b/#", "#", "x"] {
        client.subscribe(filter, QoS::ExactlyOnce);
    }
    member.subscribe(&share("g", "+/b"), QoS::AtLeastOnce);
    let filters = |topic: &str| -> Vec<String> {
        let page = stage.get_json(&format!("/api/v1/subscriptions?topic={topic}"));
        let items = page["items"].as_array().expect("a list").clone();
        let mut filters: Vec<_> = items.iter().filter_map(|item| item["filter"].as_str().map(str::to_owned)).collect();
        filters.sort();
        filters
    };
    assert_eq!(filters("a/b"), ["#", "$share/g/+/b", "a/+", "a/b", "a/b/#"]);
    assert_eq!(filters("a"), ["#"]);
    assert_eq!(filters("$SYS/b"), ["$share/g/+/b"; 0]);
    let first = stage.get_json("/api/v1/subscriptions?topic=a/b&limit=4");
    let rest =
        stage.get_json(&format!("/api/v1/subscriptions?topic=a/b&cursor={}", first["cursor"].as_str().expect("more")));
    assert_eq!((first["items"].as_array().map(Vec::len), rest["items"].as_array().map(Vec::len)), (Some(4), Some(1)));
}

#[test]
fn retained_messages_are_listed_and_removed() {
    let stage = Stage::start(&[]);
    for number in 0..5 {
        let message = json!({ "topic": format!("k/{number}"), "payload": "x", "retain": true, "expiry_seconds": 60 });
        assert_eq!(stage::json(&stage.tell("POST", "/api/v1/publish", &message))["reason_code"], 0);
    }
    let first = stage.get_json("/api/v1/retained?filter=k/%23&limit=3");
    let cursor = first["cursor"].as_str().expect("more");
    let rest = stage.get_json(&format!("/api/v1/retained?filter=k/%23&limit=3&cursor={cursor}"));
    let topics = |page: &Value| -> Vec<String> {
        let items = page["items"].as_array().expect("a list");
        items.iter().filter_map(|item| item["topic"].as_str().map(str::to_owned)).collect()
    };
    assert_eq!(
        (topics(&first), topics(&rest)),
        (vec!["k/0".into(), "k/1".into(), "k/2".into()], vec!["k/3".into(), "k/4".into()])
    );
    let removed = stage.ask("DELETE", "/api/v1/retained?filter=k/1");
    assert_eq!(stage::json(&removed), json!({ "removed": 1, "more": false }));
    let removed = stage.ask("DELETE", "/api/v1/retained?filter=k/%2B");
    assert_eq!(stage::json(&removed), json!({ "removed": 4, "more": false }));
    assert_eq!(stage.get_json("/api/v1/status")["retained_messages"], 0);
}

#[test]
fn published_message_reaches_subscribers_with_its_properties() {
    let stage = Stage::start(&[]);
    let mut client = stage.broker.v5("c");
    client.subscribe("a", QoS::ExactlyOnce);
    let message = json!({ "topic": "a", "payload_base64": "AAH/", "qos": 2, "content_type": "bytes", "user_properties": [["k", "v"]] });
    let published = stage::json(&stage.tell("POST", "/api/v1/publish", &message));
    assert_eq!(published, json!({ "reason_code": 0, "reason": "Success", "receivers": 1 }));
    let got = client.receive_message();
    assert_eq!((&got.payload[..], got.qos), (&[0, 1, 255][..], QoS::ExactlyOnce));
    let properties = got.properties.expect("properties");
    assert_eq!(properties.content_type, Some(text("bytes")));
}

#[test]
fn drained_member_gets_no_messages_until_it_is_resumed() {
    let stage = Stage::start(&["--policy", "round_robin"]);
    let mut members = ["m1", "m2"].map(|name| stage.broker.v5(name));
    members.iter_mut().for_each(|member| member.subscribe(&share("g", "jobs"), QoS::AtLeastOnce));
    let mut publisher = stage.broker.v5("p");
    let path = "/api/v1/groups/g/jobs/members/m1/drain";
    assert_eq!(stage.ask("POST", path).status, 200);
    let shown = stage.get_json("/api/v1/groups/g/jobs");
    let state = |name: &str| {
        let members = shown["members"].as_array().expect("members");
        members.iter().find(|member| member["client"] == name).map(|member| member["state"].clone())
    };
    assert_eq!((state("m1"), state("m2")), (Some(json!("draining")), Some(json!("ready"))));
    assert_eq!(shown["scale"]["members"], 1);
    for _ in 0..4 {
        publisher.publish("jobs", "x", QoS::AtLeastOnce);
        members[1].receive_message();
    }
    assert_eq!(stage.ask("DELETE", path).status, 200);
    assert_eq!(stage.get_json("/api/v1/groups/g/jobs")["scale"]["members"], 2);
    publisher.publish("jobs", "y", QoS::AtLeastOnce);
    assert_eq!(members[0].receive_message().payload, "y", "its turn");
}
