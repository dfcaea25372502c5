//! MQTT-SN listeners of the broker: the gateway in its process, with real datagrams.

#[path = "../support/mod.rs"]
mod support;

mod crashes;
mod exchange;
mod listeners;
mod load;
mod lossy;
mod messages;
mod relay;
mod sensor;

use std::net::SocketAddr;

use support::BrokerProcess;

/// UDP address of the broker's first MQTT-SN listener.
fn sn_address(broker: &BrokerProcess) -> SocketAddr {
    let line = broker.wait_for_start_line("listening on UDP");
    let address = line.split_once("UDP ").and_then(|(_, rest)| rest.split(' ').next());
    address.and_then(|address| address.parse().ok()).unwrap_or_else(|| panic!("an address: {line}"))
}

/// A broker with an MQTT-SN listener for everybody.
fn broker() -> (BrokerProcess, SocketAddr) {
    let broker = BrokerProcess::start(&["--sn", "127.0.0.1:0"]);
    let address = sn_address(&broker);
    (broker, address)
}
