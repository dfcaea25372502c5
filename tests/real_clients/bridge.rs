//! Mosquitto as a bridge to the broker, with the defaults of its bridges.

use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Killed, is_installed};
use crate::support::{BrokerProcess, ConfigFile, PATIENCE, RawClient, at_qos, retained};
use tenbin_codec::{Connect, ProtocolVersion, QoS, ReasonCode};

/// Mosquitto, with or without a bridge to the broker.
pub(crate) struct Mosquitto {
    _process: Killed,
    pub(crate) address: SocketAddr,
    _config: ConfigFile,
}

impl Mosquitto {
    pub(super) fn is_installed() -> bool {
        is_installed("mosquitto", Command::new("mosquitto").arg("-h"), &[0, 1, 3])
    }

    /// Bridged to the broker. `options`: further ones of the bridge.
    fn start(broker: &BrokerProcess, options: &str) -> Self {
        Self::start_with(&format!(
            "connection edge\naddress {}\ntopic out/# out 1\ntopic in/# in 1\ntopic both/# both 1\n{options}",
            broker.address()
        ))
    }

    /// `options`: of the whole file.
    pub(crate) fn start_with(options: &str) -> Self {
        // Mosquitto takes no port 0.
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = free.local_addr().expect("a socket of ours");
        drop(free);
        let port = address.port();
        let config = ConfigFile::new(&format!("listener {port} 127.0.0.1\nallow_anonymous true\n{options}"));
        let mut command = Command::new("mosquitto");
        command.args(["-c", config.path()]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self { _process: Killed(command.spawn().expect("installed")), address, _config: config }
    }

    pub(crate) fn client(&self, client_id: &str) -> RawClient {
        let connect = Connect::new(ProtocolVersion::V5, crate::support::text(client_id));
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(client) = RawClient::try_open(self.address, ProtocolVersion::V5) {
                return client.introduce(connect).0;
            }
            assert!(Instant::now() < until, "mosquitto does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Publishes until the bridge has subscribed at the broker.
fn wait_for_bridge(broker: &BrokerProcess) {
    let mut prober = broker.v5("prober");
    let until = Instant::now() + PATIENCE;
    while prober.publish("in/probe", "", QoS::AtLeastOnce) == ReasonCode::NoMatchingSubscribers {
        assert!(Instant::now() < until, "the bridge does not subscribe: {:?}", broker.log().all());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn passes_messages_both_ways(options: &str) {
    if !Mosquitto::is_installed() {
        return;
    }
    let broker = BrokerProcess::start(&[]);
    let mosquitto = Mosquitto::start(&broker, options);
    let mut edge = mosquitto.client("edge client");
    ["in/#", "both/#"].iter().for_each(|filter| edge.subscribe(filter, QoS::AtLeastOnce));
    let mut centre = broker.v5("centre client");
    ["out/#", "both/#"].iter().for_each(|filter| centre.subscribe(filter, QoS::AtLeastOnce));
    wait_for_bridge(&broker);
    for number in 0..200 {
        assert!(!edge.publish("out/a", &number.to_string(), QoS::AtLeastOnce).is_error());
        assert!(!centre.publish("in/a", &number.to_string(), QoS::AtLeastOnce).is_error());
    }
    for number in 0..200 {
        assert_eq!(centre.receive_message().payload, number.to_string(), "{options}");
    }
    let mut passed = Vec::new();
    while passed.len() < 200 {
        let message = edge.receive_message();
        passed.extend((message.topic.as_bytes() == b"in/a").then_some(message.payload));
    }
    assert!(passed.iter().enumerate().all(|(number, payload)| *payload == number.to_string()), "{options}");
    // A message to both sides comes once to each, and keeps its flag for late subscribers.
    edge.publish_with(retained("both/edge", "from the edge"));
    centre.publish_with(retained("both/centre", "from the centre"));
    for client in [&mut edge, &mut centre] {
        let mut found: Vec<_> = (0..2).map(|_| client.receive_message().payload).collect();
        found.sort();
        assert_eq!(found, ["from the centre", "from the edge"], "{options}");
    }
    edge.publish_with(at_qos("both/last", "the last", QoS::AtLeastOnce));
    for client in [&mut edge, &mut centre] {
        assert_eq!(client.receive_message().payload, "the last", "no message comes again: {options}");
    }
    let mut late = [mosquitto.client("late"), broker.v5("late")];
    for client in &mut late {
        client.subscribe("both/#", QoS::AtLeastOnce);
        let mut found: Vec<_> =
            (0..2).map(|_| client.receive_message()).map(|found| (found.payload, found.retain)).collect();
        found.sort();
        assert_eq!(found, [("from the centre".into(), true), ("from the edge".into(), true)], "{options}");
    }
}

#[test]
fn mosquitto_bridge_with_its_defaults_passes_messages_both_ways() {
    passes_messages_both_ways("");
}

#[test]
fn mosquitto_bridge_of_mqtt_5_passes_messages_both_ways() {
    passes_messages_both_ways("bridge_protocol_version mqttv50\n");
}

#[test]
fn mosquitto_bridge_of_mqtt_3_1_passes_messages_both_ways() {
    passes_messages_both_ways("bridge_protocol_version mqttv31\n");
}
