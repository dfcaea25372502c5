//! Bridges to other brokers: tables `[[bridge]]`.

use std::fmt;
use std::num::NonZeroU16;
use std::path::PathBuf;

use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize, Serializer};
use tenbin_codec::{ProtocolVersion, QoS, Text, TopicFilter};

use super::ConfigError;
use super::range::Ranged;
use crate::values::{Effect, Names, Relation, TopicPattern};

/// A bridge to another broker, for the program that runs it, see [`crate::gateways`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct Bridge {
    /// Name in log, metrics, and the User Property that ends loops.
    #[serde(deserialize_with = "name")]
    pub name: Text,
    /// The other broker.
    pub remote: BrokerUrl,
    /// The broker on this side; `None` = the one that has this configuration.
    pub local: Option<BrokerUrl>,
    /// Client Identifier at the remote broker; `None` = the name.
    #[serde(default, deserialize_with = "text")]
    client_id: Option<Text>,
    /// User Name at the remote broker.
    #[serde(default, deserialize_with = "text")]
    pub user: Option<Text>,
    /// File whose first line is the password at the remote broker.
    pub password_file: Option<PathBuf>,
    /// User Name at the broker of `local`.
    #[serde(default, deserialize_with = "text")]
    pub local_user: Option<Text>,
    /// File whose first line is the password at the broker of `local`.
    pub local_password_file: Option<PathBuf>,
    /// Protocol version at the remote broker.
    #[serde(default = "newest", deserialize_with = "version")]
    pub mqtt: ProtocolVersion,
    /// Whether bit 7 of the protocol level marks the bridge, in 3.1.1.
    #[serde(default = "yes")]
    pub try_private: bool,
    /// Whether the remote broker has a retained topic with the state of the bridge.
    #[serde(default = "yes")]
    pub notifications: bool,
    #[serde(default = "keep_alive")]
    keep_alive_seconds: Ranged<1, 65_535>,
    #[serde(default = "receive_maximum")]
    receive_maximum: Ranged<1, 65_535>,
    /// TLS to the remote broker.
    #[serde(default)]
    pub tls: BridgeTls,
    /// Messages that are passed on; the first rule about a topic decides.
    pub topics: Vec<BridgeTopic>,
}

/// Files of TLS to a remote broker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BridgeTls {
    /// Authorities of the broker's certificate; `None` = the system's.
    pub ca: Option<PathBuf>,
    /// The bridge's certificate, if the broker asks for one.
    pub certificate: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
}

/// Messages that a bridge passes on.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct BridgeTopic {
    /// Their way.
    pub direction: BridgeDirection,
    /// Topic Filter behind the prefix.
    pub filter: String,
    /// Beginning of their topics at the local broker.
    #[serde(default)]
    pub local_prefix: String,
    /// Beginning of their topics at the remote broker.
    #[serde(default)]
    pub remote_prefix: String,
    /// Highest QoS.
    #[serde(default = "highest", deserialize_with = "qos")]
    pub qos: QoS,
}

/// Way of messages through a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BridgeDirection {
    /// From the remote broker to the local one.
    In,
    /// From the local broker to the remote one.
    Out,
    /// Both ways.
    Both,
}

/// URL of a broker.
#[derive(Clone, PartialEq, Eq)]
pub struct BrokerUrl {
    /// Whether TLS is below MQTT or WebSocket: `mqtts` or `wss`.
    pub is_tls: bool,
    /// Path of WebSocket; `None` = MQTT over TCP or TLS.
    pub path: Option<String>,
    /// Name or address, without brackets.
    pub host: String,
    /// The scheme's if the URL has none.
    pub port: u16,
}

impl Bridge {
    /// Name of the listener whose clients are the broker's bridges. It has no address and no ACL.
    pub(crate) const LISTENER: &'static str = "$bridge";

    /// Whether the listener's clients are the broker's bridges.
    pub(crate) fn is_listener(name: &str) -> bool {
        name == Self::LISTENER
    }

    /// Client Identifier at the remote broker.
    pub fn client_id(&self) -> &Text {
        self.client_id.as_ref().unwrap_or(&self.name)
    }

    /// Client Identifier at the broker on this side. By the name, which is unique in a file: bridges to several brokers may
    /// have one Client Identifier there.
    pub fn local_client_id(&self) -> String {
        format!("local.{}", self.name.as_str())
    }

    /// Keep Alive at both brokers.
    pub fn keep_alive_seconds(&self) -> NonZeroU16 {
        nonzero(self.keep_alive_seconds.get())
    }

    /// Most unacknowledged QoS 1 and 2 messages of one broker.
    pub fn receive_maximum(&self) -> NonZeroU16 {
        nonzero(self.receive_maximum.get())
    }

    /// Pairs of filters that a broker may answer with two copies of a message, in words. The broker that runs the bridge sends
    /// one.
    pub fn overlaps(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (number, topic) in self.topics.iter().enumerate() {
            for earlier in &self.topics[..number] {
                let both = [earlier, topic];
                let comes = |way| both.iter().all(|topic| [way, BridgeDirection::Both].contains(&topic.direction));
                let remote =
                    comes(BridgeDirection::In).then(|| both.map(|topic| (&topic.remote_prefix, &topic.filter)));
                let local = comes(BridgeDirection::Out).then(|| both.map(|topic| (&topic.local_prefix, &topic.filter)));
                for (side, pair) in [("remote", remote), ("local", local.filter(|_| self.local.is_some()))] {
                    let Some([one, other]) = pair.map(|pair| pair.map(|(prefix, filter)| format!("{prefix}{filter}")))
                    else {
                        continue;
                    };
                    if one != other && may_match_alike(&one, &other) {
                        found.push(format!(
                            "topics: a {side} broker that sends a copy for each matching filter doubles messages: {one:?} and \
                             {other:?} overlap"
                        ));
                    }
                }
            }
        }
        found
    }

    /// Whether the remote broker would keep one session for both bridges.
    fn shares_session(&self, other: &Self) -> bool {
        let is_same_host = self.remote.host.eq_ignore_ascii_case(&other.remote.host);
        is_same_host && self.remote.port == other.remote.port && self.client_id() == other.client_id()
    }

    /// Checks keys that depend on others.
    fn check(&self) -> Result<(), String> {
        let wrong = |key: &str, reason: &str| Err(format!("bridge {:?}: {key}: {reason}", self.name.as_str()));
        let (user, password) = (self.local_user.is_some(), self.local_password_file.is_some());
        let tls = [("ca", &self.tls.ca), ("certificate", &self.tls.certificate), ("key", &self.tls.key)];
        let tls = tls.into_iter().find(|(_, file)| file.is_some());
        if let Some((key, _)) = tls.filter(|_| !self.remote.is_tls) {
            return wrong(&format!("tls.{key}"), "needs a remote with mqtts:// or wss://");
        }
        if self.tls.certificate.is_some() != self.tls.key.is_some() {
            return wrong("tls.certificate", "needs tls.key, and the reverse");
        }
        for (key, _) in [("local_user", user), ("local_password_file", password)].into_iter().filter(|key| key.1) {
            if self.local.is_none() {
                return wrong(key, "needs `local`: a broker trusts its own bridge");
            }
        }
        if self.topics.is_empty() {
            return wrong("topics", "needs at least one entry");
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Bridge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bridge = Self::deserialize(deserializer)?;
        bridge.check().map_err(D::Error::custom)?;
        Ok(bridge)
    }
}

/// Whether a topic may match both filters.
fn may_match_alike(one: &str, other: &str) -> bool {
    // A pattern has placeholders, which stand for themselves here.
    let names = Names { client_id: b"%c", user: Some(b"%u") };
    let relation = |one: TopicPattern| one.relation(other.as_bytes(), names, Effect::Allow);
    TopicPattern::new(one).is_ok_and(|one| relation(one) != Relation::Disjoint)
}

/// Checks that each bridge of the configuration in `text` has its own session at its remote broker.
pub(super) fn check_sessions(all: &[Bridge], text: &str) -> Result<(), ConfigError> {
    for (number, bridge) in all.iter().enumerate() {
        if let Some(other) = all[..number].iter().find(|other| other.shares_session(bridge)) {
            let (other, id, address) = (other.name.as_str(), bridge.client_id().as_str(), bridge.remote.address());
            let reason = format!("client_id: bridge {other:?} is {id:?} at {address} already");
            return Err(ConfigError::in_bridge(bridge.name.as_str(), &reason).at_line(line_of(text, number)));
        }
    }
    Ok(())
}

/// Line of the table with this number, from 0.
fn line_of(text: &str, number: usize) -> Option<usize> {
    #[derive(Deserialize)]
    struct Tables {
        bridge: Vec<toml::Spanned<toml::Table>>,
    }
    let at = toml::from_str::<Tables>(text).ok()?.bridge.get(number)?.span().start;
    Some(text.get(..at)?.matches('\n').count() + 1)
}

impl<'de> Deserialize<'de> for BridgeTopic {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let topic = Self::deserialize(deserializer)?;
        for (key, prefix) in [("local_prefix", &topic.local_prefix), ("remote_prefix", &topic.remote_prefix)] {
            let whole = format!("{prefix}{}", topic.filter);
            if prefix.contains(['+', '#']) {
                return Err(D::Error::custom(format!("{key}: {prefix:?} has a wildcard")));
            }
            match TopicFilter::try_from(&whole[..]) {
                Ok(legal) if !legal.is_shared() => {}
                _ => return Err(D::Error::custom(format!("filter: {whole:?} is no Topic Filter of a bridge"))),
            }
        }
        Ok(topic)
    }
}

impl TryFrom<&str> for BrokerUrl {
    type Error = &'static str;

    fn try_from(url: &str) -> Result<Self, &'static str> {
        const FORM: &str = "needs to be mqtt://HOST, mqtts://HOST, ws://HOST or wss://HOST, perhaps with :PORT, and for \
                            ws and wss with /PATH";
        const USER: &str =
            "has a user: use the keys `user` and `password_file`, or `local_user` and `local_password_file`";
        let (scheme, rest) = url.split_once("://").ok_or(FORM)?;
        let (is_tls, is_web, port) = match scheme {
            "mqtt" => (false, false, 1883),
            "mqtts" => (true, false, 8883),
            "ws" => (false, true, 80),
            "wss" => (true, true, 443),
            _ => return Err(FORM),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        // A password may have a slash.
        if authority.contains('@') || (!is_web && path.contains('@')) {
            return Err(USER);
        }
        let (host, rest) = match authority.strip_prefix('[') {
            Some(v6) => v6.split_once(']').ok_or(FORM)?,
            None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
        };
        let port = match rest.strip_prefix(':') {
            Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or("has no port from 1 to 65535")?,
            None if rest.is_empty() => port,
            None => return Err(FORM),
        };
        let is_wrong = |other: char| other.is_whitespace() || other.is_control() || "?#\\".contains(other);
        if host.is_empty() || url.contains(is_wrong) || (!is_web && path.len() > 1) {
            return Err(FORM);
        }
        let path = is_web.then(|| if path.is_empty() { "/mqtt".to_owned() } else { path.to_owned() });
        Ok(Self { is_tls, path, host: host.to_owned(), port })
    }
}

impl BrokerUrl {
    /// "HOST:PORT", with brackets around an IPv6 address.
    pub fn address(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match (self.is_tls, &self.path) {
            (false, None) => "mqtt",
            (true, None) => "mqtts",
            (false, Some(_)) => "ws",
            (true, Some(_)) => "wss",
        };
        write!(f, "{scheme}://{}{}", self.address(), self.path.as_deref().unwrap_or_default())
    }
}

impl fmt::Debug for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for BrokerUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BrokerUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let url = String::deserialize(deserializer)?;
        Self::try_from(&url[..]).map_err(|reason| {
            // It may hold a password.
            let shown = if url.contains('@') { "the URL".to_owned() } else { format!("{url:?}") };
            D::Error::custom(format!("{shown} {reason}"))
        })
    }
}

fn nonzero(value: u64) -> NonZeroU16 {
    u16::try_from(value).ok().and_then(NonZeroU16::new).unwrap_or(NonZeroU16::MIN)
}

fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
    let name = String::deserialize(deserializer)?;
    let is_legal = !name.is_empty() && name.len() <= 64 && !name.contains(['/', '+', '#', '"']);
    let text = Text::try_from(&name[..]).ok().filter(|_| is_legal && !name.contains(char::is_control));
    text.ok_or_else(|| D::Error::custom(format!("{name:?} is no name of 1 to 64 bytes without /, +, # and \"")))
}

fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Text>, D::Error> {
    let text = String::deserialize(deserializer)?;
    match Text::try_from(&text[..]) {
        Ok(legal) if !legal.is_empty() => Ok(Some(legal)),
        Ok(_) => Err(D::Error::custom("is empty")),
        Err(error) => Err(D::Error::custom(error)),
    }
}

fn version<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ProtocolVersion, D::Error> {
    match &String::deserialize(deserializer)?[..] {
        "5.0" => Ok(ProtocolVersion::V5),
        "3.1.1" => Ok(ProtocolVersion::V311),
        other => Err(D::Error::custom(format!("{other:?} is neither \"5.0\" nor \"3.1.1\""))),
    }
}

fn qos<'de, D: Deserializer<'de>>(deserializer: D) -> Result<QoS, D::Error> {
    let bits = tenbin_kit::within::<0, 2, u8, _>(deserializer)?;
    Ok(QoS::from_bits(bits).unwrap_or_default())
}

fn newest() -> ProtocolVersion {
    ProtocolVersion::V5
}

fn highest() -> QoS {
    QoS::ExactlyOnce
}

fn yes() -> bool {
    true
}

fn keep_alive() -> Ranged<1, 65_535> {
    Ranged(60)
}

fn receive_maximum() -> Ranged<1, 65_535> {
    Ranged(1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    const TABLE: &str = "[[bridge]]\nname = \"b\"\nremote = \"mqtt://hub\"\n";
    const TOPIC: &str = "[[bridge.topics]]\ndirection = \"out\"\nfilter = \"#\"\n";

    #[test]
    fn errors_of_bridges_name_key_and_line() {
        let with = |keys: &str| format!("{TABLE}{keys}{TOPIC}");
        let topic = |keys: &str| format!("{TABLE}{TOPIC}{keys}");
        for (text, line, words) in [
            (TABLE.to_owned(), 1, "topics"),
            (TABLE.replace("remote", "local") + TOPIC, 1, "remote"),
            (with("topic = 1\n"), 4, "topic"),
            (with("local_user = \"u\"\n"), 1, "local_user: needs `local`"),
            (with("mqtt = \"3.1\"\n"), 4, "mqtt: \"3.1\" is neither"),
            (with("receive_maximum = 0\n"), 4, "receive_maximum"),
            (with("tls = { ca = \"c\" }\n"), 1, "tls.ca: needs a remote with mqtts://"),
            (with("tls = { authority = \"c\" }\n"), 4, "authority"),
            (with("client_id = \"\"\n"), 4, "client_id: is empty"),
            (with("").replace("mqtt:", "http:"), 3, "remote: \"http://hub\" needs to be mqtt://"),
            (with("").replace("hub", "u:p@hub"), 3, "has a user: use the keys"),
            (
                with("").replace("hub", "u:p/p@hub"),
                3,
                "remote: the URL has a user: use the keys `user` and `password_file`",
            ),
            (with("").replace("hub", "hub:0"), 3, "no port from 1"),
            (with("").replace("\"b\"", "\"a/b\""), 2, "name: \"a/b\" is no name"),
            (topic("").replace("\"out\"", "\"up\""), 5, "`in`, `out`, `both`"),
            (topic("").replace("\"#\"", "\"a#\""), 4, "filter: \"a#\" is no Topic Filter"),
            (topic("").replace("\"#\"", "\"$share/g/a\""), 4, "filter: \"$share/g/a\" is no"),
            (topic("local_prefix = \"+/\"\n"), 4, "local_prefix: \"+/\" has a wildcard"),
            (topic("qos = 3\n"), 7, "qos"),
        ] {
            let error = Config::parse(&text).unwrap_err().to_string();
            assert!(error.contains(&format!("line {line}:")) && error.contains(words), "{text}: {error}");
            assert!(!error.contains('@'), "{error}");
        }
        let error = Config::parse(&format!("{TABLE}{TOPIC}{TABLE}{TOPIC}")).unwrap_err().to_string();
        assert!(error.contains("bridge: two of them are called \"b\""), "{error}");
        let second = TABLE.replace("\"b\"", "\"c\"").replace("hub", "HUB") + "client_id = \"b\"\n" + TOPIC;
        let error = Config::parse(&format!("{TABLE}{TOPIC}{second}")).unwrap_err().to_string();
        let words = "bridge \"c\": client_id: bridge \"b\" is \"b\" at HUB:1883 already";
        assert!(error.contains("line 7:") && error.contains(words), "{error}");
        let elsewhere = second.replace("HUB", "hub2");
        assert_eq!(Config::parse(&format!("{TABLE}{TOPIC}{elsewhere}")).unwrap().bridge.len(), 2);
        let listener = "[[listeners]]\naddress = \"127.0.0.1:1\"\nname = \"$bridge\"\n";
        let error = Config::parse(listener).unwrap_err().to_string();
        assert!(error.contains("two of them are called \"$bridge\""), "{error}");
    }

    #[test]
    fn overlapping_filters_at_another_broker_are_told() {
        let topic = |direction: &str, filter: &str, prefix: &str| {
            format!("[[bridge.topics]]\ndirection = {direction:?}\nfilter = {filter:?}\nremote_prefix = {prefix:?}\n")
        };
        for (one, other, expected) in [
            (topic("in", "a/#", ""), topic("both", "+/b", ""), 1),
            (topic("in", "a/#", ""), topic("in", "a", ""), 1),
            (topic("in", "a/#", ""), topic("in", "a/#", ""), 0),
            (topic("in", "a/+", ""), topic("in", "a/b/#", ""), 1),
            (topic("in", "a/+", ""), topic("in", "a/b/c", ""), 0),
            (topic("in", "#", ""), topic("in", "a", "$x/"), 0),
            (topic("in", "a", "x/"), topic("in", "#", "y/"), 0),
            (topic("in", "#", ""), topic("out", "a", ""), 0),
            (topic("out", "#", ""), topic("out", "a", ""), 0),
        ] {
            let warnings = |more: &str| Config::parse(&format!("{TABLE}{more}{one}{other}")).unwrap().bridge_warnings();
            let told = warnings("");
            assert_eq!(told.len(), expected, "{one}{other}: {told:?}");
            assert!(told.iter().all(|told| told.contains("bridge \"b\": topics: ") && told.contains("a/")), "{told:?}");
            let of_both = usize::from(one.contains("out") && other.contains("out"));
            assert_eq!(warnings("local = \"mqtt://near\"\n").len(), expected + of_both, "{one}{other}");
        }
    }

    #[test]
    fn urls_have_the_ports_of_their_schemes() {
        for (text, shown) in [
            ("mqtt://hub", "mqtt://hub:1883"),
            ("mqtts://hub/", "mqtts://hub:8883"),
            ("ws://hub", "ws://hub:80/mqtt"),
            ("wss://[::1]:9001/a/b", "wss://[::1]:9001/a/b"),
            ("mqtt://10.0.0.1:7", "mqtt://10.0.0.1:7"),
        ] {
            assert_eq!(BrokerUrl::try_from(text).unwrap().to_string(), shown);
        }
        for wrong in ["hub:1883", "mqtt://", "mqtt://hub/path", "ws://hub?a", "mqtt://[::1", "mqtt://a b", "mqtt://h:x"]
        {
            assert!(BrokerUrl::try_from(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn keys_have_defaults() {
        let bridge = Config::parse(&format!("{TABLE}{TOPIC}")).unwrap().bridge.remove(0);
        assert_eq!((bridge.mqtt, bridge.topics[0].qos), (ProtocolVersion::V5, QoS::ExactlyOnce));
        assert_eq!((bridge.keep_alive_seconds().get(), bridge.receive_maximum().get()), (60, 1000));
        assert!(bridge.notifications && bridge.try_private && bridge.local.is_none());
    }
}
