//! SIGHUP and certificates.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use tenbin_codec::{Connect, ProtocolVersion, QoS};

use super::Guarded;
use crate::support::{PATIENCE, RawClient, text};

impl Guarded {
    /// Sends SIGHUP and waits for the next log line with `word`.
    pub(super) fn hang_up(&self, word: &str) {
        let before = self.broker.log().count(word, usize::MAX, Duration::ZERO);
        self.broker.signal("HUP");
        assert_eq!(self.broker.log().count(word, before + 1, PATIENCE), before + 1, "{word}");
    }
}

#[test]
fn reload_replaces_the_certificate_and_keeps_connections() {
    let guarded = Guarded::start("", "");
    let mut early = guarded.connect("early");
    early.subscribe("a", QoS::AtLeastOnce);
    let first = early.stream().certificate();
    let second = guarded.certificates.renew();
    assert_eq!(guarded.connect("before").stream().certificate(), first);
    guarded.hang_up("reloaded");
    let mut late = guarded.connect("late");
    assert_eq!(late.stream().certificate(), Some(second));
    late.publish("a", "still here", QoS::AtLeastOnce);
    assert_eq!(early.receive_message().payload, "still here");
}

#[test]
fn reload_with_a_wrong_file_keeps_everything() {
    let guarded = Guarded::start("", "");
    let mut early = guarded.connect("early");
    let first = early.stream().certificate();
    guarded.certificates.renew();
    guarded.certificates.write("broker.key", "no key");
    guarded.hang_up("reload failed");
    let line = guarded.broker.log().wait_for(&["reload failed"], PATIENCE);
    assert!(line.contains("listener secure: tls.key: ") && line.contains("broker.key"), "{line}");
    assert_eq!(guarded.connect("late").stream().certificate(), first);
    early.settle();
}

#[test]
fn reload_removes_and_adds_tls_at_the_same_address() {
    let guarded = Guarded::start("", "");
    let mut secure = guarded.connect("secure");
    let with_tls = fs::read_to_string(guarded.config.path()).expect("ours to read");
    let (listener, _) = with_tls.split_once("[listeners.tls]").expect("it has the table");
    // As a cut file does.
    fs::write(guarded.config.path(), listener).expect("ours to write");
    guarded.hang_up("listeners: secure: tls: is left out");
    // Another name says that it is meant.
    fs::write(guarded.config.path(), listener.replace("\"secure\"", "\"plain\"")).expect("ours to write");
    guarded.hang_up("reloaded");
    let plain = Connect::new(ProtocolVersion::V5, text("plain"));
    let mut plain = RawClient::connect(guarded.address(), plain).0;
    fs::write(guarded.config.path(), &with_tls).expect("ours to write");
    guarded.hang_up("reloaded");
    guarded.connect("again").settle();
    secure.settle();
    plain.settle();
}

#[test]
fn changed_files_are_read_again_without_a_reload() {
    let guarded = Guarded::start("", "watch_seconds = 1");
    let log = guarded.broker.log();
    let mut early = guarded.connect("early");
    let second = guarded.certificates.renew();
    let changed = "TLS files have changed and were read again";
    log.wait_for(&[changed, "secure"], PATIENCE);
    assert_eq!(guarded.connect("late").stream().certificate(), Some(second.clone()));

    guarded.certificates.write("broker.key", "no key");
    let line = log.wait_for(&["changed TLS files cannot be used"], PATIENCE);
    assert!(line.contains("listener secure: tls.key: ") && line.contains("broker.key"), "{line}");
    assert_eq!(guarded.connect("later").stream().certificate(), Some(second));

    // Both files, as links to others that are put in their places.
    let third = guarded.certificates.issue("third", &["localhost"]);
    for file in ["broker.key", "broker.pem"] {
        let (link, target) = (guarded.certificates.path("link"), file.replace("broker", "third"));
        symlink(target, &link).expect("ours to write");
        fs::rename(link, guarded.certificates.path(file)).expect("ours to write");
    }
    let deadline = Instant::now() + PATIENCE;
    while guarded.connect("latest").stream().certificate().as_ref() != Some(&third) {
        assert!(Instant::now() < deadline, "the links are not followed");
    }
    early.settle();
}
