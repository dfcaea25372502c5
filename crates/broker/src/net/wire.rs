//! Streams that carry MQTT inside another protocol, on a TCP connection.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::stream::Stream;
use crate::values::{Peer, TransportProtocol};

/// Stream of a connection that is not plain TCP. Boxed, because a TLS session has more than a kilobyte.
#[derive(Debug)]
pub(super) enum Wire {
    Tls(Box<TlsWire>),
}

/// TLS on TCP.
#[derive(Debug)]
pub(super) struct TlsWire {
    stream: TlsStream<CountedTcp>,
    /// Bytes that the session has taken since it last held none.
    unsettled: u64,
}

/// TCP connection that counts the bytes that the kernel has taken.
#[derive(Debug)]
pub(super) struct CountedTcp {
    stream: TcpStream,
    written: u64,
}

impl Wire {
    pub(super) fn tls(stream: TlsStream<CountedTcp>) -> Self {
        Self::Tls(Box::new(TlsWire { stream, unsettled: 0 }))
    }

    fn tcp(&self) -> &CountedTcp {
        match self {
            Self::Tls(tls) => tls.stream.get_ref().0,
        }
    }

    fn tcp_mut(&mut self) -> &mut CountedTcp {
        match self {
            Self::Tls(tls) => tls.stream.get_mut().0,
        }
    }
}

impl Stream for Wire {
    fn begin(&self, peer: Peer) {
        self.tcp().stream.begin(peer);
    }

    fn protocol(&self) -> TransportProtocol {
        match self {
            Self::Tls(_) => TransportProtocol::Tls,
        }
    }

    fn local_address(&self) -> Option<SocketAddr> {
        self.tcp().stream.local_address()
    }

    fn register_again(&mut self) -> io::Result<()> {
        self.tcp_mut().stream.register_again()
    }

    fn poll_settled(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tls(tls) => {
                ready!(Pin::new(&mut tls.stream).poll_flush(context))?;
                tls.unsettled = 0;
                Poll::Ready(Ok(()))
            }
        }
    }

    fn unsettled(&self) -> u64 {
        match self {
            Self::Tls(tls) => tls.unsettled,
        }
    }

    fn wire_written(&self, _: u64) -> u64 {
        self.tcp().written
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tls(tls) => Pin::new(&mut tls.stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tls(tls) => {
                let written = ready!(Pin::new(&mut tls.stream).poll_write(context, bytes))?;
                tls.unsettled += written as u64;
                Poll::Ready(Ok(written))
            }
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tls(tls) => {
                let written = ready!(Pin::new(&mut tls.stream).poll_write_vectored(context, slices))?;
                tls.unsettled += written as u64;
                Poll::Ready(Ok(written))
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tls(tls) => tls.stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_settled(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tls(tls) => Pin::new(&mut tls.stream).poll_shutdown(context),
        }
    }
}

impl CountedTcp {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream, written: 0 }
    }

    pub(super) fn into_inner(self) -> TcpStream {
        self.stream
    }

    pub(super) fn local_address(&self) -> Option<SocketAddr> {
        self.stream.local_address()
    }

    fn count(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = written {
            self.written += bytes as u64;
        }
        written
    }
}

impl AsyncRead for CountedTcp {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for CountedTcp {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.count(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.count(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
