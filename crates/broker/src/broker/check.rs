//! Checks of a configuration without a broker.

use crate::Config;
use crate::auth::Settings;
use crate::hooks::HookSet;
use crate::net;
use crate::webhooks::Webhooks;

/// Result of a check of a configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigCheck {
    /// What is wrong, a line each; empty = a broker would take it.
    pub errors: Vec<String>,
    /// Keys that differ from their defaults: key, default and value.
    pub differences: Vec<[String; 3]>,
}

impl ConfigCheck {
    /// Checks the text of a configuration file, with overrides from the environment as in [`Config::read_with`].
    ///
    /// Reads password files, certificates, keys and secrets, and opens nothing else.
    pub fn of(text: &str, environment: impl Iterator<Item = (String, String)> + Clone) -> Self {
        let config = match Config::parse_all(text, environment) {
            Ok(config) => config,
            Err(errors) => {
                let errors = errors.iter().map(ToString::to_string).collect();
                return Self { errors, differences: Vec::new() };
            }
        };
        let access = Settings::load(&config, true).err().map(|error| error.to_string());
        let webhooks = Webhooks::load(&config, &mut HookSet::default()).err();
        let tls = net::Doors::load(&config).err().map(|error| error.to_string());
        let differences = config.differences().into_iter().map(|found| [found.key, found.old, found.new]);
        Self { errors: access.into_iter().chain(tls).chain(webhooks).collect(), differences: differences.collect() }
    }
}
