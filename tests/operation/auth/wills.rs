//! Bad input "Will past the ACL".

use std::time::Duration;

use bytes::Bytes;
use tenbin_codec::{Connect, ConnectProperties, ProtocolVersion, QoS, ReasonCode, Will};

use crate::auth::guarded::{Guarded, USERS, as_user};
use crate::auth::stage::Stage;
use crate::support::{PATIENCE, RawClient, VERSIONS, text, topic};

const RULES: &str = "[[acl]]\nuser = \"alice\"\nallow = \"all\"\ntopic = \"#\"\n\
                     [[acl]]\nallow = \"publish\"\ntopic = \"wills/%u\"\n";

#[test]
fn a_will_for_a_forbidden_topic_is_refused_at_connect() {
    let guarded = Guarded::start(RULES);
    for version in VERSIONS {
        for (topic, allowed) in [("wills/bob", true), ("wills/alice", false), ("other", false)] {
            let (mut client, connack) = guarded.try_connect(with_will(version, topic, 0));
            let expected = if allowed { ReasonCode::Success } else { ReasonCode::NotAuthorized };
            assert_eq!(connack.reason, expected, "{version} {topic}");
            if allowed { client.settle() } else { client.expect_closed() }
        }
    }
    let (_, connack) = guarded.try_connect(as_user(with_will(ProtocolVersion::V5, "$SYS/x", 0), "alice"));
    assert_eq!(connack.reason, ReasonCode::TopicNameInvalid);
}

#[test]
fn will_is_authorized_again_when_it_is_published() {
    let guarded = Guarded::start(RULES);
    let mut heir = heir(&guarded);
    let client = guarded.connect(with_will(ProtocolVersion::V5, "wills/bob", 0));
    guarded.reload("[[acl]]\nuser = \"alice\"\nallow = \"all\"\ntopic = \"#\"\n");
    client.cut();
    heir.expect_nothing_waiting();
    guarded.reload(RULES);
    guarded.connect(with_will(ProtocolVersion::V5, "wills/bob", 0)).cut();
    assert_eq!(heir.receive_message().payload, "will");
}

#[test]
fn delayed_will_of_a_removed_user_is_not_published() {
    let guarded = Guarded::start(RULES);
    let mut heir = heir(&guarded);
    guarded.connect(with_will(ProtocolVersion::V5, "wills/bob", 1)).cut();
    guarded.passwords.delete("bob");
    guarded.hang_up("reloaded");
    heir.expect_nothing_for(Duration::from_millis(1500)); // longer than the delay
    // Removing the user publishes no Will either.
    guarded.passwords.set("bob", "builder");
    guarded.hang_up("reloaded");
    let mut client = guarded.connect(with_will(ProtocolVersion::V5, "wills/bob", 0));
    guarded.passwords.delete("bob");
    guarded.hang_up("reloaded");
    client.expect_end(ReasonCode::NotAuthorized);
    heir.expect_nothing_waiting();
}

#[test]
fn will_of_an_unknown_user_is_logged_when_it_is_dropped() {
    let stage = Stage::new();
    stage.passwords("pw", &USERS);
    stage.configure(&[("main", "pw", "")]);
    let broker = stage.start();
    let kept = broker.connect(as_user(with_will(ProtocolVersion::V5, "wills/bob", 0), "bob"));
    let allowed = Connect { client_id: text("allowed"), ..with_will(ProtocolVersion::V5, "wills/alice", 0) };
    let allowed = broker.connect(Connect { clean_start: true, ..as_user(allowed, "alice") });
    drop(broker); // killed: both Wills are due
    drop((kept, allowed));
    stage.passwords("pw", &USERS[..1]);
    let broker = stage.start_with(&["--log", "debug"]);
    let dropped =
        ["WARN", "Will dropped", "client=\"testator\"", "topic=\"wills/bob\"", "user or listener is not configured"];
    broker.log().wait_for(&dropped, PATIENCE);
    broker.log().wait_for(&["will published", "topic=\"wills/alice\""], PATIENCE);
}

fn heir(guarded: &Guarded) -> RawClient {
    let mut heir = guarded.client(ProtocolVersion::V5, "alice", "heir");
    heir.subscribe("wills/#", QoS::AtLeastOnce);
    heir
}

/// CONNECT of bob with a Will.
fn with_will(version: ProtocolVersion, name: &str, delay: u32) -> Connect {
    let is_v5 = version.is_v5();
    let will = Will {
        qos: QoS::AtLeastOnce,
        retain: false,
        topic: topic(name),
        payload: Bytes::from_static(b"will"),
        delay_interval: (is_v5 && delay > 0).then_some(delay),
        properties: None,
    };
    let session_expiry_interval = is_v5.then_some(60);
    let properties = ConnectProperties { session_expiry_interval, ..ConnectProperties::default() };
    as_user(Connect { will: Some(will), properties, ..Connect::new(version, text("testator")) }, "bob")
}
