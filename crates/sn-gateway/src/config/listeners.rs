//! Several listeners, in the tables of `tenbin broker`.

use std::net::SocketAddr;
use std::path::Path;

use serde::Deserialize;

use super::{Config, ConfigError, Listener};

/// Table `[[listeners]]`, of which the broker's configuration has more keys.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListenerTable {
    /// UDP address.
    pub address: SocketAddr,
    /// Name of the directory below `state`; none = the address.
    pub name: Option<String>,
    /// `"mqtt-sn"`; none = that.
    pub transport: Option<String>,
    /// Keys of [`Listener`], but for `address`.
    #[serde(default)]
    pub sn: toml::Table,
}

impl ListenerTable {
    /// Its name; the address without one.
    pub fn name(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.address.to_string())
    }
}

impl Config {
    /// Configurations with one listener each: those of `[[listeners]]`, or the one with `[listener]`.
    ///
    /// # Errors
    /// The first illegal table.
    pub fn for_each_listener(&self) -> Result<Vec<Self>, ConfigError> {
        if self.listeners.is_empty() {
            return Ok(vec![self.clone()]);
        }
        let mut configs = Vec::with_capacity(self.listeners.len());
        for (table, number) in self.listeners.iter().zip(0..) {
            let name = table.name();
            let wrong = |reason: &str| ConfigError::of_key(&format!("listeners: {name}"), reason);
            if self.listeners[..number].iter().any(|other| other.name() == name) {
                return Err(wrong("two of them have this name"));
            }
            if let Some(transport) = table.transport.as_deref().filter(|&transport| transport != "mqtt-sn") {
                return Err(wrong(&format!("transport: the gateway has \"mqtt-sn\" alone, not {transport:?}")));
            }
            let listener = Listener::from_table(table.address, table.sn.clone());
            let listener = listener.map_err(|error| wrong(error.without_place()))?;
            let mut config = Self { listener, listeners: Vec::new(), ..self.clone() };
            config.set_state_below(&self.state, &name);
            config.check().map_err(|error| wrong(error.without_place()))?;
            configs.push(config);
        }
        Ok(configs)
    }

    /// Keeps the state of a listener in its own directory below `directory`; empty = nowhere.
    pub fn set_state_below(&mut self, directory: &Path, listener: &str) {
        if !directory.as_os_str().is_empty() {
            self.state = directory.join(directory_of(listener));
        }
    }
}

/// Directory of a listener: its name, which may contain any character. Different names have different directories.
fn directory_of(name: &str) -> String {
    let mut directory = String::with_capacity(name.len());
    for character in name.chars() {
        match character {
            '/' => directory.push_str("%2F"),
            '%' => directory.push_str("%25"),
            // Not at the beginning: `.` and `..` are other directories.
            '.' if directory.is_empty() => directory.push_str("%2E"),
            other => directory.push(other),
        }
    }
    directory
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_listener_has_its_keys_and_its_directory() {
        let text = "broker = \"b:1\"\nstate = \"/s\"\n[[listeners]]\naddress = \"127.0.0.1:1\"\nname = \"field/a\"\n\
                    transport = \"mqtt-sn\"\n[listeners.sn]\nretries = 7\ntopics.1 = \"a\"\n\
                    [[listeners]]\naddress = \"127.0.0.1:2\"\n";
        let configs = Config::parse(text).unwrap().for_each_listener().unwrap();
        let of = |config: &Config| (config.listener.address.port(), config.listener.retries, config.state.clone());
        assert_eq!(of(&configs[0]), (1, 7, "/s/field%2Fa".into()));
        assert_eq!(of(&configs[1]), (2, 4, "/s/127.0.0.1:2".into()));
        assert!(configs.iter().all(|config| config.broker == "b:1"));
        assert_eq!(Config::default().for_each_listener().unwrap().len(), 1);
    }

    #[test]
    fn errors_name_listener_and_key() {
        for (keys, named) in [
            ("transport = \"http\"", ["127.0.0.1:1", "transport"]),
            ("[listeners.sn]\nretries = 400", ["127.0.0.1:1", "retries"]),
            ("[listeners.sn]\naddress = \"127.0.0.1:3\"", ["127.0.0.1:1", "table of the listener"]),
            ("[listener]\nretries = 3", ["listener", "does not go together"]),
            ("[listeners.sn]\ndtls.psk_file = \"k\"\nthreads = 2", ["127.0.0.1:1", "threads"]),
            ("[[listeners]]\naddress = \"127.0.0.1:1\"", ["127.0.0.1:1", "two"]),
            ("user = \"u\"", ["line 3", "user"]),
        ] {
            let text = format!("[[listeners]]\naddress = \"127.0.0.1:1\"\n{keys}\n");
            let error = Config::parse(&text).unwrap_err().to_string();
            assert!(named.iter().all(|named| error.contains(named)), "{keys}: {error}");
        }
    }

    #[test]
    fn names_of_directories_are_one_to_one() {
        let names = [".", "..", "a/b", "a%2Fb", "a.b", "%2E"];
        let mut directories = names.map(directory_of).to_vec();
        assert!(directories.iter().all(|name| !name.contains('/') && !name.starts_with('.')));
        directories.sort();
        directories.dedup();
        assert_eq!(directories.len(), names.len());
    }
}
