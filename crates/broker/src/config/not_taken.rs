//! Configuration keys that a reload cannot change, and those that it does.

use serde_json::Value;

use super::{Config, Tls};

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
        if self.webhook != new.webhook {
            // Without their content: URLs may have passwords.
            let [old, new] = [self, new].map(|config| format!("{} entries", config.webhook.len()));
            found.push(NotTaken { key: "webhook".to_owned(), old, new });
        }
        if self.admin.tls.is_some() != new.admin.tls.is_some() {
            let [old, new] = [self, new].map(|config| if config.admin.tls.is_some() { "given" } else { "not given" });
            found.push(NotTaken { key: "admin.tls".to_owned(), old: old.to_owned(), new: new.to_owned() });
        }
        found
    }
}

impl Config {
    /// Returns the keys that differ in `new` and that a reload changes. Tables are counted: they may hold secrets.
    pub(crate) fn taken(&self, new: &Self) -> Vec<NotTaken> {
        let entries = |config: &Self| {
            let Self { listeners, auth, ban, acl, share, bridge, .. } = config;
            let counts = [listeners.len(), auth.len(), ban.len(), acl.len(), share.len(), bridge.len()];
            counts.map(|count| format!("{count} entries"))
        };
        let differs = [
            self.listeners != new.listeners,
            self.auth != new.auth,
            self.ban != new.ban,
            self.acl != new.acl,
            self.share != new.share,
            self.bridge != new.bridge,
        ];
        let names = ["listeners", "auth", "ban", "acl", "share", "bridge"];
        let tables = names.into_iter().zip(entries(self)).zip(entries(new)).zip(differs);
        let tables = tables.filter(|(_, differs)| *differs).map(|(((key, old), new), _)| (key, old, new));
        let texts = |config: &Self| {
            let Self { listen, load_reports, policy, acl_default, .. } = config;
            let listen: Vec<_> = listen.iter().map(ToString::to_string).collect();
            [listen.join(", "), format!("{load_reports:?}"), policy.to_string(), format!("{acl_default:?}")]
        };
        let names = ["listen", "load_reports", "policy", "acl_default"];
        let texts = names.into_iter().zip(texts(self)).zip(texts(new)).map(|((key, old), new)| (key, old, new));
        let texts = texts.filter(|(_, old, new)| old != new);
        let tls = self.admin.tls.as_ref().zip(new.admin.tls.as_ref()).filter(|(old, new)| old != new);
        let certificate = |tls: &Tls| tls.certificate.display().to_string();
        let tls = tls.map(|(old, new)| ("admin.tls", certificate(old), certificate(new)));
        let taken = texts.chain(tables).chain(tls);
        taken.map(|(key, old, new)| NotTaken { key: key.to_owned(), old, new }).collect()
    }
}

/// Keys that differ in a reloaded file.
#[derive(Debug, Default)]
pub(crate) struct Reloaded {
    pub(crate) taken: Vec<NotTaken>,
    pub(crate) not_taken: Vec<NotTaken>,
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

    /// Values of keys for which no simple change of the shipped value is legal.
    const OTHERS: [(&str, &str); 18] = [
        ("listen", "[\"127.0.0.1:1\"]"),
        ("load_reports", "[\"ack\"]"),
        ("policy", "\"random\""),
        ("acl_default", "\"deny\""),
        ("queue.when_full", "\"spool\""),
        ("store.sync", "\"never\""),
        ("store.bytes_maximum", "1073741824"),
        ("admin.address", "\"127.0.0.1:1\""),
        ("admin.hosts", "[\"example.org\"]"),
        ("capabilities.response_information", "\"a\""),
        ("telemetry.otlp", "\"http://127.0.0.1:4318\""),
        ("telemetry.root_ratio", "0.5"),
        ("cluster.node", "\"b\""),
        ("cluster.nodes", "[\"a:7883\", \"c:1\"]"),
        ("cluster.listen", "\"127.0.0.2:7883\""),
        ("cluster.plain_from", "[\"10.0.0.0/8\"]"),
        ("cluster.etcd", "[\"http://10.0.0.1:2379\"]"),
        ("cluster.agreement", "\"manual\""),
    ];
    /// Top-level keys that a reload takes; other tests show it.
    const TAKEN: [&str; 10] =
        ["listen", "load_reports", "listeners", "auth", "ban", "acl", "acl_default", "policy", "share", "bridge"];

    /// A legal configuration with another value of one key than the shipped one.
    fn changed(key: &str, shipped: &toml::Value) -> Config {
        let of_kind = match shipped {
            toml::Value::Boolean(value) => vec![(!value).to_string()],
            toml::Value::Integer(value) => {
                [value + 1, value - 1, value / 2, value * 2, 1, 0].map(|value| value.to_string()).to_vec()
            }
            _ => vec!["\"other\"".to_owned(), "[\"other\"]".to_owned()],
        };
        let given = OTHERS.iter().find(|(other, _)| *other == key).map(|(_, value)| (*value).to_owned());
        let table = key.rsplit_once('.').map(|(table, _)| format!("[{table}]\n{}", needed(key))).unwrap_or_default();
        let name = key.rsplit('.').next().unwrap_or_default();
        let texts = given.into_iter().chain(of_kind).map(|value| format!("{table}{name} = {value}\n"));
        let legal = texts.filter_map(|text| Config::parse(&text).ok());
        let before = before(key);
        let other = legal.into_iter().find(|config| *config != before);
        other.unwrap_or_else(|| panic!("no other value of {key} is legal: add one to OTHERS here"))
    }

    /// Keys of the same table without which no other value of `key` is legal.
    fn needed(key: &str) -> String {
        let is_in = CLUSTER.iter().any(|(name, _)| key.strip_prefix("cluster.") == Some(name));
        let others = CLUSTER.iter().filter(|(name, _)| is_in && !key.ends_with(&format!(".{name}")));
        others.map(|(name, value)| format!("{name} = {value}\n")).collect()
    }

    /// Keys of a node, which need each other.
    const CLUSTER: [(&str, &str); 3] = [("name", "\"c\""), ("node", "\"a\""), ("nodes", "[\"a:7883\", \"b:7883\"]")];

    /// The shipped configuration with the keys that another value of `key` needs.
    fn before(key: &str) -> Config {
        let table = key.split('.').next().unwrap_or_default();
        let own = CLUSTER.iter().find(|(name, _)| key.strip_prefix("cluster.") == Some(name));
        match own {
            None => Config::default(),
            Some((name, value)) => Config::parse(&format!("[{table}]\n{}{name} = {value}\n", needed(key))).unwrap(),
        }
    }

    #[test]
    fn every_shipped_key_is_taken_or_named() {
        let shipped: toml::Table = toml::from_str(Config::DEFAULT_TOML).unwrap();
        let below = |(name, value): (&String, &toml::Value)| match value.as_table() {
            Some(table) => table.iter().map(|(key, value)| (format!("{name}.{key}"), value.clone())).collect(),
            None => vec![(name.clone(), value.clone())],
        };
        let keys: Vec<_> = shipped.iter().flat_map(below).collect();
        assert!(keys.len() > 60, "{}", keys.len());
        for (key, value) in keys {
            let named = before(&key).not_taken(&changed(&key, &value));
            let names: Vec<_> = named.iter().map(|named| &named.key[..]).collect();
            let expected = if TAKEN.contains(&&key[..]) { vec![] } else { vec![&key[..]] };
            assert_eq!(names, expected, "a reload must take {key} (TAKEN) or name it alone");
        }
        let webhook = "[[webhook]]\nurl = \"https://user:secret@example.org/\"\nevents = [\"connected\"]\n";
        let named = Config::default().not_taken(&Config::parse(webhook).unwrap());
        assert_eq!(named.len(), 1);
        assert!(named[0].key == "webhook" && !format!("{named:?}").contains("secret"), "{named:?}");
        // All tables of the file are in one of the lists.
        let tables = Config::DEFAULT_TOML.lines().filter_map(|line| line.strip_prefix("# [[")?.strip_suffix("]]"));
        for table in tables.filter(|table| !table.contains('.')) {
            assert!(TAKEN.contains(&table) || table == "webhook", "{table}");
        }
    }

    #[test]
    fn key_of_an_older_version_is_taken_and_named() {
        let older = Config::parse("[sessions]\nfilters_per_packet_maximum = 1000\n").unwrap();
        assert_eq!(older.idle_key(), Some("sessions.filters_per_packet_maximum"));
        assert_eq!(Config::default().idle_key(), None);
    }

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
