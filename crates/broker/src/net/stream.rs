//! Byte streams of connections.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::values::{Peer, TransportProtocol};

/// A byte stream with its operations on the TCP connection below it, if any.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send + Sized + 'static {
    /// Prepares a new connection from `peer`.
    fn begin(&self, peer: Peer);

    /// Protocol below MQTT.
    fn protocol(&self) -> TransportProtocol;

    /// Local address of the TCP connection; `None` without one.
    fn local_address(&self) -> Option<SocketAddr>;

    /// Inode of a unix socket; `None` if it is none.
    fn inode(&self) -> Option<u32> {
        None
    }

    /// Registers with the current runtime, if the stream needs one.
    ///
    /// # Errors
    /// The stream stays registered with its former runtime and still works, but with more overhead.
    fn register_again(&mut self) -> io::Result<()>;

    /// Passes bytes that the stream holds back to the kernel. `Ready` when it holds none.
    fn poll_settled(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Bytes that the stream has taken since it last held none. The kernel may lack the last of them.
    fn unsettled(&self) -> u64 {
        0
    }

    /// Bytes that the kernel has taken, of which `written` are the connection's own.
    fn wire_written(&self, written: u64) -> u64 {
        written
    }

    /// Bytes of the last read that were not the connection's own.
    fn read_overhead(&self) -> usize {
        0
    }

    /// Whether the peer still expects the end of the stream's own protocol, although its bytes have ended.
    fn owes_close(&self) -> bool {
        false
    }
}

impl Stream for TcpStream {
    fn begin(&self, peer: Peer) {
        // Without it a small packet may wait for the acknowledgement of the one before.
        if let Err(error) = self.set_nodelay(true) {
            tracing::debug!(%peer, %error, "TCP_NODELAY");
        }
    }

    fn protocol(&self) -> TransportProtocol {
        TransportProtocol::Tcp
    }

    fn local_address(&self) -> Option<SocketAddr> {
        self.local_addr().ok()
    }

    fn register_again(&mut self) -> io::Result<()> {
        // By a second descriptor: the first one stays until that has succeeded.
        *self = Self::from_std(self.as_fd().try_clone_to_owned()?.into())?;
        Ok(())
    }
}

/// A stream of the embedding program, possibly in memory.
pub(crate) struct Embedded<S> {
    stream: S,
    protocol: TransportProtocol,
}

impl<S> Embedded<S> {
    pub(crate) fn new(stream: S, protocol: TransportProtocol) -> Self {
        Self { stream, protocol }
    }
}

impl<S> fmt::Debug for Embedded<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.protocol)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for Embedded<S> {
    fn begin(&self, _: Peer) {}

    fn protocol(&self) -> TransportProtocol {
        self.protocol
    }

    fn local_address(&self) -> Option<SocketAddr> {
        None
    }

    fn register_again(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn poll_settled(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Embedded<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Embedded<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
