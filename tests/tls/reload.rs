//! SIGHUP and certificates.

use std::fs;
use std::time::Duration;

use tenbin_codec::{Connect, ProtocolVersion, QoS};

use super::Guarded;
use super::support::{PATIENCE, RawClient, text};

impl Guarded {
    /// Sends SIGHUP and waits for the next log line with `word`.
    fn hang_up(&self, word: &str) {
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
    fs::write(guarded.config.path(), listener).expect("ours to write");
    guarded.hang_up("reloaded");
    let plain = Connect::new(ProtocolVersion::V5, text("plain"));
    let mut plain = RawClient::connect(guarded.address(), plain).0;
    fs::write(guarded.config.path(), &with_tls).expect("ours to write");
    guarded.hang_up("reloaded");
    guarded.connect("again").settle();
    secure.settle();
    plain.settle();
}
