use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use tenbin_codec::ReportCarriers;

use super::address::ListenAddress;
use super::range::Ranged;

/// A listener with its own settings.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listener {
    /// Address to listen on.
    pub address: ListenAddress,
    /// Name in ACL rules, in the log and on reload; `None` = its address.
    pub name: Option<String>,
    /// Whether clients may connect without User Name and Password.
    #[serde(default)]
    pub anonymous: bool,
    /// Sources of the authentication chain that are asked, in order.
    #[serde(default)]
    pub auth: Vec<String>,
    /// Users that may connect, see [`crate::auth::PasswordFile`]; `None` = credentials are ignored, unless there is
    /// `auth`.
    pub password_file: Option<PathBuf>,
    /// Realm of the users. Users of one name are one user in all listeners of a realm; `None` = see `default.toml`.
    pub realm: Option<String>,
    /// Whether the ACL applies.
    #[serde(default = "yes")]
    pub acl: bool,
    /// Accepted carriers of load reports.
    #[serde(default = "every_carrier", deserialize_with = "super::report_carriers")]
    pub load_reports: ReportCarriers,
    /// PUBLISH packets per second from one client; 0 = no bound, `None` = the bound of all connections.
    pub publishes_per_second: Option<u32>,
    /// TLS; `None` = plain TCP.
    pub tls: Option<Tls>,
}

/// TLS settings of a listener.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// PEM file with the listener's certificate, followed by the certificates of intermediate authorities.
    pub certificate: PathBuf,
    /// PEM file with the private key.
    pub key: PathBuf,
    /// PEM file with the authorities of client certificates.
    pub client_ca: Option<PathBuf>,
    /// Whether clients have to show a certificate.
    #[serde(default)]
    pub client_certificates: ClientCertificates,
    #[serde(default = "handshakes")]
    handshakes_maximum: Ranged<1, 65_535>,
}

/// Effect where no rule of the ACL matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AclDefault {
    /// Allow if there are no rules, else deny.
    #[default]
    Auto,
    /// Allow.
    Allow,
    /// Deny.
    Deny,
}

impl Listener {
    /// Returns a listener that admits all clients, as an address in `listen = […]` does.
    pub fn anonymous(address: impl Into<ListenAddress>) -> Self {
        Self {
            address: address.into(),
            name: None,
            anonymous: true,
            auth: Vec::new(),
            password_file: None,
            realm: None,
            acl: true,
            load_reports: ReportCarriers::ALL,
            publishes_per_second: None,
            tls: None,
        }
    }

    pub(crate) fn name(&self) -> Arc<str> {
        self.name.clone().unwrap_or_else(|| self.address.to_string()).into()
    }
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
    /// Maximum number of handshakes at a time.
    pub fn handshakes_maximum(&self) -> u64 {
        self.handshakes_maximum.get()
    }
}

fn handshakes() -> Ranged<1, 65_535> {
    Ranged(256)
}

fn yes() -> bool {
    true
}

fn every_carrier() -> ReportCarriers {
    ReportCarriers::ALL
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
            (format!("{files}client_certificates = \"some\""), 6, "optional"),
            (format!("{files}ca = \"a\""), 6, "client_ca"),
        ] {
            let error = Config::parse(&text).unwrap_err().to_string();
            assert!(error.contains(&format!("line {line}")) && error.contains(word), "{text}: {error}");
        }
    }
}
