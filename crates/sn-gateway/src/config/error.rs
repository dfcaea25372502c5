use std::fmt;
use std::path::{Path, PathBuf};

/// Answer to a file or a command line that asks for shared connections to the broker.
pub const AGGREGATION_REMOVED: &str =
    "aggregation was removed in 0.2.0: each client has its own connection to the broker. Leave the setting out";

/// Error in a configuration; its text is one line with file, line and key.
#[derive(Debug)]
pub struct ConfigError {
    file: Option<PathBuf>,
    line: Option<usize>,
    message: String,
}

impl ConfigError {
    pub(super) fn unreadable(path: &Path, error: &std::io::Error) -> Self {
        Self { file: Some(path.to_owned()), line: None, message: format!("cannot be read: {error}") }
    }

    /// A file without any key.
    pub(super) fn empty() -> Self {
        let message = "it has no key: was it emptied or cut? To run with the defaults leave it out".to_owned();
        Self { file: None, line: None, message }
    }

    pub(super) fn illegal(text: &str, error: &toml::de::Error) -> Self {
        let at = error.span().map(|span| span.start.min(text.len()));
        let line = at.map(|at| text.as_bytes()[..at].iter().filter(|&&byte| byte == b'\n').count());
        let mut message = error.message().trim().replace('\n', ", ");
        if message.starts_with("unknown field `aggregate`") {
            message = format!("aggregate: {AGGREGATION_REMOVED}");
            return Self { file: None, line: line.map(|line| line + 1), message };
        }
        let key = line.and_then(|line| text.lines().nth(line)).and_then(|line| line.split_once('='));
        if let Some((key, _)) = key
            && !message.contains(&format!("`{}`", key.trim()))
        {
            message = format!("{}: {message}", key.trim());
        }
        Self { file: None, line: line.map(|line| line + 1), message }
    }

    /// An illegal key of a table that stands in another file.
    pub(super) fn in_table(table: &str, error: &toml::de::Error) -> Self {
        let message = error.to_string().trim().replace('\n', " ");
        Self { file: None, line: None, message: format!("{table}: {message}") }
    }

    /// An illegal value of a key.
    pub(crate) fn of_key(key: &str, reason: impl fmt::Display) -> Self {
        Self { file: None, line: None, message: format!("{key}: {reason}") }
    }

    /// The text without file and line.
    pub(super) fn without_place(&self) -> &str {
        &self.message
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
