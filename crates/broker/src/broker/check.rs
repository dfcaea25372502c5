//! Checks of a configuration without a broker.

use std::path::Path;

use crate::auth::Settings;
use crate::config::ListenAddress;
#[cfg(feature = "admin")]
use crate::config::Listener;
#[cfg(feature = "admin")]
use crate::control;
use crate::hooks::HookSet;
use crate::net;
use crate::webhooks::Webhooks;
use crate::{Config, ConfigError};

/// Result of a check of a configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigCheck {
    /// Errors, a line each; empty = a broker would take the configuration.
    pub errors: Vec<String>,
    /// Keys that differ from their defaults: key, default and value.
    pub differences: Vec<[String; 3]>,
}

impl ConfigCheck {
    /// Checks the text of a configuration file, with overrides from the environment as in [`Config::read_with`].
    ///
    /// Reads password files, certificates, keys and secrets, and opens nothing else.
    pub fn of(text: &str, environment: impl Iterator<Item = (String, String)> + Clone) -> Self {
        Self::of_parsed(Config::parse_all(text, environment))
    }

    /// As [`ConfigCheck::of`], for `text` of the file at `path`, which the errors name.
    pub fn of_file(path: &Path, text: &str, environment: impl Iterator<Item = (String, String)> + Clone) -> Self {
        Self::of_parsed(Config::parse_all_read(path, text, environment))
    }

    /// Errors of the addresses at which a broker with `config` listens, a line each: names that are unknown, and addresses
    /// of which it can open one alone. Looks up names, and opens no socket.
    pub fn of_addresses(config: &Config) -> Vec<String> {
        let listeners = config.all_listeners();
        #[cfg(feature = "admin")]
        let listeners = listeners.chain(
            config
                .admin
                .address()
                .map(|address| Listener { name: Some("admin".to_owned()), ..Listener::anonymous(address) }),
        );
        let names = match net::ResolvedNames::look_up(&listeners.collect::<Vec<_>>()) {
            Ok(names) => names,
            Err(error) => return vec![error.to_string()],
        };
        let look_up = |name: &ListenAddress| names.addresses(name).unwrap_or_default();
        let errors = config.overlaps(&look_up);
        #[cfg(feature = "admin")]
        let errors = errors.into_iter().chain(config.admin_overlap(&look_up));
        errors.into_iter().map(|error| error.to_string()).collect()
    }

    fn of_parsed(parsed: Result<Config, Vec<ConfigError>>) -> Self {
        let config = match parsed {
            Ok(config) => config,
            Err(errors) => {
                let errors = errors.iter().map(ToString::to_string).collect();
                return Self { errors, differences: Vec::new() };
            }
        };
        let access = Settings::load(&config, true).err().map(|error| error.to_string());
        let webhooks = Webhooks::load(&config, &mut HookSet::default()).err();
        let tls = net::Doors::load(&config).err().map(|error| error.to_string());
        #[cfg(feature = "admin")]
        let admin = control::check(&config).err().map(|error| format!("admin: {error}"));
        #[cfg(not(feature = "admin"))]
        let admin = None;
        let sockets = config.all_listeners().filter_map(|listener| net::check_unix(&listener).err());
        let sockets: Vec<_> = sockets.map(|error| error.to_string()).collect();
        let differences = config.differences().into_iter().map(|found| [found.key, found.old, found.new]);
        let errors = access.into_iter().chain(tls).chain(webhooks).chain(admin).chain(sockets).collect();
        Self { errors, differences: differences.collect() }
    }
}
