//! The socket, and the transport that joins it with its buffers where one future owns them all.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Buf;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::output::Output;
use super::read_buffer::ReadBuffer;
use super::stream::Stream;

/// A byte stream that counts its traffic.
#[derive(Debug)]
pub(super) struct Socket<S> {
    stream: S,
    /// Bytes read since the last [`Socket::take_traffic`]; `written_bytes` likewise.
    read_bytes: u32,
    written_bytes: u32,
}

impl<S: Stream> Socket<S> {
    pub(super) fn stream(&mut self) -> &mut S {
        &mut self.stream
    }

    /// See [`Stream::owes_close`].
    pub(super) fn owes_close(&self) -> bool {
        self.stream.owes_close()
    }

    /// Bytes of `out` that the kernel has taken: none of a write until all of it has left the stream.
    pub(super) fn written(&self, out: &Output) -> u64 {
        out.written() - self.stream.unsettled()
    }

    /// Bytes that the kernel has taken, `written` of the connection and those that the stream has added.
    pub(super) fn wire_written(&self, written: u64) -> u64 {
        self.stream.wire_written(written)
    }

    /// Writes pending output, many packets in a system call. `Ready` when the kernel has all of it.
    pub(super) fn poll_write(&mut self, out: &mut Output, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.stream.poll_settled(context))?;
        while !out.is_empty() {
            let first = out.chunk();
            // A single chunk, the usual case, goes without an I/O vector, which costs time here and in the kernel.
            let written = if first.len() == out.len() {
                let written = ready!(Pin::new(&mut self.stream).poll_write(context, first))?;
                out.advance(written);
                written
            } else {
                ready!(pin!(self.stream.write_buf(&mut **out)).poll(context))?
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written_bytes = self.written_bytes.saturating_add(written as u32); // counted each lap, which is less
            out.count_written(written);
            ready!(self.stream.poll_settled(context))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Reads available bytes into `input`; 0 = the peer has closed its side.
    pub(super) fn poll_read(&mut self, input: &mut ReadBuffer, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let room = input.prepare();
        let read = ready!(pin!(self.stream.read_buf(&mut **input)).poll(context))?;
        input.adapt(read + self.stream.read_overhead(), room);
        self.read_bytes = self.read_bytes.saturating_add(read as u32);
        Poll::Ready(Ok(read))
    }

    /// Bytes read and written since the last call.
    pub(super) fn take_traffic(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.read_bytes).into(), std::mem::take(&mut self.written_bytes).into())
    }
}

/// A socket with its buffers, for the handshake and the close.
#[derive(Debug)]
pub(super) struct Transport<S> {
    pub(super) socket: Socket<S>,
    pub(super) input: ReadBuffer,
    pub(super) out: Output,
}

impl<S: Stream> Transport<S> {
    pub(super) fn new(stream: S) -> Self {
        let socket = Socket { stream, read_bytes: 0, written_bytes: 0 };
        Self { socket, input: ReadBuffer::new(), out: Output::new() }
    }

    /// Waits for input and reads it.
    pub(super) async fn read(&mut self) -> io::Result<usize> {
        std::future::poll_fn(|context| self.socket.poll_read(&mut self.input, context)).await
    }

    /// Returns when the peer has closed its side or the connection is broken; stores input received until then.
    ///
    /// Beyond [`EARLY_BYTES`] it reads no more and so does not notice a close. Cancel-safe.
    pub(super) async fn closed_early(&mut self) -> io::Result<()> {
        while self.input.len() < EARLY_BYTES {
            if self.read().await? == 0 {
                return Ok(());
            }
        }
        std::future::pending().await
    }

    /// Writes all output, within `patience`.
    pub(super) async fn flush(&mut self, patience: Duration) -> io::Result<()> {
        let all = std::future::poll_fn(|context| self.socket.poll_write(&mut self.out, context));
        tokio::time::timeout(patience, all).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Closes so that the peer can read the last packets.
    ///
    /// A socket closed with unread input would reset the connection and discard the last packet.
    pub(super) async fn close(mut self) {
        let farewell = async {
            self.flush(LINGER).await?;
            self.socket.stream.shutdown().await?;
            let mut ignored = 0;
            while ignored < LINGER_BYTES {
                self.input.clear();
                match self.read().await? {
                    0 => break,
                    read => ignored += read,
                }
            }
            Ok::<_, io::Error>(())
        };
        let _ = tokio::time::timeout(LINGER, farewell).await;
    }
}

/// Bytes of early input at which a client waiting for an answer is not read any more.
const EARLY_BYTES: usize = 64 * 1024;
/// How long, and up to how many bytes, the broker reads input after its last packet.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 1 << 20;
