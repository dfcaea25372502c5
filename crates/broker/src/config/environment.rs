//! Configuration keys from environment variables: `TENBIN_QUEUE__MESSAGES_MAXIMUM`.

use serde::Deserialize as _;
use toml::{Table, Value};

use super::{Config, ConfigError};

/// Environment variables of the process, as far as they are text.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// Puts the values of all variables that name keys into `table`; returns its configuration, or `None` without such
/// variables.
///
/// # Errors
/// A variable names a key that does not exist, or has an illegal value.
pub(super) fn overridden(
    table: &mut Table,
    environment: impl Iterator<Item = (String, String)>,
) -> Result<Option<Config>, ConfigError> {
    let known: Table = toml::from_str(Config::DEFAULT_TOML).unwrap_or_default();
    let mut config = None;
    for (name, text) in environment {
        let Some(key) = name.strip_prefix(PREFIX) else { continue };
        let key = key.to_ascii_lowercase();
        if key == ALLOW_ANONYMOUS {
            let is_wanted: bool = text.parse().map_err(|_| ConfigError::in_variable(&name, "want true or false"))?;
            if is_wanted {
                set_anonymous(table);
                config = Some(
                    Config::deserialize(table.clone())
                        .map_err(|error| ConfigError::in_variable(&name, error.message()))?,
                );
            }
            continue;
        }
        let path: Vec<_> = key.split("__").collect();
        let Some(shipped) = look_up(&known, &path).filter(|value| !value.is_table()) else {
            if path.len() == 1 {
                continue; // a variable of another command, such as TENBIN_TOKEN
            }
            return Err(ConfigError::in_variable(&name, &format!("there is no key {}", path.join("."))));
        };
        set(table, &path, value_like(shipped, &text));
        let parsed = Config::deserialize(table.clone());
        config = Some(parsed.map_err(|error| ConfigError::in_variable(&name, error.message()))?);
    }
    Ok(config)
}

/// Describes the variables that have the prefix and stand for no key, a line each.
pub(super) fn unknown(names: impl Iterator<Item = String>) -> Vec<String> {
    let known: Table = toml::from_str(Config::DEFAULT_TOML).unwrap_or_default();
    let tables = known.iter().filter_map(|(name, value)| Some((name, value.as_table()?)));
    let keys: Vec<_> = tables.flat_map(|(table, keys)| keys.keys().map(move |key| format!("{table}__{key}"))).collect();
    let describe = |name: String| {
        let key = name.strip_prefix(PREFIX)?.to_ascii_lowercase();
        // Kubernetes makes variables of the last kinds for a service with the name tenbin.
        let is_foreign =
            OF_COMMANDS.contains(&&key[..]) || key == "port" || key.starts_with("port_") || key.starts_with("service_");
        if is_foreign
            || key == ALLOW_ANONYMOUS
            || key.contains("__")
            || known.get(&key).is_some_and(|value| !value.is_table())
        {
            return None;
        }
        let meant = keys.iter().find(|known| known.replace("__", "_") == key);
        let meant = meant.map(|key| format!("; {PREFIX}{} is one", key.to_ascii_uppercase())).unwrap_or_default();
        Some(format!("environment variable {name}: no key has this name{meant}"))
    };
    names.filter_map(describe).collect()
}

fn look_up<'a>(table: &'a Table, path: &[&str]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    let value = table.get(*first)?;
    if rest.is_empty() { Some(value) } else { look_up(value.as_table()?, rest) }
}

fn set(table: &mut Table, path: &[&str], value: Value) {
    let Some((first, rest)) = path.split_first() else { return };
    if rest.is_empty() {
        table.insert((*first).to_owned(), value);
    } else if let Value::Table(below) = table.entry(*first).or_insert_with(|| Value::Table(Table::new())) {
        set(below, rest, value);
    }
}

/// The value of a text, of the type that the shipped value has. A list may be written with commas alone.
fn value_like(shipped: &Value, text: &str) -> Value {
    let parsed = || toml::from_str::<Table>(&format!("value = {text}")).ok()?.remove("value");
    match shipped {
        Value::String(_) => Value::String(text.to_owned()),
        Value::Array(_) => parsed().filter(Value::is_array).unwrap_or_else(|| {
            let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
            Value::Array(parts.map(|part| Value::String(part.to_owned())).collect())
        }),
        // A value of another type is an error that names both.
        _ => parsed().unwrap_or_else(|| Value::String(text.to_owned())),
    }
}

/// Admits all clients at all configured listeners.
fn set_anonymous(table: &mut Table) {
    let listeners = table.get_mut("listeners").and_then(Value::as_array_mut).into_iter().flatten();
    for listener in listeners.filter_map(Value::as_table_mut) {
        listener.insert("anonymous".to_owned(), Value::Boolean(true));
    }
}

const PREFIX: &str = "TENBIN_";
/// Variables of other commands, without the prefix.
const OF_COMMANDS: [&str; 3] = ["data", "token", "url"];
/// A variable that stands for `anonymous` of all listeners, which have no names in variables.
const ALLOW_ANONYMOUS: &str = "allow_anonymous";

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, environment: &[(&str, &str)]) -> Result<Config, ConfigError> {
        Config::parse_with(text, environment.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())))
    }

    #[test]
    fn variables_override_keys_of_the_file() {
        let environment = [
            ("TENBIN_QUEUE__MESSAGES_MAXIMUM", "7"),
            ("TENBIN_POLICY", "random"),
            ("TENBIN_LISTEN", "127.0.0.1:1, unix:a.sock"),
            ("TENBIN_STORE__PUBLISHERS_WAIT", "true"),
            ("TENBIN_CAPABILITIES__RESPONSE_INFORMATION", "7"),
            ("TENBIN_TOKEN", "is no key"),
            ("HOME", "/"),
        ];
        let config = parse("policy = \"sticky\"\n[queue]\nmessages_maximum = 5\nbytes_maximum = 2000", &environment);
        let expected = "policy = \"random\"\nlisten = [\"127.0.0.1:1\", \"unix:a.sock\"]\n[queue]\nmessages_maximum = 7\n\
                        bytes_maximum = 2000\n[store]\npublishers_wait = true\n[capabilities]\nresponse_information = \"7\"";
        assert_eq!(config.unwrap(), Config::parse(expected).unwrap());
        let listen = parse("", &[("TENBIN_LISTEN", "[\"127.0.0.1:1\"]")]).unwrap().listen;
        assert_eq!(listen, [([127, 0, 0, 1], 1).into()]);
    }

    #[test]
    fn allow_anonymous_stands_for_all_listeners() {
        let text = "[[listeners]]\naddress = \"1\"\npassword_file = \"p\"\n[[listeners]]\naddress = \"2\"\npassword_file = \"p\"\n";
        for (value, anonymous) in [("true", true), ("false", false)] {
            let config = parse(text, &[("TENBIN_ALLOW_ANONYMOUS", value)]).unwrap();
            assert!(config.listeners.iter().all(|listener| listener.anonymous == anonymous), "{value}");
        }
    }

    #[test]
    fn unknown_variables_are_described() {
        let names = ["TENBIN_QUEUE_MESSAGES_MAXIMUM", "TENBIN_POLICI", "TENBIN_POLICY", "TENBIN_TOKEN", "TENBIN_PORT"];
        let further =
            ["TENBIN_QUEUE__MESSAGES_MAXIMUM", "TENBIN_PORT_1883_TCP", "TENBIN_SERVICE_HOST", "HOME", "TENBIN_LOG"];
        let found = unknown(names.iter().chain(&further).map(ToString::to_string));
        assert_eq!(
            found,
            [
                "environment variable TENBIN_QUEUE_MESSAGES_MAXIMUM: no key has this name; \
                 TENBIN_QUEUE__MESSAGES_MAXIMUM is one",
                "environment variable TENBIN_POLICI: no key has this name",
                "environment variable TENBIN_LOG: no key has this name",
            ]
        );
    }

    #[test]
    fn errors_name_the_variable() {
        for (name, value, word) in [
            ("TENBIN_QUEUE__MESSAGES_MAXIMUM", "many", "many"),
            ("TENBIN_QUEUE__MESSAGES_MAXIMUM", "0", "1 to"),
            ("TENBIN_QUEUE__LENGTH", "1", "queue.length"),
            ("TENBIN_QUEU__MESSAGES_MAXIMUM", "1", "queu.messages_maximum"),
            ("TENBIN_POLICY", "fastest", "thesis_score"),
            ("TENBIN_ALLOW_ANONYMOUS", "yes", "true or false"),
        ] {
            let error = parse("", &[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(word), "{error}");
        }
    }
}
