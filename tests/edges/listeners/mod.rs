//! Addresses of listeners, and listeners that a reload opens and closes.

mod abuse;
use crate::abuse::growth;
mod proxy;
mod reload;
mod unix;

use std::net::SocketAddr;

use crate::support::{BrokerProcess, RawClient, text};
use tenbin_codec::{Connect, ProtocolVersion};

#[test]
fn listens_on_a_port_and_on_a_name() {
    for listen in ["0", ":0", "localhost:0"] {
        let broker = BrokerProcess::start_exactly(&["--listen", listen]);
        connect(([127, 0, 0, 1], broker.address().port()).into(), "client").settle();
    }
}

#[test]
fn wrong_address_is_explained_in_one_line() {
    let (status, said) = BrokerProcess::fail_to_start(&["--listen", "nowhere"]);
    assert!(!status.success());
    assert!(said.iter().any(|line| line.contains("--listen") && line.contains("a port is missing")), "{said:?}");
}

fn connect(address: SocketAddr, client_id: &str) -> RawClient {
    RawClient::connect(address, Connect::new(ProtocolVersion::V5, text(client_id))).0
}
