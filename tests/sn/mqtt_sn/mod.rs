//! MQTT-SN listeners of the broker: the gateway in its process, with real datagrams.

#[path = "../../../crates/sn-gateway/tests/gateway/bisquitt.rs"]
mod bisquitt;
mod crashes;
mod emcute;
mod exchange;
mod listeners;
mod load;
mod lossy;
mod messages;
mod relay;
mod secured;
pub(crate) mod sensor;
mod shares;
mod stock_clients;

use std::net::SocketAddr;

use crate::support::{BrokerProcess, ConfigFile};

/// Keys of gateways behind a lossy network. A client that does not answer for a second is lost, and comes back. All
/// clients have the relay's address.
const LISTENER: &str = "retry_seconds = 0.2\nconnects_per_second_per_address = 0\nunknown_answers_per_second = 1000\n";

/// Configuration of a broker with such a gateway at `address`.
fn built_in(address: SocketAddr) -> ConfigFile {
    built_in_with(address, LISTENER)
}

/// As [`built_in`], with these keys of the gateway.
fn built_in_with(address: SocketAddr, listener: &str) -> ConfigFile {
    ConfigFile::new(&format!(
        "listen = [\"127.0.0.1:0\"]\n[[listeners]]\ntransport = \"mqtt-sn\"\naddress = \"{address}\"\nname = \"field\"\n\
         anonymous = true\n[listeners.sn]\n{listener}"
    ))
}

/// UDP address of the broker's first MQTT-SN listener.
fn sn_address(broker: &BrokerProcess) -> SocketAddr {
    let line = broker.wait_for_start_line("listening on UDP");
    let address = line.split_once("UDP ").and_then(|(_, rest)| rest.split(' ').next());
    address.and_then(|address| address.parse().ok()).unwrap_or_else(|| panic!("an address: {line}"))
}

/// A broker with an open MQTT-SN listener.
fn broker() -> (BrokerProcess, SocketAddr) {
    let broker = BrokerProcess::start(&["--sn", "127.0.0.1:0"]);
    let address = sn_address(&broker);
    (broker, address)
}
