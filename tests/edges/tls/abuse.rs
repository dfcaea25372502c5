#![cfg(target_os = "linux")]
//! Peers that do not finish their handshakes.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenbin_codec::ProtocolVersion;
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::crypto::cipher::{OutboundChunks, OutboundPlainMessage};
use tokio_rustls::rustls::crypto::ring::{self, cipher_suite};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::version::TLS12;
use tokio_rustls::rustls::{
    ClientConfig, ConnectionTrafficSecrets, ContentType, ProtocolVersion as TlsVersion, RootCertStore, StreamOwned,
    SupportedCipherSuite,
};

use super::growth::Growth;
use super::{Guarded, connect};
use crate::support::{ClientStream, PATIENCE, RawClient, Silence, hex};

/// Number of half handshakes: 300, or that in the environment.
fn count() -> usize {
    std::env::var("TENBIN_HALF_HANDSHAKES").ok().and_then(|count| count.parse().ok()).unwrap_or(300)
}

/// Waits until the broker begins a handshake with the client.
fn expect_answer(stream: &ClientStream) {
    stream.tcp().set_read_timeout(Some(PATIENCE)).expect("a socket of ours");
    assert_eq!(stream.tcp().peek(&mut [0]).expect("the broker answers"), 1);
}

/// Half handshakes from 1, 8, 16 and 256 addresses: each client logs in, while none of the half handshakes ends.
#[test]
fn half_handshakes_delay_no_other_login() {
    for addresses in [1, 8, 16, 256] {
        let halves = HalfHandshakes::open(addresses, 600_000);
        let Guarded { broker, client, .. } = &halves.guarded;
        for source in [[127, 0, 9, 9], [127, 0, 0, 1]] {
            let other = ClientStream::tls_from(IpAddr::from(source), halves.guarded.address(), client);
            other.tcp().set_read_timeout(Some(PATIENCE)).expect("a socket of ours");
            super::introduce(other, "other").settle();
        }
        broker.assert_serves();
        assert_eq!(broker.log().count("TLS handshake", usize::MAX, Duration::ZERO), 0, "no handshake has ended");
    }
}

/// Growth ≤ 64 KiB each, and all end after connect_timeout_ms.
#[test]
fn half_handshakes_are_bounded_and_end_in_time() {
    let halves = HalfHandshakes::open(50, 12_000 + 10 * count());
    halves.guarded.broker.assert_serves();
    halves.assert_ended();
}

/// Clients that have sent their ClientHello.
struct HalfHandshakes {
    guarded: Guarded,
    streams: Vec<ClientStream>,
    timeout: Duration,
    /// Growth of the broker's memory, in bytes.
    growth: u64,
}

impl HalfHandshakes {
    /// Opens [`count`] of them from some loopback addresses, with `timeout` milliseconds for each.
    fn open(addresses: usize, timeout: usize) -> Self {
        tenbin_broker::raise_descriptor_limit().expect("permitted");
        let count = count();
        let guarded = Guarded::start(&format!("[connections]\nconnect_timeout_ms = {timeout}"), "");
        guarded.broker.assert_serves();
        let before = guarded.broker.resident_bytes();
        let streams = (0..count).map(|number| {
            let source = IpAddr::from([127, 0, 1, (number % addresses) as u8]);
            let mut stream = ClientStream::tls_from(source, guarded.address(), &guarded.client);
            stream.send_hello().expect("the broker listens");
            stream
        });
        let streams = streams.collect::<Vec<_>>();
        streams.iter().take(8).for_each(expect_answer);
        let growth = guarded.broker.resident_bytes().saturating_sub(before);
        Self { guarded, streams, timeout: Duration::from_millis(timeout as u64), growth }
    }

    /// Asserts that the broker ends all of them and stays within its bound of memory.
    fn assert_ended(self) {
        let Self { guarded, streams, timeout, growth } = self;
        let count = streams.len() as u64;
        for stream in streams {
            stream.tcp().set_read_timeout(Some(timeout + PATIENCE)).expect("a socket of ours");
            let end = stream.tcp().read_to_end(&mut Vec::new());
            assert!(!end.is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "it ends");
        }
        let _ = writeln!(std::io::stderr(), "{count} half handshakes: grown by {} KiB", growth >> 10);
        assert!(growth <= count << 16, "{growth} bytes");
        connect(guarded.address(), &guarded.client, "last").settle();
    }
}

/// A client that asks for another handshake within its session, as TLS 1.2 permits.
#[test]
fn renegotiation_ends_the_connection() {
    let guarded = Guarded::start("[connections]\nconnect_timeout_ms = 600000", "");
    let suite = cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256;
    let SupportedCipherSuite::Tls12(details) = suite else { panic!("a suite of TLS 1.2") };
    let mut roots = RootCertStore::empty();
    let authority = guarded.certificates.authority();
    roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).expect("PEM")).expect("a certificate");
    let provider = CryptoProvider { cipher_suites: vec![suite], ..ring::default_provider() };
    let builder = ClientConfig::builder_with_provider(Arc::new(provider)).with_protocol_versions(&[&TLS12]);
    let mut config = builder.expect("a version").with_root_certificates(roots).with_no_client_auth();
    config.enable_secret_extraction = true;

    let ClientStream::Tls(mut stream) = ClientStream::tls(guarded.address(), &Arc::new(config)) else {
        panic!("a stream of TLS")
    };
    stream.flush().expect("the broker does the handshake");
    let StreamOwned { conn, mut sock, .. } = *stream;
    let secrets = conn.dangerous_extract_secrets().expect("permitted");
    let (first, ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv }) = secrets.tx else { panic!("the suite") };
    let mut encrypter = details.aead_alg.encrypter(key, iv.as_ref(), &[]);
    let zeros = "00 ".repeat(32);
    let hello = hex(&format!("01 00 00 29 03 03 {zeros} 00 00 02 CC A9 01 00"));
    sock.set_read_timeout(Some(PATIENCE)).expect("a socket of ours");
    for sequence in first..first + 100 {
        let payload = OutboundChunks::from(&hello[..]);
        let record = OutboundPlainMessage { typ: ContentType::Handshake, version: TlsVersion::TLSv1_2, payload };
        let record = encrypter.encrypt(record, sequence).expect("a key").encode();
        // The broker may have ended the connection.
        let _ = sock.write_all(&record);
    }
    let mut answers = Vec::new();
    let end = sock.read_to_end(&mut answers);
    assert!(!end.is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "the broker ends the connection");
    // Alerts, each in a record of at most 23 bytes.
    assert!(answers.len() <= 200, "{} bytes of answers", answers.len());
    guarded.broker.log().wait_for(&["TooManyRenegotiationRequests"], PATIENCE);
    guarded.connect("client").settle();
}

/// Many clients send a byte of their ClientHello now and then. Growth ≤ 64 KiB each.
#[test]
fn slow_client_hellos_delay_nobody_and_end_in_time() {
    let guarded = Guarded::start("[connections]\nconnect_timeout_ms = 3000", "");
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
