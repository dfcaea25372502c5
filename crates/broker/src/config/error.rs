use std::fmt;
use std::path::{Path, PathBuf};

use super::ListenAddress;

/// Error in a configuration; its text is one line with file, line and key.
#[derive(Debug)]
pub struct ConfigError {
    file: Option<PathBuf>,
    line: Option<usize>,
    message: String,
}

impl ConfigError {
    pub(super) fn unreadable(path: &Path, error: std::io::Error) -> Self {
        Self { file: Some(path.to_owned()), line: None, message: format!("cannot be read: {error}") }
    }

    /// A file without any key.
    pub(super) fn empty() -> Self {
        let message = "it has no key: was it emptied or cut? To run with the defaults leave it out".to_owned();
        Self { file: None, line: None, message }
    }

    /// The file of another broker.
    pub(super) fn of_mosquitto(line: usize, key: &str) -> Self {
        let message = format!(
            "{key}: this is a mosquitto.conf, and tenbin reads TOML: docs/MIGRATING.md has Mosquitto's keys beside ours"
        );
        Self { file: None, line: Some(line), message }
    }

    /// A configuration that a reload refuses, since it leaves out what protects the broker.
    pub(super) fn incomplete(key: &str, reason: &str) -> Self {
        let message = format!("{key}: {reason}; a restart takes the file as it is");
        Self { file: None, line: None, message }
    }

    pub(super) fn illegal(text: &str, error: &toml::de::Error) -> Self {
        let at = error.span().map(|span| span.start.min(text.len()));
        let line = at.map(|at| text.as_bytes()[..at].iter().filter(|&&byte| byte == b'\n').count());
        let mut message = error.message().trim().replace('\n', ", ");
        if let Some(key) = line.and_then(|line| text.lines().nth(line)).and_then(key_of)
            && !message.contains(&format!("`{key}`"))
        {
            message = format!("{key}: {message}");
        }
        Self { file: None, line: line.map(|line| line + 1), message }
    }

    pub(super) fn nowhere_to_listen() -> Self {
        Self { file: None, line: None, message: "listen: needs at least one address".to_owned() }
    }

    pub(super) fn two_listeners(name: &str) -> Self {
        Self { file: None, line: None, message: format!("listeners: two of them are called {name:?}") }
    }

    pub(super) fn two_bridges(name: &str) -> Self {
        Self { file: None, line: None, message: format!("bridge: two of them are called {name:?}") }
    }

    /// What the program that runs the bridge finds wrong.
    pub(crate) fn in_bridge(name: &str, reason: &str) -> Self {
        Self { file: None, line: None, message: format!("bridge {name:?}: {reason}") }
    }

    pub(super) fn at_line(self, line: Option<usize>) -> Self {
        Self { line, ..self }
    }

    /// An environment variable that stands for a key.
    pub(super) fn in_variable(name: &str, reason: &str) -> Self {
        Self { file: None, line: None, message: format!("environment variable {name}: {}", reason.trim()) }
    }

    /// Two addresses that cannot be open together, with their keys.
    pub(super) fn overlap((key, address): (&str, &ListenAddress), (other_key, other): (&str, &ListenAddress)) -> Self {
        let message = format!("{key}: {address} overlaps {other} ({other_key})");
        Self { file: None, line: None, message }
    }

    pub(super) fn in_auth(message: String) -> Self {
        Self { file: None, line: None, message: format!("auth: {message}") }
    }

    pub(super) fn in_cluster(message: String) -> Self {
        Self { file: None, line: None, message: format!("cluster: {message}") }
    }

    /// The error with its line in `text`, if its message begins with a table and a key that the text has.
    pub(super) fn with_line(self, text: &str) -> Self {
        let mut words = self.message.split(": ");
        let line = words.next().zip(words.next()).and_then(|(table, key)| line_of(text, table, key));
        Self { line: self.line.or(line), ..self }
    }

    pub(super) fn in_listener(name: &str, message: String) -> Self {
        Self { file: None, line: None, message: format!("listeners: {name}: {message}") }
    }

    /// Packets of the maximum size could never be read.
    pub(super) fn packet_without_room(
        (size_key, size): (&str, u64),
        (bound_key, bound): (&str, u64),
        needed: u64,
    ) -> Self {
        let message = format!(
            "connections.{size_key}: {size} bytes need limits.{bound_key} to be at least {needed}: \
             a quarter of limits.{bound_key} ({bound}) is for packets"
        );
        Self { file: None, line: None, message }
    }

    /// The group of a `[[share]]` rule with `keep_seconds` cannot stand. `number`: the rule's number, from 1.
    pub(super) fn cannot_stand(number: usize, reason: &str) -> Self {
        Self::of_rule(number, &format!("keep_seconds: {reason}"))
    }

    /// A key of a `[[share]]` rule does not fit the other rules. `number`: the rule's number, from 1.
    pub(super) fn of_rule(number: usize, reason: &str) -> Self {
        Self { file: None, line: None, message: format!("share: rule {number}: {reason}") }
    }

    pub(super) fn in_file(self, path: &Path) -> Self {
        Self { file: Some(path.to_owned()), ..self }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "configuration {}", file.display())?,
            None => write!(f, "configuration")?,
        }
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for ConfigError {}

/// Number of the line with a key of a table, from 1.
fn line_of(text: &str, table: &str, key: &str) -> Option<usize> {
    let mut is_inside = false;
    text.lines()
        .position(|line| {
            let line = line.trim();
            if let Some(header) = line.strip_prefix('[') {
                is_inside = header.split(']').next().is_some_and(|name| name.trim() == table);
            }
            is_inside && key_of(line) == Some(key)
        })
        .map(|at| at + 1)
}

fn key_of(line: &str) -> Option<&str> {
    line.split_once('=').map(|(key, _)| key.trim()).filter(|key| !key.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_a_key_is_found_in_its_table() {
        let text =
            "listen = [\"a:1\"]\n[[listeners]]\nlisten = 1\n[ cluster ] # nodes\nname = \"c\"\n  listen = \"b\"\n";
        assert_eq!([line_of(text, "cluster", "listen"), line_of(text, "cluster", "name")], [Some(6), Some(5)]);
        assert_eq!([line_of(text, "cluster", "node"), line_of(text, "store", "listen")], [None, None]);
        let error = ConfigError::in_cluster("listen: is wrong: twice".to_owned()).with_line(text);
        assert_eq!(error.to_string(), "configuration, line 6: cluster: listen: is wrong: twice");
    }
}
