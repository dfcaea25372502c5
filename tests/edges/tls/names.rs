//! Certificates by the name that a client asks for, and versions of TLS.

use std::io::Write as _;
use std::sync::Arc;

use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::version::TLS12;

use super::{Guarded, connect};
use crate::support::{BrokerProcess, Certificates, ClientStream, ConfigFile, PATIENCE, TLS_VERSIONS};

/// A table of `[[listeners.tls.names]]`.
fn named(certificates: &Certificates, name: &str, file: &str) -> String {
    let (certificate, key) = (certificates.path(&format!("{file}.pem")), certificates.path(&format!("{file}.key")));
    format!("[[listeners.tls.names]]\nname = \"{name}\"\ncertificate = \"{certificate}\"\nkey = \"{key}\"\n")
}

/// The broker's certificate for `name`, or why the handshake failed.
fn certificate(guarded: &Guarded, client: &Arc<ClientConfig>, name: &'static str) -> Result<Vec<u8>, String> {
    let mut stream = ClientStream::tls_to(name, guarded.address(), client);
    stream.flush().map_err(|error| error.to_string())?;
    Ok(stream.certificate().expect("the handshake is over"))
}

#[test]
fn clients_get_the_certificate_of_the_name_they_ask_for() {
    for strict in [false, true] {
        let certificates = Certificates::new();
        let first = certificates.renew();
        let exact = certificates.issue("exact", &["a.example", "A.b.example"]);
        let any = certificates.issue("any", &["*.b.example"]);
        let tables = [("A.example", "exact"), ("a.b.example", "exact"), ("*.b.example", "any")];
        let tables = tables.map(|(name, file)| named(&certificates, name, file));
        let guarded = Guarded::with(certificates, "", &format!("strict_names = {strict}\n{}", tables.concat()));
        for version in TLS_VERSIONS {
            let client = guarded.certificates.client(version);
            let certificate = |name| certificate(&guarded, &client, name);
            assert_eq!(certificate("localhost"), Ok(first.clone()), "by the certificate's own name");
            assert_eq!(certificate("a.example"), Ok(exact.clone()));
            assert_eq!(certificate("a.b.example"), Ok(exact.clone()), "exact names go before");
            assert_eq!(certificate("B.B.example"), Ok(any.clone()));
            for unknown in ["b.example", "c.b.b.example", "other"] {
                let error = certificate(unknown).expect_err("no certificate is for it");
                let is_shown = error.contains("not valid for name");
                assert_eq!(is_shown, !strict, "{unknown}: {error}");
            }
        }
    }
}

#[test]
fn listener_speaks_only_its_versions() {
    let guarded = Guarded::start("", "versions = [\"1.3\"]");
    guarded.connect("new").settle();
    let old = guarded.certificates.client(&TLS12);
    assert!(ClientStream::tls(guarded.address(), &old).flush().is_err());
    guarded.broker.log().wait_for(&["TLS handshake failed", "peer is incompatible"], PATIENCE);
    let guarded = Guarded::start("", "versions = [\"1.2\"]");
    connect(guarded.address(), &guarded.certificates.client(&TLS12), "old").settle();
    assert!(ClientStream::tls(guarded.address(), &guarded.client).flush().is_err());
}

#[test]
fn unusable_names_versions_and_lists_are_named() {
    let certificates = Certificates::new();
    let no_name = named(&certificates, "*.*.example", "broker");
    let no_file = named(&certificates, "a.example", "nowhere");
    let root = certificates.path("root.pem");
    let no_list = format!("client_ca = \"{root}\"\nclient_certificates = \"required\"\ncrl = \"{root}\"");
    for (more, words) in [
        (&no_name[..], ["tls.names.name", "*.*.example"]),
        (&no_file, ["tls.names.certificate", "nowhere.pem"]),
        ("versions = []", ["tls.versions", "1.3"]),
        ("crl = \"a.pem\"", ["tls.crl", "client_ca"]),
        (&no_list, ["tls.crl", "no revocation list (PEM) is in it"]),
    ] {
        let config = ConfigFile::new(&certificates.listener(more));
        let (status, said) = BrokerProcess::fail_to_start(&["--config", config.path()]);
        assert_eq!((status.code(), said.len()), (Some(1), 1), "{said:?}");
        assert!(words.iter().all(|word| said[0].contains(word)), "{words:?}: {said:?}");
    }
}
