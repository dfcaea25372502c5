use std::fmt;
use std::path::{Path, PathBuf};

/// A scenario that cannot be used. Its text is one line with file, line and key.
#[derive(Debug)]
pub struct ScenarioError {
    file: Option<PathBuf>,
    line: Option<usize>,
    message: String,
}

impl ScenarioError {
    pub(super) fn unreadable(path: &Path, error: &std::io::Error) -> Self {
        Self { file: Some(path.to_owned()), line: None, message: format!("cannot be read: {error}") }
    }

    pub(super) fn illegal(text: &str, error: &toml::de::Error) -> Self {
        let at = error.span().map(|span| span.start.min(text.len()));
        let line = at.map(|at| text.as_bytes()[..at].iter().filter(|&&byte| byte == b'\n').count());
        let mut message = error.message().trim().replace('\n', ", ");
        if let Some(key) = line.and_then(|line| text.lines().nth(line)).and_then(key_of)
            && !message.contains(key)
        {
            message = format!("{key}: {message}");
        }
        Self { file: None, line: line.map(|line| line + 1), message }
    }

    /// Names the line that sets the key, or no line if a default is out of range.
    pub(super) fn out_of_range(text: &str, fault: &Fault) -> Self {
        let lines = text.lines().enumerate();
        let mut entries = 0;
        let line = lines.filter(|(_, line)| key_of(line) == Some(fault.key) || is_entry(line)).find(|(_, line)| {
            entries += usize::from(is_entry(line));
            !is_entry(line) && fault.worker.is_none_or(|worker| entries == worker + 1)
        });
        Self {
            file: None,
            line: line.map(|(index, _)| index + 1),
            message: format!("{}: {}", fault.key, fault.message),
        }
    }

    pub(super) fn in_file(self, path: &Path) -> Self {
        Self { file: Some(path.to_owned()), ..self }
    }
}

/// A value out of its range.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) key: &'static str,
    pub(super) message: String,
    /// Index of its entry in `workers`, if any.
    pub(super) worker: Option<usize>,
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("scenario")?;
        if let Some(file) = &self.file {
            write!(f, " {}", file.display())?;
        }
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for ScenarioError {}

fn is_entry(line: &str) -> bool {
    line.trim_start().starts_with("[[workers]]")
}

fn key_of(line: &str) -> Option<&str> {
    line.split_once('=').map(|(key, _)| key.trim()).filter(|key| !key.is_empty())
}
