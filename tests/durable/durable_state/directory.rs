use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use tenbin_codec::{Connect, QoS, ReasonCode, Will};
use tenbin_store::LockedDirectory;
use tenbin_store::state::{Change, Options, State, Table};

use super::{DataDirectory, expiring};
use crate::support::{ConfigFile, PATIENCE, RawClient, retained, topic, with_expiry};

#[test]
fn a_second_broker_on_one_directory_is_refused() {
    let stage = DataDirectory::new();
    let broker = stage.start();
    let said = stage.refusal();
    let path = stage.path().display().to_string();
    assert!(said.contains(&path) && said.ends_with("another process uses it"), "{said}");
    broker.assert_serves();
    drop(broker);
    stage.start().assert_serves();
}

#[test]
fn data_directory_can_be_reused_after_a_clean_shutdown() {
    let stage = DataDirectory::new();
    for _ in 0..2 {
        let mut broker = stage.start();
        broker.assert_serves();
        broker.signal("TERM");
        assert!(broker.wait_for_exit(PATIENCE).success());
    }
}

#[test]
fn unknown_state_format_is_refused_by_number() {
    let stage = DataDirectory::new();
    drop(stage.start());
    change(stage.path(), Table::Meta, b"format version", &9_u32.to_le_bytes());
    let said = stage.refusal();
    assert!(said.contains("format version 9 is unknown"), "{said}");
}

#[test]
fn unreadable_record_is_named_and_nothing_is_discarded() {
    for table in [Table::Sessions, Table::Retained, Table::Wills, Table::Subscriptions] {
        let stage = DataDirectory::new();
        drop(stage.start());
        change(stage.path(), table, b"some client\n", &[200; 7]);
        for _ in 0..2 {
            let said = stage.refusal();
            let wanted = format!("table {}, key \"some client\\n\": ", table.name());
            assert!(said.contains(&wanted), "{said}");
        }
    }
}

#[test]
fn damaged_journal_is_refused_and_torn_journal_is_logged() {
    let stage = DataDirectory::new();
    let broker = stage.start();
    let mut client = broker.v5("client");
    for number in 0..300 {
        client.publish_with(retained(&format!("topic/{number}"), &"x".repeat(100)));
    }
    drop((client, broker));
    let journal = stage.path().join("state/0.jnl");
    let whole = std::fs::read(&journal).expect("the broker is gone");
    let end = whole.iter().rposition(|&byte| byte != 0).expect("something was written") + 1;
    let mut damaged = whole.clone();
    damaged[16_384..20_480].fill(0);
    std::fs::write(&journal, &damaged).expect("ours to write");
    for _ in 0..2 {
        let said = stage.refusal();
        assert!(said.contains("0.jnl: confirmed changes are damaged") && said.contains("from byte 16"), "{said}");
        assert!(std::fs::read(&journal).expect("ours to read") == damaged);
    }
    std::fs::write(&journal, &whole[..end - 50]).expect("ours to write");
    let said = stage.refusal();
    assert!(said.contains("0.jnl: confirmed changes are damaged, or missing"), "{said}");
    // As after a power cut before the last change was recorded as confirmed.
    std::fs::remove_file(stage.path().join("state.confirmed")).expect("ours to remove");
    let broker = stage.start();
    broker.log().wait_for(&["left out of the state: a change that was torn", ".torn"], PATIENCE);
    let mut client = broker.v5("client");
    client.subscribe("topic/#", QoS::AtMostOnce);
    assert_eq!(client.drain().len(), 299);
}

#[test]
fn a_data_directory_that_cannot_be_made_is_named() {
    let stage = DataDirectory::new();
    std::fs::write(stage.path().join("state"), "").expect("ours to write");
    let said = stage.refusal();
    assert!(said.contains("state: "), "{said}");
}

#[test]
fn files_of_the_store_are_private_in_a_public_directory() {
    let stage = DataDirectory::new();
    std::fs::set_permissions(stage.path(), Permissions::from_mode(0o755)).expect("ours to change");
    let mut broker = stage.start();
    broker.assert_serves();
    broker.signal("TERM");
    assert!(broker.wait_for_exit(PATIENCE).success());
    let mut directories = vec![stage.path().to_owned()];
    let mut seen = 0;
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).expect("ours to read") {
            let path = entry.expect("ours to read").path();
            let mode = std::fs::metadata(&path).expect("ours to read").permissions().mode();
            assert_eq!(mode & 0o077, 0, "{}: {mode:o}", path.display());
            seen += 1;
            directories.extend(path.is_dir().then_some(path));
        }
    }
    assert!(seen > 15, "{seen}");
}

#[test]
fn store_health_is_published_to_sys() {
    let stage = DataDirectory::new();
    let broker = stage.start();
    let mut client = broker.v5("client");
    client.subscribe("$SYS/broker/store/state/health", QoS::AtMostOnce);
    assert_eq!(client.receive_publish().payload, "writing");
}

#[test]
fn ended_state_is_removed_from_disk() {
    let stage = DataDirectory::new();
    let config = ConfigFile::new("[sys]\ninterval_seconds = 1\n");
    let mut broker = stage.start_with(&["--config", config.path()]);
    let mut client = broker.connect(Connect { will: Some(will()), ..expiring("client", 600) });
    for filter in ["a", "b/#", "$share/g/c"] {
        client.subscribe(filter, QoS::AtLeastOnce);
    }
    client.unsubscribe(&["a"]);
    client.publish_with(retained("cleared", "1"));
    client.publish_with(retained("cleared", ""));
    client.publish_with(with_expiry(retained("expires", "1"), 1));
    client.cut();
    let connect = Connect { will: Some(will()), ..expiring("other", 1) };
    broker.connect(connect).subscribe("a", QoS::AtLeastOnce);
    let mut probe = broker.v5("probe");
    let until = Instant::now() + PATIENCE;
    while probe.publish("a", "", QoS::AtLeastOnce) != ReasonCode::NoMatchingSubscribers {
        assert!(Instant::now() < until, "a session expires");
        std::thread::sleep(Duration::from_millis(50));
    }
    broker.connect(Connect { clean_start: true, ..expiring("client", 0) }).disconnect();
    wait_for(&mut probe, "$SYS/broker/retained messages/count", "0");
    broker.signal("TERM");
    assert!(broker.wait_for_exit(PATIENCE).success());
    let locked = LockedDirectory::open(stage.path()).expect("the broker is gone");
    let state = State::open(&locked, Options::default(), |_| {}).expect("a state that a broker has left");
    for table in Table::ALL.into_iter().filter(|table| *table != Table::Meta) {
        let mut keys = Vec::new();
        state.scan(table, &mut |key, _| keys.push(key.escape_ascii().to_string())).expect("ours to read");
        assert_eq!(keys, [""; 0], "{}", table.name());
    }
}

fn will() -> Will {
    let (topic, payload) = (topic("will"), "x".into());
    Will { qos: QoS::AtLeastOnce, retain: false, topic, payload, delay_interval: Some(1), properties: None }
}

fn wait_for(client: &mut RawClient, topic: &str, payload: &str) {
    client.subscribe(topic, QoS::AtMostOnce);
    while client.receive_publish().payload != payload {}
}

fn change(directory: &Path, table: Table, key: &[u8], value: &[u8]) {
    let locked = LockedDirectory::open(directory).expect("the broker is gone");
    let state = State::open(&locked, Options::default(), |_| {}).expect("a state that a broker has left");
    let ticket = state.change([Change { table, key, value: Some(value) }]);
    assert!(state.wait(ticket, Duration::from_secs(60)));
}
