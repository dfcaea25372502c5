use std::io;

use super::listeners::PrepareError;
use crate::auth::AccessError;
use crate::config::ConfigError;
use crate::durable::StoreError;
use crate::net::{ListenError, TlsError};

/// Error that keeps the broker from starting; its text is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Addresses of listeners overlap.
    #[error("{0}")]
    Config(#[source] ConfigError),
    /// The broker cannot listen on an address.
    #[error("{0}")]
    Listen(#[source] ListenError),
    /// The configured access rules or password files are unusable.
    #[error("{0}")]
    Access(#[source] AccessError),
    /// The TLS settings of a listener are unusable.
    #[error("{0}")]
    Tls(#[source] TlsError),
    /// The system refuses to start threads.
    #[error("cannot start threads: {0}")]
    Threads(#[source] io::Error),
    /// The settings of the admin interface are unusable.
    #[error("admin: {0}")]
    Admin(#[source] io::Error),
    /// A webhook is unusable.
    #[error("{0}")]
    Webhook(String),
    /// The store cannot be opened, read or written.
    #[error("{0}")]
    Store(#[source] StoreError),
}

/// Error that keeps a new configuration from taking effect; its text is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReloadError {
    /// The configuration cannot be read, or leaves out what protects the broker.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// The access rules or password files are unusable.
    #[error("{0}")]
    Access(#[from] AccessError),
    /// The TLS settings of a listener are unusable.
    #[error("{0}")]
    Tls(#[from] TlsError),
    /// The broker cannot listen on a new address.
    #[error("{0}")]
    Listen(#[source] ListenError),
    /// The system refuses to start a thread.
    #[error("cannot start threads: {0}")]
    Threads(#[source] io::Error),
    /// The broker is stopping.
    #[error("the broker is stopping")]
    Stopping,
}

impl From<PrepareError> for StartError {
    fn from(error: PrepareError) -> Self {
        match error {
            PrepareError::Config(error) => Self::Config(error),
            PrepareError::Listen(error) => Self::Listen(error),
            PrepareError::Threads(error) => Self::Threads(error),
        }
    }
}

impl From<PrepareError> for ReloadError {
    fn from(error: PrepareError) -> Self {
        match error {
            PrepareError::Config(error) => Self::Config(error),
            PrepareError::Listen(error) => Self::Listen(error),
            PrepareError::Threads(error) => Self::Threads(error),
        }
    }
}
