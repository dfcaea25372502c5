//! The log line of a refused login.

use std::net::SocketAddr;

use bytes::Bytes;
use serde_json::{Value, json};
use tenbin_codec::{Connect, Packet, ProtocolVersion, ReasonCode};

use crate::auth::guarded::{Passwords, with_password};
use crate::auth::scram_client::{METHOD, ScramClient, auth, connect};
use crate::auth::tokens::{SECRET, in_seconds, token};
use crate::support::{BrokerProcess, ConfigFile, PATIENCE, RawClient, WebAnswer, WebServer, text};

/// A broker with listeners for passwords, SCRAM and tokens ("in"), a login service ("out"), and a set of keys ("set").
struct Refusing {
    broker: BrokerProcess,
    _files: (tempfile::TempDir, Passwords, ConfigFile, WebServer),
}

impl Refusing {
    fn start() -> Self {
        let files = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("ours to write");
        let secret = files.path().join("secret");
        std::fs::write(&secret, SECRET).expect("ours to write");
        let passwords = Passwords::of(&[("alice", "wonderland")]);
        let server = WebServer::start(|request| match request.body.as_str() {
            "" => WebAnswer::new(500, ""), // asked for the keys
            body if body.contains("failing") => WebAnswer::new(500, ""),
            _ => WebAnswer::new(200, r#"{"result": "refuse", "reason": "not today"}"#),
        });
        let entry =
            |name: &str, kind: &str, keys: &str| format!("[[auth]]\nname = \"{name}\"\nkind = \"{kind}\"\n{keys}\n");
        let listener = |name: &str, auth: &str| {
            format!("[[listeners]]\nname = \"{name}\"\naddress = \"127.0.0.1:0\"\nauth = {auth}\n")
        };
        let (file, address) = (format!("file = {:?}", passwords.path()), server.address());
        let config = ConfigFile::new(
            &[
                "[log]\nlines_per_second_per_address = 0\n".to_owned(),
                listener("in", r#"["staff", "proofs", "tokens"]"#),
                listener("out", r#"["service"]"#),
                listener("set", r#"["keys"]"#),
                entry("staff", "passwords", &file),
                entry("proofs", "scram", &file),
                entry("tokens", "jwt", &format!("secret_file = {secret:?}\naudience = \"a\"\nmust = {{ x = \"1\" }}")),
                entry("service", "http", &format!("url = \"http://{address}/\"")),
                entry("keys", "jwt", &format!("jwks = \"http://{address}/\"")),
                "[[ban]]\nclient_id = \"worm\"\n".to_owned(),
            ]
            .concat(),
        );
        let broker = BrokerProcess::start_exactly(&["--config", config.path()]);
        Self { broker, _files: (files, passwords, config, server) }
    }

    /// Sends the packets, each after the answer to the one before, of which the last one refuses the client. Expects
    /// the line in the log. `fields`: user, listener, source, reason.
    fn expect(&self, packets: &[Packet], fields: [&str; 4]) {
        let [user, listener, source, cause] = fields;
        let place = ["in", "out", "set"].iter().position(|name| *name == listener).expect("a listener");
        let (peer, reason) = refused(self.broker.addresses()[place], packets);
        let Packet::Connect(connect) = &packets[0] else { panic!("CONNECT first") };
        let line = format!(
            "login refused peer={peer} client={:?} user={user:?} listener={listener:?} source={source:?} \
             reason={cause:?} code={reason}",
            connect.client_id.as_str()
        );
        self.broker.log().wait_for(&[&line], PATIENCE);
    }
}

/// Address and Reason Code of a client that is refused.
fn refused(address: SocketAddr, packets: &[Packet]) -> (SocketAddr, ReasonCode) {
    let mut client = RawClient::open(address, ProtocolVersion::V5);
    let peer = client.stream().tcp().local_addr().expect("a socket");
    let mut last = None;
    for packet in packets {
        client.send(packet);
        last = Some(client.receive());
    }
    match last {
        Some(Packet::ConnAck(connack)) => (peer, connack.reason),
        Some(Packet::Disconnect(disconnect)) => (peer, disconnect.reason),
        other => panic!("{other:?} instead of a refusal"),
    }
}

fn plain(client_id: &str) -> Connect {
    Connect::new(ProtocolVersion::V5, text(client_id))
}

fn packet(connect: Connect) -> Packet {
    Packet::Connect(Box::new(connect))
}

/// CONNECT with a token of these claims.
fn by_token(client_id: &str, claims: &Value) -> Packet {
    packet(with_password(plain(client_id), "u", &token(claims)))
}

#[test]
fn refused_login_names_client_user_source_and_reason() {
    let refusing = Refusing::start();
    let login = |id: &str, user: &str, password: &str| [packet(with_password(plain(id), user, password))];
    for (packets, fields) in [
        (login("c1", "alice", "builder"), ["alice", "in", "staff", "wrong password"]),
        (login("c2", "nobody", "x"), ["nobody", "in", "", "unknown user"]),
        ([packet(plain("c3"))], ["", "in", "", "anonymous"]),
        ([packet(connect("c4", "GS2-KRB5", None))], ["", "in", "", "unknown Authentication Method"]),
        (login("worm", "alice", "wonderland"), ["alice", "in", "", "banned"]),
        // No name can look like other fields.
        (login("c5", "\" source=\"x", "x"), ["\" source=\"x", "in", "", "unknown user"]),
        (login("c6", "bob", "x"), ["bob", "out", "service", "not today"]),
        (login("c7", "failing", "x"), ["failing", "out", "service", "the answer is 500 Internal Server Error"]),
    ] {
        refusing.expect(&packets, fields);
    }
}

#[test]
fn refused_token_names_its_source_and_reason() {
    let refusing = Refusing::start();
    let good = || json!({"sub": "alice", "aud": "a", "x": 1, "exp": in_seconds(1000)});
    let with = |key: &str, value: Value| {
        let mut claims = good();
        claims[key] = value;
        claims
    };
    for (number, (claims, reason)) in [
        (with("exp", json!(1)), "expired"),
        (with("exp", json!("soon")), "a time is no number of seconds"),
        (with("nbf", json!(in_seconds(1000))), "not valid yet"),
        (with("aud", json!("other")), "wrong aud"),
        (with("x", json!(2)), "a required claim has another value"),
        (with("sub", json!("")), "no user"),
        (with("acl", json!("all")), "acl has a rule that is not known"),
        (with("acl", json!({"pub": vec!["a"; 65]})), "acl has too many or too long rules"),
        (json!({"sub": "alice"}), "no exp"),
    ]
    .into_iter()
    .enumerate()
    {
        refusing.expect(&[by_token(&format!("t{number}"), &claims)], ["u", "in", "tokens", reason]);
    }
    let forged = token(&good()).rsplit_once('.').map(|(message, _)| format!("{message}.AAAA")).expect("a token");
    let forged = packet(with_password(plain("forged"), "u", &forged));
    refusing.expect(&[forged], ["u", "in", "tokens", "wrong algorithm or signature"]);
    refusing.expect(&[by_token("keys", &good())], ["u", "set", "keys", "the keys are not available"]);
    let method = |data: &str| Some(Bytes::copy_from_slice(data.as_bytes()));
    let asked = [
        packet(connect("asked", "JWT", None)),
        auth(ReasonCode::ContinueAuthentication, Some("JWT"), method("no token")),
    ];
    refusing.expect(&asked, ["", "in", "tokens", "no token of this source"]);
    let mut other = good();
    other["sub"] = json!("bob");
    let renewed = [
        packet(connect("renewed", "JWT", method(&token(&good())))),
        auth(ReasonCode::ReAuthenticate, Some("JWT"), method(&token(&other))),
    ];
    refusing.expect(&renewed, ["alice", "in", "", "another user than before"]);
}

#[test]
fn refused_scram_exchange_names_its_user_and_reason() {
    let refusing = Refusing::start();
    let begin = |id: &str, data: Bytes| connect(id, METHOD, Some(data));
    let illegal = packet(begin("s1", Bytes::from_static(b"junk")));
    refusing.expect(&[illegal], ["", "in", "", "illegal SCRAM message"]);
    let first = ScramClient::new("alice", "x").first();
    let named = Connect { user_name: Some(text("bob")), ..begin("s2", first) };
    refusing.expect(&[packet(named)], ["bob", "in", "", "two user names"]);
    for (user, reason) in [("alice", "wrong proof"), ("nobody", "unknown user")] {
        let first = ScramClient::new(user, "x").first();
        let junk =
            auth(ReasonCode::ContinueAuthentication, Some(METHOD), Some(Bytes::from_static(b"c=biws,r=x,p=eA==")));
        refusing.expect(&[packet(begin("s3", first)), junk], [user, "in", "proofs", reason]);
    }
}
