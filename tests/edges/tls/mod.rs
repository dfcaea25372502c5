//! TLS listeners.

mod abuse;
use crate::abuse::growth;
mod handshakes;
mod messages;
mod names;
mod origin;
mod reload;
mod trust;

use std::net::SocketAddr;
use std::sync::Arc;

use crate::support::{BrokerProcess, Certificates, ClientStream, ConfigFile, RawClient, text};
use tenbin_codec::{Connect, ProtocolVersion, ReasonCode};
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::version::TLS13;

/// A broker with a TLS listener and a plain one.
struct Guarded {
    certificates: Certificates,
    config: ConfigFile,
    broker: BrokerProcess,
    client: Arc<ClientConfig>,
}

impl Guarded {
    /// `rest`: tables of the configuration; `more`: keys of `[listeners.tls]`.
    fn start(rest: &str, more: &str) -> Self {
        Self::with(Certificates::new(), rest, more)
    }

    /// With `client_certificates = asks`, by the broker's authority.
    fn asking(asks: &str) -> Self {
        let certificates = Certificates::new();
        let authority = certificates.path("root.pem");
        Self::with(certificates, "", &format!("client_ca = \"{authority}\"\nclient_certificates = \"{asks}\""))
    }

    fn with(certificates: Certificates, rest: &str, more: &str) -> Self {
        let config = ConfigFile::new(&format!("{rest}\n{}", certificates.listener(more)));
        let arguments = ["--listen", "127.0.0.1:0", "--config", config.path(), "--log", "debug"];
        let broker = BrokerProcess::start_listening(&arguments, 2);
        let client = certificates.client(&TLS13);
        Self { certificates, config, broker, client }
    }

    fn address(&self) -> SocketAddr {
        self.broker.addresses()[1]
    }

    /// A client that connects over TLS.
    fn connect(&self, client_id: &str) -> RawClient {
        connect(self.address(), &self.client, client_id)
    }
}

/// Connects a client over TLS.
fn connect(address: SocketAddr, config: &Arc<ClientConfig>, client_id: &str) -> RawClient {
    introduce(ClientStream::tls(address, config), client_id)
}

/// Connects a client over this stream.
fn introduce(stream: ClientStream, client_id: &str) -> RawClient {
    let client = RawClient::on(stream, ProtocolVersion::V5);
    let (client, connack) = client.introduce(Connect::new(ProtocolVersion::V5, text(client_id)));
    assert_eq!(connack.reason, ReasonCode::Success, "CONNACK");
    client
}
