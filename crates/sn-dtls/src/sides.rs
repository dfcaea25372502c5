//! Settings of both sides, and the engines that follow from them.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dimpl::{Config, ConfigBuilder, Dtls, DtlsCertificate};

use crate::SetupError;
use crate::certificates::{self, Judge};
use crate::keys::{self, KeyFile, OneKey};

/// Time for a handshake, with its repetitions.
const HANDSHAKE_TIME: Duration = Duration::from_secs(20);
/// Largest datagram of a handshake.
const HANDSHAKE_DATAGRAM_BYTES: usize = 1200;

/// Files of a server. It needs pre-shared keys, or a certificate with its key, or all of them.
#[derive(Debug, Clone, Default)]
pub struct ServerFiles {
    /// Lines of `IDENTITY:KEY`, with keys of at least 32 hexadecimal digits.
    pub psk_file: Option<PathBuf>,
    /// PEM file with the server's certificate, of ECDSA.
    pub certificate: Option<PathBuf>,
    /// PEM file with its private key.
    pub key: Option<PathBuf>,
    /// PEM file with the authorities of client certificates. Clients need such a certificate or a pre-shared key. Without
    /// the file, clients of a server with a certificate need neither.
    pub client_ca: Option<PathBuf>,
}

/// Settings of a server, shared by its sessions.
pub struct Server {
    config: Arc<Config>,
    certificate: Option<DtlsCertificate>,
    pub(crate) judge: Judge,
}

/// Keys of a client.
#[derive(Debug, Clone)]
pub enum ClientKeys {
    /// The key of an identity in a file, as of [`ServerFiles::psk_file`].
    PreShared {
        /// The client's identity.
        identity: String,
        /// The file.
        file: PathBuf,
    },
    /// Certificates.
    Certificates {
        /// PEM file with the authorities of the server's certificate.
        authorities: PathBuf,
        /// PEM files with the client's certificate and its private key, if it has one.
        own: Option<(PathBuf, PathBuf)>,
    },
}

/// Settings of a client.
pub struct Client {
    config: Arc<Config>,
    certificate: Option<DtlsCertificate>,
    pub(crate) judge: Judge,
}

impl Server {
    /// Reads the files.
    ///
    /// # Errors
    /// A file is unreadable, or there is neither a pre-shared key nor a certificate with its key.
    pub fn new(files: &ServerFiles) -> Result<Self, SetupError> {
        let certificate = match (&files.certificate, &files.key) {
            (Some(certificate), Some(key)) => Some(certificates::own(certificate, key)?),
            (Some(_), None) => return Err(SetupError::of_keys("`certificate` needs `key`")),
            (None, Some(_)) => return Err(SetupError::of_keys("`key` needs `certificate`")),
            (None, None) => None,
        };
        if files.client_ca.is_some() && certificate.is_none() {
            return Err(SetupError::of_keys("`client_ca` needs `certificate` and `key`"));
        }
        let judge = files.client_ca.as_deref().map_or(Ok(Judge::None), Judge::of_clients)?;
        let mut builder = builder().require_client_certificate(judge.asks());
        if let Some(path) = &files.psk_file {
            builder = builder.with_psk_server(None, Arc::new(KeyFile::read(path)?));
        } else if certificate.is_none() {
            return Err(SetupError::of_keys("needs `psk_file`, or `certificate` and `key`"));
        }
        Ok(Self { config: build(builder)?, certificate, judge })
    }

    pub(crate) fn engine(&self, now: Instant) -> Dtls {
        let config = Arc::clone(&self.config);
        match &self.certificate {
            Some(certificate) => Dtls::new_auto(config, certificate.clone(), now),
            None => Dtls::new_12_psk(config, now),
        }
    }
}

impl Client {
    /// Reads the files. `server` is the name or the IP address that the server's certificate has to have.
    ///
    /// # Errors
    /// A file is unreadable, or has not the key.
    pub fn new(keys: &ClientKeys, server: &str) -> Result<Self, SetupError> {
        match keys {
            ClientKeys::PreShared { identity, file } => {
                let key = Arc::new(OneKey(keys::key_of(file, identity)?));
                let config = build(builder().with_psk_client(identity.clone().into_bytes(), key))?;
                Ok(Self { config, certificate: None, judge: Judge::None })
            }
            ClientKeys::Certificates { authorities, own } => {
                let certificate = match own {
                    Some((certificate, key)) => certificates::own(certificate, key)?,
                    None => certificates::unused().map_err(|error| SetupError::new(authorities, error))?,
                };
                let judge = Judge::of_server(authorities, server)?;
                Ok(Self { config: build(builder())?, certificate: Some(certificate), judge })
            }
        }
    }

    pub(crate) fn engine(&self, now: Instant) -> Dtls {
        let config = Arc::clone(&self.config);
        let mut engine = match &self.certificate {
            Some(certificate) => Dtls::new_auto(config, certificate.clone(), now),
            None => Dtls::new_12_psk(config, now),
        };
        engine.set_active(true);
        engine
    }
}

fn builder() -> ConfigBuilder {
    Config::builder().mtu(HANDSHAKE_DATAGRAM_BYTES).handshake_timeout(HANDSHAKE_TIME)
}

fn build(builder: ConfigBuilder) -> Result<Arc<Config>, SetupError> {
    builder.build().map(Arc::new).map_err(SetupError::of_keys)
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}
