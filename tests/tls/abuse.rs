#![cfg(target_os = "linux")]
//! Peers that do not finish their handshakes.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tenbin_codec::ProtocolVersion;

use super::growth::Growth;
use super::support::{ClientStream, PATIENCE, RawClient, Silence, hex};
use super::{Guarded, connect};

/// Number of half handshakes: 300, or that in the environment.
fn count() -> usize {
    std::env::var("TENBIN_HALF_HANDSHAKES").ok().and_then(|count| count.parse().ok()).unwrap_or(300)
}

/// A client that has sent its ClientHello, and reads no answer.
fn half_handshake(guarded: &Guarded) -> ClientStream {
    let mut stream = ClientStream::tls(guarded.address(), &guarded.client);
    stream.send_hello().expect("the broker listens");
    stream
}

/// Waits until the broker begins a handshake with the client.
fn expect_answer(stream: &ClientStream) {
    stream.tcp().set_read_timeout(Some(PATIENCE)).expect("a socket of ours");
    assert_eq!(stream.tcp().peek(&mut [0]).expect("the broker answers"), 1);
}

#[test]
fn further_handshakes_wait_while_they_are_at_their_maximum() {
    let guarded = Guarded::start("", "handshakes_maximum = 8");
    // A quarter for each address.
    let halves = [(); 2].map(|()| half_handshake(&guarded));
    halves.iter().for_each(expect_answer);
    let mut waiting = ClientStream::tls(guarded.address(), &guarded.client);
    waiting.tcp().set_read_timeout(Some(Duration::from_millis(200))).expect("a socket of ours");
    assert!(waiting.flush().is_err(), "it waits for one of the others");
    drop(halves);
    waiting.tcp().set_read_timeout(Some(PATIENCE)).expect("a socket of ours");
    waiting.flush().expect("now it is its turn");
    guarded.connect("client").settle();
}

/// Growth ≤ 64 KiB each, and all end after connect_timeout_ms.
#[test]
fn half_handshakes_of_one_address_delay_no_other_address() {
    let count = count();
    // Time to open them all.
    let timeout = 12_000 + 10 * count;
    let guarded = Guarded::start(&format!("[connections]\nconnect_timeout_ms = {timeout}"), "handshakes_maximum = 8");
    let mut growth = Growth::of(&guarded.broker);
    let halves = (0..count).map(|_| half_handshake(&guarded)).collect::<Vec<_>>();
    expect_answer(&halves[0]);
    growth.look();
    let other = ClientStream::tls_from(IpAddr::from([127, 0, 0, 2]), guarded.address(), &guarded.client);
    super::introduce(other, "other").settle();
    let timeouts = guarded.broker.log().count("no TLS handshake in time", usize::MAX, Duration::ZERO);
    assert_eq!(timeouts, 0, "the others still wait");
    for half in halves {
        half.tcp().set_read_timeout(Some(PATIENCE)).expect("a socket of ours");
        let end = half.tcp().read_to_end(&mut Vec::new());
        assert!(!end.is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "it ends");
    }
    growth.assert_within((count as u64 * 64).div_ceil(1024), "half handshakes");
    connect(guarded.address(), &guarded.client, "last").settle();
}

/// Many clients send a byte of their ClientHello now and then. Growth ≤ 64 KiB each.
#[test]
fn slow_client_hellos_delay_nobody_and_end_in_time() {
    let guarded = Guarded::start("[connections]\nconnect_timeout_ms = 3000", "handshakes_maximum = 1");
    let mut growth = Growth::of(&guarded.broker);
    let opened = Instant::now();
    let mut slow = [(); 100].map(|()| RawClient::open(guarded.address(), ProtocolVersion::V5));
    slow.iter_mut().for_each(|client| client.send_bytes(&hex("16 03 01 40 00 01 00 3F FC 03 03")));
    guarded.connect("client").settle();
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(100));
        slow.iter_mut().for_each(|client| client.try_send_bytes(&[0]));
        growth.look();
    }
    slow.iter_mut().for_each(RawClient::expect_closed);
    assert!(opened.elapsed() >= Duration::from_millis(2900), "{:?}", opened.elapsed());
    growth.assert_within(7, "100 slow ClientHellos");
    guarded.broker.assert_serves();
}

/// A ClientHello of 16 MiB ends the connection. Growth ≤ 64 KiB each, and as much for the allocator.
#[test]
fn endless_client_hello_is_bounded() {
    let guarded = Guarded::start("[connections]\nconnect_timeout_ms = 3000", "");
    let mut growth = Growth::of(&guarded.broker);
    // Records of 16 KiB that belong to one ClientHello of 16 MiB.
    let mut record = hex("16 03 01 40 00");
    record.extend([0; 0x4000]);
    record[5..9].copy_from_slice(&hex("01 FF FF FF"));
    let peers = (0..50).map(|_| {
        let mut client = RawClient::open(guarded.address(), ProtocolVersion::V5);
        (0..64).for_each(|_| client.try_send_bytes(&record));
        client
    });
    for mut client in peers.collect::<Vec<_>>() {
        growth.look();
        let end = client.try_receive(PATIENCE);
        assert!(matches!(end, Err(Silence::Closed | Silence::Illegal(_))), "{end:?}");
    }
    guarded.connect("client").settle();
    growth.assert_within(8, "50 endless ClientHellos");
}

/// Clients that have connected and are silent. Growth ≤ 20 KiB each.
#[test]
fn idle_clients_over_tls_take_little_memory() {
    let guarded = Guarded::start("", "");
    guarded.connect("first").settle();
    let mut growth = Growth::of(&guarded.broker);
    let count = super::trust::count() * 4;
    let clients = (0..count).map(|number| guarded.connect(&format!("idle-{number}"))).collect::<Vec<_>>();
    growth.assert_within((count as u64 * 20).div_ceil(1024), &format!("{count} idle clients over TLS"));
    drop(clients);
}
