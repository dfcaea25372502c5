//! More clients than file descriptors.

use std::io::Write as _;
use std::net::TcpStream;

use tenbin_codec::{ProtocolVersion, QoS};

use crate::support::{BrokerProcess, DataDirectory, RawClient, hex, lasting};

/// 400 connections to a broker with 256 descriptors: it still opens files, so the log continues in new segments.
#[test]
fn durable_qos1_is_acknowledged_when_clients_exhaust_limit() {
    let data = DataDirectory::new();
    let broker = BrokerProcess::start_with_descriptors(256, 256, &["--data", data.path_text()]);
    broker.connect(lasting(ProtocolVersion::V5, "away")).subscribe("kept", QoS::AtLeastOnce);
    let mut publisher = broker.v5("publisher");
    let connect = hex("10 0D 00 04 4D 51 54 54 05 02 00 00 00 00 00");
    let mut idle: Vec<_> = (0..400).filter_map(|_| TcpStream::connect(broker.address()).ok()).collect();
    assert!(idle.len() > 256, "{} connections", idle.len());
    for client in &mut idle {
        let _ = client.write_all(&connect); // the broker may have closed it
    }
    // The broker accepts this one after all of them, and closes it.
    RawClient::open(broker.address(), ProtocolVersion::V5).expect_closed();
    // More than two segments.
    let payload = "x".repeat(1 << 20);
    for number in 0..80 {
        let reason = publisher.publish("kept", &payload, QoS::AtLeastOnce);
        assert!(!reason.is_error(), "message {number}: {reason}");
    }
    assert!(broker.log().all().iter().any(|line| line.contains("connections.maximum is lowered")));
}

#[test]
fn soft_limit_of_descriptors_is_raised_at_start() {
    let broker = BrokerProcess::start_with_descriptors(64, 1024, &[]);
    let clients: Vec<_> = (0..200).map(|number| broker.v5(&format!("client-{number}"))).collect();
    for mut client in clients {
        client.settle();
    }
}
