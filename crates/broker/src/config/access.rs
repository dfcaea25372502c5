use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use tenbin_codec::{ReportCarrier, ReportCarriers, Text};

use super::Tls;
use super::address::{FileMode, ListenAddress};
use super::error::ConfigError;
use crate::values::Network;

/// A listener with its own settings.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listener {
    /// Address to listen on.
    pub address: ListenAddress,
    /// Name in ACL rules, in the log and on reload; `None` = its address.
    pub name: Option<String>,
    /// Whether clients may connect without User Name and Password.
    #[serde(default)]
    pub anonymous: bool,
    /// User of clients that offer no credentials; `None` = they are anonymous.
    #[serde(default, deserialize_with = "user")]
    pub user: Option<Text>,
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
    #[serde(default = "every_carrier", deserialize_with = "report_carriers")]
    pub load_reports: ReportCarriers,
    /// PUBLISH packets per second from one client; 0 = no bound, `None` = the bound of all connections.
    pub publishes_per_second: Option<u32>,
    /// Rights of a unix socket's file; `None` = 0660.
    pub mode: Option<FileMode>,
    /// Group of a unix socket's file, by name or number; `None` = the process's group.
    pub group: Option<String>,
    /// Networks whose proxies tell by a PROXY header whose connection they pass on.
    #[serde(default)]
    pub proxy_from: Vec<Network>,
    /// Whether connections need a PROXY header.
    #[serde(default)]
    pub proxy: ProxyUse,
    /// Whether the proxies' word for a client certificate counts.
    #[serde(default)]
    pub proxy_trust_tls: bool,
    /// Whether `X-Forwarded-For` of the proxies tells the client of a WebSocket. They have to append to it.
    #[serde(default)]
    pub proxy_forwarded_for: bool,
    /// TLS; `None` = none.
    pub tls: Option<Tls>,
    /// Protocol between MQTT and TCP or TLS.
    #[serde(default)]
    pub transport: Transport,
    /// Path of WebSocket; empty or `None` = any.
    pub path: Option<String>,
    /// Values of `Origin` that WebSocket accepts; empty = all.
    #[serde(default)]
    pub origins: Vec<String>,
    /// Settings of the MQTT-SN gateway, for the program that opens the listener, see [`crate::gateways`].
    pub sn: Option<toml::Table>,
}

/// Protocol between MQTT and TCP or TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// None.
    #[default]
    Tcp,
    /// WebSocket.
    #[serde(rename = "websocket")]
    WebSocket,
    /// MQTT-SN on UDP, through a gateway of the embedding program.
    #[serde(rename = "mqtt-sn")]
    MqttSn,
    /// HTTP ingest, by the embedding program.
    Http,
}

impl Transport {
    /// The transport if the embedding program opens its listeners.
    pub(crate) fn at_gateway(self) -> Option<Self> {
        matches!(self, Self::MqttSn | Self::Http).then_some(self)
    }
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
            user: None,
            auth: Vec::new(),
            password_file: None,
            realm: None,
            acl: true,
            load_reports: ReportCarriers::ALL,
            publishes_per_second: None,
            mode: None,
            group: None,
            proxy_from: Vec::new(),
            proxy: ProxyUse::Required,
            proxy_trust_tls: false,
            proxy_forwarded_for: false,
            tls: None,
            transport: Transport::Tcp,
            path: None,
            origins: Vec::new(),
            sn: None,
        }
    }

    /// Path of WebSocket; empty = any.
    #[cfg(feature = "websocket")]
    pub(crate) fn websocket_path(&self) -> &str {
        self.path.as_deref().unwrap_or_default()
    }

    /// Checks keys that depend on others.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let wrong = |key: &str, reason: &str| Err(ConfigError::in_listener(&self.name(), format!("{key}: {reason}")));
        if let Some((key, reason)) = self.misplaced_key() {
            return wrong(key, reason);
        }
        if self.transport.at_gateway().is_some() && !matches!(self.address, ListenAddress::Ip(_)) {
            return wrong("address", "such a transport needs an IP address with a port, as in 0.0.0.0:10000");
        }
        if self.transport == Transport::WebSocket {
            return match &self.path {
                Some(path) if !path.is_empty() && !path.starts_with('/') => wrong("path", "needs to begin with /"),
                _ => Ok(()),
            };
        }
        let key = [("path", self.path.is_some()), ("origins", !self.origins.is_empty())].into_iter().find(|key| key.1);
        key.map_or(Ok(()), |(key, _)| wrong(key, "needs transport = \"websocket\""))
    }

    /// Rights of a unix socket's file.
    pub(crate) fn mode(&self) -> u32 {
        self.mode.map_or(0o660, |mode| mode.0)
    }

    /// First key that does not fit the address, and why.
    fn misplaced_key(&self) -> Option<(&'static str, &'static str)> {
        let is_not_tcp = self.transport != Transport::Tcp;
        let of_network =
            [(self.tls.is_some(), "tls"), (!self.proxy_from.is_empty(), "proxy_from"), (is_not_tcp, "transport")];
        let of_unix = [(self.mode.is_some(), "mode"), (self.group.is_some(), "group")];
        let first = |keys: &[(bool, &'static str)]| keys.iter().find(|(is_given, _)| *is_given).map(|&(_, key)| key);
        if self.transport.at_gateway().is_some() {
            let [of_tcp @ .., _] = &of_network;
            if let Some(key) = first(of_tcp) {
                return Some((key, "a listener with transport = \"mqtt-sn\" or \"http\" has none"));
            }
        }
        if self.transport != Transport::MqttSn && self.sn.is_some() {
            return Some(("sn", "needs transport = \"mqtt-sn\""));
        }
        match self.address {
            ListenAddress::Unix(_) => first(&of_network).map(|key| (key, "a unix socket has none")),
            _ => first(&of_unix).map(|key| (key, "belongs to a unix socket (address = \"unix:PATH\")")),
        }
    }

    pub(crate) fn name(&self) -> Arc<str> {
        self.name.clone().unwrap_or_else(|| self.address.to_string()).into()
    }
}

fn user<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Text>, D::Error> {
    let name = String::deserialize(deserializer)?;
    Text::try_from(name).map(Some).map_err(serde::de::Error::custom)
}

fn yes() -> bool {
    true
}

/// Reads the names of carriers.
pub(super) fn report_carriers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ReportCarriers, D::Error> {
    let words = Vec::<String>::deserialize(deserializer)?;
    let unknown = |word: &str| {
        serde::de::Error::custom(format!("{word:?} is no carrier of load reports; valid are pingreq, ack, publish"))
    };
    words.iter().map(|word| word.parse::<ReportCarrier>().map_err(|_| unknown(word))).collect()
}

fn every_carrier() -> ReportCarriers {
    ReportCarriers::ALL
}

#[cfg(all(test, feature = "websocket"))]
mod tests {
    use crate::Config;

    #[test]
    fn errors_in_websocket_keys_name_listener_and_key() {
        let parse = |keys: &str| Config::parse(&format!("[[listeners]]\naddress = \"127.0.0.1:0\"\n{keys}"));
        for (keys, word) in [
            ("path = \"/mqtt\"", "listeners: 127.0.0.1:0: path: needs transport"),
            ("origins = [\"https://a\"]", "listeners: 127.0.0.1:0: origins: needs transport"),
            ("transport = \"websocket\"\npath = \"mqtt\"", "listeners: 127.0.0.1:0: path: needs to begin with /"),
            ("transport = \"websockets\"", "line 3: transport: unknown variant"),
        ] {
            let error = parse(keys).unwrap_err().to_string();
            assert!(error.contains(word), "{keys}: {error}");
        }
        let paths = ["", "path = \"\"", "path = \"/a\""]
            .map(|key| parse(&format!("transport = \"websocket\"\n{key}")).unwrap().listeners.remove(0));
        assert_eq!(paths.each_ref().map(super::Listener::websocket_path), ["", "", "/a"]);
    }
}
