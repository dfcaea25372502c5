//! Logins by a service that is asked over HTTP.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenbin_codec::{Connect, ProtocolVersion, QoS, ReasonCode};

use crate::guarded::{Passwords, with_password};
use crate::support::{BrokerProcess, ConfigFile, RawClient, WebAnswer, WebRequest, WebServer, text};

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
        let config = ConfigFile::new(&format!(
            "[[listeners]]\nname = \"in\"\naddress = \"127.0.0.1:0\"\nauth = [\"service\"{then}]\n\
             [[auth]]\nname = \"service\"\nkind = \"http\"\nurl = \"http://{}/login\"\n{more}",
            server.address()
        ));
        let broker = BrokerProcess::start_exactly(&["--config", config.path()]);
        Self { server, broker, _config: config }
    }

    fn log_in(&self, user: &str) -> ReasonCode {
        log_in(self.broker.address(), user)
    }
}

fn log_in(address: SocketAddr, user: &str) -> ReasonCode {
    RawClient::try_connect(address, as_user(user)).1.reason
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

#[test]
fn cached_decision_needs_no_request() {
    let asking = Asking::start("", "", |_| WebAnswer::new(204, ""));
    for _ in 0..300 {
        assert_eq!(asking.log_in("alice"), ReasonCode::Success);
    }
    assert!(asking.server.requests().len() <= 10, "{} requests", asking.server.requests().len());
}

#[test]
fn failing_service_refuses_or_leaves_the_client_to_others() {
    let slow = |_: &WebRequest| WebAnswer { delay: Duration::from_secs(10), ..WebAnswer::new(204, "") };
    let asking = Asking::start("", "", slow);
    let begin = Instant::now();
    assert_eq!(asking.log_in("slow"), ReasonCode::ServerUnavailable);
    assert!(begin.elapsed() < Duration::from_secs(9), "{:?}", begin.elapsed());
    for answer in [WebAnswer::new(500, ""), WebAnswer::new(200, "garbage"), WebAnswer::new(200, " ".repeat(10 << 20))] {
        asking.server.answer(move |_| answer.clone());
        assert_eq!(asking.log_in("failed"), ReasonCode::ServerUnavailable);
    }
    asking.server.answer(|_| WebAnswer::new(500, ""));
    for _ in 0..30 {
        assert_eq!(asking.log_in("failed"), ReasonCode::ServerUnavailable);
    }
    assert!(asking.server.requests().len() < 30, "the breaker is open: {}", asking.server.requests().len());

    let passwords = Passwords::of(&[("alice", "secret")]);
    let staff = format!("[[auth]]\nname = \"staff\"\nkind = \"passwords\"\nfile = {:?}", passwords.path());
    let more = format!("on_failure = \"next\"\n{staff}");
    let asking = Asking::start(&more, ", \"staff\"", |_| WebAnswer::new(500, ""));
    assert_eq!(asking.log_in("alice"), ReasonCode::Success);
    assert_eq!(asking.log_in("bob"), ReasonCode::BadUserNameOrPassword);
}
