//! A session is its user's.

use tenbin_codec::{Connect, ProtocolVersion, QoS, ReasonCode};

use crate::embedded::Embedded;
use crate::guarded::{Guarded, as_user};
use crate::support::{RawClient, VERSIONS, lasting, text};

/// Bad input "Client id as identity".
#[test]
fn another_user_does_not_take_a_session_over() {
    let guarded = Guarded::start("");
    for version in VERSIONS {
        let mut alice = guarded.client(version, "alice", "shared-name");
        for other in ["bob", ""] {
            for clean_start in [true, false] {
                let connect = Connect { clean_start, ..lasting(version, "shared-name") };
                let (mut client, connack) = guarded.try_connect(as_user(connect, other));
                assert_eq!(connack.reason, ReasonCode::NotAuthorized, "{other:?}");
                client.expect_closed();
            }
        }
        alice.settle(); // has not noticed
        // Her own second connection does take it over.
        let mut second = guarded.client(version, "alice", "shared-name");
        alice.expect_end(ReasonCode::SessionTakenOver);
        second.settle();
        second.disconnect();
    }
}

/// Bad input "Session of another user": CVE-2026-6564 and its like.
#[test]
fn another_user_does_not_get_what_waits_in_a_session() {
    let guarded = Guarded::start("");
    for version in VERSIONS {
        let name = format!("sleeper-{version}");
        let mut alice = guarded.connect(as_user(lasting(version, &name), "alice"));
        alice.subscribe("a", QoS::AtLeastOnce);
        alice.disconnect();
        guarded.client(version, "", "publisher").publish("a", "for alice", QoS::AtLeastOnce);
        for clean_start in [true, false] {
            let connect = Connect { clean_start, ..lasting(version, &name) };
            let (_, connack) = guarded.try_connect(as_user(connect, "bob"));
            assert_eq!(connack.reason, ReasonCode::NotAuthorized);
            assert!(!connack.session_present);
        }
        let (mut alice, connack) = guarded.try_connect(as_user(lasting(version, &name), "alice"));
        assert!(connack.session_present);
        assert_eq!(alice.drain_payloads(), ["for alice"]);
    }
}

#[test]
fn a_name_is_free_again_when_its_session_has_ended() {
    let guarded = Guarded::start("");
    for (user, version) in ["alice", "bob", "", "alice"].into_iter().zip(VERSIONS.into_iter().cycle()) {
        guarded.client(version, user, "name").disconnect();
    }
    let connect = as_user(Connect::new(ProtocolVersion::V5, text("")), "bob");
    assert!(guarded.try_connect(connect).1.properties.assigned_client_identifier.is_some());
}

#[test]
fn a_session_that_comes_through_another_listener_has_that_listeners_rights_at_once() {
    let config = "
        [[listeners]]
        name = \"inside\"
        address = \"127.0.0.1:0\"
        anonymous = true
        acl = false
        [[listeners]]
        name = \"outside\"
        address = \"127.0.0.1:0\"
        anonymous = true
        [[acl]]
        deny = \"subscribe\"
        topic = \"secret/#\"
        [[acl]]
        allow = \"all\"
        topic = \"#\"
    ";
    let config = tenbin_broker::Config { listen: Vec::new(), ..tenbin_broker::Config::parse(config).expect("legal") };
    let embedded = Embedded::start(config, |builder| builder);
    let [inside, outside] = embedded.addresses() else { panic!("two listeners") };
    let wanderer = || lasting(ProtocolVersion::V5, "wanderer");
    let mut publisher = RawClient::connect(*inside, lasting(ProtocolVersion::V5, "publisher")).0;
    let mut publish = |payload| {
        // What the publisher remembers of its receivers is warm.
        assert_eq!(publisher.publish("secret/x", payload, QoS::AtMostOnce), ReasonCode::Success);
        publisher.settle();
    };
    let mut client = RawClient::connect(*inside, wanderer()).0;
    client.subscribe("#", QoS::AtLeastOnce);
    publish("1");
    assert_eq!(client.drain_payloads(), ["1"]);
    let mut client = RawClient::connect(*outside, wanderer()).0;
    publish("2");
    client.expect_nothing_waiting();
    let mut client = RawClient::connect(*inside, wanderer()).0;
    publish("3");
    assert_eq!(client.drain_payloads(), ["3"]);
}
