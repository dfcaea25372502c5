//! Handshakes that fail, stall or wait, and files that cannot be used.

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenbin_codec::ProtocolVersion;

use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{CipherSuite, ClientConfig};

use super::{Guarded, connect};
use crate::support::{
    BrokerProcess, Certificates, ClientStream, ConfigFile, PATIENCE, RawClient, Silence, TLS_VERSIONS, hex,
};

#[test]
fn half_a_handshake_ends_after_the_connect_timeout() {
    let guarded = Guarded::start("[connections]\nconnect_timeout_ms = 3000", "");
    let opened = Instant::now();
    // Nothing, the head of a record, and the head of a ClientHello.
    let clients = ["", "16 03 01", "16 03 01 02 00 01 00 01 FC 03 03"].map(|said| {
        let mut client = RawClient::open(guarded.address(), ProtocolVersion::V5);
        client.send_bytes(&hex(said));
        client
    });
    for mut client in clients {
        client.expect_closed();
        assert!(opened.elapsed() >= Duration::from_millis(2900), "{:?}", opened.elapsed());
    }
    guarded.broker.log().wait_for(&["no TLS handshake in time", "secure"], PATIENCE);
    guarded.broker.assert_serves();
}

#[test]
fn handshake_without_connect_ends_after_the_connect_timeout() {
    let guarded = Guarded::start("[connections]\nconnect_timeout_ms = 3000", "");
    let mut stream = ClientStream::tls(guarded.address(), &guarded.client);
    stream.flush().expect("the broker does the handshake");
    RawClient::on(stream, ProtocolVersion::V5).expect_closed();
    guarded.broker.log().wait_for(&["no CONNECT in time"], PATIENCE);
}

#[test]
fn aes_128_is_chosen_unless_a_client_prefers_chacha20() {
    use CipherSuite as Suite;
    let guarded = Guarded::start("", "");
    let (aes_256, aes_128, chacha) =
        (Suite::TLS13_AES_256_GCM_SHA384, Suite::TLS13_AES_128_GCM_SHA256, Suite::TLS13_CHACHA20_POLY1305_SHA256);
    let (old_aes_256, old_aes_128, old_chacha) = (
        Suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        Suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        Suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    );
    for (version, offered, chosen) in [
        (&TLS13, &[aes_256, chacha, aes_128][..], aes_128),
        (&TLS13, &[chacha, aes_256, aes_128], chacha),
        (&TLS13, &[aes_256, chacha], aes_256),
        (&TLS12, &[old_aes_256, old_chacha, old_aes_128], old_aes_128),
        (&TLS12, &[old_chacha, old_aes_128], old_chacha),
        (&TLS12, &[old_aes_256], old_aes_256),
    ] {
        let client = guarded.certificates.client_offering(version, offered);
        let ClientStream::Tls(mut stream) = ClientStream::tls(guarded.address(), &client) else { unreachable!() };
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock).expect("a handshake");
        }
        let negotiated = stream.conn.negotiated_cipher_suite().map(|suite| suite.suite());
        assert_eq!(negotiated, Some(chosen), "{offered:?}");
    }
}

#[test]
fn bytes_that_are_not_tls_end_the_connection_at_once() {
    let guarded = Guarded::start("[connections]\nconnect_timeout_ms = 600000", "");
    for said in
        ["10 12 00 04 4D 51 54 54 05 02 00 3C 00 00 05 63", "47 45 54 20 2F 20 48 54 54 50", "16 03 01 FF FF 01"]
    {
        let mut client = RawClient::open(guarded.address(), ProtocolVersion::V5);
        client.send_bytes(&hex(said));
        // An alert of TLS is no legal packet of MQTT.
        let end = client.try_receive(PATIENCE);
        assert!(matches!(end, Err(Silence::Illegal(_) | Silence::Closed)), "{said}: {end:?}");
    }
    guarded.broker.log().wait_for(&["TLS handshake failed", "secure"], PATIENCE);
    guarded.connect("client").settle();
}

#[test]
fn tls_to_a_plain_listener_is_no_legal_connect() {
    let guarded = Guarded::start("", "");
    let mut stream = ClientStream::tls(guarded.broker.address(), &guarded.client);
    assert!(stream.flush().is_err());
    guarded.broker.log().wait_for(&["no legal CONNECT"], PATIENCE);
}

#[test]
fn silent_peers_do_not_delay_other_clients() {
    let guarded = Guarded::start("[connections]\nconnect_timeout_ms = 600000", "");
    let silent = (0..300).map(|number| {
        let mut stream = TcpStream::connect(guarded.address()).expect("the broker listens");
        let said = ["", "16 03 01", "16 03 01 02 00 01 00 01 FC 03 03"][number % 3];
        stream.write_all(&hex(said)).expect("a socket of ours");
        stream
    });
    // They are accepted in this order.
    let _silent = silent.collect::<Vec<_>>();
    guarded.connect("client").settle();
}

#[test]
fn listener_asks_clients_for_certificates() {
    for (asks, admits_all) in [("required", false), ("optional", true)] {
        let guarded = Guarded::asking(asks);
        let strangers = Certificates::new();
        for version in TLS_VERSIONS {
            let known = guarded.certificates.client_with(version, &guarded.certificates);
            connect(guarded.address(), &known, "known").settle();
            let anonymous = guarded.certificates.client(version);
            if admits_all {
                connect(guarded.address(), &anonymous, "anonymous").settle();
            } else {
                refused(&guarded, &anonymous);
            }
            refused(&guarded, &guarded.certificates.client_with(version, &strangers));
        }
        guarded.broker.log().wait_for(&["TLS handshake failed", "invalid peer certificate"], PATIENCE);
    }
}

/// Asserts that the broker refuses a client in the TLS handshake.
pub(super) fn refused(guarded: &Guarded, config: &Arc<ClientConfig>) {
    let mut client = RawClient::on(ClientStream::tls(guarded.address(), config), ProtocolVersion::V5);
    client.try_send_bytes(&hex("C0 00"));
    client.expect_closed();
}

#[test]
fn client_certificates_need_an_authority() {
    let certificates = Certificates::new();
    for (more, words) in [
        ("client_certificates = \"required\"", "client_ca"),
        ("client_ca = \"a.pem\"", "client_certificates"),
        ("client_certificates = \"some\"", "optional"),
    ] {
        let config = ConfigFile::new(&certificates.listener(more));
        let (status, said) = BrokerProcess::fail_to_start(&["--config", config.path()]);
        assert_eq!((status.code(), said.len()), (Some(1), 1), "{said:?}");
        assert!(said[0].contains(words), "{words}: {said:?}");
    }
}

/// OpenSSL makes such certificates unless it is told of extensions.
#[test]
fn client_certificate_of_version_1_is_named_as_the_cause() {
    let guarded = Guarded::asking("required");
    for version in TLS_VERSIONS {
        refused(&guarded, &guarded.certificates.client_of_version_1(version));
    }
    guarded.broker.log().wait_for(&["TLS handshake failed", "peer=", "of X.509 version 1"], PATIENCE);
}

/// Devices of AWS offer `x-amzn-mqtt-ca`, browsers HTTP.
#[test]
fn unknown_protocols_of_alpn_are_ignored() {
    let guarded = Guarded::start("", "");
    for (offered, chosen) in [
        (&["x-amzn-mqtt-ca"][..], None),
        (&["h2", "http/1.1"], None),
        (&["x-amzn-mqtt-ca", "mqtt"], Some(&b"mqtt"[..])),
        (&[], None),
    ] {
        for version in TLS_VERSIONS {
            let mut client = (*guarded.certificates.client(version)).clone();
            client.alpn_protocols = offered.iter().map(|name| name.as_bytes().to_vec()).collect();
            let client = Arc::new(client);
            let ClientStream::Tls(mut stream) = ClientStream::tls(guarded.address(), &client) else { unreachable!() };
            stream.flush().expect("a handshake");
            assert_eq!(stream.conn.alpn_protocol(), chosen, "{offered:?}");
            connect(guarded.address(), &client, "device").settle();
        }
    }
}

#[test]
fn unusable_files_are_named_at_the_start() {
    let certificates = Certificates::new();
    let (certificate, key) = (certificates.path("broker.pem"), certificates.path("broker.key"));
    let other = Certificates::new();
    certificates.write("empty.pem", "");
    let broken = "-----BEGIN CERTIFICATE-----\n####\n-----END CERTIFICATE-----\n";
    certificates.write("broken.pem", broken);
    certificates.write("damaged.pem", &broken.replace("####", "AAAA"));
    for (name, whole) in [("cut.pem", &certificate), ("cut.key", &key)] {
        certificates.write(name, &std::fs::read_to_string(whole).expect("written")[..100]);
    }
    let (empty, broken) = (certificates.path("empty.pem"), certificates.path("broken.pem"));
    let [cut, cut_key, damaged] = ["cut.pem", "cut.key", "damaged.pem"].map(|name| certificates.path(name));
    certificates.write_as_version_1("old.pem", &certificates.issue("new", &["localhost"]));
    let (old, key_of_old) = (certificates.path("old.pem"), certificates.path("new.key"));
    for (certificate, key, words) in [
        ("/nowhere/c.pem", &key[..], ["tls.certificate: /nowhere/c.pem", "No such file"]),
        (&certificate, "/nowhere/k.pem", ["tls.key: /nowhere/k.pem", "No such file"]),
        (&empty, &key, ["tls.certificate", "no certificate (PEM) is in it"]),
        (&broken, &key, ["tls.certificate", "broken.pem: a section is not base64: it is cut or damaged"]),
        (&cut, &key, ["tls.certificate", "cut.pem: it ends inside a certificate"]),
        (&damaged, &key, ["tls.certificate", "damaged.pem: a certificate in it is damaged"]),
        (&certificate, &cut_key, ["tls.key", "cut.key: it ends inside a private key"]),
        (&certificate, &certificate, ["tls.key", "no private key (PEM, not encrypted) is in it"]),
        (&certificate, &other.path("broker.key"), ["tls.key", "does not fit"]),
        (&old, &key_of_old, ["tls.certificate", "is of X.509 version 1"]),
    ] {
        let config = ConfigFile::new(&format!(
            "[[listeners]]\nname = \"secure\"\naddress = \"127.0.0.1:0\"\nanonymous = true\n[listeners.tls]\n\
             certificate = \"{certificate}\"\nkey = \"{key}\"\n"
        ));
        let (status, said) = BrokerProcess::fail_to_start(&["--config", config.path()]);
        assert_eq!((status.code(), said.len()), (Some(1), 1), "{said:?}");
        assert!(said[0].contains("listener secure: "), "{said:?}");
        assert!(words.iter().all(|word| said[0].contains(word)), "{words:?}: {said:?}");
    }
}
