//! TLS of admin HTTP, by the code of listeners.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tenbin_admin::{BoxFuture, Duplex, ServerTls};
use tokio::net::TcpStream;

use super::tls::Tls;
use super::tls_error::TlsError;
use crate::Config;
use crate::config::{ListenAddress, Transport};

/// TLS of admin HTTP.
#[derive(Debug)]
pub(crate) struct AdminTls(Tls);

impl AdminTls {
    /// Reads the files of `[admin.tls]`. `None` = admin HTTP is off, or has no TLS.
    ///
    /// # Errors
    /// A file cannot be used, or admin HTTP is at a unix socket.
    pub(crate) fn load(config: &Config) -> Result<Option<Self>, TlsError> {
        let Some((settings, address)) = config.admin.tls.as_ref().zip(config.admin.address()) else { return Ok(None) };
        if matches!(address, ListenAddress::Unix(_)) {
            return Err(TlsError::in_key(TlsError::ADMIN, "tls", "a unix socket has no TLS"));
        }
        // The protocol by ALPN is that of WebSocket, too: HTTP/1.1.
        Tls::load(&TlsError::ADMIN.into(), settings, Transport::WebSocket).map(|tls| Some(Self(tls)))
    }

    /// Takes over the files of `new`.
    pub(crate) fn replace(&self, new: Self) {
        self.0.replace(new.0);
    }

    /// Notes that a reload could not use newer files.
    pub(crate) fn failed(&self, error: &TlsError) {
        self.0.failed(error);
    }

    /// What operators are to be warned of, without names of files.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.0.warnings()
    }

    /// Name and end of each certificate, in seconds since 1970.
    pub(crate) fn certificate_ends(&self) -> Vec<(Box<str>, i64)> {
        self.0.certificate_ends()
    }
}

impl ServerTls for AdminTls {
    fn accept(self: Arc<Self>, stream: TcpStream, peer: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn Duplex>>> {
        Box::pin(async move { Ok(Box::new(self.0.accept(stream, peer.ip()).await?) as Box<dyn Duplex>) })
    }

    fn watch(&self) -> BoxFuture<'static, ()> {
        Box::pin(self.0.watch(None))
    }
}
