//! A session belongs to its user.

use std::net::SocketAddr;

use tenbin_codec::{Connect, ProtocolVersion, QoS, ReasonCode};

use crate::auth::embedded::Embedded;
use crate::auth::guarded::{Guarded, Passwords, USERS, as_user};
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
        alice.settle(); // unaffected
        // Her own second connection takes the session over.
        let mut second = guarded.client(version, "alice", "shared-name");
        alice.expect_end(ReasonCode::SessionTakenOver);
        second.settle();
        second.disconnect();
    }
}

/// Bad input "Session of another user": CVE-2026-6564 and similar ones.
#[test]
fn another_user_gets_no_queued_messages_of_a_session() {
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
fn client_id_is_free_after_its_session_ends() {
    let guarded = Guarded::start("");
    for (user, version) in ["alice", "bob", "", "alice"].into_iter().zip(VERSIONS.into_iter().cycle()) {
        guarded.client(version, user, "name").disconnect();
    }
    let connect = as_user(Connect::new(ProtocolVersion::V5, text("")), "bob");
    assert!(guarded.try_connect(connect).1.properties.assigned_client_identifier.is_some());
}

#[test]
fn session_gets_the_rights_of_its_current_listener_at_once() {
    let passwords = Passwords::of(&USERS);
    let listener = |name: &str, more: &str| {
        let file = passwords.path();
        format!("[[listeners]]\nname = {name:?}\naddress = \"127.0.0.1:0\"\npassword_file = {file:?}\n{more}\n")
    };
    let embedded = start(&[&listener("inside", "acl = false"), &listener("outside", ""), NO_SECRETS].concat());
    let [inside, outside] = embedded.addresses() else { panic!("two listeners") };
    let wanderer = || as_user(lasting(ProtocolVersion::V5, "wanderer"), "alice");
    let publisher = as_user(lasting(ProtocolVersion::V5, "publisher"), "alice");
    let mut publisher = RawClient::connect(*inside, publisher).0;
    let mut publish = |payload| {
        // This also fills the publisher's cache of receivers.
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

/// Bad input "Client id as identity": an anonymous client has another identity on a listener with other rules.
#[test]
fn anonymous_session_is_bound_to_listeners_with_its_rules() {
    let for_outside = "[[acl]]\nlistener = \"outside\"\ndeny = \"all\"\ntopic = \"inside\"\n";
    for (inside, rules) in [("acl = false", NO_SECRETS), ("", &[for_outside, NO_SECRETS].concat())] {
        let embedded = start(&[&open_listener("inside", inside), &open_listener("outside", ""), rules].concat());
        let [inside, outside] = embedded.addresses() else { panic!("two listeners") };
        expect_apart(*inside, *outside);
        expect_apart(*outside, *inside);
    }
}

#[test]
fn anonymous_session_is_shared_by_listeners_with_equal_rules() {
    let listeners = [open_listener("plain", ""), open_listener("secure", "")].concat();
    let for_others = "[[acl]]\nlistener = \"secure\"\nuser = \"alice\"\nallow = \"all\"\ntopic = \"secret/#\"\n\
                      [[acl]]\nlistener = \"plain\"\nclient_id = \"other\"\ndeny = \"all\"\ntopic = \"#\"\n";
    let for_each = "[[acl]]\nlistener = \"secure\"\nallow = \"all\"\ntopic = \"a/#\"\n\
                    [[acl]]\nlistener = \"plain\"\nallow = \"all\"\ntopic = \"a/#\"\n";
    for rules in ["", NO_SECRETS, &[for_others, NO_SECRETS].concat(), for_each] {
        let embedded = start(&[&listeners, rules].concat());
        let [plain, secure] = embedded.addresses() else { panic!("two listeners") };
        for version in VERSIONS {
            let name = format!("wanderer-{version}");
            let mut first = RawClient::connect(*plain, lasting(version, &name)).0;
            let (mut second, connack) = RawClient::connect(*secure, lasting(version, &name));
            assert!(connack.session_present, "{rules}");
            first.expect_end(ReasonCode::SessionTakenOver);
            second.settle();
        }
    }
}

/// Asserts that clients of `others` neither take over, nor resume, nor end a session of `owners`.
fn expect_apart(owners: SocketAddr, others: SocketAddr) {
    for version in VERSIONS {
        let name = format!("{owners}-{version}");
        let (mut owner, _) = RawClient::connect(owners, lasting(version, &name));
        for clean_start in [true, false] {
            let connect = Connect { clean_start, ..lasting(version, &name) };
            let (mut other, connack) = RawClient::try_connect(others, connect);
            assert_eq!(connack.reason, ReasonCode::NotAuthorized);
            other.expect_closed();
        }
        owner.settle();
        owner.cut();
        assert_eq!(RawClient::try_connect(others, lasting(version, &name)).1.reason, ReasonCode::NotAuthorized);
        RawClient::connect(owners, lasting(version, &name)).0.settle();
    }
}

fn open_listener(name: &str, more: &str) -> String {
    format!("[[listeners]]\nname = {name:?}\naddress = \"127.0.0.1:0\"\nanonymous = true\n{more}\n")
}

fn start(config: &str) -> Embedded {
    Embedded::start(tenbin_broker::Config::parse(config).expect("legal"), |builder| builder)
}

const NO_SECRETS: &str =
    "[[acl]]\ndeny = \"subscribe\"\ntopic = \"secret/#\"\n[[acl]]\nallow = \"all\"\ntopic = \"#\"\n";
