//! The stream of a connection that is not plain TCP: through a door, by a unix socket, or from a relay.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

#[cfg(feature = "tls")]
use tokio::io::AsyncBufReadExt as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
#[cfg(feature = "tls")]
use tokio_rustls::server::TlsStream;

use super::stream::{Embedded, Stream};
#[cfg(feature = "tls")]
use super::tls::TlsWire;
#[cfg(feature = "websocket")]
use super::websocket::WebSocketWire;
use crate::gateways::BoxedStream;
use crate::values::{Peer, TransportProtocol};

/// Stream of a connection that is not plain TCP. One type for all kinds, so that the connection's task is compiled
/// once for them, and once for plain TCP.
///
/// Stages of a door put streams on top of each other. Variants are small: large streams are boxed inside.
#[derive(Debug)]
pub(super) enum Wire {
    Tcp(TcpStream),
    Unix(UnixStream),
    Embedded(Embedded<BoxedStream>),
    /// TLS between nodes of a cluster. To the client it is as TCP.
    #[cfg(feature = "tls")]
    Relay(Box<TlsStream<TcpStream>>),
    #[cfg(feature = "tls")]
    Tls(TlsWire<Wire>),
    #[cfg(feature = "websocket")]
    WebSocket(WebSocketWire<Wire>),
}

impl Wire {
    /// The first byte, which stays unread; `None` at the end, or if the stream is of a kind that no proxy uses.
    ///
    /// # Errors
    /// The connection has failed.
    pub(super) async fn peek(&mut self) -> io::Result<Option<u8>> {
        let mut first = [0];
        match self {
            Self::Tcp(stream) => Ok((stream.peek(&mut first).await? == 1).then_some(first[0])),
            #[cfg(feature = "tls")]
            Self::Relay(stream) => Ok(stream.fill_buf().await?.first().copied()),
            _ => Ok(None),
        }
    }
}

#[cfg(feature = "tls")]
impl Stream for Box<TlsStream<TcpStream>> {
    fn begin(&self, peer: Peer) {
        self.get_ref().0.begin(peer);
    }

    fn protocol(&self) -> TransportProtocol {
        TransportProtocol::Tcp
    }

    fn local_address(&self) -> Option<SocketAddr> {
        self.get_ref().0.local_address()
    }

    fn register_again(&mut self) -> io::Result<()> {
        self.get_mut().0.register_again()
    }

    fn poll_settled(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut **self).poll_flush(context)
    }
}

/// Calls the stream in `$wire`, of any kind.
macro_rules! each {
    ($wire:expr, $stream:ident => $call:expr) => {
        match $wire {
            Wire::Tcp($stream) => $call,
            Wire::Unix($stream) => $call,
            Wire::Embedded($stream) => $call,
            #[cfg(feature = "tls")]
            Wire::Relay($stream) => $call,
            #[cfg(feature = "tls")]
            Wire::Tls($stream) => $call,
            #[cfg(feature = "websocket")]
            Wire::WebSocket($stream) => $call,
        }
    };
}

impl Stream for Wire {
    fn begin(&self, peer: Peer) {
        each!(self, stream => stream.begin(peer));
    }

    fn protocol(&self) -> TransportProtocol {
        each!(self, stream => stream.protocol())
    }

    fn local_address(&self) -> Option<SocketAddr> {
        each!(self, stream => stream.local_address())
    }

    fn inode(&self) -> Option<u32> {
        each!(self, stream => stream.inode())
    }

    fn register_again(&mut self) -> io::Result<()> {
        each!(self, stream => stream.register_again())
    }

    fn poll_settled(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => stream.poll_settled(context))
    }

    fn unsettled(&self) -> u64 {
        each!(self, stream => stream.unsettled())
    }

    fn wire_written(&self, written: u64) -> u64 {
        each!(self, stream => stream.wire_written(written))
    }

    fn read_overhead(&self) -> usize {
        each!(self, stream => stream.read_overhead())
    }

    fn owes_close(&self) -> bool {
        each!(self, stream => stream.owes_close())
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_read(context, buffer))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_write(context, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        each!(self, stream => stream.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_shutdown(context))
    }
}
