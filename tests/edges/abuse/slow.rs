//! Connections that send nothing, or next to nothing.

use std::time::{Duration, Instant};

use tenbin_codec::{Connect, ProtocolVersion};

use crate::abuse::broker_with;
use crate::abuse::growth::Growth;
use crate::support::{BrokerProcess, PATIENCE, RawClient, Silence, hex, text};

/// 100 silent connections and 100 that send a byte now and then: all are closed in time, growth ≤ 16 MiB.
#[test]
fn silent_and_slow_connections_are_closed_in_time() {
    let broker = broker_with("[connections]\nconnect_timeout_ms = 3000");
    let mut growth = Growth::of(&broker);
    let opened = Instant::now();
    let mut silent = (0..100).map(|_| broker.open(ProtocolVersion::V5)).collect::<Vec<_>>();
    let mut slow = (0..100).map(|_| broker.open(ProtocolVersion::V5)).collect::<Vec<_>>();
    // The largest legal CONNECT, a byte at a time.
    slow.iter_mut().for_each(|client| client.send_bytes(&hex("10 FC FF 0F")));
    for byte in [0, 4, b'M', b'Q'] {
        std::thread::sleep(Duration::from_millis(150));
        slow.iter_mut().for_each(|client| client.try_send_bytes(&[byte]));
        growth.look();
    }
    broker.assert_serves();
    silent.iter_mut().for_each(RawClient::expect_closed);
    slow.iter_mut().for_each(RawClient::expect_closed);
    let took = opened.elapsed();
    assert!(took > Duration::from_millis(2900), "{took:?}");
    growth.assert_within(16, "200 slow connections");
}

/// Keep Alive counts packets: bytes of an endless packet do not prolong it.
#[test]
fn a_packet_that_never_ends_does_not_keep_a_client_alive() {
    let broker = BrokerProcess::start(&[]);
    let connect = Connect { keep_alive: 1, ..Connect::new(ProtocolVersion::V5, text("client")) };
    let mut client = broker.connect(connect);
    let began = Instant::now();
    client.send_bytes(&hex("30 FF FF 7F 00 01 61"));
    while !matches!(client.try_receive(Duration::from_millis(100)), Err(Silence::Closed)) {
        client.try_send_bytes(b"x");
        assert!(began.elapsed() < PATIENCE, "still open");
    }
    assert!(began.elapsed() >= Duration::from_millis(1400), "{:?}", began.elapsed());
}

/// 50 packets of 4 MiB begin and never end: a connection buffers only received bytes, growth ≤ 24 MiB.
#[test]
fn announced_packet_length_allocates_no_memory() {
    let broker = BrokerProcess::start(&[]);
    let mut growth = Growth::of(&broker);
    let mut clients = (0..50).map(|number| broker.v5(&format!("client-{number}"))).collect::<Vec<_>>();
    for client in &mut clients {
        client.send_bytes(&hex("30 FB FF FF 01 00 01 61 00"));
        client.send_bytes(&[0; 64 * 1024]);
    }
    broker.assert_serves();
    growth.assert_within(24, "50 packets of 4 MiB begun");
}
