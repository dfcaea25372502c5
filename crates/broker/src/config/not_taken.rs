//! Configuration keys that a reload cannot change.

use serde_json::Value;

use super::Config;

/// A key with different values in the running broker and in a reloaded file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NotTaken {
    /// Key with its table: `queue.messages_maximum`.
    pub(crate) key: String,
    pub(crate) old: String,
    pub(crate) new: String,
}

impl Config {
    /// Returns the keys that differ in `new` and that a reload does not change.
    pub(crate) fn not_taken(&self, new: &Self) -> Vec<NotTaken> {
        let mut found = Vec::new();
        compare("", &as_json(self), &as_json(new), &mut found);
        found
    }
}

fn as_json(config: &Config) -> Value {
    serde_json::to_value(config).unwrap_or_default()
}

fn compare(key: &str, old: &Value, new: &Value, found: &mut Vec<NotTaken>) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            for (name, old) in old {
                let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                compare(&key, old, new.get(name).unwrap_or(&Value::Null), found);
            }
        }
        _ if old == new => {}
        _ => found.push(NotTaken { key: key.to_owned(), old: old.to_string(), new: new.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreloadable_keys_are_reported_with_both_values() {
        let listener =
            |port: u16, more: &str| format!("[[listeners]]\nname = \"in\"\naddress = \"127.0.0.1:{port}\"\n{more}");
        let old = Config::parse(&listener(1, "")).unwrap();
        let new = format!(
            "policy = \"random\"\nacl_default = \"deny\"\n[queue]\nmessages_maximum = 5\nwhen_full = \"spool\"\n\
             [store]\ndirectory = \"else\"\n[[share]]\ngroup = \"g\"\n[[acl]]\nallow = \"all\"\ntopic = \"#\"\n{}",
            listener(2, "anonymous = true\npublishes_per_second = 7\n")
        );
        let new = Config::parse(&new).unwrap();
        let mut found = old.not_taken(&new);
        found.sort_by(|a, b| a.key.cmp(&b.key));
        let found: Vec<_> = found.iter().map(|found| [&found.key[..], &found.old, &found.new]).collect();
        assert_eq!(
            found,
            [
                ["queue.messages_maximum", "16384", "5"],
                ["queue.when_full", "\"drop_oldest\"", "\"spool\""],
                ["store.directory", "\"tenbin-data\"", "\"else\""],
            ]
        );
        assert_eq!(old.not_taken(&old), []);
    }
}
