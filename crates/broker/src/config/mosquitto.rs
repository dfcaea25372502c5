//! Recognition of a `mosquitto.conf`.

use super::ConfigError;

/// Checks that no line has the form of a line in Mosquitto's file: a known key, a space, and no `=`.
///
/// # Errors
/// One has. The error names it.
pub(super) fn check(text: &str) -> Result<(), ConfigError> {
    let found = text.lines().enumerate().find_map(|(number, line)| {
        let (key, value) = line.trim().split_once(char::is_whitespace)?;
        (KEYS.contains(&key) && !value.trim_start().starts_with('=')).then_some((number, key))
    });
    found.map_or(Ok(()), |(number, key)| Err(ConfigError::of_mosquitto(number + 1, key)))
}

/// Common keys, sorted.
const KEYS: [&str; 32] = [
    "acl_file",
    "address",
    "allow_anonymous",
    "autosave_interval",
    "bind_address",
    "bridge_cafile",
    "cafile",
    "capath",
    "certfile",
    "connection",
    "crlfile",
    "include_dir",
    "keyfile",
    "listener",
    "log_dest",
    "log_type",
    "max_connections",
    "max_inflight_messages",
    "max_queued_messages",
    "password_file",
    "per_listener_settings",
    "persistence",
    "persistence_location",
    "pid_file",
    "plugin",
    "port",
    "protocol",
    "psk_file",
    "require_certificate",
    "socket_domain",
    "topic",
    "user",
];

#[cfg(test)]
mod tests {
    use crate::Config;

    #[test]
    fn mosquitto_conf_is_recognised_and_toml_is_not() {
        for text in ["# comment\nlistener 1883\n", "port 1883", "allow_anonymous true\n", "  persistence\ttrue\n"] {
            let error = Config::check_file(text).unwrap_err().to_string();
            assert!(error.contains("mosquitto.conf") && error.contains("MIGRATING.md"), "{error}");
            assert!(error.contains("line "), "{error}");
        }
        for text in ["port = 1\n[", "listener = [\n\"port 1883\"", "user\t= 1\n["] {
            Config::check_file(text).unwrap();
        }
        for text in ["", "\n", "# listen = []\n"] {
            assert!(Config::check_file(text).unwrap_err().to_string().contains("has no key"), "{text:?}");
        }
        Config::check_file(Config::DEFAULT_TOML).unwrap();
    }
}
