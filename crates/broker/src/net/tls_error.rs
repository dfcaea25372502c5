use std::path::{Path, PathBuf};

/// Error in the TLS settings of a listener; its text is one line with listener, key and file.
#[derive(Debug, thiserror::Error)]
#[error("{}: {key}: {}{reason}", place(listener), file(path.as_deref()))]
pub struct TlsError {
    listener: String,
    key: &'static str,
    path: Option<PathBuf>,
    reason: String,
}

impl TlsError {
    /// In the place of a listener's name: admin HTTP.
    pub(crate) const ADMIN: &str = "[admin]";

    #[cfg(feature = "tls")]
    pub(super) fn new(listener: &str, key: &'static str, path: &Path, reason: impl std::fmt::Display) -> Self {
        let (listener, reason) = (listener.to_owned(), reason.to_string());
        Self { listener, key, path: Some(path.to_owned()), reason }
    }

    /// Name of the listener.
    pub(crate) fn listener(&self) -> &str {
        &self.listener
    }

    /// An error that concerns no file.
    pub(super) fn in_key(listener: &str, key: &'static str, reason: &str) -> Self {
        Self { listener: listener.to_owned(), key, path: None, reason: reason.to_owned() }
    }
}

fn place(listener: &str) -> String {
    if listener == TlsError::ADMIN { "admin".to_owned() } else { format!("listener {listener}") }
}

fn file(path: Option<&Path>) -> String {
    path.map_or_else(String::new, |path| format!("{}: ", path.display()))
}
