//! CONNACK names the report carriers that a listener accepts.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU32;
use std::time::Duration;

use serde_json::Value;
use tenbin_codec::{Connect, Packet, ProtocolVersion, QoS, ReasonCode, ReportCarriers};

use crate::load_reports::group::user_property;
use crate::support::{BrokerProcess, ConfigFile, PATIENCE, RawClient, hex, text};

#[test]
fn connack_lists_the_accepted_report_carriers() {
    let broker = BrokerProcess::start(&[]);
    let asks = "10 1E 00 04 4D 51 54 54 05 02 00 3C 11 26 00 0B 6C 6F 61 64 2D 72 65 70 6F 72 74 00 01 3F 00 00";
    let connack = connack(broker.address(), asks);
    let property = user_property(b"load-report", b"pingreq,ack,publish");
    assert!(connack.windows(property.len()).any(|part| part == property), "{connack:02X?}");
    // 3.1.1 has no properties.
    let v311 = self::connack(broker.address(), "10 0C 00 04 4D 51 54 54 04 02 00 3C 00 00");
    assert_eq!(v311, hex("20 02 00 00"));
}

/// mqttools for Python, version 0.50, fails on User Properties in CONNACK, and reconnects for ever.
#[test]
fn client_that_does_not_ask_gets_no_user_property() {
    let broker = BrokerProcess::start(&[]);
    let connect = "10 11 00 04 4D 51 54 54 05 02 00 3C 00 00 04 6D 71 74 74";
    let connack = connack(broker.address(), connect);
    assert!(!connack.windows(4).any(|part| part == b"load"), "{connack:02X?}");
    let (_client, connack) = RawClient::connect(broker.address(), Connect::new(ProtocolVersion::V5, text("other")));
    assert_eq!(connack.properties.user_properties, []);
}

#[test]
fn each_listener_has_its_own_report_carriers() {
    let config = ConfigFile::new(&listeners(&["", "load_reports = [\"ack\"]", "load_reports = []"]));
    let broker = BrokerProcess::start_exactly(&["--config", config.path()]);
    let expected = [Some("publish"), Some("pingreq,ack,publish"), Some("ack"), None];
    for (&address, expected) in broker.addresses().iter().zip(expected) {
        assert_eq!(told(address), expected.map(str::to_owned));
    }
}

#[test]
fn report_carriers_are_omitted_beyond_the_packet_limit() {
    let broker = BrokerProcess::start(&[]);
    let mut connect = asking("small");
    connect.properties.maximum_packet_size = NonZeroU32::new(40); // [MQTT-3.2.2-20]
    let (_client, connack) = RawClient::connect(broker.address(), connect);
    assert_eq!(connack.properties.user_properties, []);
}

#[test]
fn at_a_strict_listener_a_pingreq_with_a_body_is_malformed() {
    let config = ConfigFile::new("load_reports = [\"ack\", \"publish\"]");
    let broker = BrokerProcess::start(&["--config", config.path()]);
    let vectors: Vec<Value> = serde_json::from_str(include_str!("../../vectors/pingreq_extended.json")).expect("JSON");
    for vector in vectors.iter().filter(|vector| vector["version"] == "5.0" && vector.get("error").is_none()) {
        let bytes = hex(vector["hex"].as_str().expect("bytes"));
        let mut client = broker.v5("client");
        client.send_bytes(&bytes);
        match bytes[1] {
            0 => assert_eq!(client.receive(), Packet::PingResp),
            _ => client.expect_end(ReasonCode::MalformedPacket),
        }
    }
    // The fixed header alone decides.
    let mut client = broker.v5("client");
    client.send_bytes(&hex("C0 7F"));
    client.expect_end(ReasonCode::MalformedPacket);
}

#[test]
fn unaccepted_report_carriers_are_refused_or_ignored() {
    let config = ConfigFile::new("load_reports = [\"pingreq\"]");
    let broker = BrokerProcess::start(&["--config", config.path(), "--log", "debug"]);
    let mut worker = broker.v5("worker");
    for json in ["{}", "{\"msgsInQueue\":0,\"processingTimePerMsg\":1}"] {
        assert_eq!(worker.publish("$load", json, QoS::AtLeastOnce), ReasonCode::NotAuthorized);
        let property = user_property(b"load", json.as_bytes());
        let body = [&b"\x77\x77\x00"[..], &[property.len() as u8], &property].concat();
        worker.send_bytes(&crate::load_reports::group::packet(0x40, &body));
    }
    worker.settle();
    // The log has the lines of this connection before the line of the next one.
    broker.v5("marker");
    broker.log().wait_for(&["connected", "\"marker\""], PATIENCE);
    assert_eq!(broker.log().count("load report rejected", 1, Duration::ZERO), 0);
}

#[test]
fn reload_of_report_carriers_affects_new_connections() {
    let config = ConfigFile::new(&listeners(&["name = \"other\""]));
    let broker = BrokerProcess::start_exactly(&["--config", config.path()]);
    let [_, other] = *broker.addresses() else { panic!("two listeners") };
    let (mut before, _) = RawClient::connect(other, asking("before"));
    std::fs::write(config.path(), listeners(&["name = \"other\"\nload_reports = [\"publish\"]"])).expect("ours");
    broker.signal("HUP");
    broker.log().wait_for(&["reloaded"], PATIENCE);
    assert_eq!(told(other).as_deref(), Some("publish"));
    before.send_bytes(&hex("C0 03 00 7B 7D"));
    assert_eq!(before.receive(), Packet::PingResp, "it was told so");
}

/// A plain listener that accepts published reports, and further listeners.
fn listeners(settings: &[&str]) -> String {
    let mut text = "listen = [\"127.0.0.1:0\"]\nload_reports = [\"publish\"]\n".to_owned();
    for settings in settings {
        // Listeners on port 0 need distinct names.
        let name = if settings.contains("name =") { String::new() } else { format!("name = \"n{}\"\n", text.len()) };
        text += &format!("[[listeners]]\naddress = \"127.0.0.1:0\"\nanonymous = true\n{name}{settings}\n");
    }
    text
}

/// A CONNECT that asks for the accepted report carriers.
fn asking(client_id: &str) -> Connect {
    let mut connect = Connect::new(ProtocolVersion::V5, text(client_id));
    connect.properties.user_properties.push(ReportCarriers::question());
    connect
}

/// The accepted report carriers in the CONNACK of a 5.0 client that asks.
fn told(address: SocketAddr) -> Option<String> {
    let (_client, connack) = RawClient::connect(address, asking(""));
    let properties = connack.properties.user_properties;
    properties
        .iter()
        .find(|property| property.name.as_str() == "load-report")
        .map(|property| property.value.to_string())
}

/// Bytes of the answer to a CONNECT.
fn connack(address: SocketAddr, connect: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("the broker listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket of ours");
    stream.write_all(&hex(connect)).expect("CONNECT");
    let mut connack = vec![0; 2];
    stream.read_exact(&mut connack).expect("CONNACK");
    connack.resize(2 + usize::from(connack[1]), 0);
    stream.read_exact(&mut connack[2..]).expect("the rest of CONNACK");
    connack
}
