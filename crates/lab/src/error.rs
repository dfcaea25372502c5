//! Errors of a lab.

use std::io;

/// Reason why a lab could not do something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call or a file operation failed.
    #[error("cannot {what}: {source}")]
    Io {
        /// The operation and its object.
        what: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The machine's kernel or its settings do not let this user create namespaces.
    #[error("cannot create namespaces: {0}")]
    Namespaces(String),
    /// A step inside the lab failed.
    #[error("{0}")]
    Failed(String),
    /// The lab has ended: its guard was killed, or stopped by an internal error.
    #[error("the lab has ended")]
    Ended,
}

impl Error {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
