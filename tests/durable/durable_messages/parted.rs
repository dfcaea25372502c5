//! Data directories with a missing or foreign part: the broker does not start, and nothing is lost.

use std::fs;
use std::path::Path;
use std::process::Command;

use tenbin_codec::{ProtocolVersion, QoS, ReasonCode};

use crate::support::{DataDirectory, lasting};

const MESSAGES: usize = 50;

#[test]
fn missing_state_is_refused_and_messages_are_kept() {
    assert_refused("state", &["/state is missing or empty", "/spool holds messages", "put the missing files back"]);
}

#[test]
fn missing_spool_is_refused_and_messages_are_kept() {
    assert_refused("spool", &["/spool holds no messages' files", "put the missing files back"]);
}

#[test]
fn missing_store_id_is_refused_and_messages_are_kept() {
    assert_refused("spool/store-id", &["/state is of store ", "/spool/store-id is missing"]);
}

#[test]
fn missing_journal_is_refused_and_messages_are_kept() {
    assert_refused("state/0.jnl", &["/state has no journal"]);
}

#[test]
fn spool_of_another_store_is_refused_with_both_ids() {
    let (one, other) = (filled(), filled());
    let [id, other_id] = [&one, &other].map(|stage| {
        let text = fs::read_to_string(stage.path().join("spool/store-id")).expect("a store has an id");
        text.split(' ').next().expect("it is the first word").to_owned()
    });
    let kept = one.path().join("kept");
    fs::rename(one.path().join("spool"), &kept).expect("ours to move");
    copy(&other.path().join("spool"), &one.path().join("spool"));
    for said in [one.refusal(), assert_not_fine(&one)] {
        assert!(said.contains(&id) && said.contains(&other_id), "{said}");
    }
    fs::remove_dir_all(one.path().join("spool")).expect("ours to remove");
    fs::rename(&kept, one.path().join("spool")).expect("ours to move");
    assert_all_there(&one);
}

#[test]
fn damaged_store_id_is_refused_and_found_by_check() {
    let stage = filled();
    let path = stage.path().join("spool/store-id");
    let whole = fs::read(&path).expect("a store has an id");
    let mut flipped = whole.clone();
    flipped[3] ^= 1;
    for damaged in [&[][..], &whole[..whole.len() - 1], &flipped, b"\xFF\n"] {
        fs::write(&path, damaged).expect("ours to write");
        let said = stage.refusal();
        assert!(said.contains("/spool/store-id: damaged"), "{said}");
        let found = assert_not_fine(&stage);
        assert!(found.contains("/spool/store-id: damaged") && found.contains("\nmessages: 50 wait"), "{found}");
    }
    fs::write(&path, whole).expect("ours to write");
    assert_all_there(&stage);
}

#[test]
fn removed_directory_content_begins_anew() {
    let stage = filled();
    for part in ["state", "spool"] {
        fs::remove_dir_all(stage.path().join(part)).expect("ours to remove");
    }
    let broker = stage.start();
    broker.assert_serves();
}

/// A directory with messages for an offline session, left by a killed broker.
fn filled() -> DataDirectory {
    let stage = DataDirectory::new();
    let broker = stage.start();
    let mut receiver = broker.connect(lasting(ProtocolVersion::V5, "receiver"));
    receiver.subscribe("kept", QoS::AtLeastOnce);
    receiver.cut();
    let mut publisher = broker.v5("publisher");
    for number in 0..MESSAGES {
        assert_eq!(publisher.publish("kept", &number.to_string(), QoS::AtLeastOnce), ReasonCode::Success);
    }
    stage
}

fn assert_refused(part: &str, words: &[&str]) {
    let stage = filled();
    let (path, kept) = (stage.path().join(part), stage.path().join("kept"));
    fs::rename(&path, &kept).expect("ours to move");
    for _ in 0..2 {
        let said = stage.refusal();
        assert!(words.iter().all(|word| said.contains(word)) && said.lines().count() == 1, "{said}");
        assert!(!path.exists(), "{} was made", path.display());
        assert_not_fine(&stage);
    }
    fs::rename(&kept, &path).expect("ours to move");
    assert_all_there(&stage);
}

/// Asserts that `tenbin store check` finds a problem, and returns its output.
fn assert_not_fine(stage: &DataDirectory) -> String {
    let check = Command::new(env!("CARGO_BIN_EXE_tenbin")).args(["store", "check", stage.path_text()]).output();
    let check = check.expect("the built command can be started");
    let found = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(!check.status.success() && found.contains("problem: ") && found.contains("\nnot fine: "), "{found}");
    found
}

fn assert_all_there(stage: &DataDirectory) {
    let broker = stage.start();
    let mut receiver = broker.connect(lasting(ProtocolVersion::V5, "receiver"));
    for number in 0..MESSAGES {
        assert_eq!(receiver.receive_message().payload, number.to_string());
    }
    receiver.expect_nothing_waiting();
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("ours to make");
    for entry in fs::read_dir(from).expect("ours to read") {
        let entry = entry.expect("ours to read");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("ours to copy");
    }
}
