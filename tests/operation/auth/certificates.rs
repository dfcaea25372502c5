//! Logins by client certificates.

use std::sync::Arc;

use tenbin_codec::{Connect, Packet, ProtocolVersion, QoS, ReasonCode};
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::version::TLS13;

use crate::auth::guarded::{Passwords, with_password};
use crate::support::{
    BrokerProcess, Certificates, ClientStream, ConfigFile, PATIENCE, RawClient, TLS_VERSIONS, encode, text,
};

/// A broker with one TLS listener that asks for certificates, and behind them for passwords.
struct Certified {
    certificates: Certificates,
    broker: BrokerProcess,
    _files: (Passwords, ConfigFile),
}

impl Certified {
    /// `source`: keys of the source; `rest`: further tables.
    fn start(certificates: Certificates, source: &str, rest: &str) -> Self {
        Self::start_with(certificates, "", source, rest)
    }

    /// `tls`: keys of `[listeners.tls]`.
    fn start_with(certificates: Certificates, tls: &str, source: &str, rest: &str) -> Self {
        let passwords = Passwords::of(&[("alice", "wonderland")]);
        let (certificate, key) = (certificates.path("broker.pem"), certificates.path("broker.key"));
        let config = ConfigFile::new(&format!(
            "[[listeners]]\naddress = \"127.0.0.1:0\"\nauth = [\"devices\", \"staff\"]\n\
             [listeners.tls]\ncertificate = \"{certificate}\"\nkey = \"{key}\"\n\
             client_ca = \"{}\"\nclient_certificates = \"optional\"\n{tls}\n\
             [[auth]]\nname = \"devices\"\nkind = \"certificate\"\n{source}\n\
             [[auth]]\nname = \"staff\"\nkind = \"passwords\"\nfile = {:?}\n{rest}",
            certificates.path("root.pem"),
            passwords.path(),
        ));
        let broker = BrokerProcess::start_exactly(&["--config", config.path()]);
        Self { certificates, broker, _files: (passwords, config) }
    }

    fn try_connect(&self, config: &Arc<ClientConfig>, connect: Connect) -> (RawClient, ReasonCode) {
        let stream = ClientStream::tls(self.broker.address(), config);
        let (client, connack) = RawClient::on(stream, ProtocolVersion::V5).introduce(connect);
        (client, connack.reason)
    }

    /// Connects with a certificate of this Common Name, and with the name and password of another user.
    fn connect_as(&self, common_name: &str) -> (RawClient, ReasonCode) {
        let config = self.certificates.client_named(&TLS13, common_name).0;
        self.try_connect(&config, with_password(Connect::new(ProtocolVersion::V5, text("c")), "alice", "wrong"))
    }
}

#[test]
fn common_name_is_the_user() {
    let certified = Certified::start(Certificates::new(), "", "[[acl]]\nallow = \"publish\"\ntopic = \"own/%u\"");
    let (mut client, reason) = certified.connect_as("sensor");
    assert_eq!(reason, ReasonCode::Success);
    assert_eq!(client.publish("own/sensor", "x", QoS::AtLeastOnce), ReasonCode::NoMatchingSubscribers);
    assert_eq!(client.publish("own/alice", "x", QoS::AtLeastOnce), ReasonCode::NotAuthorized);
    // Without a certificate the next source is asked.
    let none = certified.certificates.client(&TLS13);
    for (password, expected) in [("wonderland", ReasonCode::Success), ("wrong", ReasonCode::BadUserNameOrPassword)] {
        let connect = with_password(Connect::new(ProtocolVersion::V5, text("d")), "alice", password);
        assert_eq!(certified.try_connect(&none, connect).1, expected);
    }
}

#[test]
fn common_name_with_wildcards_widens_no_rule() {
    let certified = Certified::start(Certificates::new(), "", "[[acl]]\nallow = \"all\"\ntopic = \"own/%u\"");
    for name in ["+", "#", "a/b", "a+b"] {
        let (mut client, reason) = certified.connect_as(name);
        assert_eq!(reason, ReasonCode::Success, "{name}");
        for topic in ["own/x", "own/a/b", "own/a"] {
            assert_eq!(client.publish(topic, "x", QoS::AtLeastOnce), ReasonCode::NotAuthorized, "{name} {topic}");
        }
    }
}

#[test]
fn certificate_without_the_wanted_name_is_refused() {
    let certified = Certified::start(Certificates::new(), "user_from = \"san_uri\"", "");
    assert_eq!(certified.connect_as("sensor").1, ReasonCode::NotAuthorized);
    let line = ["login refused", "user=\"alice\"", "source=\"devices\"", "not exactly one name of this kind"];
    certified.broker.log().wait_for(&line, PATIENCE);
    let certified = Certified::start(Certificates::new(), "", "");
    assert_eq!(certified.connect_as("").1, ReasonCode::NotAuthorized);
}

/// The next source is not asked: who shows a certificate means it.
#[test]
fn certificate_that_does_not_count_is_no_way_in() {
    for version in TLS_VERSIONS {
        let (certificates, others) = (Certificates::new(), Certificates::new());
        certificates.revoke(&[7]);
        let crl = format!("crl = \"{}\"", certificates.path("crl.pem"));
        let certified = Certified::start_with(certificates, &crl, "", "");
        let certificates = &certified.certificates;
        let alice = || with_password(Connect::new(ProtocolVersion::V5, text("c")), "alice", "wonderland");
        for (config, cause) in [
            (certificates.client_with_serial(version, certificates, 7), "Revoked"),
            (certificates.client_expired(version), "expired"),
            // An authority of the same name.
            (certificates.client_with(version, &others), "BadSignature"),
        ] {
            let stream = ClientStream::tls(certified.broker.address(), &config);
            let mut client = RawClient::on(stream, ProtocolVersion::V5);
            client.try_send_bytes(&encode(&Packet::Connect(Box::new(alice())), ProtocolVersion::V5));
            client.expect_closed();
            certified.broker.log().wait_for(&["TLS handshake failed", cause], PATIENCE);
        }
        let good = certificates.client_named(version, "sensor").0;
        assert_eq!(certified.try_connect(&good, alice()).1, ReasonCode::Success);
    }
}

#[test]
fn fingerprint_names_the_user_or_bans_the_client() {
    let certificates = Certificates::new();
    let (known, fingerprint) = certificates.client_named(&TLS13, "sensor");
    let (banned, other) = certificates.client_named(&TLS13, "sensor");
    let users = format!("users = {{ {fingerprint} = \"pump\", {other} = \"valve\" }}");
    let certified = Certified::start(certificates, &users, &format!("[[ban]]\ncertificate = \"{other}\""));
    let connect = || Connect::new(ProtocolVersion::V5, text("c"));
    assert_eq!(certified.try_connect(&known, connect()).1, ReasonCode::Success);
    assert_eq!(certified.try_connect(&banned, connect()).1, ReasonCode::Banned);
    assert_eq!(certified.connect_as("sensor").1, ReasonCode::NotAuthorized);
    let line = ["login refused", "source=\"devices\"", "reason=\"unknown certificate\""];
    certified.broker.log().wait_for(&line, PATIENCE);
}
