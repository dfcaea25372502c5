//! Extended authentication (MQTT 5.0 §4.12) with SCRAM-SHA-256.

use bytes::Bytes;
use tenbin_codec::{Auth, ConnAck, Disconnect, Packet, PacketType, PingReq, ProtocolVersion, QoS, ReasonCode};

use crate::auth::guarded::Guarded;
use crate::auth::scram_client::{METHOD, ScramClient, auth, connect};
use crate::auth::stage::Stage;
use crate::support::{BrokerProcess, RawClient, message, text};

#[test]
fn mqtt_4_12_0_5_scram_verifies_the_client_and_the_broker() {
    let guarded = Guarded::start_with("", "[[acl]]\nuser = \"alice\"\nallow = \"all\"\ntopic = \"a\"");
    let (mut client, connack) = scram(&guarded, "c", "alice", "wonderland");
    assert_eq!(connack.properties.authentication_method, Some(text(METHOD)));
    // The client has alice's rights.
    assert_eq!(client.publish("a", "x", QoS::AtLeastOnce), ReasonCode::NoMatchingSubscribers);
    assert_eq!(client.publish("b", "x", QoS::AtLeastOnce), ReasonCode::NotAuthorized);
}

#[test]
fn mqtt_4_12_0_1_an_unknown_method_is_refused() {
    let guarded = Guarded::start("");
    for method in ["SCRAM-SHA-1", "scram-sha-256", "", "GS2-KRB5"] {
        let (mut client, connack) = guarded.try_connect(connect("c", method, Some(Bytes::from_static(b"n,,n=a,r=b"))));
        assert_eq!(connack.reason, ReasonCode::BadAuthenticationMethod, "{method}");
        client.expect_closed();
    }
    let open = BrokerProcess::start(&[]);
    let (_, connack) = RawClient::try_connect(open.address(), connect("c", METHOD, None));
    assert_eq!(connack.reason, ReasonCode::BadAuthenticationMethod, "no password file at that listener");
}

#[test]
fn mqtt_4_12_0_4_wrong_password_and_unknown_user_look_the_same() {
    let guarded = Guarded::start("");
    for (user, password) in [("alice", "builder"), ("nobody", "wonderland")] {
        let mut scram = ScramClient::new(user, password);
        let mut client = begin(&guarded, &scram);
        let challenge = challenge(&mut client);
        client.send(&auth(ReasonCode::ContinueAuthentication, Some(METHOD), Some(scram.last(&challenge))));
        assert_eq!(connack(&mut client).reason, ReasonCode::NotAuthorized, "{user}");
        client.expect_closed();
    }
    // The salt of an unknown user is stable.
    let salt = |user| {
        let challenge = challenge(&mut begin(&guarded, &ScramClient::new(user, "x")));
        String::from_utf8_lossy(&challenge).split(',').nth(1).map(ToOwned::to_owned)
    };
    assert_eq!(salt("nobody"), salt("nobody"));
    assert_ne!(salt("nobody"), salt("noone"));
}

/// Neither a restart nor the iteration count reveals whether a user exists.
#[test]
fn unknown_scram_users_look_like_users_of_the_file() {
    let stage = Stage::new();
    let key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let users = [("one", 4096), ("two", 8192)];
    let line =
        |(user, count): &(&str, u32)| format!("{user}:$scram-sha-256${count}$c2FsdHNhbHRzYWx0c2FsdA==${key}${key}\n");
    std::fs::write(stage.path("pw"), users.iter().map(line).collect::<String>()).expect("ours to write");
    stage.configure(&[("main", "pw", "")]);
    let ask = |broker: &BrokerProcess, user: &str| {
        let mut client = broker.open(ProtocolVersion::V5);
        let first = ScramClient::new(user, "x").first();
        client.send(&Packet::Connect(Box::new(connect("c", METHOD, Some(first)))));
        let challenge = challenge(&mut client);
        let text = String::from_utf8_lossy(&challenge).into_owned();
        let (_, shown) = text.split_once(',').expect("a nonce first");
        shown.to_owned()
    };
    let unknown: Vec<_> = (0..40).map(|number| format!("unknown-{number}")).collect();
    let ask_all = || {
        let broker = stage.start();
        unknown.iter().map(|user| ask(&broker, user)).collect::<Vec<_>>()
    };
    let shown = ask_all();
    for count in ["i=4096", "i=8192"] {
        assert!(shown.iter().any(|shown| shown.ends_with(count)), "{count}: {shown:?}");
    }
    assert!(shown.iter().all(|shown| shown.ends_with("i=4096") || shown.ends_with("i=8192")), "{shown:?}");
    assert_eq!(ask_all(), shown, "after a restart");
}

#[test]
fn client_without_initial_data_is_asked_for_it() {
    let guarded = Guarded::start("");
    let mut scram = ScramClient::new("bob", "builder");
    let mut client = guarded.broker.open(ProtocolVersion::V5);
    client.send(&Packet::Connect(Box::new(connect("c", METHOD, None))));
    let Packet::Auth(asked) = client.receive() else { panic!("no AUTH") };
    assert_eq!((asked.reason, asked.properties.authentication_data), (ReasonCode::ContinueAuthentication, None));
    client.send(&auth(ReasonCode::ContinueAuthentication, Some(METHOD), Some(scram.first())));
    let challenge = challenge(&mut client);
    client.send(&auth(ReasonCode::ContinueAuthentication, Some(METHOD), Some(scram.last(&challenge))));
    assert_eq!(connack(&mut client).reason, ReasonCode::Success);
}

#[test]
fn mqtt_3_1_2_30_only_auth_and_disconnect_may_precede_connack() {
    let guarded = Guarded::start("");
    let data = Some(Bytes::from_static(b"x"));
    for packet in [
        Packet::Publish(message("a", "x")),
        Packet::PingReq(PingReq::PLAIN),
        Packet::Connect(Box::new(connect("c", METHOD, None))),
        auth(ReasonCode::ContinueAuthentication, None, None),
        auth(ReasonCode::ContinueAuthentication, Some("other"), data.clone()), // [MQTT-4.12.0-5]
        auth(ReasonCode::ReAuthenticate, Some(METHOD), data.clone()),
        auth(ReasonCode::Success, Some(METHOD), data), // [MQTT-4.12.0-3]
    ] {
        let mut client = begin(&guarded, &ScramClient::new("alice", "wonderland"));
        challenge(&mut client);
        client.send(&packet);
        assert_eq!(connack(&mut client).reason, ReasonCode::ProtocolError, "{packet:?}");
        client.expect_closed();
    }
    let mut client = begin(&guarded, &ScramClient::new("alice", "wonderland"));
    challenge(&mut client);
    client.send(&Packet::Disconnect(Disconnect::new(ReasonCode::Success)));
    client.expect_closed();
}

#[test]
fn mqtt_4_12_0_7_auth_is_refused_without_a_method() {
    let guarded = Guarded::start("");
    for packet in [
        auth(ReasonCode::ReAuthenticate, Some(METHOD), None),
        auth(ReasonCode::ContinueAuthentication, Some(METHOD), None),
        auth(ReasonCode::Success, None, None),
    ] {
        let mut client = guarded.client(ProtocolVersion::V5, "alice", "c");
        client.send(&packet);
        client.expect_end(ReasonCode::ProtocolError);
    }
}

#[test]
fn mqtt_4_12_1_1_reauthentication_uses_the_same_method() {
    let guarded = Guarded::start("");
    let (mut client, _) = scram(&guarded, "c", "alice", "wonderland");
    client.subscribe("a", QoS::AtLeastOnce);
    for _ in 0..2 {
        let mut again = ScramClient::new("alice", "wonderland");
        client.send(&auth(ReasonCode::ReAuthenticate, Some(METHOD), Some(again.first())));
        let challenge = challenge(&mut client);
        client.publish("a", "meanwhile", QoS::AtLeastOnce);
        client.send(&auth(ReasonCode::ContinueAuthentication, Some(METHOD), Some(again.last(&challenge))));
        let Packet::Auth(done) = client.wait_for(PacketType::Auth) else { panic!("no AUTH") };
        assert_eq!(done.reason, ReasonCode::Success);
        assert_eq!(done.properties.authentication_method, Some(text(METHOD)));
        assert!(again.accepts(done.properties.authentication_data.expect("the server's signature").expose()));
        assert_eq!(client.drain_payloads(), ["meanwhile"]);
    }
}

#[test]
fn mqtt_4_12_1_2_failed_reauthentication_ends_the_connection() {
    let guarded = Guarded::start("");
    for (user, password) in [("alice", "wrong"), ("bob", "builder")] {
        let (mut client, _) = scram(&guarded, "c", "alice", "wonderland");
        let mut again = ScramClient::new(user, password);
        client.send(&auth(ReasonCode::ReAuthenticate, Some(METHOD), Some(again.first())));
        let challenge = challenge(&mut client);
        client.send(&auth(ReasonCode::ContinueAuthentication, Some(METHOD), Some(again.last(&challenge))));
        client.expect_end(ReasonCode::NotAuthorized);
    }
    // Out of turn, or with another method.
    for packet in [
        auth(ReasonCode::ReAuthenticate, Some("other"), None),
        auth(ReasonCode::ReAuthenticate, None, None),
        auth(ReasonCode::ContinueAuthentication, Some(METHOD), None),
    ] {
        let (mut client, _) = scram(&guarded, "c", "alice", "wonderland");
        client.send(&packet);
        client.expect_end(ReasonCode::ProtocolError);
    }
}

/// Connects and completes the SCRAM exchange.
fn scram(guarded: &Guarded, client_id: &str, user: &str, password: &str) -> (RawClient, ConnAck) {
    let mut scram = ScramClient::new(user, password);
    let mut client = guarded.broker.open(ProtocolVersion::V5);
    client.send(&Packet::Connect(Box::new(connect(client_id, METHOD, Some(scram.first())))));
    let challenge = challenge(&mut client);
    client.send(&auth(ReasonCode::ContinueAuthentication, Some(METHOD), Some(scram.last(&challenge))));
    let connack = connack(&mut client);
    assert_eq!(connack.reason, ReasonCode::Success);
    assert!(scram.accepts(connack.properties.authentication_data.as_ref().expect("the server's signature").expose()));
    (client, connack)
}

fn begin(guarded: &Guarded, scram: &ScramClient) -> RawClient {
    let mut client = guarded.broker.open(ProtocolVersion::V5);
    client.send(&Packet::Connect(Box::new(connect("c", METHOD, Some(scram.first())))));
    client
}

fn challenge(client: &mut RawClient) -> Bytes {
    let Packet::Auth(auth) = client.wait_for(PacketType::Auth) else { panic!("no AUTH") };
    let Auth { reason, properties } = *auth;
    assert_eq!(reason, ReasonCode::ContinueAuthentication, "[MQTT-4.12.0-2]");
    assert_eq!(properties.authentication_method, Some(text(METHOD)), "[MQTT-4.12.0-5]");
    properties.authentication_data.expect("a challenge").expose().clone()
}

fn connack(client: &mut RawClient) -> ConnAck {
    match client.receive() {
        Packet::ConnAck(connack) => *connack,
        other => panic!("{other:?} instead of CONNACK"),
    }
}
