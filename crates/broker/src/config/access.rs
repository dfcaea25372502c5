use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use tenbin_codec::ReportCarriers;

/// One listener with settings of its own.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listener {
    /// Where it listens.
    pub address: SocketAddr,
    /// What it is called in ACL rules and in the log, and known by at a reload; `None` = its address.
    pub name: Option<String>,
    /// Whether clients come in without User Name and Password.
    #[serde(default)]
    pub anonymous: bool,
    /// Who may come in with them, see [`crate::auth::PasswordFile`]; `None` = they are not looked at.
    pub password_file: Option<PathBuf>,
    /// Users of one name are one user in all listeners of one realm; `None` = as before, see `default.toml`.
    pub realm: Option<String>,
    /// Whether the ACL applies.
    #[serde(default = "yes")]
    pub acl: bool,
    /// What load reports are taken from.
    #[serde(default = "every_carrier", deserialize_with = "super::report_carriers")]
    pub load_reports: ReportCarriers,
    /// PUBLISHes a second taken from one client that comes through it; 0 = no bound, `None` = that of all connections.
    pub publishes_per_second: Option<u32>,
}

/// What is so where no rule of the ACL matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AclDefault {
    /// Allowed as long as there is no rule at all, else denied.
    #[default]
    Auto,
    /// Allowed.
    Allow,
    /// Denied.
    Deny,
}

impl Listener {
    /// One that lets everybody in: what `listen = […]` stands for.
    pub fn anonymous(address: SocketAddr) -> Self {
        Self {
            address,
            name: None,
            anonymous: true,
            password_file: None,
            realm: None,
            acl: true,
            load_reports: ReportCarriers::ALL,
            publishes_per_second: None,
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
