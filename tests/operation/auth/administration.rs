//! `tenbin sessions` and `tenbin store prune`.

use std::process::Command;

use serde_json::{Value, json};
use tenbin_broker::auth::PasswordFile;
use tenbin_codec::{ProtocolVersion, QoS, ReasonCode, Will};

use crate::auth::guarded::{USERS, as_user};
use crate::auth::stage::Stage;
use crate::support::{RawClient, lasting, topic};

/// Sessions of alice (with fifty messages), of bob, and of an anonymous client (with a pending Will).
fn three_sessions() -> Stage {
    let stage = Stage::new();
    stage.passwords("pw", &USERS);
    stage.configure(&[("main", "pw", "realm = \"here\"\nanonymous = true")]);
    let broker = stage.start();
    stage.fifty_wait(&broker);
    let will = Will {
        qos: QoS::AtLeastOnce,
        retain: true,
        topic: topic("will"),
        payload: "gone".into(),
        delay_interval: Some(300),
        properties: None,
    };
    let mut connect = lasting(ProtocolVersion::V5, "nobody");
    connect.will = Some(will);
    broker.connect(connect).cut();
    broker.connect(as_user(lasting(ProtocolVersion::V5, "bob-1"), "bob")).subscribe("b", QoS::AtLeastOnce);
    stage
}

struct Ran {
    code: Option<i32>,
    /// Client Identifiers.
    sessions: Vec<String>,
    lines: Vec<Value>,
    said: String,
}

/// Runs a command on the data directory.
fn run(stage: &Stage, command: &[&str], arguments: &[&str]) -> Ran {
    let directory = stage.data.path().to_str().expect("a readable name");
    let all = [command, &[directory], arguments].concat();
    let output = Command::new(env!("CARGO_BIN_EXE_tenbin")).args(all).output().expect("the built command");
    let printed = String::from_utf8(output.stdout).expect("text");
    let lines: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let mut sessions: Vec<_> = lines.iter().map(|line| line["client_id"].as_str().expect("text").to_owned()).collect();
    sessions.sort_unstable();
    Ran { code: output.status.code(), sessions, lines, said: String::from_utf8(output.stderr).expect("text") }
}

const LIST: &[&str] = &["sessions", "list"];
const REMOVE: &[&str] = &["sessions", "remove"];
const PRUNE: &[&str] = &["store", "prune"];

#[test]
fn sessions_are_listed_with_owner_and_messages() {
    let stage = three_sessions();
    let listed = run(&stage, LIST, &[]);
    assert_eq!((listed.code, &listed.said[..]), (Some(0), ""));
    assert_eq!(listed.sessions, ["alice-1", "bob-1", "nobody", "publisher"]);
    let alice = listed.lines.iter().find(|line| line["client_id"] == "alice-1").expect("her session");
    for (key, value) in [
        ("user", json!("alice")),
        ("realm", json!("here")),
        ("listener", json!("main")),
        ("subscriptions", json!(1)),
        ("waiting", json!(50)),
    ] {
        assert_eq!(alice[key], value, "{key}");
    }
}

#[test]
fn removed_session_is_gone_and_others_stay() {
    let stage = three_sessions();
    let missing = run(&stage, REMOVE, &["alice-1", "who"]);
    assert_eq!((missing.code, missing.sessions.len()), (Some(2), 0));
    assert!(missing.said.contains("\"who\""), "{}", missing.said);
    let removed = run(&stage, REMOVE, &["alice-1", "nobody"]);
    assert_eq!((removed.code, &removed.sessions[..]), (Some(0), &["alice-1".to_owned(), "nobody".to_owned()][..]));
    assert_eq!(run(&stage, LIST, &[]).sessions, ["bob-1", "publisher"]);
    let checked = run_text(&stage, &["store", "check"]);
    assert!(checked.contains("0 Wills") && checked.contains("messages: 0 wait"), "{checked}");
    let broker = stage.start();
    let connect = |client: &str, user: &str| {
        RawClient::connect(broker.address(), as_user(lasting(ProtocolVersion::V5, client), user))
    };
    let (mut alice, connack) = connect("alice-1", "alice");
    assert!(!connack.session_present);
    alice.subscribe("will", QoS::AtLeastOnce);
    alice.expect_nothing_waiting(); // a Will is not published
    assert!(connect("bob-1", "bob").1.session_present);
    // A directory in use by a broker cannot be changed.
    let in_use = run(&stage, REMOVE, &["bob-1"]);
    assert_eq!((in_use.code, in_use.sessions.len()), (Some(2), 0));
}

#[test]
fn prune_removes_what_all_conditions_select() {
    let stage = three_sessions();
    assert_eq!(run(&stage, PRUNE, &[]).code, Some(2), "without a condition nothing is removed");
    for (conditions, expected) in [
        (&["--user", "alice"][..], &["alice-1"][..]),
        (&["--anonymous"], &["nobody"]),
        (&["--realm", "here"], &["alice-1", "bob-1", "publisher"]),
        (&["--listener", "main"], &["alice-1", "bob-1", "nobody", "publisher"]),
        (&["--listener", "main", "--user", "bob"], &["bob-1", "publisher"]),
        (&["--realm", "there", "--user", "bob"], &[]),
    ] {
        let shown = run(&stage, PRUNE, &[&["--dry-run"], conditions].concat());
        assert_eq!(shown.sessions, expected, "{conditions:?}");
        assert!(shown.said.contains("selected"), "{}", shown.said);
    }
    assert_eq!(run(&stage, LIST, &[]).sessions.len(), 4, "a dry run removes nothing");
    let removed = run(&stage, PRUNE, &["--user", "bob"]);
    assert_eq!(removed.sessions, ["bob-1", "publisher"]);
    assert!(removed.said.contains("2 sessions removed"), "{}", removed.said);
    assert_eq!(run(&stage, LIST, &[]).sessions, ["alice-1", "nobody"]);
}

#[test]
fn prune_finds_sessions_that_the_configuration_does_not_know() {
    let stage = three_sessions();
    let orphaned = ["--orphaned", stage.config.path()];
    assert_eq!(run(&stage, PRUNE, &[&["--dry-run"], &orphaned[..]].concat()).sessions, [""; 0]);
    assert!(PasswordFile::delete(stage.path("pw").as_ref(), "alice").expect("ours to write"));
    stage.configure(&[("main", "pw", "realm = \"here\"")]);
    assert_eq!(run(&stage, PRUNE, &orphaned).sessions, ["alice-1", "nobody"]);
    let broker = stage.start();
    let (_, connack) = RawClient::connect(broker.address(), as_user(lasting(ProtocolVersion::V5, "bob-1"), "bob"));
    assert_eq!((connack.reason, connack.session_present), (ReasonCode::Success, true));
}

fn run_text(stage: &Stage, command: &[&str]) -> String {
    let mut tenbin = Command::new(env!("CARGO_BIN_EXE_tenbin"));
    let output = tenbin.args(command).arg(stage.data.path()).output().expect("the built command");
    String::from_utf8(output.stdout).expect("text")
}
