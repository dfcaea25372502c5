use std::path::{Path, PathBuf};

/// Files that cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}{reason}", path.as_ref().map(|path| format!("{}: ", path.display())).unwrap_or_default())]
pub struct SetupError {
    path: Option<PathBuf>,
    reason: String,
}

impl SetupError {
    pub(crate) fn new(path: &Path, reason: impl ToString) -> Self {
        Self { path: Some(path.to_owned()), reason: reason.to_string() }
    }

    /// Keys that do not fit each other.
    pub(crate) fn of_keys(reason: impl ToString) -> Self {
        Self { path: None, reason: reason.to_string() }
    }
}

/// Why a session has ended.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SessionError {
    /// The other side closed it.
    #[error("closed by the other side")]
    Closed,
    /// The certificate of the other side is not acceptable.
    #[error("certificate: {0}")]
    Certificate(String),
    /// A handshake that failed, or that took too long.
    #[error("{0}")]
    Failed(String),
}

impl From<dimpl::Error> for SessionError {
    fn from(error: dimpl::Error) -> Self {
        match error {
            dimpl::Error::ConnectionClosed => Self::Closed,
            error => Self::Failed(error.to_string()),
        }
    }
}
