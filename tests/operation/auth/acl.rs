//! Rules of the ACL.

use std::num::NonZeroU16;

use tenbin_codec::{Ack, Packet, PacketType, ProtocolVersion, Publish, QoS, ReasonCode};

use crate::auth::guarded::Guarded;
use crate::support::{QOS_ALL, VERSIONS, at_qos, message, retained, share, subscription, topic};

/// alice may do everything except under "secret", bob only under his user name and client id; all may read "public".
const RULES: &str = r##"
[[acl]]
deny = "all"
topic = "secret/#"
[[acl]]
user = "alice"
allow = "all"
topic = "#"
[[acl]]
allow = "all"
topic = "users/%u/#"
[[acl]]
allow = "all"
topic = "clients/%c"
[[acl]]
allow = "subscribe"
topic = "public/#"
"##;

#[test]
fn denied_publish_is_refused_at_5_0_and_reaches_no_subscriber() {
    let guarded = Guarded::start(RULES);
    let mut alice = guarded.client(ProtocolVersion::V5, "alice", "alice");
    alice.subscribe("public/#", QoS::ExactlyOnce);
    for version in VERSIONS {
        let mut bob = guarded.client(version, "bob", "bob");
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let reason = bob.publish("public/x", "no", qos);
            let expected = if version.is_v5() { ReasonCode::NotAuthorized } else { ReasonCode::Success };
            assert_eq!(reason, expected, "{version} {qos}");
        }
        bob.send(&Packet::Publish(message("public/x", "no")));
        bob.settle();
        assert!(!bob.publish("users/bob/x", "yes", QoS::AtLeastOnce).is_error());
        assert!(!bob.publish("clients/bob", "yes", QoS::ExactlyOnce).is_error());
    }
    alice.expect_nothing_waiting();
}

#[test]
fn subscriptions_are_checked_against_all_matching_topics() {
    let guarded = Guarded::start(RULES);
    for version in VERSIONS {
        let mut bob = guarded.client(version, "bob", "bob");
        let denied = if version.is_v5() { ReasonCode::NotAuthorized } else { ReasonCode::UnspecifiedError };
        for (filter, expected) in [
            ("secret/x", denied),
            ("secret/#", denied),
            ("+/alice/x/y", ReasonCode::GrantedQoS1), // may be public/alice/x/y
            ("other/#", denied),
            ("clients/+/x", denied),
            ("$SYS/#", denied),
            ("users/alice/#", denied),
            ("users/bob/#", ReasonCode::GrantedQoS1),
            ("#", ReasonCode::GrantedQoS1),
            ("public/+", ReasonCode::GrantedQoS1),
            (&share("g", "secret/x"), denied),
            (&share("g", "#"), denied), // members have no check per message
            (&share("g", "+/x"), denied),
            (&share("g", "public/#"), ReasonCode::GrantedQoS1),
        ] {
            let reasons = bob.subscribe_to(None, vec![subscription(filter, QoS::AtLeastOnce)]);
            assert_eq!(reasons, [expected], "{version} {filter}");
        }
    }
}

#[test]
fn a_wide_subscription_brings_only_what_is_allowed() {
    let guarded = Guarded::start(RULES);
    let mut alice = guarded.client(ProtocolVersion::V5, "alice", "alice");
    alice.publish_with(retained("users/alice/old", "kept"));
    alice.publish_with(retained("public/old", "kept"));
    let mut bob = guarded.client(ProtocolVersion::V5, "bob", "bob");
    bob.subscribe("#", QoS::ExactlyOnce);
    assert_eq!(topics(&bob.drain()), ["public/old"]);
    for qos in QOS_ALL {
        for name in ["users/alice/x", "public/x", "users/bob/x", "clients/bob", "clients/alice"] {
            alice.publish(name, "x", qos);
        }
        alice.settle(); // QoS 0 is not acknowledged
        assert_eq!(topics(&bob.drain()), ["public/x", "users/bob/x", "clients/bob"], "{qos}");
    }
}

/// Retained messages come in pages as large as the send quota. A first page of forbidden messages must not be the last.
#[test]
fn forbidden_retained_messages_do_not_hold_back_the_others() {
    let guarded = Guarded::start(&format!("{RULES}\n[sessions]\nin_flight_maximum = 2"));
    let mut alice = guarded.client(ProtocolVersion::V5, "alice", "alice");
    for number in 0..20 {
        alice.publish_with(retained(&format!("a/{number}"), "hers"));
        alice.publish_with(retained(&format!("public/{number}"), "all's"));
    }
    for qos in QOS_ALL {
        let mut bob = guarded.client(ProtocolVersion::V5, "bob", "bob");
        bob.subscribe("#", qos);
        for _ in 0..20 {
            assert_eq!(bob.receive_message().payload, "all's", "{qos}");
        }
        bob.expect_nothing_waiting();
    }
}

/// Bad input "Retained past the ACL".
#[test]
fn a_denied_retained_message_is_neither_stored_nor_cleared() {
    let guarded = Guarded::start(RULES);
    let mut alice = guarded.client(ProtocolVersion::V5, "alice", "alice");
    alice.publish_with(retained("public/state", "alice's"));
    for version in VERSIONS {
        let mut bob = guarded.client(version, "bob", "bob");
        bob.publish_with(retained("public/state", ""));
        bob.publish_with(retained("public/state", "bob's"));
        bob.publish_with(retained("public/new", "bob's"));
        bob.subscribe("public/#", QoS::AtLeastOnce);
        assert_eq!(bob.drain_payloads(), ["alice's"], "{version}");
    }
}

/// Bad input "Alias or empty topic past the ACL": every PUBLISH is checked by the topic behind its alias. A refused
/// PUBLISH still sets its alias, and later messages with that alias are refused too.
#[test]
fn an_alias_does_not_get_past_the_rules() {
    let guarded = Guarded::start(RULES);
    let mut bob = guarded.client(ProtocolVersion::V5, "bob", "bob");
    let mut aliased = |name: &str| {
        let topic = if name.is_empty() { tenbin_codec::TopicName::ALIASED } else { topic(name) };
        let id = bob.next_id();
        let publish = Publish {
            topic,
            topic_alias: NonZeroU16::new(1),
            packet_id: Some(id),
            ..at_qos("x", "x", QoS::AtLeastOnce)
        };
        bob.send(&Packet::Publish(publish));
        bob.wait_for_ack(PacketType::PubAck, id)
    };
    for (name, denied) in
        [("users/bob/x", false), ("", false), ("secret/x", true), ("", true), ("users/bob/x", false), ("", false)]
    {
        assert_eq!(aliased(name) == ReasonCode::NotAuthorized, denied, "{name:?}");
    }
}

/// Bad input "Wildcard characters in client id": CVE-2017-7650.
#[test]
fn client_ids_with_wildcards_widen_nothing() {
    let guarded = Guarded::start(RULES);
    let mut alice = guarded.client(ProtocolVersion::V5, "alice", "alice");
    for id in ["#", "+", "a/+", "a/b", "x#"] {
        let mut other = guarded.client(ProtocolVersion::V5, "", id);
        for filter in ["clients/#", "clients/+", "clients/alice", "users/#"] {
            let reasons = other.subscribe_to(None, vec![subscription(filter, QoS::AtMostOnce)]);
            assert_eq!(reasons, [ReasonCode::NotAuthorized], "{id} {filter}");
        }
        for name in ["clients/alice", "clients/a/b", "clients/a/x"] {
            assert_eq!(other.publish(name, "x", QoS::AtLeastOnce), ReasonCode::NotAuthorized, "{id} {name}");
        }
        alice.publish("clients/alice", "x", QoS::AtLeastOnce);
        other.expect_nothing_waiting();
    }
}

#[test]
fn default_is_allow_without_rules_and_deny_with_rules() {
    for (rules, expected) in [
        ("", ReasonCode::NoMatchingSubscribers),
        ("[[acl]]\nallow = \"publish\"\ntopic = \"b\"", ReasonCode::NotAuthorized),
    ] {
        let guarded = Guarded::start(rules);
        let mut client = guarded.client(ProtocolVersion::V5, "", "c");
        assert_eq!(client.publish("a", "x", QoS::AtLeastOnce), expected, "{rules}");
    }
    for (default, expected) in [("allow", ReasonCode::NoMatchingSubscribers), ("deny", ReasonCode::NotAuthorized)] {
        let file = crate::support::ConfigFile::new(&format!("acl_default = \"{default}\""));
        let broker = crate::support::BrokerProcess::start(&["--config", file.path()]);
        assert_eq!(broker.v5("c").publish("a", "x", QoS::AtLeastOnce), expected, "{default}");
    }
}

#[test]
fn a_refused_qos_2_message_leaves_nothing_open() {
    let guarded = Guarded::start(RULES);
    let mut bob = guarded.client(ProtocolVersion::V5, "bob", "bob");
    let id = bob.next_id();
    // The same Packet Identifier is free again at once. [MQTT-4.3.3-9]
    for _ in 0..2000 {
        bob.send(&Packet::Publish(Publish { packet_id: Some(id), ..at_qos("secret/x", "x", QoS::ExactlyOnce) }));
        assert_eq!(bob.wait_for_ack(PacketType::PubRec, id), ReasonCode::NotAuthorized);
    }
    bob.send(&Packet::PubRel(Ack::new(id, ReasonCode::Success)));
    // An unknown one is answered like any other, see docs/decisions/0004.
    assert_eq!(bob.wait_for_ack(PacketType::PubComp, id), ReasonCode::Success);
}

fn topics(messages: &[Publish]) -> Vec<&str> {
    messages.iter().map(|message| message.topic.text().as_str()).collect()
}
