//! Brokers with password files, one after the other on one data directory.

use std::fs;

use tenbin_codec::{ProtocolVersion, QoS, ReasonCode};

use crate::auth::guarded::{Passwords, as_user};
use crate::support::{BrokerProcess, ConfigFile, DataDirectory, lasting};

/// A data directory, and a directory for password files.
pub(crate) struct Stage {
    pub(crate) data: DataDirectory,
    pub(crate) config: ConfigFile,
    pub(crate) files: tempfile::TempDir,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let files = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("ours to write");
        Self { data: DataDirectory::new(), config: ConfigFile::new(""), files }
    }

    /// Path of a password file, as a configuration may write it.
    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.files.path().display())
    }

    /// Makes a password file.
    pub(crate) fn passwords(&self, name: &str, users: &[(&str, &str)]) {
        let passwords = Passwords::of(users);
        fs::create_dir_all(self.files.path().join(name).parent().expect("a file")).expect("ours to write");
        fs::copy(passwords.path(), self.path(name)).expect("ours to write");
    }

    /// Configures listeners: name, password file, further keys.
    pub(crate) fn configure(&self, listeners: &[(&str, &str, &str)]) {
        let listener = |(name, file, more): &(&str, &str, &str)| {
            let file = self.path(file);
            format!("[[listeners]]\nname = {name:?}\naddress = \"127.0.0.1:0\"\npassword_file = {file:?}\n{more}\n")
        };
        let text = listeners.iter().map(listener).collect::<String>();
        fs::write(self.config.path(), text).expect("ours to write");
    }

    pub(crate) fn start(&self) -> BrokerProcess {
        self.start_with(&[])
    }

    /// With further arguments.
    pub(crate) fn start_with(&self, arguments: &[&str]) -> BrokerProcess {
        let data = self.data.path().to_str().expect("a readable name");
        BrokerProcess::start_exactly(&[&["--data", data, "--config", self.config.path()], arguments].concat())
    }

    /// Queues fifty acknowledged messages for alice's session.
    pub(crate) fn fifty_wait(&self, broker: &BrokerProcess) {
        let mut alice = broker.connect(as_user(lasting(ProtocolVersion::V5, "alice-1"), "alice"));
        alice.subscribe("work", QoS::AtLeastOnce);
        alice.disconnect();
        let mut publisher = broker.connect(as_user(lasting(ProtocolVersion::V5, "publisher"), "bob"));
        for number in 0..50 {
            assert_eq!(publisher.publish("work", &number.to_string(), QoS::AtLeastOnce), ReasonCode::Success);
        }
        publisher.disconnect();
    }
}
