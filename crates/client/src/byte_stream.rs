use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::WebSocketStream;

/// Byte stream that carries a connection's packets.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Layers between a client and TCP. Each method adds one and returns the transport.
#[derive(Clone, Default)]
pub struct Transport {
    over: Option<Arc<Over>>,
    /// Path of the upgrade.
    websocket: Option<Arc<str>>,
}

type Over = dyn Fn(TcpStream) -> Wrapping + Send + Sync;
type Wrapping = Pin<Box<dyn Future<Output = io::Result<Box<dyn ByteStream>>> + Send>>;

impl Transport {
    /// Plain TCP.
    pub fn tcp() -> Self {
        Self::default()
    }

    /// Wraps each TCP connection, for example in TLS.
    ///
    /// The time of `wrap` counts toward the ten seconds of a connection attempt. Its errors become
    /// [`Unreachable`](crate::ClientErrorKind::Unreachable).
    #[must_use]
    pub fn over<S, F>(mut self, wrap: impl Fn(TcpStream) -> F + Send + Sync + 'static) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        F: Future<Output = io::Result<S>> + Send + 'static,
    {
        self.over = Some(Arc::new(move |stream| {
            let wrapping = wrap(stream);
            Box::pin(async move { wrapping.await.map(|stream| Box::new(stream) as Box<dyn ByteStream>) })
        }));
        self
    }

    /// Speaks WebSocket, above the wrapper of [`Transport::over`] if there is one. Brokers use the path `"/mqtt"` mostly.
    #[must_use]
    pub fn websocket(mut self, path: impl Into<String>) -> Self {
        self.websocket = Some(path.into().into());
        self
    }

    /// Puts the layers on a new connection to `broker` ("host:port").
    pub(crate) async fn wrap(&self, stream: TcpStream, broker: &str) -> io::Result<Box<dyn ByteStream>> {
        let stream = match &self.over {
            Some(over) => over(stream).await?,
            None => Box::new(stream),
        };
        Ok(match &self.websocket {
            Some(path) => Box::new(WebSocketStream::connect(stream, broker, path).await?),
            None => stream,
        })
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport").field("over", &self.over.is_some()).field("websocket", &self.websocket).finish()
    }
}
