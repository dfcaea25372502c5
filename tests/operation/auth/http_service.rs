//! Logins by a service that is asked over HTTP.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenbin_codec::{Connect, Packet, ProtocolVersion, QoS, ReasonCode};

use crate::auth::guarded::{Passwords, with_password};
use crate::support::{BrokerProcess, ClientStream, ConfigFile, RawClient, WebAnswer, WebRequest, WebServer, text};

/// A broker that asks a service.
struct Asking {
    server: WebServer,
    broker: BrokerProcess,
    _config: ConfigFile,
}

impl Asking {
    /// `more`: keys of the source, and tables behind it; `then`: further sources of the listener.
    fn start(more: &str, then: &str, answers: impl Fn(&WebRequest) -> WebAnswer + Send + Sync + 'static) -> Self {
        let server = WebServer::start(answers);
        let (broker, config) = asking(server.address(), more, then);
        Self { server, broker, _config: config }
    }

    fn log_in(&self, user: &str) -> ReasonCode {
        log_in(self.broker.address(), user)
    }
}

/// A broker that asks the service at `address`.
fn asking(address: SocketAddr, more: &str, then: &str) -> (BrokerProcess, ConfigFile) {
    let config = ConfigFile::new(&format!(
        "[[listeners]]\nname = \"in\"\naddress = \"127.0.0.1:0\"\nauth = [\"service\"{then}]\n\
         [[auth]]\nname = \"service\"\nkind = \"http\"\nurl = \"http://{address}/login\"\n{more}"
    ));
    (BrokerProcess::start_exactly(&["--config", config.path()]), config)
}

fn log_in(address: SocketAddr, user: &str) -> ReasonCode {
    RawClient::try_connect(address, as_user(user)).1.reason
}

/// Logs in from this loopback address.
fn log_in_from(source: [u8; 4], address: SocketAddr, user: &str) -> ReasonCode {
    let stream = ClientStream::tcp_from(source.into(), address);
    RawClient::on(stream, ProtocolVersion::V5).introduce(as_user(user)).1.reason
}

fn as_user(user: &str) -> Connect {
    with_password(Connect::new(ProtocolVersion::V5, text(user)), user, "secret")
}

fn user_of(request: &WebRequest) -> String {
    let question = serde_json::from_str::<Value>(&request.body).expect("JSON");
    question["user"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn answer_of_the_service_decides_on_a_login() {
    let asking = Asking::start("", "", |request| match user_of(request).as_str() {
        "renamed" => WebAnswer::new(
            200,
            json!({"result": "accept", "user": "alice", "acl": {"pub": ["own/%u"]}, "reason": null}).to_string(),
        ),
        "allowed" => WebAnswer::new(200, r#"{"result": "allow"}"#),
        "brief" => WebAnswer::new(200, r#"{"result": "accept", "expires_in": 1}"#),
        "empty" => WebAnswer::new(204, ""),
        "refused" => WebAnswer::new(200, r#"{"result": "refuse", "reason": "not today"}"#),
        "unknown" => WebAnswer::new(200, r#"{"result": "ignore"}"#),
        "forbidden" => WebAnswer::new(403, ""),
        _ => WebAnswer::new(200, r#"{"result": "accept", "acl": {"pub": ["a#"]}}"#),
    });
    for (user, reason) in [
        ("renamed", ReasonCode::Success),
        ("allowed", ReasonCode::Success),
        ("empty", ReasonCode::Success),
        ("refused", ReasonCode::BadUserNameOrPassword),
        ("unknown", ReasonCode::BadUserNameOrPassword),
        ("forbidden", ReasonCode::BadUserNameOrPassword),
        ("illegal", ReasonCode::ServerUnavailable),
    ] {
        assert_eq!(asking.log_in(user), reason, "{user}");
    }
    let (mut client, _) = RawClient::connect(asking.broker.address(), as_user("renamed"));
    assert_eq!(client.publish("own/alice", "x", QoS::AtLeastOnce), ReasonCode::NoMatchingSubscribers);
    assert_eq!(client.publish("own/renamed", "x", QoS::AtLeastOnce), ReasonCode::NotAuthorized);
    let (mut client, _) = RawClient::connect(asking.broker.address(), as_user("brief"));
    client.expect_end(ReasonCode::MaximumConnectTime);
    let question = serde_json::from_str::<Value>(&asking.server.requests()[0].body).expect("JSON");
    let expected = json!({
        "client_id": "renamed", "user": "renamed", "password": "secret", "peer": "127.0.0.1", "listener": "in",
        "transport": "tcp", "server_name": null, "certificate": null,
    });
    assert_eq!(question, expected);
    let log = asking.broker.log().wait_for(&["login refused", "not today"], crate::support::PATIENCE);
    assert!(log.contains("source=\"service\""), "{log}");
}

/// 50 clients, each of which comes back 200 times. `--nocapture` shows the figures.
#[test]
fn reconnects_of_known_clients_need_no_request() {
    let asking = Asking::start("", "", |_| WebAnswer::new(204, ""));
    let address = asking.broker.address();
    let begin = Instant::now();
    let reconnect = |threads: std::ops::Range<u32>| {
        for user in threads {
            for _ in 0..200 {
                assert_eq!(log_in(address, &user.to_string()), ReasonCode::Success);
            }
        }
    };
    std::thread::scope(|scope| {
        for first in (0..50).step_by(10) {
            scope.spawn(move || reconnect(first..first + 10));
        }
    });
    let (requests, took) = (asking.server.requests().len(), begin.elapsed());
    eprintln!("10,000 reconnects: {requests} requests, {took:.1?}");
    // Decisions are kept for 54 to 66 seconds.
    assert!(requests <= 50 * (1 + took.as_secs() as usize / 54), "{requests} requests in {took:?}");
}

/// `--nocapture` shows the times.
#[test]
fn failing_service_refuses_within_its_total_timeout() {
    let expect = |broker: &BrokerProcess, kind: &str, cause: &str| {
        let begin = Instant::now();
        assert_eq!(log_in(broker.address(), kind), ReasonCode::ServerUnavailable, "{kind}");
        eprintln!("{kind}: CONNACK after {:?}", begin.elapsed());
        let user = format!("user={kind:?}");
        let line = broker.log().wait_for(&["login refused", &user], crate::support::PATIENCE);
        assert!(line.contains(cause), "{kind}: {line}");
    };
    let down = SocketAddr::from(([127, 0, 0, 1], 1));
    expect(&asking(down, "", "").0, "down", "Connection refused");
    // Accepted by the kernel alone.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    expect(&asking(silent.local_addr().expect("it listens"), "", "").0, "silent", "no answer within 2s");
    let (dripping, is_over) = (TcpListener::bind("127.0.0.1:0").expect("a free port"), Arc::<AtomicBool>::default());
    let (broker, _config) = asking(dripping.local_addr().expect("it listens"), "", "");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = dripping.accept().expect("the broker asks").0;
            // An answer before the request would be another failure.
            assert!(stream.read(&mut [0; 4096]).expect("a request") > 0);
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n").expect("the broker reads");
            while !is_over.load(Ordering::SeqCst) && stream.write_all(b" ").is_ok() {
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let is_over = OnDrop(&is_over);
        expect(&broker, "dripping", "no answer within 2s");
        drop(is_over);
    });
    let asking = Asking::start("", "", |request| match user_of(request).as_str() {
        "slow" => WebAnswer { delay: Duration::from_secs(10), ..WebAnswer::new(204, "") },
        "broken" => WebAnswer::new(500, ""),
        "garbage" => WebAnswer::new(200, "garbage"),
        _ => WebAnswer::new(200, " ".repeat(10 << 20)),
    });
    for (kind, cause) in [
        ("slow", "no answer within 2s"),
        ("broken", "500 Internal Server Error"),
        ("garbage", "the answer is no JSON"),
        ("10 MB", "length limit exceeded"),
    ] {
        expect(&asking.broker, kind, cause);
    }
}

/// Sets the flag when a test ends, by panic too.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn service_that_fails_repeatedly_is_not_asked() {
    let asking = Asking::start("", "", |_| WebAnswer::new(500, ""));
    for number in 0..30 {
        let reason = log_in_from([127, 0, 1, number % 5], asking.broker.address(), "failed");
        assert_eq!(reason, ReasonCode::ServerUnavailable);
    }
    let requests = asking.server.requests().len();
    assert!(requests < 30, "the breaker is open: {requests}");
    log_in_from([127, 0, 9, 9], asking.broker.address(), "failed");
    assert_eq!(asking.server.requests().len(), requests + 1, "an address without failures asks");
}

/// Names that the service fails at close the door for no other login, of the same address neither.
#[test]
fn failures_of_one_stranger_close_no_logins() {
    for broken in [WebAnswer::new(500, ""), WebAnswer::new(503, ""), WebAnswer::new(200, "garbage")] {
        let asking = Asking::start("", "", move |request| match user_of(request).as_str() {
            "good" => WebAnswer::new(204, ""),
            _ => broken.clone(),
        });
        let address = asking.broker.address();
        for number in 0..30 {
            let reason = log_in_from([127, 0, 1, 1], address, &format!("broken {number}"));
            assert_eq!(reason, ReasonCode::ServerUnavailable);
        }
        for source in [[127, 0, 9, 9], [127, 0, 1, 1]] {
            assert_eq!(log_in_from(source, address, "good"), ReasonCode::Success, "{source:?}");
        }
        asking.broker.log().wait_for(&["a login service failed", "peer=127.0.1.1:"], crate::support::PATIENCE);
        let without_peer = asking.broker.log().count("a login service failed source", usize::MAX, Duration::ZERO);
        assert_eq!(without_peer, 0);
    }
}

/// More logins than there are places wait, all of one address.
#[test]
fn pending_logins_of_one_address_leave_turns_to_others() {
    tenbin_broker::raise_descriptor_limit().expect("permitted");
    let asking = Asking::start("", "", |request| match user_of(request).as_str() {
        "good" => WebAnswer::new(204, ""),
        _ => WebAnswer { delay: Duration::from_millis(1500), ..WebAnswer::new(204, "") },
    });
    let address = asking.broker.address();
    let flood = (0..1500).map(|number| {
        let stream = ClientStream::tcp_from([127, 0, 1, 1].into(), address);
        let mut client = RawClient::on(stream, ProtocolVersion::V5);
        client.send(&Packet::Connect(Box::new(as_user(&format!("slow {number}")))));
        client
    });
    let _flood = flood.collect::<Vec<_>>();
    asking.broker.log().wait_for(&["login refused", "too many logins wait"], crate::support::PATIENCE);
    for other in 0..8 {
        assert_eq!(log_in_from([127, 0, 9, other], address, "good"), ReasonCode::Success, "{other}");
    }
}

#[test]
fn failing_service_leaves_the_client_to_the_next_source() {
    let passwords = Passwords::of(&[("alice", "secret")]);
    let staff = format!("[[auth]]\nname = \"staff\"\nkind = \"passwords\"\nfile = {:?}", passwords.path());
    let more = format!("on_failure = \"next\"\n{staff}");
    let asking = Asking::start(&more, ", \"staff\"", |_| WebAnswer::new(500, ""));
    assert_eq!(asking.log_in("alice"), ReasonCode::Success);
    assert_eq!(asking.log_in("bob"), ReasonCode::BadUserNameOrPassword);
}
