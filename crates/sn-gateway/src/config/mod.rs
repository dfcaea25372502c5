//! Configuration: one TOML file with a default for every key.

mod error;
mod listener;
mod listeners;
mod value;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tenbin_codec::{ProtocolVersion, Text};
use tenbin_sn::{Login, PredefinedTopics, Settings};

pub use error::{AGGREGATION_REMOVED, ConfigError};
pub use listener::{Dtls, Listener};
pub use listeners::ListenerTable;
pub use value::{Rebind, parse_version};

/// Stands for the client's identity in `user`.
pub(crate) const IDENTITY: &str = "%u";

/// Configuration of a gateway. `Config::default()` equals an empty file.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The broker, as `HOST:PORT`.
    pub broker: String,
    /// Protocol version towards the broker.
    #[serde(deserialize_with = "value::version")]
    pub mqtt: ProtocolVersion,
    /// User Name for the broker; empty = none. `%u` stands for the client's identity from DTLS.
    pub user: String,
    /// File with the password for the broker; its first line counts.
    pub password_file: Option<PathBuf>,
    /// Directory for topic ids and Wills of clients without Clean Session; empty = they are lost at the end.
    pub state: PathBuf,
    /// Keep Alive towards the broker in seconds, one PINGREQ for each idle client in that time; 0 = off.
    #[serde(deserialize_with = "tenbin_kit::within::<0, 65_535, _, _>")]
    pub keep_alive_seconds: u16,
    /// Time for the broker's CONNACK and PINGRESP.
    #[serde(deserialize_with = "tenbin_kit::within::<1, 600, _, _>")]
    pub timeout_seconds: u16,
    /// TLS to the broker; none = TCP.
    pub tls: Option<BrokerTls>,
    /// The UDP address and its bounds, if there are no `listeners`.
    pub listener: Listener,
    /// Several UDP addresses, each with its bounds.
    pub listeners: Vec<ListenerTable>,
}

/// Table `[tls]`: TLS to the broker.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BrokerTls {
    /// PEM file with the authorities of the broker's certificate; none = the system's authorities.
    pub ca: Option<PathBuf>,
    /// PEM file with the gateway's certificate, if the broker asks for one.
    pub certificate: Option<PathBuf>,
    /// PEM file with its private key.
    pub key: Option<PathBuf>,
    /// Name that the broker's certificate has to have; none = the host of `broker`.
    pub server_name: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            broker: "127.0.0.1:1883".to_owned(),
            mqtt: ProtocolVersion::V5,
            user: String::new(),
            password_file: None,
            state: PathBuf::new(),
            keep_alive_seconds: 300,
            timeout_seconds: 10,
            tls: None,
            listener: Listener::default(),
            listeners: Vec::new(),
        }
    }
}

impl Config {
    /// All keys with their defaults and a comment each.
    pub const DEFAULT_TOML: &'static str = include_str!("default.toml");

    /// Reads the file at `path`. Missing keys have their defaults.
    ///
    /// # Errors
    /// The file is unreadable, has no key at all, or has an unknown key or a value of the wrong type or out of range. The
    /// error names line and key.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = tenbin_kit::files::read_text(path).map_err(|error| ConfigError::unreadable(path, &error))?;
        if toml::from_str::<toml::Table>(&text).is_ok_and(|table| table.is_empty()) {
            return Err(ConfigError::empty().in_file(path));
        }
        Self::parse(&text).map_err(|error| error.in_file(path))
    }

    /// Parses the text of a configuration file.
    ///
    /// # Errors
    /// Like [`Config::read`].
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text).map_err(|error| ConfigError::illegal(text, &error))?;
        let tables = text.parse::<toml::Table>().unwrap_or_default();
        if !config.listeners.is_empty() && tables.contains_key("listener") {
            return Err(ConfigError::of_key("listener", "does not go together with [[listeners]]"));
        }
        config.check()?;
        Ok(config)
    }

    /// Configuration of a listener of a broker, whose clients reach it through memory, without Keep Alive: `keys` are
    /// the keys of the table `[listener]` without `address`.
    ///
    /// # Errors
    /// The first unknown or illegal key.
    pub fn of_listener(address: SocketAddr, keys: toml::Table) -> Result<Self, ConfigError> {
        let listener = Listener::from_table(address, keys)?;
        let config = Self { listener, keep_alive_seconds: 0, ..Self::default() };
        config.check()?;
        Ok(config)
    }

    /// Checks keys that depend on each other, and texts.
    ///
    /// # Errors
    /// The first illegal key.
    pub fn check(&self) -> Result<(), ConfigError> {
        let port =
            self.broker.rsplit_once(':').and_then(|(host, port)| port.parse::<u16>().ok().filter(|_| !host.is_empty()));
        if port.is_none_or(|port| port == 0) {
            return Err(ConfigError::of_key(
                "broker",
                format!("{:?} is not HOST:PORT, as in 127.0.0.1:1883", self.broker),
            ));
        }
        if self.user.is_empty() && self.password_file.is_some() {
            return Err(ConfigError::of_key("password_file", "needs `user`"));
        }
        if !self.listeners.is_empty() {
            return self.for_each_listener().map(drop);
        }
        if self.has_own_users() && self.listener.dtls.is_none() {
            return Err(ConfigError::of_key("user", "%u needs `dtls` of the listener"));
        }
        if self.listener.credentials && !self.user.is_empty() {
            return Err(ConfigError::of_key("user", "clients have their own with `credentials`"));
        }
        self.listener.check()?;
        self.predefined().map(drop)
    }

    /// Checks that `new`, which replaces this configuration in a running gateway, leaves out no protection of its clients
    /// or the broker, as an emptied or cut file would.
    ///
    /// # Errors
    /// It does. The error names the key.
    pub fn check_complete(&self, new: &Self) -> Result<(), ConfigError> {
        let left_out = |key: String, effect: &str| {
            let advice = "to have it so, stop the gateway and start it again";
            Err(ConfigError::of_key(&key, format_args!("is left out, and {effect}; {advice}")))
        };
        if self.tls.is_some() && new.tls.is_none() {
            return left_out("tls".to_owned(), "the broker would be spoken to without TLS");
        }
        if !self.listeners.is_empty() && new.listeners.is_empty() {
            return left_out("listeners".to_owned(), "an address of the defaults would be opened");
        }
        let names = |of: &Self| of.listeners.iter().map(ListenerTable::name).collect::<Vec<_>>();
        let (old_names, new_names) = (names(self), names(new));
        let new_listeners = new.for_each_listener()?;
        for (place, old) in self.for_each_listener()?.into_iter().enumerate() {
            let name = old_names.get(place);
            let same = name.map_or(Some(0), |name| new_names.iter().position(|new| new == name));
            let Some(after) = same.and_then(|same| new_listeners.get(same)) else { continue };
            if let Some((key, effect)) = old.listener.left_out_in(&after.listener) {
                let table = name.map_or_else(|| "listener".to_owned(), |name| format!("listeners: {name}: sn"));
                return left_out(format!("{table}.{key}"), effect);
            }
        }
        Ok(())
    }

    /// Behaviour of the clients' state machines.
    ///
    /// # Errors
    /// The password file is unreadable.
    pub(crate) fn settings(&self) -> Result<Settings, ConfigError> {
        Ok(Settings {
            upstream_version: self.mqtt,
            upstream_login: self.login()?,
            upstream_keep_alive: std::time::Duration::from_secs(self.keep_alive_seconds.into()),
            upstream_timeout: std::time::Duration::from_secs(self.timeout_seconds.into()),
            ..self.listener.settings()
        })
    }

    pub(crate) fn predefined(&self) -> Result<PredefinedTopics, ConfigError> {
        self.listener.predefined()
    }

    /// Login of all clients, or the form of it if each has its own.
    pub(crate) fn login(&self) -> Result<Option<Login>, ConfigError> {
        if self.user.is_empty() {
            return Ok(None);
        }
        let user = Text::try_from(self.user.clone()).map_err(|error| ConfigError::of_key("user", error))?;
        let Some(path) = &self.password_file else { return Ok(Some(Login { user, password: None })) };
        let text = tenbin_kit::files::read_text(path)
            .map_err(|error| ConfigError::of_key("password_file", format!("{}: {error}", path.display())))?;
        let password = text.lines().next().unwrap_or_default().to_owned();
        Ok(Some(Login { user, password: Some(password.into()) }))
    }

    /// Whether the User Name has the client's identity.
    pub(crate) fn has_own_users(&self) -> bool {
        self.user.contains(IDENTITY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Config::parse(text).expect_err(text).to_string()
    }

    #[test]
    fn empty_file_has_all_defaults() {
        let config = Config::parse("").expect("legal");
        assert_eq!(config.listener.address, ([127, 0, 0, 1], 10_000).into());
        assert_eq!(config.settings().expect("no password file").retries, 4);
    }

    #[test]
    fn documented_configuration_has_all_keys_with_their_defaults() {
        let text = Config::DEFAULT_TOML;
        let documented = Config::parse(text).expect("legal");
        assert_eq!(format!("{documented:?}"), format!("{:?}", Config::default()));
        let listener = format!("{:?}", Listener::default());
        let keys = listener.split([' ', '{']).filter_map(|word| word.strip_suffix(':'));
        let missing: Vec<_> = keys.filter(|key| !text.contains(&format!("{key} ="))).collect();
        assert_eq!(missing, ["dtls", "topics"], "they are tables");
    }

    #[test]
    fn errors_name_line_and_key() {
        for (text, line, part) in [
            ("[listener]\nretries = 400\n", "line 2", "retries"),
            ("[listener]\nretry_seconds = 0\n", "line 2", "from 0.1 to 3600"),
            ("[listener]\naddress = \"here\"\n", "line 2", "address"),
            ("[listener]\nsurprise = 1\n", "line 2", "surprise"),
            ("mqtt = \"4\"\n", "line 1", "3.1.1"),
            ("broker = \"nowhere\"\n", "configuration", "HOST:PORT"),
            ("password_file = \"p\"\n", "configuration", "needs `user`"),
            ("mqtt = \"5.0\"\naggregate = 0\n", "line 2", "aggregate: aggregation was removed in 0.2.0"),
            ("[listener.topics]\n0 = \"a\"\n", "configuration", "reserved"),
            ("[listener.topics]\nx = \"a\"\n", "configuration", "\"x\" is no topic id"),
            ("[listener.topics]\n1 = \"a/#\"\n", "configuration", "no topic name"),
            ("[listener]\nmulticast = \"10.0.0.1:1884\"\n", "configuration", "no multicast address"),
        ] {
            let error = error(text);
            assert!(error.contains(line) && error.contains(part), "{text}: {error}");
        }
    }

    #[cfg(not(feature = "dtls"))]
    #[test]
    fn dtls_in_a_build_without_it_names_the_build_command() {
        let config = Config::parse("listener.dtls.psk_file = \"keys\"\n").expect("legal");
        let error = config.check_files().unwrap_err().to_string();
        assert!(error.ends_with("dtls: this build has no DTLS: build with `cargo build --release --features dtls`"));
    }

    #[test]
    fn reloads_leave_no_protection_out() {
        let parse = |text: &str| Config::parse(text).expect(text);
        let table = |name: &str, sn: &str| {
            format!("[[listeners]]\nname = {name:?}\naddress = \"127.0.0.1:0\"\n[listeners.sn]\n{sn}\n")
        };
        let dtls = "dtls = { certificate = \"c\", key = \"k\", client_ca = \"a\" }";
        let open = "dtls = { certificate = \"c\", key = \"k\" }";
        let plain = |keys: &str| format!("[listener]\n{keys}\n");
        for (old, new, key) in [
            (plain(dtls), plain(""), "listener.dtls"),
            (plain(dtls), plain(open), "listener.dtls.client_ca"),
            (plain("credentials = true"), plain(""), "listener.credentials"),
            ("[tls]\n".to_owned(), String::new(), "tls"),
            (table("a", ""), String::new(), "listeners"),
            (table("a", "") + &table("b", dtls), table("b", "") + &table("a", ""), "listeners: b: sn.dtls"),
        ] {
            let error = parse(&old).check_complete(&parse(&new)).expect_err(key).to_string();
            assert!(error.contains(&format!(": {key}: is left out")), "{error}");
            parse(&new).check_complete(&parse(&old)).expect("more protection");
            parse(&old).check_complete(&parse(&old)).expect("the same");
        }
        parse(&table("a", dtls)).check_complete(&parse(&table("b", ""))).expect("another listener");
    }

    #[test]
    fn clients_move_within_their_network() {
        let rebind = |text: &str| Config::parse(text).expect("legal").listener.rebind;
        assert_eq!(["", "[listener]\nrebind = \"never\"\n"].map(rebind), [Rebind::Address; 2]);
        let allows = |rebind: Rebind, old: &str, new: &str| rebind.allows(old.parse().unwrap(), new.parse().unwrap());
        assert!(allows(Rebind::Network, "10.1.2.3", "10.1.2.200"));
        assert!(!allows(Rebind::Network, "10.1.2.3", "10.1.3.3"));
        assert!(allows(Rebind::Network, "2001:db8:1::1", "2001:db8:1:5::1"));
        assert!(!allows(Rebind::Network, "2001:db8:1::1", "2001:db8:2::1"));
        assert!(!allows(Rebind::Network, "10.1.2.3", "2001:db8:2::1"));
        assert!(allows(Rebind::Any, "10.1.2.3", "11.1.2.3"));
        assert!(allows(Rebind::Address, "10.1.2.3", "10.1.2.3") && !allows(Rebind::Address, "10.1.2.3", "10.1.2.4"));
    }
}
