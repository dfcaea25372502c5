use std::fmt;
use std::path::{Path, PathBuf};

/// Error in the TLS settings of a listener; its text is one line with listener, key and file.
#[derive(Debug, thiserror::Error)]
#[error("listener {listener}: {key}: {}: {reason}", path.display())]
pub struct TlsError {
    listener: String,
    key: &'static str,
    path: PathBuf,
    reason: String,
}

impl TlsError {
    pub(super) fn new(listener: &str, key: &'static str, path: &Path, reason: impl fmt::Display) -> Self {
        Self { listener: listener.to_owned(), key, path: path.to_owned(), reason: reason.to_string() }
    }
}
