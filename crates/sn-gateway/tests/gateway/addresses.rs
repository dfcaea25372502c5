//! Clients at new addresses, behind forwarders, and unknown ones.

use std::net::SocketAddr;

use tenbin_codec::{Packet, Publish, QoS as MqttQoS, TopicName};
use tenbin_sn_codec::Forwarded;
use tenbin_sn_codec::v1_2::{Connect, Disconnect, Message, PingReq, QoS, ReturnCode, Topic};
use tenbin_sn_gateway::{Config, Gateway, Upstream};

use crate::client::{Client, gateway, wait_for, wait_for_gauge};
use crate::fake_broker::FakeBroker;

const DISCONNECT: Message<'static> = Message::Disconnect(Disconnect { duration: None });

/// A message of the broker at QoS 0.
pub(crate) fn message(topic: &str, payload: &'static str) -> Packet {
    Packet::Publish(Publish {
        dup: false,
        qos: MqttQoS::AtMostOnce,
        retain: false,
        topic: TopicName::try_from(topic).expect("a name"),
        packet_id: None,
        topic_alias: None,
        subscription_identifiers: Vec::new(),
        properties: None,
        payload: payload.into(),
    })
}

/// A client that sleeps, with a message in the gateway.
fn sleeper(gateway: &Gateway, broker: &FakeBroker) -> Client {
    let mut client = Client::new(gateway.address());
    assert_eq!(client.connect("sleeper", true), ReturnCode::Accepted);
    client.subscribe("topic", QoS::AtMostOnce);
    client.send(&Message::Disconnect(Disconnect { duration: Some(600) }));
    assert_eq!(client.receive(), DISCONNECT);
    broker.send("sleeper", &message("topic", "for the sleeper"));
    client
}

#[test]
fn unknown_sender_gets_disconnect_within_a_rate() {
    let broker = FakeBroker::start();
    let gateway =
        gateway(broker.address, "", "unknown_answers_per_second = 2\nevents_per_second_per_shared_address = 1");
    let mut client = Client::new(gateway.address());
    let begun = std::time::Instant::now();
    for _ in 0..50 {
        client.publish(Topic::Normal(1), QoS::AtMostOnce, 0, b"lost");
    }
    assert_eq!(client.receive(), DISCONNECT);
    wait_for(&gateway, "unknown_senders", 50);
    let answers = gateway.stats().get("datagrams_sent");
    assert!(answers <= 2 * (begun.elapsed().as_secs() + 2), "{answers} answers");
}

#[test]
fn clients_behind_a_forwarder_are_told_apart_by_node() {
    let broker = FakeBroker::start();
    let gateway = gateway(broker.address, "", "forwarders = [\"127.0.0.1\"]");
    let mut forwarder = Client::new(gateway.address());
    for (node_id, client_id) in [(b"one", "first"), (b"two", "other")] {
        let mut message = Vec::new();
        Message::Connect(Connect { will: false, clean_session: true, duration: 60, client_id }).encode(&mut message);
        let mut envelope = Vec::new();
        Forwarded { radius: 0, node_id, message: &message }.encode(&mut envelope);
        forwarder.send_bytes(&envelope);
        assert_eq!(broker.connect().client_id, client_id);
        let answer = Forwarded::decode(forwarder.receive_bytes()).expect("an envelope");
        assert_eq!(answer.node_id, node_id);
        assert_eq!(Message::decode(answer.message), Ok(Message::ConnAck(ReturnCode::Accepted)));
    }
    wait_for_gauge(&gateway, "clients", 2);
    let stranger = Client::at("127.0.0.9", gateway.address());
    stranger.send_bytes(b"\x05\xFE\x00no\x02\x16");
    wait_for(&gateway, "unknown_forwarders", 1);
    let mut envelope = Vec::new();
    Forwarded { radius: 0, node_id: &[7; 65], message: b"\x02\x16" }.encode(&mut envelope);
    forwarder.send_bytes(&envelope);
    wait_for(&gateway, "node_ids_too_long", 1);
}

#[test]
fn session_stays_with_a_client_that_answers() {
    let broker = FakeBroker::start();
    let gateway = gateway(broker.address, "", "");
    let (mut old, mut new) = (Client::new(gateway.address()), Client::new(gateway.address()));
    assert_eq!(old.connect("sensor", false), ReturnCode::Accepted);
    new.send(&Message::Connect(Connect { will: false, clean_session: false, duration: 60, client_id: "sensor" }));
    assert_eq!(old.receive(), Message::PingReq(PingReq { client_id: None }));
    old.send(&Message::PingResp);
    assert_eq!(new.receive(), Message::ConnAck(ReturnCode::Congestion));
    old.register("still/here");
}

#[test]
fn session_stays_with_a_client_that_answers_by_connect() {
    let broker = FakeBroker::start();
    let gateway = gateway(broker.address, "", "");
    let (mut old, mut new) = (Client::new(gateway.address()), Client::new(gateway.address()));
    assert_eq!(old.connect("sensor", false), ReturnCode::Accepted);
    let first = old.register("first");
    new.send(&Message::Connect(Connect { will: false, clean_session: false, duration: 60, client_id: "sensor" }));
    assert_eq!(old.receive(), Message::PingReq(PingReq { client_id: None }));
    assert_eq!(old.connect("sensor", false), ReturnCode::Accepted);
    assert_eq!(new.receive(), Message::ConnAck(ReturnCode::Congestion));
    assert_eq!(old.register("first"), first);
    assert_eq!(gateway.stats().get("taken_over"), 0);
}

#[test]
fn socket_for_both_versions_of_ip_knows_networks_of_ipv4() {
    let broker = FakeBroker::start();
    let text = "[listener]\naddress = \"[::]:0\"\nrebind = \"network\"\nforwarders = [\"127.0.0.1\"]";
    let upstream = Upstream::tcp(&broker.address.to_string());
    let gateway = Gateway::start(Config::parse(text).expect("legal"), upstream).expect("started");
    let address = SocketAddr::from(([127, 0, 0, 1], gateway.address().port()));
    let mut old = Client::at("127.0.0.5", address);
    assert_eq!(old.connect("sleeper", true), ReturnCode::Accepted);
    assert_eq!(old.register("a/b"), 1);
    old.send(&Message::Disconnect(Disconnect { duration: Some(600) }));
    assert_eq!(old.receive(), DISCONNECT);
    let wake = Message::PingReq(PingReq { client_id: Some("sleeper") });
    let (mut far, mut near) = (Client::at("127.0.1.1", address), Client::at("127.0.0.77", address));
    far.send(&wake);
    assert_eq!(far.receive(), DISCONNECT);
    near.send(&wake);
    assert_eq!(near.receive_proven(), Message::PingResp);

    let mut forwarder = Client::new(address);
    let (mut message, mut envelope) = (Vec::new(), Vec::new());
    Message::Connect(Connect { will: false, clean_session: true, duration: 60, client_id: "n" }).encode(&mut message);
    Forwarded { radius: 0, node_id: b"node", message: &message }.encode(&mut envelope);
    forwarder.send_bytes(&envelope);
    assert!(Forwarded::decode(forwarder.receive_bytes()).is_ok());
}

#[test]
fn session_of_a_silent_client_is_taken_over() {
    let broker = FakeBroker::start();
    let gateway = gateway(broker.address, "", "");
    let (mut old, mut new) = (Client::new(gateway.address()), Client::new(gateway.address()));
    assert_eq!(old.connect("sensor", false), ReturnCode::Accepted);
    let other = old.register("other");
    new.connect_to_session("sensor", false);
    assert!(old.questions_before_disconnect() > 1, "a question may be lost");
    assert_eq!(new.register("other"), other, "topic ids belong to the session");
}

#[test]
fn last_address_that_asks_takes_a_silent_session() {
    let broker = FakeBroker::start();
    let gateway = gateway(broker.address, "", "");
    let [mut old, mut first, mut last] = [(); 3].map(|()| Client::new(gateway.address()));
    assert_eq!(old.connect("sensor", false), ReturnCode::Accepted);
    first.send(&Message::Connect(Connect { will: false, clean_session: false, duration: 60, client_id: "sensor" }));
    assert_eq!(old.receive(), Message::PingReq(PingReq { client_id: None }));
    last.connect_to_session("sensor", false);
    assert!(first.is_silent());
    wait_for(&gateway, "taken_over", 1);
}

#[test]
fn sleeper_wakes_at_another_address_of_its_network() {
    let broker = FakeBroker::start();
    let gateway = gateway(broker.address, "", "rebind = \"network\"");
    let mut old = sleeper(&gateway, &broker);
    let far = &mut Client::at("127.0.1.1", gateway.address());
    let near = &mut Client::at("127.0.0.77", gateway.address());
    let wake = Message::PingReq(PingReq { client_id: Some("sleeper") });
    far.send(&wake);
    assert_eq!(far.receive(), DISCONNECT);
    near.send(&wake);
    // The address may be forged: it gets messages once it has answered.
    let Message::Publish(publish) = near.receive_proven() else { panic!("PUBLISH") };
    assert_eq!(publish.data, b"for the sleeper");
    assert_eq!(near.receive(), Message::PingResp);
    assert!(old.is_silent());
    assert_eq!(gateway.stats().get("rebound"), 1);
}

#[test]
fn sleepers_wake_at_their_own_ip_address_by_default() {
    let broker = FakeBroker::start();
    let gateway = gateway(broker.address, "", "");
    let mut old = sleeper(&gateway, &broker);
    let mut other = Client::at("127.0.0.77", gateway.address());
    let wake = Message::PingReq(PingReq { client_id: Some("sleeper") });
    other.send(&wake);
    assert_eq!(other.receive(), DISCONNECT);
    // A NAT gives it another port.
    let mut same = Client::new(gateway.address());
    same.send(&wake);
    let Message::Publish(publish) = same.receive_proven() else { panic!("PUBLISH") };
    assert_eq!(publish.data, b"for the sleeper");
    assert!(old.is_silent());
}

#[test]
fn connect_with_another_clients_id_asks_that_client() {
    let broker = FakeBroker::start();
    let gateway = gateway(broker.address, "", "");
    let (mut one, mut other) = (Client::new(gateway.address()), Client::new(gateway.address()));
    assert_eq!(one.connect("one", false), ReturnCode::Accepted);
    assert_eq!(other.connect("other", false), ReturnCode::Accepted);
    other.register("topic");
    other.send(&Message::Connect(Connect { will: false, clean_session: false, duration: 60, client_id: "one" }));
    assert_eq!(one.receive(), Message::PingReq(PingReq { client_id: None }));
    one.send(&Message::PingResp);
    assert_eq!(other.receive(), Message::ConnAck(ReturnCode::Congestion));
    wait_for_gauge(&gateway, "clients", 1);
}

#[test]
fn answers_leave_from_the_address_that_the_client_knows() {
    let broker = FakeBroker::start();
    for address in ["0.0.0.0:0", "[::]:0"] {
        let config = Config::parse(&format!("[listener]\naddress = \"{address}\"")).expect("legal");
        let gateway = Gateway::start(config, Upstream::tcp(&broker.address.to_string())).expect("started");
        // Its socket takes datagrams from this address alone.
        let mut client = Client::new(SocketAddr::from(([127, 0, 0, 5], gateway.address().port())));
        assert_eq!(client.connect("client", true), ReturnCode::Accepted);
        client.subscribe("topic", QoS::AtMostOnce);
        broker.send("client", &message("topic", "to the client"));
        let Message::Publish(publish) = client.receive_proven() else { panic!("PUBLISH") };
        assert_eq!(publish.data, b"to the client");
        client.disconnect();
        client.send(&Message::PingReq(PingReq { client_id: None }));
        assert_eq!(client.receive(), DISCONNECT, "a stranger");
    }
}

#[test]
fn forged_clean_connect_keeps_session_of_client_without_topics() {
    let broker = FakeBroker::start(); // it does not tell whether it has a session
    let gateway = gateway(broker.address, "", "");
    let mut owner = Client::new(gateway.address());
    assert_eq!(owner.connect("sensor", false), ReturnCode::Accepted);
    broker.connect();
    owner.subscribe("plant/#", QoS::AtLeastOnce);
    owner.disconnect();
    wait_for_gauge(&gateway, "clients", 0);
    let forger = Client::at("127.0.0.77", gateway.address());
    forger.send(&Message::Connect(Connect { will: false, clean_session: true, duration: 60, client_id: "sensor" }));
    wait_for(&gateway, "proofs_asked", 1);
    // The owner has the session at its last address at once, and at another one with a proof.
    assert_eq!(owner.connect("sensor", false), ReturnCode::Accepted);
    assert!(!broker.connect().clean_start, "the forger's CONNECT was passed on");
    owner.disconnect();
    wait_for_gauge(&gateway, "clients", 0);
    let mut elsewhere = Client::at("127.0.0.78", gateway.address());
    elsewhere.connect_to_session("sensor", true);
    assert!(broker.connect().clean_start);
    elsewhere.disconnect();
}
