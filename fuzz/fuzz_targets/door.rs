//! Sends any bytes to listeners of a broker, as a peer does: PROXY header, TLS or HTTP upgrade, and first MQTT bytes.
//!
//! ```text
//!   listener | where the stream is cut (2) | the bytes of the stream
//! ```
//!
//! Every connection ends when its peer has sent all. A peer that has not passed the door gets no MQTT.
#![no_main]

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use socket2::{Domain, Socket, Type};
use tenbin_broker::{Broker, Config};
use tokio::runtime::{Builder, Runtime};

/// A broker in this process.
struct Stage {
    _runtime: Runtime,
    _broker: Broker,
    addresses: Vec<SocketAddr>,
}

/// First bytes of all legal answers of each listener.
const LISTENERS: [&[&[u8]]; 5] = [PLAIN, PLAIN, WEBSOCKET, TLS, TLS];
/// CONNACK, or DISCONNECT.
const PLAIN: &[&[u8]] = &[&[0x20], &[0xE0], &[0xF0]];
const WEBSOCKET: &[&[u8]] = &[b"HTTP/1.1 "];
/// Alert, or handshake.
const TLS: &[&[u8]] = &[&[21, 3], &[22, 3]];

static STAGE: LazyLock<Stage> = LazyLock::new(|| {
    let directory = tempfile::tempdir().expect("ours to write");
    let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let (certificate, key) = (directory.path().join("broker.pem"), directory.path().join("broker.key"));
    std::fs::write(&certificate, pair.cert.pem()).expect("ours to write");
    std::fs::write(&key, pair.signing_key.serialize_pem()).expect("ours to write");
    let tls = format!("[listeners.tls]\ncertificate = {certificate:?}\nkey = {key:?}\n");
    let proxies = "proxy_from = [\"127.0.0.0/8\"]\n";
    let optional = format!("{proxies}proxy = \"optional\"\n");
    let websocket = "transport = \"websocket\"\n";
    let mut config = String::from(
        "listen = []\n[sessions]\nexpiry_maximum_seconds = 0\n[connections]\nconnect_timeout_ms = 600000\n",
    );
    for keys in [
        proxies.to_owned(),
        optional.clone(),
        format!("{optional}{websocket}"),
        format!("{optional}{tls}"),
        format!("{proxies}{websocket}{tls}"),
    ] {
        config +=
            &format!("[[listeners]]\nname = \"{}\"\naddress = \"127.0.0.1:0\"\nanonymous = true\n{keys}", config.len());
    }
    let config = Config::parse(&(config + "[[acl]]\ndeny = \"all\"\ntopic = \"#\"\n")).expect("a configuration");
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
    let broker = runtime.block_on(Broker::builder().config(config).start()).expect("free ports");
    Stage { addresses: broker.addresses(), _broker: broker, _runtime: runtime }
});

fuzz_target!(|data: &[u8]| {
    let Some((&[listener, high, low], stream)) = data.split_first_chunk() else { return };
    let listener = usize::from(listener) % LISTENERS.len();
    let (first, rest) = stream.split_at(usize::from(u16::from_be_bytes([high, low])) % (stream.len() + 1));
    let mut socket = open(STAGE.addresses[listener]);
    // The broker may close before it has read all.
    let _ =
        socket.write_all(first).and_then(|()| socket.write_all(rest)).and_then(|()| socket.shutdown(Shutdown::Write));
    let mut answer = Vec::new();
    if let Err(error) = socket.read_to_end(&mut answer) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "the connection does not end");
    }
    let is_legal = LISTENERS[listener].iter().any(|begin| answer.starts_with(begin));
    assert!(answer.is_empty() || is_legal, "listener {listener} answers {answer:?}");
});

/// Opens a connection from one of many addresses: each has few ports, which stay in use for a minute.
fn open(address: SocketAddr) -> TcpStream {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let source = Ipv4Addr::from(0x7F01_0001 + NUMBER.fetch_add(1, Ordering::Relaxed) % 0xFFFF);
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a descriptor");
    socket.bind(&SocketAddr::from((source, 0)).into()).expect("a free port");
    socket.connect(&address.into()).expect("the broker listens");
    let socket = TcpStream::from(socket);
    socket.set_nodelay(true).expect("a socket of ours");
    socket.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket of ours");
    socket
}
