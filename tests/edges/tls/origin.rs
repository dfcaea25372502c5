//! Facts about a client's connection that an authenticator gets.

use std::sync::Arc;

use tenbin_broker::auth::{Peer, TransportProtocol};
use tokio_rustls::rustls::ClientConfig;

use super::connect;
use crate::support::{Certificates, TLS_VERSIONS, WitnessedBroker};

#[test]
fn authenticator_sees_the_origin_of_a_tls_client() {
    let certificates = Certificates::new();
    let authority = certificates.path("root.pem");
    let more = format!("client_ca = \"{authority}\"\nclient_certificates = \"optional\"");
    let witnessed = WitnessedBroker::start(&certificates.listener(&more));
    let address = witnessed.broker.addresses()[0];
    let origin_of = |client: &Arc<ClientConfig>| {
        let client = connect(address, client, "client");
        let origin = witnessed.next_origin();
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
