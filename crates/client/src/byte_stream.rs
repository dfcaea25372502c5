use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::WebSocketStream;

/// Byte stream that carries a connection's packets.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Layers between a client and its broker. Each method sets one and returns the transport.
#[derive(Clone, Default)]
pub struct Transport {
    lower: Lower,
    /// Path of the upgrade.
    websocket: Option<Arc<str>>,
}

/// Stream below WebSocket or MQTT.
#[derive(Clone, Default)]
enum Lower {
    #[default]
    Tcp,
    Over(Arc<dyn Fn(TcpStream) -> Opening + Send + Sync>),
    Opened(Arc<dyn Fn() -> Opening + Send + Sync>),
}

/// A stream that is being opened.
type Opening = Pin<Box<dyn Future<Output = io::Result<Box<dyn ByteStream>>> + Send>>;

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
        self.lower = Lower::Over(Arc::new(move |stream| boxed(wrap(stream))));
        self
    }

    /// Opens each stream by `open` instead of TCP, for example a pipe in memory. The broker's address is a name then.
    ///
    /// Time and errors of `open` count as those of [`Transport::over`].
    #[must_use]
    pub fn opened_by<S, F>(mut self, open: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        F: Future<Output = io::Result<S>> + Send + 'static,
    {
        self.lower = Lower::Opened(Arc::new(move || boxed(open())));
        self
    }

    /// Speaks WebSocket, above the stream of the other methods. Brokers use the path `"/mqtt"` mostly.
    #[must_use]
    pub fn websocket(mut self, path: impl Into<String>) -> Self {
        self.websocket = Some(path.into().into());
        self
    }

    /// Opens a stream to `broker` ("host:port") with all layers. A client does so by itself.
    ///
    /// # Errors
    /// There is no connection, or a layer fails.
    pub async fn open(&self, broker: &str) -> io::Result<Box<dyn ByteStream>> {
        let stream = match &self.lower {
            Lower::Tcp => Box::new(connect(broker).await?),
            Lower::Over(wrap) => wrap(connect(broker).await?).await?,
            Lower::Opened(open) => open().await?,
        };
        Ok(match &self.websocket {
            Some(path) => Box::new(WebSocketStream::connect(stream, broker, path).await?),
            None => stream,
        })
    }
}

async fn connect(broker: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(broker).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn boxed<S, F>(opening: F) -> Opening
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    F: Future<Output = io::Result<S>> + Send + 'static,
{
    Box::pin(async move { opening.await.map(|stream| Box::new(stream) as Box<dyn ByteStream>) })
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lower = match &self.lower {
            Lower::Tcp => "TCP",
            Lower::Over(_) => "over TCP",
            Lower::Opened(_) => "opened",
        };
        f.debug_struct("Transport").field("lower", &lower).field("websocket", &self.websocket).finish()
    }
}
