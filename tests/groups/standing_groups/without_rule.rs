//! Messages of groups that have lost their rule: where operators see them, and how these remove them.

use std::process::{Command, Output};

use serde_json::{Value, json};
use tenbin_codec::{ProtocolVersion, QoS};

use crate::standing_groups::{RULE, join, received};
use crate::support::{BrokerProcess, ConfigFile, DataDirectory, exchange, lasting, share};

fn tenbin(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenbin"));
    command.args(arguments).output().expect("the built command can be started")
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A directory with three messages of a standing group, and one of an ordinary group with an offline member.
fn with_messages(file: &ConfigFile) -> DataDirectory {
    let directory = DataDirectory::new();
    let broker = directory.start_with(&["--config", file.path()]);
    let mut member = broker.connect(lasting(ProtocolVersion::V5, "member"));
    member.subscribe(&share("others", "other"), QoS::AtLeastOnce);
    member.disconnect();
    let mut publisher = broker.v5("publisher");
    for topic in ["jobs/1", "jobs/2", "jobs/3", "other"] {
        publisher.publish(topic, topic, QoS::AtLeastOnce);
    }
    directory
}

#[test]
fn prune_lists_groups_without_a_rule_and_removes_them_on_demand() {
    let (file, none) = (ConfigFile::new(RULE), ConfigFile::new(""));
    let directory = with_messages(&file);
    let prune = |file: &ConfigFile, more: &[&str]| {
        let output =
            tenbin(&[&["store", "prune", directory.path_text(), "--without-rule", file.path()], more].concat());
        (output.status.code(), printed(&output), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(prune(&file, &["--remove"]).1, "", "it has a rule");
    let broker = directory.start();
    let (code, _, said) = prune(&none, &["--remove"]);
    assert!(code == Some(2) && said.contains("another process uses it"), "{said}");
    drop(broker);
    for _ in 0..2 {
        let (code, listed, said) = prune(&none, &[]);
        assert_eq!((code, &said[..]), (Some(0), "1 share groups without a rule: --remove removes them\n"));
        let line: Value = serde_json::from_str(&listed).expect("one line");
        let wanted = json!({"group": "workers", "filter": "jobs/#", "keep_seconds": 604_800, "waiting": 3});
        assert_eq!(line, wanted);
    }
    assert_eq!(prune(&none, &["--remove"]).2, "1 share groups removed\n");
    assert_eq!(prune(&none, &[]).1, "");
    let broker = directory.start_with(&["--config", file.path()]);
    join(&broker, "worker").expect_nothing_waiting();
    let mut member = broker.connect(lasting(ProtocolVersion::V5, "member"));
    assert_eq!(received(&mut member, 1), ["other"], "another group keeps its messages");
}

#[test]
fn check_tells_how_many_messages_wait_without_a_rule() {
    let (file, none) = (ConfigFile::new(RULE), ConfigFile::new(""));
    let directory = with_messages(&file);
    let check =
        |file: &ConfigFile| tenbin(&["broker", "--check", "--config", file.path(), "--data", directory.path_text()]);
    let checked = check(&none);
    let wanted = "warning: 3 messages wait with share group workers/jobs/#, which has no rule with keep_seconds\n";
    assert!(checked.status.success() && printed(&checked).contains(wanted), "{checked:?}");
    let checked = check(&file);
    assert!(checked.status.success() && !printed(&checked).contains("warning"), "{checked:?}");
    let _broker = directory.start();
    let checked = check(&none);
    assert!(checked.status.success() && printed(&checked).contains("another process uses it"), "{checked:?}");
}

#[test]
fn check_takes_a_data_directory_without_a_finished_start() {
    let directory = tempfile::tempdir().expect("ours to write");
    let data = directory.path().to_str().expect("text");
    let check = || tenbin(&["broker", "--check", "--data", data]);
    let is_valid = |checked: &Output| checked.status.success() && !printed(checked).contains("warning");
    let checked = check();
    assert!(is_valid(&checked), "empty: {checked:?}");
    // As a killed first start leaves it: without and with the lock.
    std::fs::create_dir_all(directory.path().join("state/keyspaces")).expect("ours to write");
    std::fs::write(directory.path().join("state/0.jnl"), [0; 100]).expect("ours to write");
    let checked = check();
    assert!(is_valid(&checked), "half-made, no lock: {checked:?}");
    std::fs::write(directory.path().join("lock"), "").expect("ours to write");
    let checked = check();
    assert!(is_valid(&checked), "half-made: {checked:?}");
    std::fs::write(directory.path().join("state/notes"), "").expect("ours to write");
    let checked = check();
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(!checked.status.success() && said.contains("state/notes\" is no file of this broker"), "{checked:?}");
}

#[test]
fn check_refuses_a_damaged_data_directory() {
    let directory = DataDirectory::new();
    drop(directory.start());
    let check = || tenbin(&["broker", "--check", "--data", directory.path_text()]);
    assert!(check().status.success());
    let spool = directory.path().join("spool");
    std::fs::write(spool.join("store-id"), "damaged").expect("ours to write");
    let damaged = check();
    assert!(!damaged.status.success(), "{damaged:?}");
    std::fs::remove_dir_all(spool).expect("ours to remove");
    let missing = check();
    let said = String::from_utf8_lossy(&missing.stderr);
    assert!(!missing.status.success() && said.contains("holds no messages"), "{missing:?}");
}

#[test]
fn readiness_and_metrics_tell_of_messages_without_a_rule() {
    let directory = with_messages(&ConfigFile::new(RULE));
    let environment = [("TENBIN_ADMIN__ADDRESS", "127.0.0.1:0".into())];
    let arguments = ["--listen", "127.0.0.1:0", "--data", directory.path_text()];
    let broker = BrokerProcess::start_in(&environment, &arguments);
    let line = broker.wait_for_start_line("admin HTTP at http://");
    let address = line.split("http://").nth(1).and_then(|rest| rest.trim().parse().ok()).expect("an address");
    let get = |path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        exchange(address, request.as_bytes()).expect("an answer")
    };
    let ready = get("/readyz?verbose");
    let wanted = "share_groups: 3 messages wait with 1 groups without a rule";
    assert!(ready.status == 200 && ready.body.contains(wanted), "{}", ready.body);
    let metrics = get("/metrics").body;
    assert!(metrics.contains("tenbin_share_messages_without_rule 3"), "{metrics}");
}
