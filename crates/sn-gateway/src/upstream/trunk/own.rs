//! A connection to the broker that one client has for itself.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use tenbin_codec::{Connect, Packet, ProtocolVersion, WriteBuffer};
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};

use crate::upstream::{Opening, Stream, close, tcp};

/// The connection.
pub(super) struct OwnConnection {
    link: Link,
    /// Bytes for the broker.
    unsent: WriteBuffer,
}

enum Link {
    Opening(Opening),
    Open(Stream),
}

/// Bytes for the broker beyond which the client waits.
pub(super) const UNSENT_BYTES_MAXIMUM: usize = 64 * 1024;
const READ_BYTES: usize = 4096;

impl OwnConnection {
    /// A connection of a client from its CONNECT on.
    pub(super) fn open(broker: &Arc<tcp::Address>, connect: Connect) -> Self {
        let broker = Arc::clone(broker);
        let link = Link::Opening(Box::pin(async move { broker.connect().await }));
        let mut own = Self { link, unsent: WriteBuffer::new() };
        own.write(&Packet::Connect(Box::new(connect)));
        own
    }

    /// Appends a packet.
    pub(super) fn write(&mut self, packet: &Packet) {
        packet.encode(ProtocolVersion::V5, &mut self.unsent);
    }

    /// Appends bytes of the client.
    pub(super) fn queue(&mut self, bytes: &[u8]) {
        self.unsent.append_packets(bytes);
    }

    /// Bytes that wait.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.unsent.len()
    }

    /// Sends `last`, and closes the connection in a task of its own.
    pub(super) fn close(mut self, last: &Packet) {
        self.write(last);
        // Before the stream is open the broker has got nothing.
        if let (Link::Open(stream), Ok(runtime)) = (self.link, tokio::runtime::Handle::try_current()) {
            runtime.spawn(close(stream, self.unsent));
        }
    }

    pub(super) fn poll_write(&mut self, bytes: &[u8], cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match (self.poll_unsent(cx)?, &mut self.link) {
            (Poll::Ready(()), Link::Open(stream)) => Pin::new(stream).poll_write(cx, bytes),
            _ if self.unsent.len() > UNSENT_BYTES_MAXIMUM => Poll::Pending,
            _ => {
                self.queue(bytes);
                Poll::Ready(Ok(bytes.len()))
            }
        }
    }

    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_unsent(cx))?;
        match &mut self.link {
            Link::Open(stream) => Pin::new(stream).poll_flush(cx),
            Link::Opening(_) => Poll::Pending,
        }
    }

    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_unsent(cx))?;
        match &mut self.link {
            Link::Open(stream) => Pin::new(stream).poll_shutdown(cx),
            Link::Opening(_) => Poll::Pending,
        }
    }

    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // The broker answers no packet before it has it.
        let _ = self.poll_unsent(cx)?;
        let Link::Open(stream) = &mut self.link else { return Poll::Pending };
        Pin::new(stream).poll_read(cx, buffer)
    }

    /// Appends bytes of the broker to `bytes`. False at their end.
    pub(super) fn poll_fill(&mut self, bytes: &mut BytesMut, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut chunk = [0; READ_BYTES];
        let mut read = ReadBuf::new(&mut chunk);
        ready!(self.poll_read(cx, &mut read))?;
        bytes.extend_from_slice(read.filled());
        Poll::Ready(Ok(!read.filled().is_empty()))
    }

    /// Sends the bytes that wait. Ready once the connection is open and there are none.
    pub(super) fn poll_unsent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Link::Opening(opening) = &mut self.link {
            self.link = Link::Open(ready!(opening.as_mut().poll(cx))?);
        }
        let Link::Open(stream) = &mut self.link else { return Poll::Pending };
        while !self.unsent.is_empty() {
            let written = ready!(Pin::new(&mut *stream).poll_write(cx, self.unsent.chunk()))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.unsent.advance(written);
        }
        Poll::Ready(Ok(()))
    }
}
