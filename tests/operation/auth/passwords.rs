//! User Name and Password.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tenbin_codec::{Connect, Packet, ProtocolVersion, ReasonCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;

use crate::auth::guarded::{Guarded, Passwords, as_user, with_password};
use crate::support::{BrokerProcess, ConfigFile, Silence, VERSIONS, encode, text};

#[test]
fn mqtt_3_1_4_2_only_the_right_password_lets_in() {
    let guarded = Guarded::start_with("", "");
    for version in VERSIONS {
        let connect = || Connect::new(version, text("c"));
        guarded.connect(as_user(connect(), "alice")).settle();
        for (connect, reason) in [
            (with_password(connect(), "alice", "builder"), ReasonCode::BadUserNameOrPassword),
            (with_password(connect(), "alice", ""), ReasonCode::BadUserNameOrPassword),
            (with_password(connect(), "carol", "wonderland"), ReasonCode::BadUserNameOrPassword),
            (with_password(connect(), "", "wonderland"), ReasonCode::BadUserNameOrPassword),
            (Connect { user_name: Some(text("alice")), ..connect() }, ReasonCode::BadUserNameOrPassword),
            (connect(), ReasonCode::NotAuthorized),
        ] {
            let (mut client, connack) = guarded.try_connect(connect);
            assert_eq!(connack.reason, reason, "{version}");
            assert!(!connack.session_present);
            client.expect_closed();
        }
    }
    let password_alone =
        Connect { password: Some("wonderland".into()), ..Connect::new(ProtocolVersion::V5, text("c")) };
    assert_eq!(guarded.try_connect(password_alone).1.reason, ReasonCode::BadUserNameOrPassword);
}

#[test]
fn mqtt_3_1_4_6_packets_after_a_wrong_password_are_ignored() {
    let guarded = Guarded::start("");
    let mut watcher = guarded.client(ProtocolVersion::V5, "", "watcher");
    watcher.subscribe("#", tenbin_codec::QoS::AtMostOnce);
    let mut client = guarded.broker.open(ProtocolVersion::V5);
    let connect = with_password(Connect::new(ProtocolVersion::V5, text("c")), "alice", "wrong");
    client.send(&Packet::Connect(Box::new(connect)));
    client.send(&Packet::Publish(crate::support::message("a", "x")));
    client.read_to_end();
    watcher.expect_nothing_waiting();
}

#[test]
fn settings_of_one_listener_do_not_hold_at_another() {
    let passwords = Passwords::of(&[("alice", "wonderland")]);
    let config = ConfigFile::new(&format!(
        "listen = [\"127.0.0.1:0\"]\n[[listeners]]\nname = \"closed\"\naddress = \"127.0.0.1:0\"\npassword_file = {:?}\n\
         [[listeners]]\nname = \"free\"\naddress = \"127.0.0.1:0\"\nanonymous = true\nacl = false\n\
         [[acl]]\nuser = \"alice\"\nallow = \"all\"\ntopic = \"#\"\n",
        passwords.path()
    ));
    let embedded = crate::auth::embedded::Embedded::start(
        tenbin_broker::Config::read(config.path().as_ref()).expect("legal"),
        |builder| builder,
    );
    let [open, closed, free] = embedded.addresses() else { panic!("three listeners") };
    let try_connect = |address, user| {
        let connect = as_user(Connect::new(ProtocolVersion::V5, text("")), user);
        crate::support::RawClient::try_connect(address, connect)
    };
    for (address, user, reason, published) in [
        (*open, "", ReasonCode::Success, ReasonCode::NotAuthorized),
        // This listener checks no passwords, so the name proves nothing.
        (*open, "alice", ReasonCode::Success, ReasonCode::NotAuthorized),
        (*closed, "", ReasonCode::NotAuthorized, ReasonCode::Success),
        (*closed, "alice", ReasonCode::Success, ReasonCode::NoMatchingSubscribers),
        (*free, "", ReasonCode::Success, ReasonCode::NoMatchingSubscribers),
    ] {
        let (mut client, connack) = try_connect(address, user);
        assert_eq!(connack.reason, reason, "{user:?}");
        if reason == ReasonCode::Success {
            assert_eq!(client.publish("a", "x", tenbin_codec::QoS::AtLeastOnce), published, "{user:?}");
        }
    }
}

#[test]
fn broken_or_unreadable_files_keep_the_broker_from_starting() {
    let passwords = Passwords::empty();
    let listener = |settings: &str| format!("[[listeners]]\nname = \"x\"\naddress = \"127.0.0.1:0\"\n{settings}\n");
    let with_file = listener(&format!("password_file = {:?}", passwords.path()));
    let unreadable = refusal(&with_file);
    assert!(unreadable.contains(passwords.path()) && unreadable.contains("cannot be read"), "{unreadable}");
    for content in ["# fine\nalice:wonderland\n", "\nalice\n", "# x\n:$argon2id$\n", "# x\nalice:\0\n"] {
        passwords.write(content);
        let said = refusal(&with_file);
        assert!(said.contains(passwords.path()) && said.contains("line 2"), "{content:?}: {said}");
    }
    let closed = refusal(&listener(""));
    assert!(closed.contains("listener x") && closed.contains("password_file"), "{closed}");
    let rule = refusal("[[acl]]\nlistener = \"nowhere\"\nallow = \"all\"\ntopic = \"a\"\n");
    assert!(rule.contains("nowhere"), "{rule}");

    // An empty file is legal, and admits no user.
    passwords.write("");
    let config = ConfigFile::new(&with_file);
    let broker = BrokerProcess::start_exactly(&["--config", config.path()]);
    let connect = as_user(Connect::new(ProtocolVersion::V311, text("c")), "alice");
    let (_, connack) = crate::support::RawClient::try_connect(broker.address(), connect);
    assert_eq!(connack.reason, ReasonCode::BadUserNameOrPassword);
}

#[test]
fn users_of_a_mosquitto_password_file_are_let_in() {
    let passwords = Passwords::empty();
    // By mosquitto_passwd 2.0.11: alice by default, carol by `-H sha512`. By libargon2 with the parameters of
    // mosquitto_passwd 2.1: dave.
    passwords.write(
        "alice:$7$101$WlxxWubuYR+X/VLf$k/dvg+aWpMuACXuJg7IW5rRwH2YFGBU1abTSReQOejgc+uAuQxVmah/VMZoCBAuhFoidtT3Y9vUl+lMGsQUrSw==\n\
         carol:$6$KTmOo0/Ofmv0hqsl$bg9YBn3zYumrVyitKhkkwMMYX3Pf0OJR/iSFz3ejrNdnjxzYMzytT1yQnRGn1e/5DAKL/R9Z9DUe52P/VrlpWQ==\n\
         dave:$argon2id$v=19$m=47104,t=1,p=1$AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+Pw$jN8KVtBuy9rOg+xx4HEO7K//Ei2hf4aegEDgCD4okj4rugUys2dVUsAyHcBFDFrGlWl198NIEs4dtHiTXPgqvA\n",
    );
    let listener = format!("[[listeners]]\naddress = \"127.0.0.1:0\"\npassword_file = {:?}\n", passwords.path());
    let config = ConfigFile::new(&listener);
    let broker = BrokerProcess::start_exactly(&["--config", config.path()]);
    for (user, password, reason) in [
        ("alice", "secret", ReasonCode::Success),
        ("carol", "six", ReasonCode::Success),
        ("dave", "secret", ReasonCode::Success),
        ("dave", "six", ReasonCode::BadUserNameOrPassword),
        ("alice", "six", ReasonCode::BadUserNameOrPassword),
        ("carol", "secret", ReasonCode::BadUserNameOrPassword),
        ("bob", "secret", ReasonCode::BadUserNameOrPassword),
    ] {
        let connect = with_password(Connect::new(ProtocolVersion::V5, text("c")), user, password);
        let (_, connack) = crate::support::RawClient::try_connect(broker.address(), connect);
        assert_eq!(connack.reason, reason, "{user} {password}");
    }
}

/// Bad input "Timing of credentials": unknown users and wrong passwords get one answer after about the same time.
#[test]
fn an_unknown_user_takes_as_long_as_a_wrong_password() {
    let guarded = Guarded::start_with("", "");
    let attempt = |user: &str| {
        let begin = Instant::now();
        let connect = with_password(Connect::new(ProtocolVersion::V5, text("c")), user, "wrong");
        assert_eq!(guarded.try_connect(connect).1.reason, ReasonCode::BadUserNameOrPassword);
        begin.elapsed()
    };
    // Alternating, so that other load on the machine affects both alike.
    let (known, unknown): (Vec<_>, Vec<_>) = (0..20).map(|_| (attempt("alice"), attempt("nobody"))).unzip();
    let fastest = |times: Vec<Duration>| times.into_iter().min().unwrap_or_default();
    let (known, unknown) = (fastest(known), fastest(unknown));
    assert!(known > Duration::from_millis(2), "{known:?} is no argon2id");
    assert!(unknown * 3 > known && known * 3 > unknown, "{known:?} {unknown:?}");
}

/// Bad input "Timing of credentials": many wrong passwords at once do not delay connected clients.
#[test]
fn password_checks_do_not_starve_the_broker() {
    let guarded = Guarded::start("");
    let mut client = guarded.client(ProtocolVersion::V5, "", "c");
    let mut strangers: Vec<_> = (0..60)
        .map(|number| {
            let mut stranger = guarded.broker.open(ProtocolVersion::V5);
            let connect = Connect::new(ProtocolVersion::V5, text(&format!("s{number}")));
            stranger.send(&Packet::Connect(Box::new(with_password(connect, "alice", "wrong"))));
            stranger
        })
        .collect();
    // Answers to the connected client and to pending clients alternate.
    let mut answers = 0;
    for stranger in &mut strangers {
        let answer = loop {
            client.settle();
            answers += 1;
            match stranger.try_receive(Duration::from_millis(1)) {
                Err(Silence::TimedOut) => assert!(answers < 60_000, "a stranger has no answer"),
                answer => break answer,
            }
        };
        assert!(matches!(answer, Ok(Packet::ConnAck(connack)) if connack.reason.is_error()));
    }
    assert!(answers > strangers.len(), "{answers} answers while passwords were checked");
}

/// A client may send packets after CONNECT without waiting, and close: the broker processes them.
#[test]
fn packets_sent_before_closing_are_processed() {
    let guarded = Guarded::start("");
    let mut watcher = guarded.client(ProtocolVersion::V5, "", "watcher");
    watcher.subscribe("#", tenbin_codec::QoS::AtMostOnce);
    for version in VERSIONS {
        let mut client = guarded.broker.open(version);
        client.send(&Packet::Connect(Box::new(as_user(Connect::new(version, text("c")), "alice"))));
        client.send(&Packet::Publish(crate::support::message("a", "x")));
        client.cut();
        assert_eq!(watcher.drain_payloads(), ["x"], "{version}");
    }
}

/// FIN ends only the client's sending direction: it may still read.
#[test]
fn half_closed_client_gets_its_connack() {
    let guarded = Guarded::start("");
    for version in VERSIONS {
        for (password, reason) in [("wonderland", ReasonCode::Success), ("wrong", ReasonCode::BadUserNameOrPassword)] {
            let mut client = guarded.broker.open(version);
            let connect = with_password(Connect::new(version, text("c")), "alice", password);
            client.send(&Packet::Connect(Box::new(connect)));
            let said = client.half_close();
            let [Packet::ConnAck(connack)] = &said[..] else { panic!("{version}: {said:?}") };
            assert_eq!(connack.reason, reason, "{version}");
        }
    }
}

/// The one line that a broker prints when it refuses to start.
fn refusal(config: &str) -> String {
    let config = ConfigFile::new(config);
    let (status, said) = BrokerProcess::fail_to_start(&["--config", config.path()]);
    assert!(!status.success());
    let [line] = &said[..] else { panic!("one line: {said:?}") };
    line.clone()
}

/// A password check takes 19 MiB: each concurrent check needs that once, on whatever thread it runs.
#[test]
fn wrong_passwords_from_100_addresses_take_little_memory() {
    let guarded = Guarded::start_with("", "");
    let login = || guarded.client(ProtocolVersion::V5, "alice", "honest").disconnect();
    login();
    let before = guarded.broker.resident_bytes();
    let address = guarded.broker.address();
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let guesses = (0..100).map(|number| runtime.spawn(guess([127, 0, 1, number + 1].into(), address)));
    let guesses = guesses.collect::<Vec<_>>();
    for guess in guesses {
        runtime.block_on(guess).expect("no panic");
    }
    login();
    let grown = guarded.broker.resident_bytes().saturating_sub(before) >> 20;
    assert!(grown <= 64, "{grown} MiB more");
}

/// Sends wrong passwords from an address.
async fn guess(from: std::net::IpAddr, to: SocketAddr) {
    for _ in 0..3 {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind((from, 0).into()).expect("a loopback address");
        let mut stream = socket.connect(to).await.expect("the broker listens");
        let connect = with_password(Connect::new(ProtocolVersion::V5, text("guess")), "alice", "wrong");
        let packet = encode(&Packet::Connect(Box::new(connect)), ProtocolVersion::V5);
        stream.write_all(&packet).await.expect("the broker reads");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.expect("the broker answers");
    }
}
