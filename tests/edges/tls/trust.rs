//! Client certificates that count no more.

use std::sync::Arc;

use tenbin_codec::ReasonCode;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::version::TLS13;

use super::{Guarded, connect};
use crate::support::{Certificates, PATIENCE, RawClient, TLS_VERSIONS};

/// Keys of `[listeners.tls]` that ask for certificates of the authorities in clients.pem.
fn asking(certificates: &Certificates, more: &str) -> String {
    let authorities = certificates.path("clients.pem");
    format!("client_ca = \"{authorities}\"\nclient_certificates = \"optional\"\n{more}")
}

/// The number of clients: a hundred, or that in the environment.
pub(super) fn count() -> usize {
    std::env::var("TENBIN_TLS_CLIENTS").ok().and_then(|clients| clients.parse().ok()).unwrap_or(100)
}

/// Connects clients with these names.
fn connect_all(guarded: &Guarded, config: &Arc<ClientConfig>, name: &str, count: usize) -> Vec<RawClient> {
    (0..count).map(|number| connect(guarded.address(), config, &format!("{name}-{number}"))).collect()
}

#[test]
fn clients_of_a_removed_authority_are_disconnected() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let both = certificates.authority() + &others.authority();
    certificates.write("clients.pem", &both);
    let more = asking(&certificates, "watch_seconds = 0");
    let guarded = Guarded::with(certificates, "", &more);
    let kept = guarded.certificates.client_with(&TLS13, &guarded.certificates);
    let removed = guarded.certificates.client_with(&TLS13, &others);
    let mut kept_clients = connect_all(&guarded, &kept, "kept", count() / 2);
    let mut removed_clients = connect_all(&guarded, &removed, "removed", count() / 2);
    let mut anonymous = guarded.connect("anonymous");

    // A new certificate of the broker drops no connection.
    let second = guarded.certificates.renew();
    guarded.hang_up("reloaded");
    let late = connect(guarded.address(), &removed, "late");
    assert_eq!(late.stream().certificate(), Some(second));
    removed_clients.push(late);
    kept_clients.iter_mut().chain(&mut removed_clients).for_each(RawClient::settle);

    guarded.certificates.write("clients.pem", &guarded.certificates.authority());
    guarded.hang_up("reloaded");
    for client in &mut removed_clients {
        client.expect_end(ReasonCode::NotAuthorized);
    }
    kept_clients.iter_mut().for_each(RawClient::settle);
    anonymous.settle();
    guarded.broker.assert_serves();
    connect(guarded.address(), &kept, "again").settle();
}

#[test]
fn changed_listener_judges_its_earlier_connections() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let both = certificates.authority() + &others.authority();
    certificates.write("clients.pem", &both);
    let more = asking(&certificates, "watch_seconds = 0");
    let guarded = Guarded::with(certificates, "", &more);
    let [mut kept, mut removed] = [("kept", &guarded.certificates), ("removed", &others)].map(|(name, authority)| {
        let config = guarded.certificates.client_with(&TLS13, authority);
        connect(guarded.address(), &config, name)
    });
    let own = guarded.certificates.path("root.pem");
    let more = format!("client_ca = \"{own}\"\nclient_certificates = \"optional\"");
    std::fs::write(guarded.config.path(), guarded.certificates.listener(&more)).expect("ours to write");
    guarded.hang_up("reloaded");
    removed.expect_end(ReasonCode::NotAuthorized);
    kept.settle();
}

#[test]
fn changed_files_judge_connections_of_a_removed_listener() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let both = certificates.authority() + &others.authority();
    certificates.write("clients.pem", &both);
    let more = asking(&certificates, "watch_seconds = 1");
    let guarded = Guarded::with(certificates, "", &more);
    let [mut kept, mut removed] = [("kept", &guarded.certificates), ("removed", &others)].map(|(name, authority)| {
        let config = guarded.certificates.client_with(&TLS13, authority);
        connect(guarded.address(), &config, name)
    });
    let other = "[[listeners]]\nname = \"other\"\naddress = \"127.0.0.1:0\"\nanonymous = true\n";
    std::fs::write(guarded.config.path(), other).expect("ours to write");
    guarded.hang_up("listener closed");
    guarded.certificates.write("clients.pem", &guarded.certificates.authority());
    removed.expect_end(ReasonCode::NotAuthorized);
    kept.settle();
}

#[test]
fn revoked_client_is_disconnected_and_does_not_come_back() {
    for version in TLS_VERSIONS {
        let certificates = Certificates::new();
        certificates.write("clients.pem", &certificates.authority());
        certificates.revoke(&[5]);
        let list = certificates.path("crl.pem");
        let more = asking(&certificates, &format!("crl = \"{list}\"\nwatch_seconds = 1"));
        let guarded = Guarded::with(certificates, "", &more);
        let [good, bad] =
            [6, 7].map(|serial| guarded.certificates.client_with_serial(version, &guarded.certificates, serial));
        let mut good_client = connect(guarded.address(), &good, "good");
        let mut bad_client = connect(guarded.address(), &bad, "bad");
        bad_client.settle();
        guarded.certificates.revoke(&[5, 7]);
        bad_client.expect_end(ReasonCode::NotAuthorized);
        good_client.settle();
        // It has a ticket to resume its session.
        super::handshakes::refused(&guarded, &bad);
        guarded.broker.log().wait_for(&["TLS handshake failed", "Revoked"], PATIENCE);
        connect(guarded.address(), &good, "again").settle();
    }
}
