//! SIGHUP: granted rights apply at once, and revoked rights end at once.

use std::fs;
use std::num::NonZeroU16;

use tenbin_codec::{ProtocolVersion, QoS, ReasonCode};

use crate::auth::guarded::{Guarded, as_user, with_password};
use crate::support::{BrokerProcess, ConfigFile, PATIENCE, VERSIONS, lasting, share, subscription};

/// Everyone may do everything under "a" and "b".
const BOTH: &str = "[[acl]]\nallow = \"all\"\ntopic = \"a/#\"\n[[acl]]\nallow = \"all\"\ntopic = \"b/#\"\n\
                    [[acl]]\nuser = \"alice\"\nallow = \"all\"\ntopic = \"#\"\n";
/// Only under "b".
const ONLY_B: &str = "[[acl]]\nallow = \"all\"\ntopic = \"b/#\"\n\
                      [[acl]]\nuser = \"alice\"\nallow = \"all\"\ntopic = \"#\"\n";

#[test]
fn revoked_subscription_stops_until_it_is_allowed_again() {
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

/// CVE-2021-34434 and similar ones: a queued message is not delivered without the right. It waits, and a message that is
/// published without the right does not.
#[test]
fn queued_messages_wait_for_the_right_and_new_ones_are_dropped() {
    let guarded = Guarded::start(BOTH);
    let mut alice = guarded.client(ProtocolVersion::V5, "alice", "alice");
    for version in VERSIONS {
        let mut bob = guarded.connect(as_user(lasting(version, "bob"), "bob"));
        bob.subscribe("#", QoS::AtLeastOnce);
        bob.disconnect();
        for name in ["a/1", "b/1", "a/2", "b/2"] {
            alice.publish(name, name, QoS::AtLeastOnce);
        }
        guarded.reload(ONLY_B);
        alice.publish("a/x", "missed", QoS::AtLeastOnce);
        let mut bob = guarded.connect(as_user(lasting(version, "bob"), "bob"));
        assert_eq!(bob.drain_payloads(), ["b/1", "b/2"], "{version}");
        guarded.reload(ONLY_B);
        bob.expect_nothing_waiting();
        bob.disconnect();
        let mut bob = guarded.connect(as_user(lasting(version, "bob"), "bob"));
        bob.expect_nothing_waiting();
        guarded.reload(BOTH);
        alice.publish("a/3", "a/3", QoS::AtLeastOnce);
        assert_eq!(bob.drain_payloads(), ["a/1", "a/2", "a/3"], "{version}");
        bob.unsubscribe(&["#"]);
        bob.disconnect();
    }
}

/// Messages in flight are not sent again without the right either, and keep their Packet Identifiers.
#[test]
fn in_flight_messages_wait_for_the_right_to_be_resent() {
    let guarded = Guarded::start(BOTH);
    let mut alice = guarded.client(ProtocolVersion::V5, "alice", "alice");
    for version in VERSIONS {
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            guarded.reload(BOTH);
            let mut bob = guarded.connect(as_user(lasting(version, "bob"), "bob"));
            bob.subscribe("#", qos);
            let sent = ["a/1", "b/1", "a/2", "b/2"].map(|name| {
                alice.publish(name, name, qos);
                bob.receive_publish()
            });
            bob.cut();
            guarded.reload(ONLY_B);
            let two = NonZeroU16::new(2).filter(|_| version.is_v5());
            let mut connect = lasting(version, "bob");
            connect.properties.receive_maximum = two;
            let mut bob = guarded.connect(as_user(connect, "bob"));
            let again: Vec<_> = bob.drain().into_iter().map(|message| (message.packet_id, message.payload)).collect();
            assert_eq!(
                again,
                [1, 3].map(|place| (sent[place].packet_id, sent[place].payload.clone())),
                "{version} {qos}"
            );
            // The whole send quota is available again.
            for name in ["b/3", "b/4"] {
                alice.publish(name, name, qos);
            }
            let new = [bob.receive_publish(), bob.receive_publish()];
            assert_eq!(new.each_ref().map(|message| &message.payload[..]), [b"b/3", b"b/4"], "{version} {qos}");
            new.iter().for_each(|message| bob.acknowledge(message));
            bob.settle();
            guarded.reload(BOTH);
            let freed: Vec<_> = bob.drain().into_iter().map(|it| (it.packet_id, it.payload, it.dup)).collect();
            let wanted = [0, 2].map(|place| (sent[place].packet_id, sent[place].payload.clone(), true));
            assert_eq!(freed, wanted, "{version} {qos}");
            bob.unsubscribe(&["#"]);
            bob.disconnect();
            guarded.connect(as_user(lasting(version, "bob"), "bob")).expect_nothing_waiting();
        }
    }
}

#[test]
fn messages_to_be_resent_are_checked_on_reload() {
    let guarded = Guarded::start(BOTH);
    let mut alice = guarded.client(ProtocolVersion::V5, "alice", "alice");
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        guarded.reload(BOTH);
        let mut bob = guarded.connect(as_user(lasting(ProtocolVersion::V5, "bob"), "bob"));
        bob.subscribe("#", qos);
        let sent = ["b/1", "a/1", "b/2", "a/2", "b/3"].map(|name| {
            alice.publish(name, name, qos);
            bob.receive_publish()
        });
        bob.cut();
        let mut connect = lasting(ProtocolVersion::V5, "bob");
        connect.properties.receive_maximum = NonZeroU16::new(1);
        let mut bob = guarded.connect(as_user(connect, "bob"));
        let first = bob.receive_publish();
        assert_eq!((first.packet_id, first.dup), (sent[0].packet_id, true));
        guarded.reload(ONLY_B);
        bob.acknowledge(&first);
        assert_eq!(bob.drain_payloads(), ["b/2", "b/3"], "{qos}");
        alice.publish("b/4", "b/4", qos);
        assert_eq!(bob.drain_payloads(), ["b/4"], "the send quota is there again: {qos}");
        guarded.reload(BOTH);
        assert_eq!(bob.drain_payloads(), ["a/1", "a/2"], "{qos}");
        bob.unsubscribe(&["#"]);
        bob.disconnect();
    }
}

#[test]
fn reload_removes_and_restores_a_share_group_member() {
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
    // The stored session is suspended too: no new message waits for it.
    assert_eq!(publisher.publish("a/x", "x", QoS::AtLeastOnce), ReasonCode::NoMatchingSubscribers);
    let mut stored = guarded.connect(as_user(lasting(ProtocolVersion::V5, "stored"), "bob"));
    stored.expect_nothing_waiting();
    let reasons = stored.subscribe_to(None, vec![subscription(&group, QoS::AtLeastOnce)]);
    assert_eq!(reasons, [ReasonCode::NotAuthorized]);
}

#[test]
fn removed_user_is_disconnected_and_session_waits() {
    let guarded = Guarded::start("");
    for version in VERSIONS {
        let mut bob = guarded.connect(as_user(lasting(version, "bob"), "bob"));
        bob.subscribe("a", QoS::AtLeastOnce);
        let mut stored = guarded.connect(as_user(lasting(version, "stored"), "bob"));
        stored.subscribe("a", QoS::AtLeastOnce);
        stored.disconnect();
        let mut alice = guarded.client(version, "alice", "alice");
        alice.publish("a", "before", QoS::AtLeastOnce);
        bob.receive_message();
        guarded.passwords.delete("bob");
        guarded.hang_up("reloaded");
        bob.expect_end(ReasonCode::NotAuthorized);
        let reason = alice.publish("a", "meanwhile", QoS::AtLeastOnce);
        assert_eq!(reason, if version.is_v5() { ReasonCode::NoMatchingSubscribers } else { ReasonCode::Success });
        let (_, connack) = guarded.try_connect(as_user(lasting(version, "new"), "bob"));
        assert_eq!(connack.reason, ReasonCode::BadUserNameOrPassword);
        let (_, connack) = guarded.try_connect(as_user(lasting(version, "stored"), "alice"));
        assert_eq!(connack.reason, ReasonCode::NotAuthorized, "the session is nobody else's");

        guarded.passwords.set("bob", "builder");
        guarded.hang_up("reloaded");
        alice.publish("a", "after", QoS::AtLeastOnce);
        for (client, expected) in [("stored", &["before", "after"][..]), ("bob", &["after"])] {
            let (mut bob, connack) = guarded.try_connect(as_user(lasting(version, client), "bob"));
            assert!(connack.session_present, "{client}");
            assert_eq!(bob.drain_payloads(), expected, "{client}");
            bob.unsubscribe(&["a"]);
            bob.disconnect();
        }
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
fn anonymous_clients_are_disconnected_once_forbidden() {
    let guarded = Guarded::start("");
    let mut nobody = guarded.client(ProtocolVersion::V5, "", "nobody");
    let mut alice = guarded.client(ProtocolVersion::V5, "alice", "alice");
    guarded.reload_with("anonymous = false", "");
    nobody.expect_end(ReasonCode::NotAuthorized);
    alice.settle();
}

/// CVE-2018-12550, -12551, CVE-2017-7652: broken files grant no access.
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

#[test]
fn clients_of_a_closed_listener_stay_until_they_are_revoked() {
    let guarded = Guarded::start_with("", ONLY_B);
    let mut bob = guarded.client(ProtocolVersion::V5, "bob", "bob");
    let mut alice = guarded.client(ProtocolVersion::V5, "alice", "alice");
    let good = fs::read_to_string(guarded.config.path()).expect("ours");
    fs::write(guarded.config.path(), good.replace("\"main\"", "\"front\"")).expect("ours");
    guarded.hang_up("reloaded");
    assert_eq!(bob.publish("a/x", "x", QoS::AtLeastOnce), ReasonCode::NotAuthorized);
    assert_ne!(bob.publish("b/x", "x", QoS::AtLeastOnce), ReasonCode::NotAuthorized);
    guarded.passwords.delete("bob");
    guarded.hang_up("reloaded");
    bob.expect_end(ReasonCode::NotAuthorized);
    alice.settle();
}

#[test]
fn command_line_arguments_stay_in_force_after_a_reload() {
    let rule = |effect: &str| {
        format!(
            "[[acl]]\nlistener = \"127.0.0.1:0\"\n{effect} = \"all\"\ntopic = \"a\"\n[[acl]]\nallow = \"all\"\ntopic = \"b\"\n"
        )
    };
    // The address in the file is not used.
    let file = |effect: &str| format!("listen = [\"127.0.0.1:1\"]\n{}", rule(effect));
    let config = ConfigFile::new(&file("allow"));
    let broker = BrokerProcess::start(&["--listen", "127.0.0.1:0", "--config", config.path()]);
    let mut client = broker.v5("c");
    assert_ne!(client.publish("a", "x", QoS::AtLeastOnce), ReasonCode::NotAuthorized);
    fs::write(config.path(), file("deny")).expect("ours");
    broker.signal("HUP");
    broker.log().wait_for(&["reloaded"], PATIENCE);
    assert_eq!(client.publish("a", "x", QoS::AtLeastOnce), ReasonCode::NotAuthorized);
    assert_ne!(client.publish("b", "x", QoS::AtLeastOnce), ReasonCode::NotAuthorized);
}
