//! Connections that never send CONNECT.

use std::time::{Duration, Instant};

use tenbin_codec::ProtocolVersion;

use crate::support::{BrokerProcess, ConfigFile, PATIENCE, Silence, hex};

#[test]
fn a_connection_without_connect_is_closed_in_time() {
    let file = ConfigFile::new("[connections]\nconnect_timeout_ms = 300");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let connect = hex("10 12 00 04 4D 51 54 54 05 02 00 3C 00 00 05 63");
    for said in [&connect[..0], &connect[..1], &connect] {
        let opened = Instant::now();
        let mut client = broker.open(ProtocolVersion::V5);
        client.send_bytes(said);
        client.expect_closed();
        let waited = opened.elapsed();
        assert!(waited.as_millis() > 290, "{waited:?}");
    }
    broker.log().wait_for(&["no CONNECT in time"], PATIENCE);
}

#[test]
fn slow_bytes_do_not_prolong_the_connect_timeout() {
    let file = ConfigFile::new("[connections]\nconnect_timeout_ms = 3000");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let opened = Instant::now();
    let mut client = broker.open(ProtocolVersion::V5);
    client.send_bytes(&hex("10 FF 7F 00 04 4D 51 54 54 05 02 00 3C 00 7F 00"));
    while client.try_receive(Duration::from_millis(50)) != Err(Silence::Closed) {
        client.try_send_bytes(b"c");
        assert!(opened.elapsed() < PATIENCE, "still open");
    }
    assert!(opened.elapsed() >= Duration::from_millis(2900));
    broker.assert_serves();
}

#[test]
fn connect_timeout_ends_with_connect() {
    let file = ConfigFile::new("[connections]\nconnect_timeout_ms = 3000");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let mut client = broker.v5("client");
    client.expect_nothing_for(Duration::from_millis(3500));
    client.settle();
}

#[test]
fn no_more_connections_than_the_maximum() {
    let file = ConfigFile::new("[connections]\nmaximum = 2");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let mut first = broker.v5("first");
    let second = broker.v5("second");
    broker.open(ProtocolVersion::V5).expect_closed();
    first.settle();
    second.disconnect();
    let freed = Instant::now();
    loop {
        let mut third = broker.open(ProtocolVersion::V5);
        third.try_send_bytes(&hex("10 0D 00 04 4D 51 54 54 05 02 00 3C 00 00 00"));
        if third.try_receive(PATIENCE).is_ok() {
            break;
        }
        assert!(freed.elapsed() < PATIENCE, "no room after one has left");
    }
}
