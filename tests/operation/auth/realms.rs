//! Ownership of sessions after password files move, and after users or listeners are removed.

use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tenbin_broker::auth::PasswordFile;
use tenbin_codec::{Packet, ProtocolVersion, Publish, QoS, ReasonCode};

use crate::auth::guarded::{USERS, as_user, with_password};
use crate::auth::stage::Stage;
use crate::support::{BrokerProcess, PATIENCE, RawClient, SmallDisk, lasting, retained, share};

fn reload(broker: &BrokerProcess) {
    let before = broker.log().count("reloaded", usize::MAX, Duration::ZERO);
    broker.signal("HUP");
    assert_eq!(broker.log().count("reloaded", before + 1, PATIENCE), before + 1);
}

/// Asserts that alice's session is there with all its queued messages.
fn expect_fifty(address: SocketAddr, what: &str) {
    let (mut alice, connack) = RawClient::connect(address, as_user(lasting(ProtocolVersion::V5, "alice-1"), "alice"));
    assert!(connack.session_present, "{what}");
    let expected: Vec<_> = (0..50).map(|number: u32| number.to_string()).collect();
    assert_eq!(alice.drain_payloads(), expected, "{what}");
}

#[test]
fn moved_password_file_keeps_sessions_and_messages() {
    for at_start in [true, false] {
        for moved in ["./pw", "elsewhere/passwords"] {
            let stage = Stage::new();
            stage.passwords("pw", &USERS);
            stage.configure(&[("main", "pw", "")]);
            let mut broker = stage.start();
            stage.fifty_wait(&broker);
            if moved == "./pw" {
                stage.configure(&[("main", moved, "")]);
            } else {
                fs::create_dir_all(stage.files.path().join("elsewhere")).expect("ours to write");
                fs::rename(stage.path("pw"), stage.path(moved)).expect("ours to write");
                stage.configure(&[("main", moved, "")]);
            }
            if at_start {
                drop(broker);
                broker = stage.start();
            } else {
                reload(&broker);
            }
            if moved != "./pw" {
                broker.log().wait_for(&["WARN", "password file moved", "listener=main", moved, "realm = "], PATIENCE);
            }
            expect_fifty(broker.address(), &format!("{moved}, at a start: {at_start}"));
        }
    }
}

#[test]
fn renamed_listener_keeps_sessions_after_a_moved_file() {
    let stage = Stage::new();
    stage.passwords("pw", &USERS);
    stage.configure(&[("main", "pw", "")]);
    let broker = stage.start();
    stage.fifty_wait(&broker);
    fs::rename(stage.path("pw"), stage.path("moved")).expect("ours to write");
    stage.configure(&[("main", "moved", "")]);
    reload(&broker);
    drop(broker);
    stage.configure(&[("front", "moved", "")]);
    expect_fifty(stage.start().address(), "another name");
}

#[test]
fn client_without_credentials_gets_no_password_users_session() {
    let listener = "[[listeners]]\nname = \"main\"\naddress = \"127.0.0.1:0\"\n";
    for at_start in [true, false] {
        let stage = Stage::new();
        stage.passwords("pw", &USERS);
        stage.configure(&[("main", "pw", "")]);
        let mut broker = stage.start();
        stage.fifty_wait(&broker);
        // The listener's own user is no password user of that name, though the password file is gone.
        fs::remove_file(stage.path("pw")).expect("ours to remove");
        fs::write(stage.config.path(), format!("{listener}user = \"alice\"\n")).expect("ours to write");
        if at_start {
            drop(broker);
            broker = stage.start();
        } else {
            reload(&broker);
        }
        let words = ["WARN", "another kind of source", "listener=main", "realm = "];
        broker.log().wait_for(&words, PATIENCE);
        // The Client Identifier belongs to the password user.
        let (_, connack) = RawClient::try_connect(broker.address(), lasting(ProtocolVersion::V5, "alice-1"));
        let got = (connack.reason, connack.session_present);
        assert_eq!(got, (ReasonCode::NotAuthorized, false), "at a start: {at_start}");
        // Back, and everything is there.
        drop(broker);
        stage.passwords("pw", &USERS);
        stage.configure(&[("main", "pw", "")]);
        expect_fifty(stage.start().address(), "the password user's session stayed");
    }
}

#[test]
fn users_of_two_files_are_apart_unless_a_realm_joins_them() {
    let other = [("alice", "other")];
    let as_other = |client: &str| with_password(lasting(ProtocolVersion::V5, client), "alice", "other");
    let stage = Stage::new();
    stage.passwords("pw", &USERS);
    stage.passwords("pw2", &other);
    stage.configure(&[("one", "pw", ""), ("two", "pw2", "")]);
    let broker = stage.start();
    stage.fifty_wait(&broker);
    let refused = |address, what| {
        let (_, connack) = RawClient::try_connect(address, as_other("alice-1"));
        assert_eq!((connack.reason, connack.session_present), (ReasonCode::NotAuthorized, false), "{what}");
    };
    refused(broker.addresses()[1], "two files");
    // Each listener gets the other's file, at once or one by one.
    stage.configure(&[("one", "pw2", ""), ("two", "pw", "")]);
    reload(&broker);
    refused(broker.addresses()[0], "exchanged");
    drop(broker);
    let broker = stage.start();
    refused(broker.addresses()[0], "exchanged, after a restart");
    drop(broker);
    stage.configure(&[("one", "pw", ""), ("two", "pw", "")]);
    let broker = stage.start();
    drop(broker);
    stage.configure(&[("one", "pw", ""), ("two", "pw2", "")]);
    let broker = stage.start();
    refused(broker.addresses()[1], "a file of its own");
    let (_, connack) = RawClient::connect(broker.addresses()[1], as_other("alice-2")); // she has her own identifier
    assert_eq!(connack.reason, ReasonCode::Success);
    expect_fifty(broker.addresses()[0], "the first alice");
    drop(broker);
    stage.configure(&[("one", "pw", "realm = \"all\""), ("two", "pw2", "realm = \"all\"")]);
    let broker = stage.start();
    RawClient::connect(broker.addresses()[0], as_user(lasting(ProtocolVersion::V5, "joined"), "alice"));
    let (_, connack) = RawClient::connect(broker.addresses()[1], as_other("joined"));
    assert!(connack.session_present, "one realm: one alice");
}

#[test]
fn session_outlives_its_user_and_listener_in_the_files() {
    let stage = Stage::new();
    stage.passwords("pw", &USERS);
    stage.passwords("other", &USERS);
    stage.configure(&[("main", "pw", "")]);
    let broker = stage.start();
    stage.fifty_wait(&broker);
    let mut member = broker.connect(as_user(lasting(ProtocolVersion::V5, "member"), "alice"));
    member.subscribe(&share("group", "jobs"), QoS::AtLeastOnce);
    member.disconnect();
    let mut bob = broker.connect(as_user(lasting(ProtocolVersion::V5, "bob"), "bob"));
    assert_eq!(bob.publish("jobs", "job", QoS::AtLeastOnce), ReasonCode::Success);
    let log = |broker: &BrokerProcess| broker.log().wait_for(&["WARN", "not configured", "sessions=2"], PATIENCE);
    // The user is removed, once while the broker runs and once before a start.
    assert!(PasswordFile::delete(stage.path("pw").as_ref(), "alice").expect("ours to write"));
    reload(&broker);
    log(&broker);
    assert_eq!(bob.publish("work", "new", QoS::AtLeastOnce), ReasonCode::NoMatchingSubscribers);
    drop(broker);
    let broker = stage.start();
    log(&broker);
    let mut bob = broker.connect(as_user(lasting(ProtocolVersion::V5, "bob"), "bob"));
    assert_eq!(bob.publish("work", "new", QoS::AtLeastOnce), ReasonCode::NoMatchingSubscribers);
    drop(broker);
    // Listener and file are renamed together: nothing shows that these are the same users.
    stage.configure(&[("front", "other", "")]);
    let broker = stage.start();
    let (_, connack) =
        RawClient::try_connect(broker.address(), as_user(lasting(ProtocolVersion::V5, "alice-1"), "alice"));
    assert_eq!(connack.reason, ReasonCode::NotAuthorized);
    drop(broker);
    // The operator declares it with a realm.
    let realm = format!("realm = {:?}", stage.path("pw"));
    stage.configure(&[("front", "other", &realm)]);
    let broker = stage.start();
    expect_fifty(broker.address(), "the user is back");
    let mut member = broker.connect(as_user(lasting(ProtocolVersion::V5, "member"), "alice"));
    assert_eq!(member.receive_message().payload, "job", "what waits with a share group");
}

#[test]
fn adding_a_realm_key_keeps_its_users_sessions() {
    for at_start in [true, false] {
        let stage = Stage::new();
        stage.passwords("pw", &USERS);
        stage.configure(&[("main", "pw", "")]);
        let mut broker = stage.start();
        stage.fifty_wait(&broker);
        let mut bob = broker.connect(as_user(lasting(ProtocolVersion::V5, "bob"), "bob"));
        let what = format!("at a start: {at_start}");
        stage.configure(&[("main", "pw", "realm = \"customers\"")]);
        if at_start {
            drop(broker);
            broker = stage.start();
        } else {
            reload(&broker);
            bob.settle();
        }
        expect_fifty(broker.address(), &what);
        drop(broker);
        for key in ["realm = \"customers\"", ""] {
            stage.configure(&[("main", "pw", key)]);
            let broker = stage.start();
            let alice = as_user(lasting(ProtocolVersion::V5, "alice-1"), "alice");
            let (_, connack) = RawClient::connect(broker.address(), alice);
            assert!(connack.session_present, "{what}, then after a start with: {key}");
        }
    }
}

#[test]
fn new_password_file_gets_no_sessions_of_the_old_one() {
    let stage = Stage::new();
    stage.passwords("pw", &USERS);
    stage.passwords("other", &USERS);
    stage.configure(&[("main", "pw", "")]);
    let broker = stage.start();
    stage.fifty_wait(&broker);
    stage.configure(&[("main", "other", "")]);
    reload(&broker);
    broker.log().wait_for(&["WARN", "another password file", "listener=main", "other", "realm = "], PATIENCE);
    let (_, connack) =
        RawClient::try_connect(broker.address(), as_user(lasting(ProtocolVersion::V5, "alice-1"), "alice"));
    assert_eq!(connack.reason, ReasonCode::NotAuthorized);
    stage.configure(&[("main", "pw", "")]);
    reload(&broker);
    expect_fifty(broker.address(), "taken back");
}

/// A reload that waits for the disk enforces the new rules first.
#[test]
fn reload_on_a_failing_disk_enforces_rules_first() {
    let Some(disk) = SmallDisk::mount(160) else { return };
    let stage = Stage::new();
    stage.passwords("pw", &USERS);
    stage.passwords("other", &USERS[1..]);
    stage.configure(&[("main", "pw", "")]);
    let data = disk.data();
    let data = data.to_str().expect("a readable name");
    let broker = BrokerProcess::start_exactly(&["--data", data, "--config", stage.config.path()]);
    let mut alice = broker.connect(as_user(lasting(ProtocolVersion::V5, "alice-1"), "alice"));
    let mut bob = broker.connect(as_user(lasting(ProtocolVersion::V5, "bob-1"), "bob"));
    let _filler = disk.fill();
    // Until the state cannot be written.
    let until = Instant::now() + PATIENCE;
    while broker.log().find(&["the state cannot be written"], Duration::from_millis(10)).is_none() {
        let packet_id = Some(bob.next_id());
        bob.send(&Packet::Publish(Publish { packet_id, ..retained("large", &"x".repeat(100_000)) }));
        assert!(Instant::now() < until, "the disk is never full");
    }
    // The listener gets another file, and with it another realm, which the broker must store.
    stage.configure(&[("main", "other", "")]);
    broker.signal("HUP");
    alice.expect_end(ReasonCode::NotAuthorized);
    let words = "realms of the listeners cannot be written";
    broker.log().wait_for(&["WARN", words, &format!("directory={data}")], PATIENCE);
    let log = broker.log().all();
    let position = |words: [&str; 2]| log.iter().position(|line| words.iter().all(|word| line.contains(word)));
    let (enforced, waited) = (position(["no longer authorized", "alice-1"]), position([words, ""]));
    assert!(enforced.is_some() && enforced < waited, "{}", log.join("\n"));
}
