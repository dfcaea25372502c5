//! Ownership of Client Identifiers, and the number of sessions of one address.

use std::sync::atomic::{AtomicBool, Ordering};

use tenbin_codec::{Connect, Packet, ProtocolVersion, QoS, ReasonCode, Will};
use tokio::net::TcpSocket;

use crate::auth::guarded::{Guarded, Passwords, USERS, as_user};
use crate::auth::stage::Stage;
use crate::support::{BrokerProcess, ConfigFile, PATIENCE, RawClient, VERSIONS, lasting, text, topic};

#[test]
fn user_gets_identifier_of_anonymous_session() {
    let guarded = Guarded::start("");
    for version in VERSIONS {
        for is_connected in [true, false] {
            let mut observer = guarded.client(version, "bob", "observer");
            observer.subscribe("will", QoS::AtLeastOnce);
            let mut anonymous = lasting(version, "alice-1");
            anonymous.will = Some(will());
            let mut anonymous = guarded.connect(anonymous);
            anonymous.subscribe("secret", QoS::AtLeastOnce);
            let kept = if is_connected {
                Some(anonymous)
            } else {
                anonymous.cut();
                assert_eq!(observer.receive_message().payload, "gone");
                guarded.client(version, "bob", "publisher").publish("secret", "waits", QoS::AtLeastOnce);
                None
            };
            let (mut alice, connack) = guarded.try_connect(as_user(lasting(version, "alice-1"), "alice"));
            assert_eq!((connack.reason, connack.session_present), (ReasonCode::Success, false), "{version}");
            if let Some(mut anonymous) = kept {
                anonymous.expect_end(ReasonCode::SessionTakenOver);
                assert_eq!(observer.receive_message().payload, "gone");
            }
            // She inherits nothing of the other session.
            let publish = guarded.client(version, "bob", "publisher").publish("secret", "new", QoS::AtLeastOnce);
            assert!(!publish.is_error());
            alice.expect_nothing_waiting();
            // An anonymous client never displaces a user's session.
            for clean_start in [true, false] {
                let connect = Connect { clean_start, ..lasting(version, "alice-1") };
                assert_eq!(guarded.try_connect(connect).1.reason, ReasonCode::NotAuthorized);
            }
            alice.settle();
            alice.disconnect();
            guarded.connect(Connect { clean_start: true, ..as_user(lasting(version, "alice-1"), "alice") });
            let clean = as_user(Connect::new(version, text("alice-1")), "alice");
            guarded.connect(clean).disconnect();
        }
    }
}

/// Anonymous clients that keep taking the identifier neither delay nor lock out its user.
#[test]
fn user_gets_identifier_while_anonymous_clients_fight_for_it() {
    let guarded = Guarded::start("");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let connect = lasting(ProtocolVersion::V5, "alice-1");
                    let mut client = RawClient::open(guarded.broker.address(), ProtocolVersion::V5);
                    client.send(&Packet::Connect(Box::new(connect)));
                    client.receive_or_end();
                }
            });
        }
        for _ in 0..3 {
            let (alice, connack) = guarded.try_connect(as_user(lasting(ProtocolVersion::V5, "alice-1"), "alice"));
            let reason = connack.reason;
            if reason != ReasonCode::Success {
                is_over.store(true, Ordering::Relaxed);
            }
            assert_eq!(reason, ReasonCode::Success);
            drop(alice);
            // Ends her session, so that anonymous clients may take the identifier again.
            let clean = as_user(Connect::new(ProtocolVersion::V5, text("alice-1")), "alice");
            guarded.connect(clean).disconnect();
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn displaced_anonymous_session_is_gone_after_a_kill() {
    let stage = Stage::new();
    stage.passwords("pw", &USERS);
    stage.configure(&[("main", "pw", "anonymous = true")]);
    let broker = stage.start();
    broker.connect(lasting(ProtocolVersion::V5, "alice-1")).subscribe("a", QoS::AtLeastOnce);
    broker.connect(lasting(ProtocolVersion::V5, "other")).publish("a", "for nobody", QoS::AtLeastOnce);
    let alice = || as_user(lasting(ProtocolVersion::V5, "alice-1"), "alice");
    assert!(!RawClient::connect(broker.address(), alice()).1.session_present);
    drop(broker);
    let broker = stage.start();
    let (mut client, connack) = RawClient::connect(broker.address(), alice());
    assert!(connack.session_present, "her own");
    client.expect_nothing_waiting();
}

#[test]
fn client_without_acl_keeps_identifier_against_users_with_acl() {
    let passwords = Passwords::of(&USERS);
    let rules = "[[acl]]\nallow = \"all\"\ntopic = \"a\"\n";
    let text = format!(
        "[[listeners]]\nname = \"inside\"\naddress = \"127.0.0.1:0\"\nanonymous = true\nacl = false\n\
         [[listeners]]\nname = \"outside\"\naddress = \"127.0.0.1:0\"\npassword_file = {:?}\n{rules}",
        passwords.path()
    );
    let config = ConfigFile::new(&text);
    let broker = BrokerProcess::start_exactly(&["--config", config.path()]);
    let [inside, outside] = broker.addresses() else { panic!("two listeners") };
    let (mut service, _) = RawClient::connect(*inside, lasting(ProtocolVersion::V5, "service"));
    let (_, connack) = RawClient::try_connect(*outside, as_user(lasting(ProtocolVersion::V5, "service"), "alice"));
    assert_eq!(connack.reason, ReasonCode::NotAuthorized);
    service.settle();
    // The rules at the time of the CONNECT decide: the ACL applies to both now.
    std::fs::write(config.path(), text.replace("acl = false\n", "")).expect("ours to write");
    broker.signal("HUP");
    broker.log().wait_for(&["reloaded"], PATIENCE);
    let (_, connack) = RawClient::try_connect(*outside, as_user(lasting(ProtocolVersion::V5, "service"), "alice"));
    assert_eq!((connack.reason, connack.session_present), (ReasonCode::Success, false));
    service.expect_end(ReasonCode::SessionTakenOver);
}

#[test]
fn address_gets_no_more_sessions_than_configured() {
    let stage = Stage::new();
    stage.passwords("pw", &USERS);
    stage.configure(&[(
        "main",
        "pw",
        "anonymous = true\n[sessions]\nloopback_per_address_maximum = 3\n[connections]\nloopback_per_address_maximum = 0",
    )]);
    let mut broker = stage.start();
    for version in VERSIONS {
        let name = |number: u32| format!("{version}-{number}");
        let connect = |broker: &BrokerProcess, number| {
            RawClient::try_connect(broker.address(), lasting(version, &name(number))).1.reason
        };
        for number in 0..3 {
            assert_eq!(connect(&broker, number), ReasonCode::Success, "{version} {number}");
        }
        let refused = if version.is_v5() { ReasonCode::QuotaExceeded } else { ReasonCode::ServerUnavailable };
        for is_restarted in [false, true] {
            if is_restarted {
                drop(broker);
                broker = stage.start();
            }
            assert_eq!(connect(&broker, 3), refused, "{version}, restarted: {is_restarted}");
            let words = ["CONNECT refused", "sessions.loopback_per_address_maximum", &name(3), "127.0.0.1"];
            broker.log().wait_for(&words, PATIENCE);
            assert_eq!(connect(&broker, 0), ReasonCode::Success, "it has a session");
        }
        // A session that begins anew keeps its place, and one that ends frees it.
        for number in 0..3 {
            let clean = Connect::new(version, text(&name(number)));
            let (client, connack) = RawClient::connect(broker.address(), clean);
            assert_eq!(connack.reason, ReasonCode::Success);
            client.disconnect();
        }
        assert_eq!(connect(&broker, 4), ReasonCode::Success);
        let clean = Connect::new(version, text(&name(4)));
        RawClient::connect(broker.address(), clean).0.disconnect();
    }
}

/// A user beyond the quota of its address is refused, and the anonymous session continues.
#[test]
fn user_over_quota_does_not_end_the_anonymous_session() {
    let stage = Stage::new();
    stage.passwords("pw", &USERS);
    stage.configure(&[("main", "pw", "anonymous = true\n[sessions]\nloopback_per_address_maximum = 1")]);
    let broker = stage.start();
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let anonymous = || {
        let stream = runtime.block_on(async {
            let socket = TcpSocket::new_v4().expect("a socket");
            socket.bind(([127, 0, 0, 2], 0).into()).expect("a loopback address");
            socket.connect(broker.address()).await.expect("the broker listens").into_std()
        });
        let stream = stream.expect("a socket of ours");
        stream.set_nonblocking(false).expect("a socket of ours");
        let mut client = RawClient::on(stream, ProtocolVersion::V5);
        client.send(&Packet::Connect(Box::new(lasting(ProtocolVersion::V5, "alice-1"))));
        match client.receive() {
            Packet::ConnAck(connack) => (client, *connack),
            other => panic!("{other:?} instead of CONNACK"),
        }
    };
    anonymous().0.disconnect();
    RawClient::connect(broker.address(), as_user(lasting(ProtocolVersion::V5, "alice-2"), "alice")).0.disconnect();
    let alice = || as_user(lasting(ProtocolVersion::V5, "alice-1"), "alice");
    assert_eq!(RawClient::try_connect(broker.address(), alice()).1.reason, ReasonCode::QuotaExceeded);
    let (client, connack) = anonymous();
    assert!(connack.session_present, "nobody ended it");
    client.disconnect();
    // With a free place for her session, she gets the Client Identifier.
    let clean = as_user(Connect::new(ProtocolVersion::V5, text("alice-2")), "alice");
    RawClient::connect(broker.address(), clean).0.disconnect();
    let (_, connack) = RawClient::try_connect(broker.address(), alice());
    assert_eq!((connack.reason, connack.session_present), (ReasonCode::Success, false));
}

fn will() -> Will {
    Will {
        qos: QoS::AtLeastOnce,
        retain: false,
        topic: topic("will"),
        payload: "gone".into(),
        delay_interval: None,
        properties: None,
    }
}
