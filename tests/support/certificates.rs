use std::fs;
use std::sync::Arc;

use base64ct::{Base64, Encoding};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType, IsCa,
    Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber, date_time_ymd,
};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio_rustls::rustls::client::WantsClientCert;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{CipherSuite, ClientConfig, ConfigBuilder, RootCertStore, SupportedProtocolVersion};

/// Files of an authority and of a broker that it certifies, and the settings of clients that trust it.
pub(crate) struct Certificates {
    directory: TempDir,
    issuer: Issuer<'static, KeyPair>,
    root: Certificate,
}

/// Versions of TLS that the broker serves.
pub(crate) const TLS_VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];

impl Certificates {
    pub(crate) fn new() -> Self {
        let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("the tests' directory is ours to write");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "tests");
        let key = KeyPair::generate().expect("random numbers");
        let root = params.self_signed(&key).expect("a certificate");
        let certificates = Self { directory, issuer: Issuer::new(params, key), root };
        certificates.write("root.pem", &certificates.root.pem());
        certificates.renew();
        certificates
    }

    /// Writes a new certificate and key for the broker. Returns the certificate.
    pub(crate) fn renew(&self) -> Vec<u8> {
        self.issue("broker", &["localhost", "127.0.0.1"])
    }

    /// Writes a new certificate for `names`, with the Common Name `file`, to `file`.pem, and its key to `file`.key. Returns the certificate.
    pub(crate) fn issue(&self, file: &str, names: &[&str]) -> Vec<u8> {
        let key = KeyPair::generate().expect("random numbers");
        let names = names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, file);
        let broker = params.signed_by(&key, &self.issuer).expect("a certificate");
        self.write(&format!("{file}.pem"), &broker.pem());
        self.write(&format!("{file}.key"), &key.serialize_pem());
        broker.der().to_vec()
    }

    /// Writes the certificate as of X.509 version 1 to `file`. Its signature is of no use.
    pub(crate) fn write_as_version_1(&self, file: &str, der: &[u8]) -> Vec<u8> {
        let (signed, signature) = contents(contents(der).0);
        let rest = signed.strip_prefix(&[0xA0, 3, 2, 1, 2]).expect("version 3");
        let old = sequence(&[&sequence(rest)[..], signature].concat());
        let text = Base64::encode_string(&old);
        let lines = text.as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line) + "\n").collect::<String>();
        self.write(file, &format!("-----BEGIN CERTIFICATE-----\n{lines}-----END CERTIFICATE-----\n"));
        old
    }

    /// As [`Certificates::client`], with a certificate of X.509 version 1.
    pub(crate) fn client_of_version_1(&self, version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
        let key = KeyPair::generate().expect("random numbers");
        let own = CertificateParams::default().signed_by(&key, &self.issuer).expect("a certificate");
        let old = self.write_as_version_1("old-client.pem", own.der()).into();
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let signer = ring::default_provider().key_provider.load_private_key(key).expect("a key");
        let pair = Arc::new(CertifiedKey::new(vec![old], signer));
        Arc::new(self.trusting(version).with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair))))
    }

    /// Writes crl.pem: client certificates with these serial numbers are revoked.
    pub(crate) fn revoke(&self, serials: &[u64]) {
        self.revoke_until(serials, (2100, 1, 1));
    }

    /// As [`Certificates::revoke`], with the date on which the list ends.
    pub(crate) fn revoke_until(&self, serials: &[u64], (year, month, day): (i32, u8, u8)) {
        let revoked = |&serial| RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(year, month, day),
            crl_number: SerialNumber::from(serials.len() as u64),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.issuer).expect("a list").pem().expect("a list");
        self.write("crl.pem", &list);
    }

    /// The authority's own certificate, in PEM.
    pub(crate) fn authority(&self) -> String {
        self.root.pem()
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.directory.path().join(name), text).expect("ours to write");
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().expect("a directory with a readable name").to_owned()
    }

    /// A table of `[[listeners]]` that uses the files; `more` are further keys of `[listeners.tls]`.
    pub(crate) fn listener(&self, more: &str) -> String {
        let (certificate, key) = (self.path("broker.pem"), self.path("broker.key"));
        format!(
            "[[listeners]]\nname = \"secure\"\naddress = \"127.0.0.1:0\"\nanonymous = true\n[listeners.tls]\n\
             certificate = \"{certificate}\"\nkey = \"{key}\"\n{more}\n"
        )
    }

    /// Settings of a client that trusts the authority.
    pub(crate) fn client(&self, version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
        Arc::new(self.trusting(version).with_no_client_auth())
    }

    /// As [`Certificates::client`]. It offers these cipher suites, in this order.
    pub(crate) fn client_offering(
        &self,
        version: &'static SupportedProtocolVersion,
        suites: &[CipherSuite],
    ) -> Arc<ClientConfig> {
        let mut provider = ring::default_provider();
        provider.cipher_suites.retain(|suite| suites.contains(&suite.suite()));
        provider.cipher_suites.sort_by_key(|suite| suites.iter().position(|wanted| *wanted == suite.suite()));
        Arc::new(self.trusting_with(provider, version).with_no_client_auth())
    }

    /// As [`Certificates::client`], with a certificate of the authority `by`.
    pub(crate) fn client_with(&self, version: &'static SupportedProtocolVersion, by: &Self) -> Arc<ClientConfig> {
        self.client_with_serial(version, by, 1)
    }

    /// As [`Certificates::client_with`]; the certificate has this serial number.
    pub(crate) fn client_with_serial(
        &self,
        version: &'static SupportedProtocolVersion,
        by: &Self,
        serial: u64,
    ) -> Arc<ClientConfig> {
        self.client_made(version, by, |params| params.serial_number = Some(SerialNumber::from(serial))).0
    }

    /// As [`Certificates::client`], with a certificate whose validity is over.
    pub(crate) fn client_expired(&self, version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
        self.client_made(version, self, |params| params.not_after = date_time_ymd(2020, 1, 1)).0
    }

    /// As [`Certificates::client`], with a certificate of this Common Name (none if it is empty). Returns its SHA-256 too.
    pub(crate) fn client_named(
        &self,
        version: &'static SupportedProtocolVersion,
        common_name: &str,
    ) -> (Arc<ClientConfig>, String) {
        self.client_made(version, self, |params| {
            params.distinguished_name = DistinguishedName::new();
            if !common_name.is_empty() {
                params.distinguished_name.push(DnType::CommonName, common_name);
            }
        })
    }

    /// A client with a certificate of the authority `by`, and the certificate's SHA-256.
    fn client_made(
        &self,
        version: &'static SupportedProtocolVersion,
        by: &Self,
        change: impl FnOnce(&mut CertificateParams),
    ) -> (Arc<ClientConfig>, String) {
        let key = KeyPair::generate().expect("random numbers");
        let mut params = CertificateParams::default();
        change(&mut params);
        let own = params.signed_by(&key, &by.issuer).expect("a certificate");
        let fingerprint = Sha256::digest(own.der()).iter().map(|byte| format!("{byte:02x}")).collect();
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let config = self.trusting(version).with_client_auth_cert(vec![own.der().clone()], key);
        (Arc::new(config.expect("they belong together")), fingerprint)
    }

    fn trusting(&self, version: &'static SupportedProtocolVersion) -> ConfigBuilder<ClientConfig, WantsClientCert> {
        self.trusting_with(ring::default_provider(), version)
    }

    fn trusting_with(
        &self,
        provider: CryptoProvider,
        version: &'static SupportedProtocolVersion,
    ) -> ConfigBuilder<ClientConfig, WantsClientCert> {
        let mut roots = RootCertStore::empty();
        roots.add(self.root.der().clone()).expect("a certificate");
        let builder = ClientConfig::builder_with_provider(Arc::new(provider));
        let builder = builder.with_protocol_versions(&[version]).expect("ring has them");
        builder.with_root_certificates(roots)
    }
}

/// Splits bytes behind the DER value at their beginning: the contents of the value, and the rest.
fn contents(der: &[u8]) -> (&[u8], &[u8]) {
    let more = if der[1] < 0x80 { 0 } else { usize::from(der[1] - 0x80) };
    let length = der[2..2 + more].iter().fold(0, |length, &byte| length << 8 | usize::from(byte));
    let length = if more == 0 { usize::from(der[1]) } else { length };
    der[2 + more..].split_at(length)
}

/// A SEQUENCE in DER.
fn sequence(contents: &[u8]) -> Vec<u8> {
    let length = u16::try_from(contents.len()).expect("a short value").to_be_bytes();
    let head = match contents.len() {
        0..0x80 => vec![0x30, length[1]],
        0x80..0x100 => vec![0x30, 0x81, length[1]],
        _ => vec![0x30, 0x82, length[0], length[1]],
    };
    [head, contents.to_vec()].concat()
}
