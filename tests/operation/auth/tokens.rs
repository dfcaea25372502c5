//! Logins by JSON Web Tokens.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64ct::{Base64UrlUnpadded, Encoding};
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use tenbin_codec::{Auth, Connect, ConnectProperties, Packet, PacketType, ProtocolVersion, QoS, ReasonCode, Will};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::auth::guarded::with_password;
use crate::auth::scram_client::{auth, connect};
use crate::support::{
    BrokerProcess, Certificates, ConfigFile, DataDirectory, PATIENCE, RawClient, WebAnswer, WebServer, lasting, text,
    topic,
};

pub(crate) const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

/// A broker with one listener for tokens and anonymous clients.
struct Tokens {
    broker: BrokerProcess,
    _files: tempfile::TempDir,
    _config: ConfigFile,
}

impl Tokens {
    /// With [`SECRET`]; `rest` is appended to the configuration.
    fn start(rest: &str) -> Self {
        let files = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("ours to write");
        let path = files.path().join("secret");
        std::fs::write(&path, SECRET).expect("ours to write");
        Self::with_keys(files, &format!("secret_file = {path:?}"), rest)
    }

    fn with_keys(files: tempfile::TempDir, keys: &str, rest: &str) -> Self {
        let config = ConfigFile::new(&format!(
            "[[listeners]]\naddress = \"127.0.0.1:0\"\nauth = [\"tokens\"]\nanonymous = true\n\
             [[auth]]\nname = \"tokens\"\nkind = \"jwt\"\n{keys}\n{rest}"
        ));
        let broker = BrokerProcess::start_exactly(&["--config", config.path()]);
        Self { broker, _files: files, _config: config }
    }

    fn address(&self) -> SocketAddr {
        self.broker.address()
    }

    fn log_in(&self, token: &str) -> ReasonCode {
        RawClient::try_connect(self.address(), with_token("c", token)).1.reason
    }
}

fn with_token(client_id: &str, token: &str) -> Connect {
    with_password(Connect::new(ProtocolVersion::V5, text(client_id)), "u", token)
}

pub(crate) fn in_seconds(seconds: u64) -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs() + seconds
}

pub(crate) fn token(claims: &Value) -> String {
    token_by("", claims)
}

/// A token with this Key ID, by [`SECRET`].
fn token_by(key_id: &str, claims: &Value) -> String {
    let mut header = json!({"alg": "HS256"});
    if !key_id.is_empty() {
        header["kid"] = key_id.into();
    }
    let part = |value: &Value| Base64UrlUnpadded::encode_string(value.to_string().as_bytes());
    let message = format!("{}.{}", part(&header), part(claims));
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET).expect("HMAC takes keys of any length");
    mac.update(message.as_bytes());
    format!("{message}.{}", Base64UrlUnpadded::encode_string(&mac.finalize().into_bytes()))
}

/// A key set of [`SECRET`] with this Key ID.
fn key_set(key_id: &str) -> String {
    let key = Base64UrlUnpadded::encode_string(SECRET);
    json!({"keys": [{"kty": "oct", "kid": key_id, "alg": "HS256", "k": key}]}).to_string()
}

#[test]
fn rules_of_a_token_come_before_the_acl() {
    let tokens =
        Tokens::start("[[acl]]\nallow = \"publish\"\ntopic = \"acl/#\"\n[[acl]]\nallow = \"all\"\ntopic = \"by/%u\"");
    let published = |acl: Value, topic: &str| {
        let token = token(&json!({"sub": "alice", "exp": in_seconds(100), "acl": acl}));
        let (mut client, _) = RawClient::connect(tokens.address(), with_token("c", &token));
        client.publish(topic, "x", QoS::AtLeastOnce) == ReasonCode::NoMatchingSubscribers
    };
    let lists = || json!({"pub": ["own/${clientid}"], "sub": ["acl/#"]});
    let rules = || json!([{"permission": "deny", "action": "publish", "topic": "acl/secret"}]);
    for (acl, topic, is_allowed) in [
        (lists(), "own/c", true),
        (lists(), "own/d", false),
        (lists(), "acl/a", false), // lists deny all else
        (rules(), "acl/a", true),
        (rules(), "acl/secret", false),
        (rules(), "by/alice", true),
        (rules(), "own/c", false),
    ] {
        assert_eq!(published(acl.clone(), topic), is_allowed, "{acl} {topic}");
    }
}

#[test]
fn rules_of_a_token_apply_where_the_acl_is_open() {
    let tokens = Tokens::start("");
    let (mut anonymous, _) = RawClient::connect(tokens.address(), Connect::new(ProtocolVersion::V5, text("a")));
    let claims = json!({"sub": "alice", "exp": in_seconds(100), "acl": {"sub": ["a"], "pub": []}});
    let (mut alice, _) = RawClient::connect(tokens.address(), with_token("c", &token(&claims)));
    alice.subscribe("a", QoS::AtLeastOnce);
    assert_eq!(alice.publish("a", "x", QoS::AtLeastOnce), ReasonCode::NotAuthorized);
    assert_eq!(anonymous.publish("a", "x", QoS::AtLeastOnce), ReasonCode::Success);
    assert_eq!(alice.receive_message().payload, "x");
}

/// The longest token that MQTT can carry, with a right signature.
#[test]
fn token_beyond_8_kib_is_refused() {
    let tokens = Tokens::start("");
    let of = |length: usize| token(&json!({"sub": "alice", "exp": in_seconds(1000), "x": "x".repeat(length)}));
    assert_eq!(tokens.log_in(&of(6000)), ReasonCode::Success);
    let long = of(49_000);
    assert!((65_000..=65_535).contains(&long.len()), "{}", long.len());
    assert_eq!(tokens.log_in(&long), ReasonCode::BadUserNameOrPassword);
    let by_method = connect("c", "JWT", Some(long.into()));
    assert_eq!(RawClient::try_connect(tokens.address(), by_method).1.reason, ReasonCode::BadAuthenticationMethod);
}

/// `--nocapture` shows how late the connection ends.
#[test]
fn expired_token_ends_the_connection_and_publishes_the_will() {
    let tokens = Tokens::start("");
    let (mut watcher, _) = RawClient::connect(tokens.address(), Connect::new(ProtocolVersion::V5, text("watcher")));
    watcher.subscribe("will", QoS::AtLeastOnce);
    let expiry = in_seconds(3);
    let connect =
        Connect { will: Some(will("gone")), ..with_token("c", &token(&json!({"sub": "alice", "exp": expiry}))) };
    let (mut client, _) = RawClient::connect(tokens.address(), connect);
    client.expect_end(ReasonCode::MaximumConnectTime);
    let late = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + Duration::from_secs(expiry));
    eprintln!("0xA0 comes {:?} after exp", late.expect("not earlier"));
    assert_eq!(watcher.receive_message().payload, "gone");
}

#[test]
fn renewed_token_keeps_the_connection() {
    let tokens = Tokens::start("");
    let until = |seconds| token(&json!({"sub": "alice", "exp": in_seconds(seconds)}));
    let first = Some(until(4).into());
    let (mut client, connack) = RawClient::connect(tokens.address(), connect("c", "JWT", first));
    assert_eq!(connack.properties.authentication_method, Some(text("JWT")));
    let renewed = |client: &mut RawClient, token: String| {
        client.send(&auth(ReasonCode::ReAuthenticate, Some("JWT"), Some(token.into())));
    };
    renewed(&mut client, until(1000));
    assert!(matches!(client.wait_for(PacketType::Auth), Packet::Auth(auth) if is_success(&auth)));
    client.expect_nothing_for(Duration::from_secs(5));
    // Renewal to an earlier end counts too.
    renewed(&mut client, until(5));
    assert!(matches!(client.wait_for(PacketType::Auth), Packet::Auth(auth) if is_success(&auth)));
    client.expect_end(ReasonCode::MaximumConnectTime);

    let (mut client, _) = RawClient::connect(tokens.address(), connect("c", "JWT", Some(until(1000).into())));
    renewed(&mut client, token(&json!({"sub": "bob", "exp": in_seconds(1000)})));
    client.expect_end(ReasonCode::NotAuthorized);
    let (mut client, _) = RawClient::connect(tokens.address(), connect("c", "JWT", Some(until(1000).into())));
    renewed(&mut client, "no token".to_owned());
    client.expect_end(ReasonCode::BadAuthenticationMethod);
}

/// Issuers "one" and "two" with separate sources and the same key.
#[test]
fn issuer_selects_the_source_of_a_token_in_auth() {
    let files = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("ours to write");
    let secret = files.path().join("secret");
    std::fs::write(&secret, SECRET).expect("ours to write");
    let source = |name: &str| {
        format!(
            "[[auth]]\nname = \"{name}\"\nkind = \"jwt\"\nsecret_file = {secret:?}\nissuer = \"{name}\"\n\
             user_claim = \"{name}\"\n"
        )
    };
    let sources = [source("one"), source("two")].concat();
    let config = ConfigFile::new(&format!(
        "[[listeners]]\naddress = \"127.0.0.1:0\"\nauth = [\"one\", \"two\"]\n{sources}\
         [[acl]]\nallow = \"publish\"\ntopic = \"by/%u\""
    ));
    let broker = BrokerProcess::start_exactly(&["--config", config.path()]);
    let by = |issuer: &str| {
        let claims = json!({"one": "alice", "two": "bob", "iss": issuer, "exp": in_seconds(1000)});
        Bytes::from(token(&claims))
    };
    for (issuer, user) in [("one", "alice"), ("two", "bob")] {
        for asks_first in [false, true] {
            let data = (!asks_first).then(|| by(issuer));
            let mut client = broker.open(ProtocolVersion::V5);
            client.send(&Packet::Connect(Box::new(connect("c", "JWT", data))));
            if asks_first {
                assert!(matches!(client.receive(), Packet::Auth(_)), "the broker asks for the token");
                client.send(&auth(ReasonCode::ContinueAuthentication, Some("JWT"), Some(by(issuer))));
            }
            let Packet::ConnAck(connack) = client.receive() else { panic!("CONNACK") };
            assert_eq!(connack.reason, ReasonCode::Success, "{issuer}");
            // Renewal, with the token and without.
            client.send(&auth(ReasonCode::ReAuthenticate, Some("JWT"), (!asks_first).then(|| by(issuer))));
            if asks_first {
                assert!(matches!(client.wait_for(PacketType::Auth), Packet::Auth(auth) if !is_success(&auth)));
                client.send(&auth(ReasonCode::ContinueAuthentication, Some("JWT"), Some(by(issuer))));
            }
            assert!(matches!(client.wait_for(PacketType::Auth), Packet::Auth(auth) if is_success(&auth)));
            assert_eq!(
                client.publish(&format!("by/{user}"), "x", QoS::AtLeastOnce),
                ReasonCode::NoMatchingSubscribers,
                "{issuer}"
            );
            client.disconnect();
        }
    }
    let mut client = broker.open(ProtocolVersion::V5);
    client.send(&Packet::Connect(Box::new(connect("c", "JWT", None))));
    assert!(matches!(client.receive(), Packet::Auth(_)), "the broker asks for the token");
    client.send(&auth(ReasonCode::ContinueAuthentication, Some("JWT"), Some(by("three"))));
    assert!(matches!(client.receive(), Packet::ConnAck(connack) if connack.reason == ReasonCode::NotAuthorized));
}

#[test]
fn rights_of_a_renewed_token_hold_at_once() {
    let tokens = Tokens::start("");
    let may_read = |topic: &str| {
        let claims = json!({"sub": "alice", "exp": in_seconds(1000), "acl": {"sub": [topic], "pub": []}});
        Some(token(&claims).into())
    };
    let (mut alice, _) = RawClient::connect(tokens.address(), connect("c", "JWT", may_read("a")));
    alice.subscribe("a", QoS::AtLeastOnce);
    let (mut anonymous, _) = RawClient::connect(tokens.address(), Connect::new(ProtocolVersion::V5, text("a")));
    assert_eq!(anonymous.publish("a", "1", QoS::AtLeastOnce), ReasonCode::Success);
    assert_eq!(alice.receive_message().payload, "1");
    for (right, expected) in [("b", ReasonCode::NoMatchingSubscribers), ("a", ReasonCode::Success)] {
        alice.send(&auth(ReasonCode::ReAuthenticate, Some("JWT"), may_read(right)));
        assert!(matches!(alice.wait_for(PacketType::Auth), Packet::Auth(auth) if is_success(&auth)));
        alice.settle();
        assert_eq!(anonymous.publish("a", "2", QoS::AtLeastOnce), expected, "{right}");
    }
}

/// A data directory for brokers with [`SECRET`], at which bob may do everything by the ACL and alice nothing.
struct Restarted {
    data: DataDirectory,
    config: ConfigFile,
    _files: tempfile::TempDir,
}

impl Restarted {
    fn new() -> Self {
        let files = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("ours to write");
        let secret = files.path().join("secret");
        std::fs::write(&secret, SECRET).expect("ours to write");
        let rule = |user: &str| format!("[[acl]]\nuser = \"{user}\"\nallow = \"all\"\ntopic = \"#\"\n");
        let config = ConfigFile::new(&format!(
            "[[listeners]]\naddress = \"127.0.0.1:0\"\nauth = [\"tokens\"]\nanonymous = true\n\
             [[auth]]\nname = \"tokens\"\nkind = \"jwt\"\nsecret_file = {secret:?}\n{}{}",
            rule(""),
            rule("bob")
        ));
        Self { data: DataDirectory::new(), config, _files: files }
    }

    fn start(&self) -> BrokerProcess {
        BrokerProcess::start_exactly(&["--config", self.config.path(), "--data", self.data.path_text()])
    }
}

/// A token with these rights.
fn rights(user: &str, acl: Value) -> String {
    token(&json!({"sub": user, "exp": in_seconds(1000), "acl": acl}))
}

#[test]
fn rules_of_a_token_hold_for_its_session_after_a_crash() {
    let restarted = Restarted::new();
    let as_user = |user, acl| with_password(lasting(ProtocolVersion::V5, user), user, &rights(user, acl));
    let alice = || as_user("alice", json!({"sub": ["work"], "pub": ["will"]}));
    let bob = || as_user("bob", json!({"sub": ["work", "own"], "pub": []}));
    {
        let broker = restarted.start();
        broker.connect(lasting(ProtocolVersion::V5, "watcher")).subscribe("will", QoS::AtLeastOnce);
        let will = Some(will("gone"));
        let mut alice = broker.connect(Connect { will, ..alice() });
        alice.subscribe("work", QoS::AtLeastOnce);
        let mut bob = broker.connect(bob());
        bob.subscribe("#", QoS::AtLeastOnce);
        bob.disconnect();
        // Dropped, the broker is killed while alice is connected.
        drop(broker);
    }
    let broker = restarted.start();
    let mut publisher = broker.v5("publisher");
    for (topic, expected) in [
        ("work", ReasonCode::Success),
        ("own", ReasonCode::Success),
        ("secret", ReasonCode::NoMatchingSubscribers), // the ACL allows it, bob's token does not
    ] {
        assert_eq!(publisher.publish(topic, topic, QoS::AtLeastOnce), expected, "{topic}");
    }
    let (_, watcher) = (publisher.disconnect(), lasting(ProtocolVersion::V5, "watcher"));
    assert_eq!(broker.connect(watcher).drain_payloads(), ["gone"]);
    assert_eq!(broker.connect(alice()).drain_payloads(), ["work"]);
    assert_eq!(broker.connect(bob()).drain_payloads(), ["work", "own"]);
}

#[test]
fn rules_of_a_renewed_token_hold_after_a_crash() {
    let restarted = Restarted::new();
    {
        let broker = restarted.start();
        let by = |acl| Some(rights("bob", acl).into());
        let properties = ConnectProperties {
            session_expiry_interval: Some(u32::MAX),
            ..connect("bob", "JWT", by(json!({"sub": ["#"], "pub": ["will"]}))).properties
        };
        let will = Some(will("gone"));
        let (mut bob, _) = RawClient::connect(
            broker.address(),
            Connect { clean_start: false, properties, will, ..connect("bob", "JWT", None) },
        );
        bob.subscribe("#", QoS::AtLeastOnce);
        bob.send(&auth(ReasonCode::ReAuthenticate, Some("JWT"), by(json!({"sub": ["own"]}))));
        assert!(matches!(bob.wait_for(PacketType::Auth), Packet::Auth(auth) if is_success(&auth)));
        drop(broker);
    }
    let broker = restarted.start();
    broker.log().wait_for(&["Will dropped", "client=\"bob\""], PATIENCE);
    let mut publisher = broker.v5("publisher");
    for (topic, expected) in [("own", ReasonCode::Success), ("work", ReasonCode::NoMatchingSubscribers)] {
        assert_eq!(publisher.publish(topic, "x", QoS::AtLeastOnce), expected, "{topic}");
    }
}

fn will(payload: &'static str) -> Will {
    let topic = topic("will");
    let payload = payload.into();
    Will { qos: QoS::AtLeastOnce, retain: false, topic, payload, delay_interval: None, properties: None }
}

fn is_success(auth: &Auth) -> bool {
    auth.reason == ReasonCode::Success
}

#[test]
fn keys_are_fetched_over_https_and_kept_while_it_is_down() {
    let certificates = Certificates::new();
    let chain = CertificateDer::pem_file_iter(certificates.path("broker.pem")).expect("there");
    let key = PrivateKeyDer::from_pem_file(certificates.path("broker.key")).expect("there");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| {
            builder.with_no_client_auth().with_single_cert(chain.map(|der| der.expect("legal")).collect(), key)
        });
    let config = Arc::new(config.expect("legal"));
    let server = WebServer::start_tls(config, |_| WebAnswer::new(200, key_set("one")));
    let files = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("ours to write");
    let keys = format!("jwks = \"https://{}/keys\"\nca = {:?}", server.address(), certificates.path("root.pem"));
    let tokens = Tokens::with_keys(files, &keys, "");
    let good = token_by("one", &json!({"sub": "alice", "exp": in_seconds(1000)}));
    assert_eq!(tokens.log_in(&good), ReasonCode::Success);
    drop(server);
    assert_eq!(tokens.log_in(&good), ReasonCode::Success);
}

#[test]
fn unknown_keys_make_one_fetch_in_ten_seconds() {
    let server = WebServer::start(|_| WebAnswer::new(200, key_set("one")));
    let files = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("ours to write");
    let keys = format!("jwks = \"http://{}/keys\"\nissuer = \"i\"", server.address());
    let tokens = Tokens::with_keys(files, &keys, "");
    let claims = json!({"sub": "alice", "iss": "i", "exp": in_seconds(1000)});
    let begin = std::time::Instant::now();
    for number in 0..10_000 {
        let unknown = token_by(&format!("key {number}"), &claims);
        assert_eq!(tokens.log_in(&unknown), ReasonCode::NotAuthorized);
    }
    assert_eq!(tokens.log_in(&token_by("one", &claims)), ReasonCode::Success);
    let most = 1 + begin.elapsed().as_secs() as usize / 10;
    assert!(server.requests().len() <= most, "{} fetches", server.requests().len());
    assert_eq!(tokens.broker.log().count("reason=\"unknown key\"", 1, PATIENCE).min(1), 1);
}
