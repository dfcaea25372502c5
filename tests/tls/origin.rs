//! What an authenticator learns of a client's connection.

use std::sync::{Arc, mpsc};

use tenbin_broker::auth::{Answer, AuthFuture, AuthRequest, Authenticator, Identity, Origin, Peer, TransportProtocol};
use tenbin_broker::{Broker, Config};
use tokio::runtime::Runtime;
use tokio_rustls::rustls::ClientConfig;

use super::connect;
use super::support::{Certificates, PATIENCE, TLS_VERSIONS};

/// Accepts everybody, and passes on where they come from.
struct Witness(mpsc::SyncSender<Origin>);

impl Authenticator for Witness {
    fn authenticate(&self, request: AuthRequest) -> AuthFuture<'_> {
        self.0.send(request.origin).expect("the test waits");
        Box::pin(async { Answer::Accept { identity: Identity::anonymous(), data: None } })
    }
}

#[test]
fn authenticator_sees_the_origin_of_a_tls_client() {
    let certificates = Certificates::new();
    let authority = certificates.path("root.pem");
    let more = format!("client_ca = \"{authority}\"\nclient_certificates = \"optional\"");
    let config = Config::parse(&certificates.listener(&more)).expect("a configuration");
    let (sender, origins) = mpsc::sync_channel(8);
    let runtime = Runtime::new().expect("threads");
    let start = Broker::builder().config(config).authenticator(Witness(sender)).start();
    let broker = runtime.block_on(start).expect("a free port");
    let address = broker.addresses()[0];
    let origin_of = |client: &Arc<ClientConfig>| {
        let client = connect(address, client, "client");
        let origin = origins.recv_timeout(PATIENCE).expect("the broker asks");
        assert_eq!(Some(origin.peer), client.stream().tcp().local_addr().ok().map(Peer::Ip));
        assert_eq!((origin.socket_peer, origin.local), (origin.peer, Some(address)));
        assert_eq!((origin.transport, origin.server_name.as_deref()), (TransportProtocol::Tls, Some("localhost")));
        origin.certificate
    };
    for version in TLS_VERSIONS {
        assert_eq!(origin_of(&certificates.client(version)), None);
        let known = certificates.client_with(version, &certificates);
        let first = origin_of(&known).expect("a certificate");
        assert_eq!(first.common_name.as_deref(), Some("rcgen self signed cert"));
        // The second handshake resumes the first session.
        assert_eq!(origin_of(&known), Some(first));
    }
}
