//! TLS on another stream.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

use crate::net::counted::Counted;
use crate::net::stream::Stream;
use crate::values::{Peer, TransportProtocol};

/// TLS on another stream. Boxed, because a TLS session has more than a kilobyte.
#[derive(Debug)]
pub(in crate::net) struct TlsWire<S> {
    stream: Box<TlsStream<Counted<S>>>,
    /// Bytes that the session has taken since it last held none.
    unsettled: u64,
}

impl<S> TlsWire<S> {
    pub(super) fn new(stream: TlsStream<Counted<S>>) -> Self {
        Self { stream: Box::new(stream), unsettled: 0 }
    }

    fn below(&self) -> &Counted<S> {
        self.stream.get_ref().0
    }
}

impl<S: Stream> TlsWire<S> {
    fn count(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let written = ready!(written)?;
        self.unsettled += written as u64;
        Poll::Ready(Ok(written))
    }
}

impl<S: Stream> Stream for TlsWire<S> {
    fn begin(&self, peer: Peer) {
        self.below().get_ref().begin(peer);
    }

    fn protocol(&self) -> TransportProtocol {
        TransportProtocol::Tls
    }

    fn local_address(&self) -> Option<SocketAddr> {
        self.below().get_ref().local_address()
    }

    fn register_again(&mut self) -> io::Result<()> {
        self.stream.get_mut().0.get_mut().register_again()
    }

    fn poll_settled(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut *self.stream).poll_flush(context))?;
        self.unsettled = 0;
        Poll::Ready(Ok(()))
    }

    fn unsettled(&self) -> u64 {
        self.unsettled
    }

    fn wire_written(&self, _: u64) -> u64 {
        self.below().written()
    }
}

impl<S: Stream> AsyncRead for TlsWire<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_read(context, buffer)
    }
}

impl<S: Stream> AsyncWrite for TlsWire<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *self.stream).poll_write(context, bytes);
        self.count(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *self.stream).poll_write_vectored(context, slices);
        self.count(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_settled(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_shutdown(context)
    }
}
