use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::range::Ranged;

/// TLS settings of a listener.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// PEM file with the listener's certificate, followed by the certificates of intermediate authorities.
    pub certificate: PathBuf,
    /// PEM file with the private key.
    pub key: PathBuf,
    /// Certificates for further names of the listener.
    #[serde(default)]
    pub names: Vec<TlsName>,
    /// Whether a client that asks for a name without certificate, or for no name, is refused.
    #[serde(default)]
    pub strict_names: bool,
    /// Versions that the listener speaks.
    #[serde(default = "all_versions")]
    pub versions: Vec<TlsVersion>,
    /// PEM file with the authorities of client certificates.
    pub client_ca: Option<PathBuf>,
    /// Whether clients have to show a certificate.
    #[serde(default)]
    pub client_certificates: ClientCertificates,
    /// PEM file with revocation lists of these authorities.
    pub crl: Option<PathBuf>,
    /// Has no effect; older files may have it.
    pub(in crate::config) handshakes_maximum: Option<Ranged<1, 65_535>>,
    #[serde(default = "watch_seconds")]
    watch_seconds: Ranged<0, 86_400>,
}

/// Certificate for the clients that ask for a name.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsName {
    /// DNS name, or `*.` and a domain for all names with one more label.
    pub name: String,
    /// PEM file, as [`Tls::certificate`].
    pub certificate: PathBuf,
    /// PEM file, as [`Tls::key`].
    pub key: PathBuf,
}

/// Version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum TlsVersion {
    /// TLS 1.2.
    #[serde(rename = "1.2")]
    V1_2,
    /// TLS 1.3.
    #[serde(rename = "1.3")]
    V1_3,
}

/// Whether clients have to show a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientCertificates {
    /// They are not asked for one.
    #[default]
    None,
    /// They are asked. One without may connect; one with a wrong certificate may not.
    Optional,
    /// They need one.
    Required,
}

impl Tls {
    /// A key that has no effect any more, if the file has it.
    pub fn idle_key(&self) -> Option<&'static str> {
        self.handshakes_maximum.is_some().then_some("handshakes_maximum")
    }

    /// Time between two looks at the files; `None` = only a reload reads them again.
    pub fn watch_interval(&self) -> Option<Duration> {
        let seconds = self.watch_seconds.get();
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }
}

fn all_versions() -> Vec<TlsVersion> {
    vec![TlsVersion::V1_2, TlsVersion::V1_3]
}

fn watch_seconds() -> Ranged<0, 86_400> {
    Ranged(60)
}

#[cfg(test)]
mod tests {
    use crate::Config;

    #[test]
    fn errors_in_tls_name_key_and_line() {
        let files = "[[listeners]]\naddress = \"127.0.0.1:0\"\n[listeners.tls]\ncertificate = \"c\"\nkey = \"k\"\n";
        for (text, line, word) in [
            (files.replace("certificate = \"c\"\n", ""), 3, "certificate"),
            (format!("{files}handshakes_maximum = 0"), 6, "1 to 65535"),
            (format!("{files}watch_seconds = 86401"), 6, "0 to 86400"),
            (format!("{files}client_certificates = \"some\""), 6, "optional"),
            (format!("{files}versions = [\"1.1\"]"), 6, "1.2"),
            (format!("{files}ca = \"a\""), 6, "client_ca"),
            (format!("{files}[[listeners.tls.names]]\nname = \"a\"\nkey = \"k\""), 6, "certificate"),
        ] {
            let error = Config::parse(&text).unwrap_err().to_string();
            assert!(error.contains(&format!("line {line}")) && error.contains(word), "{text}: {error}");
        }
    }
}
