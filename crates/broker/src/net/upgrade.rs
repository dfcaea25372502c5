//! Stage of a door: the HTTP upgrade to WebSocket.

use std::io;

use tenbin_websocket::{Accepted, Refusal, Rules, UPGRADE_MAX, accept};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::core::OpenConnection;
use super::door::{Refused, in_time};
use super::proxy::Proxy;
use super::stream::Stream;
use super::tls_error::TlsError;
use super::transport::Transport;
use super::websocket::WebSocketWire;
use super::wire::Wire;
use crate::config::{self, Listener};
use crate::values::Origin;

/// HTTP upgrade of a listener's connections.
#[derive(Debug)]
pub(super) struct Upgrade {
    path: String,
    origins: Vec<String>,
}

impl Upgrade {
    /// Upgrade of `listener`, if it speaks WebSocket.
    ///
    /// # Errors
    /// Never: builds without WebSocket refuse such a listener.
    pub(super) fn of(_: &str, listener: &Listener) -> Result<Option<Self>, TlsError> {
        let upgrade = || Self { path: listener.websocket_path().to_owned(), origins: listener.origins.clone() };
        Ok((listener.transport == config::Transport::WebSocket).then(upgrade))
    }

    /// Answers the request, and carries MQTT in the frames that follow.
    ///
    /// If one of `proxies` tells the client's address, the connection counts for the client from then on.
    pub(super) async fn pass(
        &self,
        open: &mut OpenConnection,
        mut stream: Wire,
        origin: &mut Origin,
        proxies: Option<&Proxy>,
        deadline: Instant,
    ) -> Result<Wire, Refused> {
        let answered = in_time(deadline, self.answer(&mut stream, open, origin, proxies)).await;
        let refused = |error| Refused { stage: "upgrade to WebSocket", error };
        match answered {
            Ok(None) => {
                open.shared.operations.metrics.websocket_upgrades.add(1);
                Ok(Wire::WebSocket(WebSocketWire::new(stream)))
            }
            Ok(Some(refusal)) => {
                open.shared.operations.metrics.websocket_upgrades_failed.add(1);
                // So that the peer can read the answer.
                Transport::new(stream).close().await;
                Err(refused(io::Error::other(refusal.to_string())))
            }
            Err(error) => {
                open.shared.operations.metrics.websocket_upgrades_failed.add(1);
                Err(refused(error))
            }
        }
    }

    /// Reads the request and writes the answer. Returns the refusal if it is one.
    async fn answer<S: Stream>(
        &self,
        stream: &mut S,
        open: &mut OpenConnection,
        origin: &mut Origin,
        proxies: Option<&Proxy>,
    ) -> io::Result<Option<Refusal>> {
        let judged = match self.request(stream).await? {
            Ok(accepted) => proxies
                .map_or(Ok(None), |proxies| proxies.forwarded(origin.peer, &accepted.forwarded_for))
                .map(|client| (accepted.answer, client)),
            Err(refusal) => Err(refusal),
        };
        let (answer, refusal) = match judged {
            Ok((answer, client)) => {
                if let Some(client) = client {
                    open.belongs_to(client)?;
                    origin.peer = client;
                }
                (answer, None)
            }
            Err(refusal) => (refusal.answer(), Some(refusal)),
        };
        stream.write_all(answer.as_bytes()).await?;
        stream.flush().await?;
        Ok(refusal)
    }

    /// Reads a request to its end, or until it is to be refused.
    async fn request<S: Stream>(&self, stream: &mut S) -> io::Result<Result<Accepted, Refusal>> {
        let rules = Rules { path: &self.path, origins: &self.origins };
        let mut request = Vec::with_capacity(REQUEST_FIRST);
        loop {
            let before = request.len();
            let room = (UPGRADE_MAX - before) as u64;
            if (&mut *stream).take(room).read_buf(&mut request).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            // Not with each byte of a slow peer: a request is judged from its beginning.
            if before > 0 && request.len() < UPGRADE_MAX && !has_end(&request[before.saturating_sub(3)..]) {
                continue;
            }
            if let Some(judged) = accept(&request, rules).transpose() {
                return Ok(judged);
            }
        }
    }
}

/// Whether an empty line may be in `bytes`.
fn has_end(bytes: &[u8]) -> bool {
    bytes.windows(2).any(|pair| pair == b"\n\r" || pair == b"\n\n")
}

/// Memory for a usual request, in bytes.
const REQUEST_FIRST: usize = 1024;
