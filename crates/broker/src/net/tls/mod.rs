//! TLS of listeners.

mod certificate;
mod files;
mod loaded;
mod names;
mod settings;
mod turns;
mod wire;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::time::Instant;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::server::Acceptor;
use tokio_rustls::server::TlsStream;

use super::core::OpenConnection;
use super::counted::Counted;
use super::door::{Refused, in_time};
use super::stream::Stream;
use super::transport::Transport;
use crate::values::{Certificate, Origin};

pub use certificate::certificate_fault;
use loaded::LoadedFiles;
use turns::Turns;
pub(super) use wire::TlsWire;

/// TLS of a listener: the stage of its door.
#[derive(Debug)]
pub(super) struct Tls {
    /// Shared with the listener that this one takes the place of, whose connections go on.
    loaded: Arc<LoadedFiles>,
    turns: Turns,
}

impl Tls {
    /// Performs the handshake on `stream`, and closes it if that fails.
    pub(super) async fn pass<S: Stream>(
        &self,
        open: &OpenConnection,
        stream: S,
        origin: &mut Origin,
        deadline: Instant,
    ) -> Result<TlsWire<S>, Refused> {
        let mut failed = None;
        let handshake = in_time(deadline, async {
            let done = self.handshake(Counted::new(stream), origin.peer.address()).await;
            let stream = done.map_err(|(error, stream)| {
                failed = stream;
                error
            })?;
            look_at_client(&stream, origin)?;
            Ok(stream)
        });
        match handshake.await {
            Ok(stream) => {
                open.shared.operations.metrics.tls_handshakes.add(1);
                Ok(TlsWire::new(stream))
            }
            Err(error) => {
                open.shared.operations.metrics.tls_handshakes_failed.add(1);
                if let Some(stream) = failed {
                    // So that the peer can read the alert.
                    Transport::new(stream.into_inner()).close().await;
                }
                Err(Refused { stage: "TLS handshake", error: certificate::explained(error) })
            }
        }
    }

    /// Performs the handshake of admin HTTP on `stream`, and closes it if that fails.
    ///
    /// # Errors
    /// The handshake fails, with the reason in words.
    #[cfg(feature = "admin")]
    pub(super) async fn accept<S: Stream>(&self, stream: S, address: IpAddr) -> io::Result<TlsStream<Counted<S>>> {
        match self.handshake(Counted::new(stream), address).await {
            Ok(stream) => Ok(stream),
            Err((error, failed)) => {
                if let Some(stream) = failed {
                    Transport::new(stream.into_inner()).close().await;
                }
                Err(certificate::explained(error))
            }
        }
    }

    /// Performs the handshake; an error comes with the stream, if that has an end to come.
    ///
    /// The ClientHello is read before the first turn, and costs memory only. So peers that say nothing, or say it slowly,
    /// keep no other client waiting.
    async fn handshake<S: Stream>(
        &self,
        stream: Counted<S>,
        address: IpAddr,
    ) -> Result<TlsStream<Counted<S>>, (io::Error, Option<Counted<S>>)> {
        let mut hello = LazyConfigAcceptor::new(Acceptor::default(), stream);
        let hello = match (&mut hello).await {
            Ok(hello) => hello,
            Err(error) => return Err((error, hello.take_io())),
        };
        let handshake = async {
            let server = self.loaded.server(&hello.client_hello());
            hello.into_stream(server).into_fallible().await
        };
        self.turns.complete(address, handshake).await.map_err(|(error, stream)| (error, Some(stream)))
    }
}

/// Reads a certificate in DER.
pub(super) fn read_certificate(der: &[u8]) -> Option<Certificate> {
    certificate::read(&[CertificateDer::from(der)])
}

/// Reads from the session where the client comes from.
fn look_at_client<S>(stream: &TlsStream<S>, origin: &mut Origin) -> io::Result<()> {
    let session = stream.get_ref().1;
    if let Some(chain) = session.peer_certificates() {
        let invalid = |reason| io::Error::new(io::ErrorKind::InvalidData, reason);
        let certificate = certificate::read(chain).ok_or_else(|| invalid("client certificate cannot be read"))?;
        // A resumed session tells of a certificate that was verified when the session began.
        if certificate.has_expired() {
            return Err(invalid("client certificate has expired"));
        }
        origin.certificate = Some(Arc::new(certificate));
    }
    if let Some(name) = session.server_name() {
        origin.server_name = Some(name.into());
    }
    Ok(())
}
