//! Configuration: one TOML file with a default for every key, shipped as `default.toml` beside this module.

mod access;
mod address;
mod auth;
mod ban;
mod bridge;
mod check;
mod cluster;
mod completeness;
mod environment;
mod error;
mod limits;
mod mosquitto;
mod not_taken;
mod overlap;
mod range;
mod service_url;
mod source;
mod standing_groups;
mod tables;
mod telemetry;
mod tls;
mod webhook;

use std::collections::HashSet;
use std::num::{NonZeroU16, NonZeroU32};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenbin_balancer::{Choosers, Policy};
use tenbin_codec::{QoS, ReportCarriers};
use tenbin_session::SessionExpiry;
use tenbin_session::handshake::Capabilities;

pub use access::{AclDefault, Listener, ProxyUse, Transport};
pub use address::{AddressError, FileMode, ListenAddress};
#[cfg(feature = "admin")]
pub(crate) use auth::fingerprint;
pub use auth::{
    AuthSource, CertificateName, CertificateSource, FileSource, HttpSource, JwtSource, KeySetPlace, OnFailure,
    SourceKind,
};
pub use ban::Ban;
pub use bridge::{Bridge, BridgeDirection, BridgeTls, BridgeTopic, BrokerUrl};
pub use cluster::{Agreement, Cluster, ClusterNode};
pub use error::ConfigError;
pub(crate) use not_taken::{NotTaken, Reloaded};
pub use service_url::ServiceUrl;

pub use crate::values::{
    DeadLetterTopic, FairBy, NamePattern, Network, OnReject, OrderingKey, ShareRule, UnknownKey, WorkQueue,
    WrongNetwork,
};
pub use environment::environment;

use crate::values::{AclRule, ShareRules, policy_name, room_for_packet};
pub use source::Source;
pub use tables::{Admin, SyncWhen};
use tables::{Connections, Explain, Limits, Log, Queue, Retained, Served, Sessions, Speeds, Store, Sys};

pub use telemetry::Telemetry;
pub use tls::{ClientCertificates, Tls, TlsName, TlsVersion};
pub use webhook::{Webhook, WebhookEvent};

/// Configuration of a broker. `Config::default()` equals the shipped file.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Addresses of listeners that admit all clients.
    #[serde(skip_serializing)]
    pub listen: Vec<ListenAddress>,
    /// Accepted carriers of load reports at the addresses of `listen`.
    #[serde(deserialize_with = "access::report_carriers", skip_serializing)]
    pub load_reports: ReportCarriers,
    /// Listeners with their own settings, in addition to `listen`.
    #[serde(skip_serializing)]
    pub listeners: Vec<Listener>,
    /// Sources of the authentication chain.
    #[serde(skip_serializing)]
    pub auth: Vec<AuthSource>,
    /// Clients that may not connect.
    #[serde(skip_serializing)]
    pub ban: Vec<Ban>,
    /// Rules for publishing and subscribing; the first matching one decides.
    #[serde(deserialize_with = "crate::values::acl_rules", skip_serializing)]
    pub acl: Vec<AclRule>,
    /// Effect where no rule matches.
    #[serde(skip_serializing)]
    pub acl_default: AclDefault,
    /// Policy of share groups without a matching rule in `share`.
    #[serde(deserialize_with = "policy_name::deserialize", skip_serializing)]
    pub policy: Policy,
    /// Rules for share groups; the first that matches a group applies.
    #[serde(skip_serializing)]
    pub share: Vec<ShareRule>,
    /// Limits of Network Connections.
    pub connections: Connections,
    /// Features of MQTT that the broker offers.
    pub capabilities: Served,
    /// Limits of sessions.
    pub sessions: Sessions,
    /// Limits of the memory that clients occupy outside of queues and retained messages.
    pub limits: Limits,
    /// Limits of the messages queued for a client.
    pub queue: Queue,
    /// Limits of retained messages.
    pub retained: Retained,
    /// Storage on disk.
    pub store: Store,
    /// Remembered speed of clients in share groups that they left.
    pub remembered_speeds: Speeds,
    /// Status topics below `$SYS/`.
    pub sys: Sys,
    /// Recorded decisions of share groups.
    pub explain: Explain,
    /// Limits of the log.
    pub log: Log,
    /// Admin HTTP.
    pub admin: Admin,
    /// Spans for a collector of OpenTelemetry.
    pub telemetry: Telemetry,
    /// One broker on several machines.
    pub cluster: Cluster,
    /// Services that get events over HTTP.
    #[serde(skip_serializing)]
    pub webhook: Vec<Webhook>,
    /// Bridges to other brokers.
    #[serde(skip_serializing)]
    pub bridge: Vec<Bridge>,
    /// Origin, by which a reload recognises a cut file.
    #[doc(hidden)]
    #[serde(skip)]
    pub source: Source,
}

impl Config {
    /// The shipped file: every key with its default and its explanation.
    pub const DEFAULT_TOML: &'static str = include_str!("default.toml");

    /// Reads the file at `path`. Missing keys have their defaults.
    ///
    /// # Errors
    /// The file is unreadable, or has no key, an unknown key, or a value of the wrong type or out of range. The error
    /// names the line.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::read_with(path, std::iter::empty())
    }

    /// Reads the file at `path`; `environment`, names and values of environment variables, overrides its keys.
    ///
    /// `TENBIN_QUEUE__MESSAGES_MAXIMUM` stands for `messages_maximum` in `[queue]`. Other variables are ignored, unless
    /// their name has the form of a key.
    ///
    /// # Errors
    /// Like [`Config::read`], or a variable has an unknown key or an illegal value. The error names it.
    pub fn read_with(path: &Path, environment: impl Iterator<Item = (String, String)>) -> Result<Self, ConfigError> {
        let text = tenbin_kit::files::read_text(path).map_err(|error| ConfigError::unreadable(path, error))?;
        Self::parse_read(path, text, environment)
    }

    /// Reads the text of a file that is given on the command line. It may be a pipe, which can be read once.
    ///
    /// # Errors
    /// It is unreadable, or neither a regular file nor a pipe.
    pub fn read_argument(path: &Path) -> Result<String, ConfigError> {
        tenbin_kit::files::read_text_or_pipe(path).map_err(|error| ConfigError::unreadable(path, error))
    }

    /// Parses `text`, which was read from `path`, as [`Config::read_with`] does.
    ///
    /// # Errors
    /// Like [`Config::read_with`].
    pub fn parse_read(
        path: &Path,
        text: String,
        environment: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let config = Self::parse_file(&text, environment).map_err(|error| error.in_file(path))?;
        Ok(Self { source: config.source.clone().with_file(path, text), ..config })
    }

    fn parse_file(text: &str, environment: impl Iterator<Item = (String, String)>) -> Result<Self, ConfigError> {
        Self::check_file(text)?;
        Self::parse_with(text, environment)
    }

    /// Checks that the text of a file has keys, and is not another broker's.
    pub(crate) fn check_file(text: &str) -> Result<(), ConfigError> {
        match toml::from_str::<toml::Table>(text) {
            Ok(table) if table.is_empty() => Err(ConfigError::empty()),
            Err(_) => mosquitto::check(text),
            Ok(_) => Ok(()),
        }
    }

    /// Environment variables that have the prefix of keys, and stand for none: a line for each, with its name.
    pub fn unknown_variables(environment: impl Iterator<Item = (String, String)>) -> Vec<String> {
        environment::unknown(environment.map(|(name, _)| name))
    }

    /// Parses the text of a configuration file.
    ///
    /// # Errors
    /// Like [`Config::read`].
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Self::parse_with(text, std::iter::empty())
    }

    /// Parses the text of a configuration file in which `policy` and `shadow` may name a chooser of `own`.
    ///
    /// [`BrokerBuilder::choosers`](crate::BrokerBuilder::choosers) takes the same choosers.
    ///
    /// # Errors
    /// Like [`Config::read`]. The error for an unknown policy lists the names of `own`, too.
    pub fn parse_for(text: &str, own: &Choosers) -> Result<Self, ConfigError> {
        policy_name::with(own, || Self::parse(text))
    }

    /// Parses the text of a configuration file, with the overrides of [`Config::read_with`].
    ///
    /// # Errors
    /// Like [`Config::read_with`].
    pub fn parse_with(text: &str, environment: impl Iterator<Item = (String, String)>) -> Result<Self, ConfigError> {
        let mut config: Self = toml::from_str(text).map_err(|error| ConfigError::illegal(text, &error))?;
        let mut table = toml::from_str::<toml::Table>(text).unwrap_or_default();
        let overridden = environment::overridden(&mut table, environment)?;
        let is_overridden = overridden.is_some();
        config = overridden.unwrap_or(config);
        config.source = Source::of_tables(&table).with_overrides(is_overridden);
        // Configured listeners replace the default one, which would admit all clients.
        let is_listen_given = table.contains_key("listen");
        if !config.listeners.is_empty() && !is_listen_given {
            config.listen.clear();
        }
        if config.listen.is_empty() && config.listeners.is_empty() {
            return Err(ConfigError::nowhere_to_listen());
        }
        let mut names = config.listen.iter().map(ToString::to_string).collect::<HashSet<_>>();
        names.insert(Bridge::LISTENER.to_owned()); // It would have the rights of bridges.
        for listener in &config.listeners {
            if !names.insert(listener.name().to_string()) {
                return Err(ConfigError::two_listeners(&listener.name()));
            }
            listener.check()?;
        }
        let mut names = HashSet::new();
        if let Some(bridge) = config.bridge.iter().find(|bridge| !names.insert(bridge.name.as_str())) {
            return Err(ConfigError::two_bridges(bridge.name.as_str()));
        }
        bridge::check_sessions(&config.bridge, text)?;
        config.check_sources()?;
        config.check_packet_sizes()?;
        config.check_standing_groups()?;
        config.check_dead_letters()?;
        let checked = config.cluster.check(&config.store.directory);
        checked.map_err(|error| if is_overridden { error } else { error.with_line(text) })?;
        Ok(config)
    }

    /// What in `[cluster]` is likely to be wrong, with file, line and key.
    pub fn cluster_warning(&self) -> Option<String> {
        self.cluster.other_port().map(|message| self.error_in_cluster(&message).to_string())
    }

    /// An error of `[cluster]` with file, line and key. `message` begins with the key and a colon.
    pub fn error_in_cluster(&self, message: &str) -> ConfigError {
        self.source.placed(ConfigError::in_cluster(message.to_owned()))
    }

    /// Topics of bridges by which messages may be doubled, with the file.
    pub fn bridge_warnings(&self) -> Vec<String> {
        let warnings = |bridge| Bridge::overlaps(bridge).into_iter().map(move |reason| (bridge, reason));
        let all = self.bridge.iter().flat_map(warnings);
        all.map(|(bridge, reason)| self.error_in_bridge(bridge, &reason).to_string()).collect()
    }

    /// What the program that runs the bridge finds wrong, with the file.
    pub fn error_in_bridge(&self, bridge: &Bridge, reason: &str) -> ConfigError {
        self.source.placed(ConfigError::in_bridge(bridge.name.as_str(), reason))
    }

    /// Checks that listeners name existing sources of the authentication chain.
    fn check_sources(&self) -> Result<(), ConfigError> {
        let mut names = HashSet::new();
        if let Some(source) = self.auth.iter().find(|source| !names.insert(source.name.as_str())) {
            return Err(ConfigError::in_auth(format!("two entries are called {:?}", source.name)));
        }
        for listener in &self.listeners {
            let error = |message: String| Err(ConfigError::in_listener(&listener.name(), message));
            let mut asked = HashSet::new();
            for name in &listener.auth {
                if !names.contains(name.as_str()) {
                    return error(format!("auth: there is no [[auth]] entry {name:?}"));
                }
                if !asked.insert(name) {
                    return error(format!("auth: {name:?} is there twice"));
                }
            }
            if !listener.auth.is_empty() && (listener.password_file.is_some() || listener.realm.is_some()) {
                return error("password_file and realm: not beside auth, whose entries have them".to_owned());
            }
        }
        Ok(())
    }

    /// Checks that each account has room for a packet of the maximum size.
    fn check_packet_sizes(&self) -> Result<(), ConfigError> {
        let (connections, limits) = (&self.connections, &self.limits);
        let sizes = [
            ("packet_bytes_maximum", connections.packet_bytes_maximum.get()),
            ("connect_packet_bytes_maximum", connections.connect_packet_bytes_maximum.get()),
        ];
        let bounds = [
            ("bytes_maximum", limits.bytes_maximum.get()),
            ("user_bytes_maximum", limits.user_bytes_maximum.get()),
            ("address_bytes_maximum", limits.address_bytes_maximum.get()),
            ("loopback_address_bytes_maximum", limits.loopback_address_bytes_maximum.get()),
        ];
        for (size_key, size) in sizes {
            let needed = room_for_packet(size);
            let too_low = bounds.iter().find(|&&(_, bound)| bound > 0 && bound < needed);
            if let Some((bound_key, bound)) = too_low {
                return Err(ConfigError::packet_without_room((size_key, size), (bound_key, *bound), needed));
            }
        }
        Ok(())
    }

    /// Returns all listeners, those of `listen` first.
    pub(crate) fn all_listeners(&self) -> impl Iterator<Item = Listener> {
        let anonymous = self
            .listen
            .iter()
            .map(|address| Listener { load_reports: self.load_reports, ..Listener::anonymous(address.clone()) });
        anonymous.chain(self.listeners.iter().cloned())
    }

    /// Names of all listeners, and the one at which the broker's bridges are clients.
    pub(crate) fn listener_names(&self) -> Vec<Arc<str>> {
        self.all_listeners().map(|listener| listener.name()).chain([Bridge::LISTENER.into()]).collect()
    }

    /// Bridges that the broker runs itself.
    pub(crate) fn own_bridges(&self) -> impl Iterator<Item = &Bridge> {
        self.bridge.iter().filter(|bridge| bridge.local.is_none())
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        let nonzero16 = |value: u64| NonZeroU16::new(value as u16).unwrap_or(NonZeroU16::MIN);
        Capabilities {
            receive_maximum: nonzero16(self.sessions.receive_maximum.get()),
            maximum_packet_size: NonZeroU32::new(self.packet_bytes_maximum()).unwrap_or(NonZeroU32::MAX),
            topic_alias_maximum: self.sessions.topic_alias_maximum.get() as u16,
            topic_aliases_sent: self.sessions.topic_aliases_sent.get() as u16,
            keep_alive_maximum: Duration::from_secs(self.connections.keep_alive_maximum_seconds.get()),
            session_expiry_maximum: SessionExpiry::from_seconds(self.sessions.expiry_maximum_seconds.get() as u32),
            maximum_qos: QoS::from_bits(self.capabilities.maximum_qos.get() as u8).unwrap_or_default(),
            retain_available: self.capabilities.retain,
            wildcard_subscriptions_available: self.capabilities.wildcard_subscriptions,
            subscription_identifiers_available: self.capabilities.subscription_identifiers,
            shared_subscriptions_available: self.capabilities.shared_subscriptions,
        }
    }

    pub(crate) fn share_rules(&self) -> ShareRules {
        ShareRules::new(self.policy, self.share.clone())
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![([127, 0, 0, 1], 1883).into()],
            load_reports: ReportCarriers::ALL,
            listeners: Vec::new(),
            auth: Vec::new(),
            ban: Vec::new(),
            acl: Vec::new(),
            acl_default: AclDefault::default(),
            policy: Policy::default(),
            share: Vec::new(),
            connections: Connections::default(),
            capabilities: Served::default(),
            sessions: Sessions::default(),
            limits: Limits::default(),
            queue: Queue::default(),
            retained: Retained::default(),
            store: Store::default(),
            remembered_speeds: Speeds::default(),
            sys: Sys::default(),
            explain: Explain::default(),
            log: Log::default(),
            admin: Admin::default(),
            telemetry: Telemetry::default(),
            cluster: Cluster::default(),
            webhook: Vec::new(),
            bridge: Vec::new(),
            source: Source::default(),
        }
    }
}

#[cfg(test)]
mod tests;
