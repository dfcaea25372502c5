//! Checks of a configuration without a broker.

use std::path::Path;

use super::administered;
use crate::auth::Settings;
use crate::config::ListenAddress;
use crate::hooks::HookSet;
use crate::net;
use crate::webhooks::Webhooks;
use crate::{Config, ConfigError};

/// Result of a check of a configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigCheck {
    /// Errors, a line each; empty = a broker would take the configuration.
    pub errors: Vec<String>,
    /// Faults with which a broker starts nevertheless, a line each.
    pub warnings: Vec<String>,
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
        let admin = administered::listener(config);
        let listeners = config.all_listeners().chain(admin.clone());
        let names = match net::ResolvedNames::look_up(&listeners.collect::<Vec<_>>()) {
            Ok(names) => names,
            Err(error) => return vec![error.to_string()],
        };
        let look_up = |name: &ListenAddress| names.addresses(name).unwrap_or_default();
        let errors = config.overlaps(&look_up).into_iter().chain(config.cluster_overlaps(&look_up));
        let errors = errors.chain(admin.and_then(|_| config.admin_overlap(&look_up)));
        errors.map(|error| error.to_string()).collect()
    }

    fn of_parsed(parsed: Result<Config, Vec<ConfigError>>) -> Self {
        let config = match parsed {
            Ok(config) => config,
            Err(errors) => {
                let errors = errors.iter().map(ToString::to_string).collect();
                return Self { errors, ..Self::default() };
            }
        };
        let (errors, mut warnings) = files(&config);
        warnings.extend(config.cluster_warning());
        warnings.extend(config.bridge_warnings());
        let differences = config.differences().into_iter().map(|found| [found.key, found.old, found.new]);
        Self { errors, warnings, differences: differences.collect() }
    }

    /// Checks a configuration that is to take the place of `in_effect` at a next start, as a reload checks it: its files, and
    /// whether it leaves out what protects the broker. Returns the keys that differ and that a reload does not change.
    ///
    /// # Errors
    /// What a reload would tell.
    pub fn of_newer(in_effect: &Config, newer: &Config) -> Result<Vec<[String; 3]>, String> {
        in_effect.check_complete(newer).map_err(|error| error.to_string())?;
        match files(newer).0 {
            errors if errors.is_empty() => {
                let differing = in_effect.not_taken(newer).into_iter();
                Ok(differing.map(|found| [found.key, found.old, found.new]).collect())
            }
            errors => Err(errors.join("; ")),
        }
    }
}

/// Errors and warnings of the files that a configuration names.
fn files(config: &Config) -> (Vec<String>, Vec<String>) {
    let access = Settings::load(config, true).err().map(|error| error.to_string());
    let webhooks = Webhooks::load(config, &mut HookSet::default()).err();
    let (tls, warnings) = match net::Doors::load(config) {
        Ok(doors) => (None, doors.warnings()),
        Err(error) => (Some(error.to_string()), Vec::new()),
    };
    let (admin, warnings_of_admin) = administered::check(config);
    let warnings = [warnings, warnings_of_admin].concat();
    let sockets = config.all_listeners().filter_map(|listener| net::check_unix(&listener).err());
    let sockets: Vec<_> = sockets.map(|error| error.to_string()).collect();
    (access.into_iter().chain(tls).chain(webhooks).chain(admin).chain(sockets).collect(), warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_port_of_the_cluster_is_a_warning() {
        let of = |text: &str| ConfigCheck::of_file(Path::new("f.toml"), text, std::iter::empty());
        let nodes = "[cluster]\nname = \"c\"\nnode = \"a\"\nnodes = [\"a=h:7883\", \"b=i:7883\"]\n";
        let found = of(&format!("{nodes}listen = \"0.0.0.0:7884\"\n"));
        assert!(found.errors.is_empty() && found.warnings.len() == 1, "{found:?}");
        let words =
            "configuration f.toml, line 5: cluster: listen: 0.0.0.0:7884 has another port than this node in nodes";
        assert!(found.warnings[0].contains(words), "{found:?}");
        for text in ["[cluster]\nlisten = \"0.0.0.0:7884\"\n", nodes] {
            assert_eq!(of(text).warnings, Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn newer_configuration_is_checked_as_a_reload_checks_it() {
        let old = Config::parse("[[acl]]\ndeny = \"all\"\ntopic = \"secret/#\"\n").unwrap();
        let of = |text: &str| ConfigCheck::of_newer(&old, &Config::parse(text).unwrap());
        let rule = "[[acl]]\ndeny = \"all\"\ntopic = \"other/#\"\n";
        let keys = of(&format!("policy = \"random\"\n[queue]\nmessages_maximum = 5\n{rule}")).unwrap();
        assert_eq!(keys, [["queue.messages_maximum", "16384", "5"]]);
        assert!(of("policy = \"random\"\n").unwrap_err().contains("acl: no rule is left"));
        let file = "[[listeners]]\nname = \"in\"\naddress = \"127.0.0.1:0\"\npassword_file = \"/missing/passwords\"\n";
        assert!(of(&format!("{file}{rule}")).unwrap_err().contains("/missing/passwords"));
    }
}
