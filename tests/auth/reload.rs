//! SIGHUP: what is given holds from then on, and what is taken away stops at once.

use std::fs;

use tenbin_codec::{ProtocolVersion, QoS, ReasonCode};

use crate::guarded::{Guarded, as_user, with_password};
use crate::support::{PATIENCE, VERSIONS, lasting, share, subscription};

/// Everybody may do everything under "a" and "b".
const BOTH: &str = "[[acl]]\nallow = \"all\"\ntopic = \"a/#\"\n[[acl]]\nallow = \"all\"\ntopic = \"b/#\"\n\
                    [[acl]]\nuser = \"alice\"\nallow = \"all\"\ntopic = \"#\"\n";
/// Only under "b".
const ONLY_B: &str = "[[acl]]\nallow = \"all\"\ntopic = \"b/#\"\n\
                      [[acl]]\nuser = \"alice\"\nallow = \"all\"\ntopic = \"#\"\n";

#[test]
fn a_revoked_subscription_stops_delivering_at_once_and_goes_on_when_allowed_again() {
    let guarded = Guarded::start(BOTH);
    let mut alice = guarded.client(ProtocolVersion::V5, "alice", "alice");
    for version in VERSIONS {
        let mut bob = guarded.client(version, "bob", "bob");
        bob.subscribe("a/#", QoS::AtLeastOnce);
        bob.subscribe("#", QoS::AtLeastOnce);
        for (rules, expected) in [(BOTH, &["a", "b"][..]), (ONLY_B, &["b"]), (BOTH, &["a", "b"])] {
            guarded.reload(rules);
            for name in ["a", "b"] {
                alice.publish(&format!("{name}/x"), name, QoS::AtLeastOnce);
            }
            assert_eq!(bob.drain_payloads(), expected, "{version}");
        }
        bob.disconnect();
    }
}

/// CVE-2021-34434 and its like.
#[test]
fn a_stored_session_gets_neither_what_waits_nor_what_comes() {
    let guarded = Guarded::start(BOTH);
    let mut alice = guarded.client(ProtocolVersion::V5, "alice", "alice");
    for version in VERSIONS {
        let mut bob = guarded.connect(as_user(lasting(version, "bob"), "bob"));
        bob.subscribe("#", QoS::AtLeastOnce);
        bob.disconnect();
        alice.publish("a/x", "waits", QoS::AtLeastOnce);
        alice.publish("b/x", "waits too", QoS::AtLeastOnce);
        guarded.reload(ONLY_B);
        alice.publish("a/x", "comes", QoS::AtLeastOnce);
        guarded.reload(BOTH);
        let mut bob = guarded.connect(as_user(lasting(version, "bob"), "bob"));
        assert_eq!(bob.drain_payloads(), ["waits too"], "{version}");
        bob.unsubscribe(&["#"]);
    }
}

#[test]
fn a_member_of_a_share_group_loses_its_place_and_gets_it_back() {
    let guarded = Guarded::start(BOTH);
    let mut alice = guarded.client(ProtocolVersion::V5, "alice", "alice");
    let mut bob = guarded.client(ProtocolVersion::V5, "bob", "bob");
    let mut stored = guarded.connect(as_user(lasting(ProtocolVersion::V5, "stored"), "bob"));
    let group = share("g", "a/#");
    alice.subscribe(&group, QoS::AtLeastOnce);
    bob.subscribe(&group, QoS::AtLeastOnce);
    stored.subscribe(&group, QoS::AtLeastOnce);
    stored.disconnect();
    let mut publisher = guarded.client(ProtocolVersion::V5, "alice", "publisher");
    let mut share_of_bob = |rules| {
        guarded.reload(rules);
        bob.settle();
        for _ in 0..10 {
            publisher.publish("a/x", "x", QoS::AtLeastOnce);
        }
        let (to_alice, to_bob) = (alice.drain().len(), bob.drain().len());
        assert_eq!(to_alice + to_bob, 10, "none is lost: {to_alice} + {to_bob}");
        to_bob
    };
    assert!(share_of_bob(BOTH) > 0);
    assert_eq!(share_of_bob(ONLY_B), 0);
    assert!(share_of_bob(BOTH) > 0);
    assert_eq!(share_of_bob(ONLY_B), 0);
    alice.disconnect();
    // The stored member is none any more either: nothing waits for it.
    publisher.publish("a/x", "x", QoS::AtLeastOnce);
    let mut stored = guarded.connect(as_user(lasting(ProtocolVersion::V5, "stored"), "bob"));
    stored.expect_nothing_waiting();
    let reasons = stored.subscribe_to(None, vec![subscription(&group, QoS::AtLeastOnce)]);
    assert_eq!(reasons, [ReasonCode::NotAuthorized]);
}

#[test]
fn users_who_are_no_more_are_disconnected_and_their_sessions_end() {
    let guarded = Guarded::start("");
    for version in VERSIONS {
        let mut bob = guarded.client(version, "bob", "bob");
        let mut stored = guarded.connect(as_user(lasting(version, "stored"), "bob"));
        stored.subscribe("a", QoS::AtLeastOnce);
        stored.disconnect();
        let mut alice = guarded.client(version, "alice", "alice");
        guarded.passwords.delete("bob");
        guarded.hang_up("reloaded");
        bob.expect_end(ReasonCode::NotAuthorized);
        alice.settle();
        let (_, connack) = guarded.try_connect(as_user(lasting(version, "new"), "bob"));
        assert_eq!(connack.reason, ReasonCode::BadUserNameOrPassword);

        guarded.passwords.set("bob", "builder");
        guarded.hang_up("reloaded");
        let (_, connack) = guarded.try_connect(as_user(lasting(version, "stored"), "bob"));
        assert_eq!((connack.reason, connack.session_present), (ReasonCode::Success, false));
    }
}

#[test]
fn a_changed_password_ends_connections_and_keeps_sessions() {
    let guarded = Guarded::start("");
    let mut bob = guarded.connect(as_user(lasting(ProtocolVersion::V5, "bob"), "bob"));
    bob.subscribe("a", QoS::AtLeastOnce);
    guarded.passwords.set("bob", "another");
    guarded.hang_up("reloaded");
    bob.expect_end(ReasonCode::NotAuthorized);
    guarded.client(ProtocolVersion::V5, "alice", "alice").publish("a", "waits", QoS::AtLeastOnce);
    let connect = lasting(ProtocolVersion::V5, "bob");
    assert!(guarded.try_connect(as_user(connect.clone(), "bob")).1.reason.is_error());
    let (mut bob, connack) = guarded.try_connect(with_password(connect, "bob", "another"));
    assert!(connack.session_present);
    assert_eq!(bob.drain_payloads(), ["waits"]);
}

#[test]
fn anonymous_clients_go_when_they_are_not_allowed_any_more() {
    let guarded = Guarded::start("");
    let mut nobody = guarded.client(ProtocolVersion::V5, "", "nobody");
    let mut alice = guarded.client(ProtocolVersion::V5, "alice", "alice");
    guarded.reload_with("anonymous = false", "");
    nobody.expect_end(ReasonCode::NotAuthorized);
    alice.settle();
}

/// CVE-2018-12550, -12551, CVE-2017-7652: nothing that is broken opens anything.
#[test]
fn a_failed_reload_keeps_the_old_rules_and_is_logged() {
    let guarded = Guarded::start_with("", ONLY_B);
    let good = fs::read_to_string(guarded.config.path()).expect("ours");
    let mut bob = guarded.client(ProtocolVersion::V5, "bob", "bob");
    let mut check = |what: &str| {
        guarded.hang_up("reload failed");
        assert_eq!(bob.publish("a/x", "x", QoS::AtLeastOnce), ReasonCode::NotAuthorized, "{what}");
        assert_ne!(bob.publish("b/x", "x", QoS::AtLeastOnce), ReasonCode::NotAuthorized, "{what}");
        guarded.client(ProtocolVersion::V5, "alice", "alice").settle();
        let stranger = lasting(ProtocolVersion::V5, "stranger");
        assert_eq!(guarded.try_connect(stranger).1.reason, ReasonCode::NotAuthorized, "{what}");
    };
    for broken in [
        "",
        "[[acl",
        "[[acl]]\nallow = \"all\"\ntopic = \"a#\"\n",
        "[[acl]]\nlistener = \"x\"\nallow = \"all\"\ntopic = \"a\"\n",
    ] {
        let text = if broken.is_empty() { "listen = []".to_owned() } else { format!("{good}{broken}") };
        fs::write(guarded.config.path(), text).expect("ours");
        check(broken);
    }
    fs::remove_file(guarded.config.path()).expect("ours");
    check("no configuration");
    fs::write(guarded.config.path(), good).expect("ours");
    let passwords = fs::read_to_string(guarded.passwords.path()).expect("ours");
    guarded.passwords.write(&format!("{passwords}broken\n"));
    check("broken password file");
    guarded.broker.log().wait_for(&["reload failed", guarded.passwords.path(), "line 5"], PATIENCE);
    fs::remove_file(guarded.passwords.path()).expect("ours");
    check("no password file");
    guarded.passwords.write(&passwords);
    guarded.hang_up("reloaded");
}
