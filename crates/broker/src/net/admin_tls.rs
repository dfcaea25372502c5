//! TLS of admin HTTP, by the code of listeners.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use tenbin_admin::{BoxFuture, Duplex, ServerTls};
use tokio::net::TcpStream;

use super::tls::Tls;
use super::tls_error::TlsError;
use crate::Config;
use crate::config::{ListenAddress, Transport};
use crate::metrics::{Counter, Metrics};

/// TLS of admin HTTP.
#[derive(Debug)]
pub(crate) struct AdminTls {
    tls: Tls,
    /// Counters of the broker. A node of a cluster has none until it leads.
    metrics: Arc<ArcSwapOption<Metrics>>,
}

/// A handshake, which is counted at its end. One that takes too long ends when it is dropped.
struct Handshake<'a> {
    tls: &'a AdminTls,
    is_done: bool,
}

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
        let tls = Tls::load(&TlsError::ADMIN.into(), settings, Transport::WebSocket)?;
        Ok(Some(Self { tls, metrics: Arc::default() }))
    }

    /// Counts handshakes and reads of files in `metrics` from now on.
    pub(crate) fn count_in(&self, metrics: &Arc<Metrics>) {
        self.metrics.store(Some(Arc::clone(metrics)));
    }

    /// Takes over the files of `new`.
    pub(crate) fn replace(&self, new: Self) {
        self.tls.replace(new.tls);
    }

    /// Notes that a reload could not use newer files.
    pub(crate) fn failed(&self, error: &TlsError) {
        self.tls.failed(error);
    }

    /// What operators are to be warned of, without names of files.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.tls.warnings()
    }

    /// Name and end of each certificate, in seconds since 1970.
    pub(crate) fn certificate_ends(&self) -> Vec<(Box<str>, i64)> {
        self.tls.certificate_ends()
    }
}

impl ServerTls for AdminTls {
    fn accept(self: Arc<Self>, stream: TcpStream, peer: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn Duplex>>> {
        Box::pin(async move {
            let mut handshake = Handshake { tls: &self, is_done: false };
            let stream = self.tls.accept(stream, peer.ip()).await?;
            handshake.is_done = true;
            Ok(Box::new(stream) as Box<dyn Duplex>)
        })
    }

    fn watch(&self) -> BoxFuture<'static, ()> {
        let metrics = Arc::clone(&self.metrics);
        Box::pin(self.tls.watch(None, move |counter| count(&metrics, counter)))
    }
}

impl Drop for Handshake<'_> {
    fn drop(&mut self) {
        let is_done = self.is_done;
        count(&self.tls.metrics, if is_done { |of| &of.tls_handshakes } else { |of| &of.tls_handshakes_failed });
    }
}

fn count(metrics: &ArcSwapOption<Metrics>, counter: fn(&Metrics) -> &Counter) {
    metrics.load().iter().for_each(|metrics| counter(metrics).add(1));
}
