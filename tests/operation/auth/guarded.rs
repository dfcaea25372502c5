//! A broker with a password file and rules.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenbin_broker::auth::{PasswordFile, Secrets};
use tenbin_codec::{ConnAck, Connect, ProtocolVersion};

use crate::support::{BrokerProcess, ConfigFile, PATIENCE, RawClient, text};

/// A broker with one listener, whose files can be changed.
pub(crate) struct Guarded {
    pub(crate) broker: BrokerProcess,
    pub(crate) config: ConfigFile,
    pub(crate) passwords: Passwords,
}

/// A password file; removed with the handle.
pub(crate) struct Passwords {
    path: String,
}

/// Users and passwords of most tests.
pub(crate) const USERS: [(&str, &str); 2] = [("alice", "wonderland"), ("bob", "builder")];

impl Guarded {
    /// `rules` are appended to the configuration of a listener that anonymous clients may use too.
    pub(crate) fn start(rules: &str) -> Self {
        Self::start_with("anonymous = true", rules)
    }

    pub(crate) fn start_with(listener: &str, rules: &str) -> Self {
        let passwords = Passwords::of(&USERS);
        let config = ConfigFile::new(&configuration(&passwords, listener, rules));
        let broker = BrokerProcess::start_exactly(&["--log", "debug", "--config", config.path()]);
        Self { broker, config, passwords }
    }

    /// Writes other rules and waits until the broker has loaded them.
    pub(crate) fn reload(&self, rules: &str) {
        self.reload_with("anonymous = true", rules);
    }

    pub(crate) fn reload_with(&self, listener: &str, rules: &str) {
        fs::write(self.config.path(), configuration(&self.passwords, listener, rules)).expect("ours to write");
        self.hang_up("reloaded");
    }

    /// Sends SIGHUP and waits for the next log line with `word`.
    pub(crate) fn hang_up(&self, word: &str) {
        let before = self.broker.log().count(word, usize::MAX, Duration::ZERO);
        self.broker.signal("HUP");
        assert_eq!(self.broker.log().count(word, before + 1, PATIENCE), before + 1, "{word}");
    }

    pub(crate) fn connect(&self, connect: Connect) -> RawClient {
        self.broker.connect(connect)
    }

    pub(crate) fn try_connect(&self, connect: Connect) -> (RawClient, ConnAck) {
        RawClient::try_connect(self.broker.address(), connect)
    }

    /// A connected client of `user`, or an anonymous one if `user` is empty.
    pub(crate) fn client(&self, version: ProtocolVersion, user: &str, client_id: &str) -> RawClient {
        self.connect(as_user(Connect::new(version, text(client_id)), user))
    }
}

impl Passwords {
    pub(crate) fn of(users: &[(&str, &str)]) -> Self {
        // Hashing is slow on purpose: all tests of a process share one hash for each user and password.
        static KNOWN: Mutex<BTreeMap<String, Secrets>> = Mutex::new(BTreeMap::new());
        let file = Self::empty();
        for (user, password) in users {
            let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
            let secrets = known.entry(format!("{user}:{password}")).or_insert_with(|| hashed(password));
            PasswordFile::set(file.path.as_ref(), user, secrets).expect("a file of ours");
        }
        file
    }

    /// A name for a file that is not there yet.
    pub(crate) fn empty() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self { path: format!("{}/passwords-{process}-{number}", env!("CARGO_TARGET_TMPDIR")) }
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn set(&self, user: &str, password: &str) {
        PasswordFile::set(self.path.as_ref(), user, &hashed(password)).expect("a file of ours");
    }

    pub(crate) fn delete(&self, user: &str) {
        assert!(PasswordFile::delete(self.path.as_ref(), user).expect("a file of ours"));
    }

    pub(crate) fn write(&self, content: &str) {
        fs::write(&self.path, content).expect("a file of ours");
    }
}

impl Drop for Passwords {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// `connect` with the credentials of one of [`USERS`], or unchanged for any other name.
pub(crate) fn as_user(connect: Connect, user: &str) -> Connect {
    match USERS.iter().find(|(name, _)| *name == user) {
        Some((user, password)) => with_password(connect, user, password),
        None => connect,
    }
}

pub(crate) fn with_password(connect: Connect, user: &str, password: &str) -> Connect {
    Connect { user_name: Some(text(user)), password: Some(password.as_bytes().to_vec().into()), ..connect }
}

fn configuration(passwords: &Passwords, listener: &str, rules: &str) -> String {
    format!(
        "[[listeners]]\nname = \"main\"\naddress = \"127.0.0.1:0\"\npassword_file = {:?}\n{listener}\n{rules}\n",
        passwords.path()
    )
}

fn hashed(password: &str) -> Secrets {
    Secrets::new(password.as_bytes(), true).expect("a legal password")
}
