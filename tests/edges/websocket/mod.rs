//! WebSocket listeners.

mod frames;
mod messages;
mod upgrades;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::support::{BrokerProcess, Certificates, ClientStream, ConfigFile, PATIENCE, RawClient, text};
use tenbin_codec::{Connect, ProtocolVersion, ReasonCode};
use tokio_rustls::rustls::version::TLS13;

/// A broker with a plain listener, one for WebSocket, and one for WebSocket over TLS.
struct Served {
    certificates: Certificates,
    broker: BrokerProcess,
    _config: ConfigFile,
}

impl Served {
    /// `rest`: keys and tables of the configuration.
    fn start(rest: &str) -> Self {
        let certificates = Certificates::new();
        let web =
            "[[listeners]]\nname = \"web\"\naddress = \"127.0.0.1:0\"\nanonymous = true\ntransport = \"websocket\"\n";
        let secure = certificates.listener("").replace("[listeners.tls]", "transport = \"websocket\"\n[listeners.tls]");
        let config = ConfigFile::new(&format!("{rest}\n{web}{secure}"));
        let arguments = ["--listen", "127.0.0.1:0", "--config", config.path(), "--log", "debug"];
        let broker = BrokerProcess::start_listening(&arguments, 3);
        Self { certificates, broker, _config: config }
    }

    fn address(&self) -> SocketAddr {
        self.broker.addresses()[1]
    }

    /// A client over WebSocket.
    fn connect(&self, client_id: &str) -> RawClient {
        let stream = TcpStream::connect(self.address()).expect("the broker listens");
        introduce(stream.into(), client_id)
    }

    /// A client over WebSocket and TLS.
    fn connect_secure(&self, client_id: &str) -> RawClient {
        introduce(ClientStream::tls(self.broker.addresses()[2], &self.certificates.client(&TLS13)), client_id)
    }

    /// A connection after the upgrade.
    fn open(&self) -> TcpStream {
        let (stream, answer) = exchange(self.address(), &request());
        assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
        stream
    }
}

fn introduce(stream: ClientStream, client_id: &str) -> RawClient {
    let client = RawClient::on(stream.upgraded(), ProtocolVersion::V5);
    let (client, connack) = client.introduce(Connect::new(ProtocolVersion::V5, text(client_id)));
    assert_eq!(connack.reason, ReasonCode::Success, "CONNACK");
    client
}

/// A usual request.
fn request() -> String {
    "GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
        .to_owned()
}

/// Sends a request; returns the head of the answer.
fn exchange(address: SocketAddr, request: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(address).expect("the broker listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket of ours");
    stream.set_write_timeout(Some(PATIENCE)).expect("a socket of ours");
    stream.set_nodelay(true).expect("a socket of ours");
    // The broker may refuse before it has read all.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let mut byte = [0];
    while !answer.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => answer.push(byte[0]),
            _ => break,
        }
    }
    (stream, String::from_utf8(answer).expect("text"))
}
