use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use tenbin_codec::ReportCarriers;

use super::Tls;
use super::address::ListenAddress;
use crate::values::Network;

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
    /// Networks whose proxies tell by a PROXY header whose connection they pass on.
    #[serde(default)]
    pub proxy_from: Vec<Network>,
    /// Whether connections need a PROXY header.
    #[serde(default)]
    pub proxy: ProxyUse,
    /// Whether the proxies' word for a client certificate counts.
    #[serde(default)]
    pub proxy_trust_tls: bool,
    /// TLS; `None` = plain TCP.
    pub tls: Option<Tls>,
}

/// Whether connections need a PROXY header, at a listener with proxies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProxyUse {
    /// They need one, so that proxies alone can connect.
    #[default]
    Required,
    /// Connections without one are the peer's own.
    Optional,
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
            proxy_from: Vec::new(),
            proxy: ProxyUse::Required,
            proxy_trust_tls: false,
            tls: None,
        }
    }

    pub(crate) fn name(&self) -> Arc<str> {
        self.name.clone().unwrap_or_else(|| self.address.to_string()).into()
    }
}

fn yes() -> bool {
    true
}

fn every_carrier() -> ReportCarriers {
    ReportCarriers::ALL
}
