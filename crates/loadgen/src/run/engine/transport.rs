use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tenbin_client::WebSocketStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

use super::tls::{Tls, explained};

/// Byte stream of a connection.
///
/// On TCP a read or a write is one system call, or none where the socket is known not to be ready. A read that did not
/// fill its buffer shows that the socket is empty.
#[derive(Debug)]
pub(super) enum Transport {
    /// Plain TCP.
    Tcp(TcpStream),
    /// A unix socket.
    Unix(UnixStream),
    /// TLS, which may buffer written bytes until a flush.
    Tls(Box<TlsStream<TcpStream>>),
    /// WebSocket on one of the others. It buffers written bytes until a flush.
    WebSocket(Box<WebSocketStream<Self>>),
}

impl Transport {
    /// Connects to the first of `addresses` that answers; with `tls`, the peer's certificate must have that name. `websocket`
    /// is its host ("host:port") and path.
    ///
    /// # Errors
    /// The error of the last address.
    pub(super) async fn open(
        addresses: impl IntoIterator<Item = SocketAddr>,
        tls: Option<(&Tls, &str)>,
        websocket: Option<(&str, &str)>,
    ) -> io::Result<Self> {
        let mut error = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in addresses {
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    let stream = match tls {
                        Some((tls, name)) => Self::under(tls, name, stream).await?,
                        None => Self::Tcp(stream),
                    };
                    let Some((host, path)) = websocket else { return Ok(stream) };
                    let upgrade = Box::pin(WebSocketStream::connect(stream, host, path));
                    return Ok(Self::WebSocket(Box::new(upgrade.await?)));
                }
                Err(refused) => error = refused,
            }
        }
        Err(error)
    }

    /// Connects to the unix socket at `path`.
    ///
    /// # Errors
    /// No process listens there; the text names the path.
    pub(super) async fn open_unix(path: &str) -> io::Result<Self> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("unix:{path}: {error}"));
        UnixStream::connect(path).await.map(Self::Unix).map_err(named)
    }

    /// Starts TLS on a new connection; the peer's certificate must have the name `name`.
    ///
    /// # Errors
    /// As [`Tls::connect`].
    pub(super) async fn under(tls: &Tls, name: &str, stream: TcpStream) -> io::Result<Self> {
        Ok(Self::Tls(Box::new(tls.connect(name, stream).await?)))
    }
}

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer).map_err(explained),
            Self::WebSocket(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes).map_err(explained),
            Self::WebSocket(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx).map_err(explained),
            Self::WebSocket(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::WebSocket(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
