#![cfg(target_os = "linux")]
//! Peers that stay in the door.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tenbin_codec::ProtocolVersion;

use crate::listeners::growth::Growth;
use crate::listeners::proxy::LOOPBACK;
use crate::support::{BrokerProcess, Certificates, ClientStream, ConfigFile, PATIENCE, RawClient, hex};

/// Number of peers: 200, or that in the environment.
fn count() -> usize {
    std::env::var("TENBIN_DOOR_PEERS").ok().and_then(|count| count.parse().ok()).unwrap_or(200)
}

/// Each client fills the buffer of its stage and never completes the stage. Growth ≤ 64 KiB each, and all connections end
/// after connect_timeout_ms.
#[test]
fn unfinished_stages_of_a_door_are_bounded_and_end_in_time() {
    tenbin_broker::raise_descriptor_limit().expect("permitted");
    let count = count();
    let timeout = Duration::from_millis(5000 + 10 * count as u64);
    let certificates = Certificates::new();
    // 4 KiB of TLVs and the longest addresses, without the last byte.
    let mut proxy = hex("0D 0A 0D 0A 00 0D 0A 51 55 49 54 0A 21 11 10 D8");
    proxy.resize(16 + 4096 + 216 - 1, 0);
    let mut upgrade = b"GET /mqtt HTTP/1.1\r\nx: ".to_vec();
    upgrade.resize(8 * 1024 - 1, b'y');
    let mut hello = hex("16 03 01 40 00 01 00 3F FC 03 03");
    hello.resize(5 + 0x3FFF, 0);
    let plain = "[[listeners]]\nname = \"door\"\naddress = \"127.0.0.1:0\"\nanonymous = true\n";
    for (listener, sent, stage) in [
        (format!("{plain}{LOOPBACK}"), proxy, "PROXY header"),
        (format!("{plain}transport = \"websocket\"\n"), upgrade, "upgrade to WebSocket"),
        (certificates.listener(""), hello, "TLS handshake"),
    ] {
        let rest = format!("[connections]\nconnect_timeout_ms = {}\n", timeout.as_millis());
        let file = ConfigFile::new(&(rest + &listener));
        let broker = BrokerProcess::start_exactly(&["--listen", "127.0.0.1:0", "--config", file.path()]);
        let mut growth = Growth::of(&broker);
        let peers = (0..count).map(|_| {
            let mut peer = TcpStream::connect(broker.addresses()[1]).expect("the broker listens");
            peer.write_all(&sent).expect("the broker reads");
            peer
        });
        let peers = peers.collect::<Vec<_>>();
        // Its door has begun with all of them.
        broker.assert_serves();
        growth.look();
        for mut peer in peers {
            peer.set_read_timeout(Some(timeout + PATIENCE)).expect("a socket of ours");
            let end = peer.read_to_end(&mut Vec::new());
            assert!(!end.is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "{stage}: it ends");
            growth.look();
        }
        growth.assert_within((count as u64 * 64).div_ceil(1024), &format!("{count} unfinished: {stage}"));
        broker.log().wait_for(&[&format!("no {stage} in time")], PATIENCE);
        broker.assert_serves();
    }
}

/// Silent peers from 1, 8, 16 and 256 addresses take all places, at each stage. Clients from elsewhere come in all the same.
#[test]
fn silent_peers_make_room_for_clients() {
    let certificates = Certificates::new();
    let plain = "[[listeners]]\nname = \"door\"\naddress = \"127.0.0.1:0\"\nanonymous = true\n";
    for (listener, sent) in [
        (plain.to_owned(), hex("")),
        (plain.to_owned(), hex("10 12 00 04 4D 51")),
        (format!("{plain}{LOOPBACK}"), hex("0D 0A 0D 0A 00 0D 0A")),
        (format!("{plain}transport = \"websocket\"\n"), b"GET /mqtt HTTP/1.1\r\n".to_vec()),
        (certificates.listener(""), hex("16 03 01 40 00 01 00 3F FC 03 03")),
    ] {
        let file = ConfigFile::new(&format!(
            "[log]\nlines_per_second_per_address = 0\n[connections]\nmaximum = 64\nconnect_timeout_ms = 600000\n{listener}"
        ));
        let broker = BrokerProcess::start_exactly(&["--listen", "127.0.0.1:0", "--config", file.path()]);
        for addresses in [1, 8, 16, 256] {
            let peers = (0..100).map(|number| {
                let source = [127, 0, 1, (number % addresses) as u8].into();
                let mut peer = ClientStream::tcp_from(source, broker.addresses()[1]);
                // The broker may have closed it.
                let _ = peer.write_all(&sent);
                peer
            });
            let peers = peers.collect::<Vec<_>>();
            let began = Instant::now();
            while !peers.iter().any(is_closed) {
                assert!(began.elapsed() < PATIENCE, "more peers than places");
                std::thread::sleep(Duration::from_millis(5));
            }
            // A further connection is refused while all others are new too.
            let connected = || {
                let stream = ClientStream::tcp_from([127, 0, 9, 9].into(), broker.address());
                let mut client = RawClient::on(stream, ProtocolVersion::V5);
                client.try_send_bytes(&hex("10 0F 00 04 4D 51 54 54 05 02 00 00 00 00 02 63 63"));
                client.try_receive(PATIENCE).is_ok()
            };
            while !connected() {
                assert!(began.elapsed() < PATIENCE, "{addresses} addresses, {sent:?}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        broker.log().wait_for(&["closed before its login", "peer="], PATIENCE);
    }
}

/// Whether the broker has closed a connection, of which nothing is read.
fn is_closed(peer: &TcpStream) -> bool {
    peer.set_nonblocking(true).expect("a socket of ours");
    match peer.peek(&mut [0]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}
