use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tenbin_codec::WriteBuffer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::stream::Stream;

/// A byte stream with buffers for undecoded input and unwritten output.
#[derive(Debug)]
pub(super) struct Transport<S> {
    stream: S,
    pub(super) input: BytesMut,
    pub(super) out: WriteBuffer,
    /// Size of the next read in KiB: grows while reads fill it, shrinks with small reads.
    chunk_kib: u16,
    small_reads: u8,
    /// Capacity of the buffer of the last read.
    buffer_bytes: u32,
    /// Bytes read since the last [`Transport::take_traffic`]; `written_bytes` likewise.
    read_bytes: u32,
    written_bytes: u32,
    /// Bytes written since the connection began.
    written: u64,
}

impl<S: Stream> Transport<S> {
    pub(super) fn new(stream: S) -> Self {
        Self {
            stream,
            input: BytesMut::new(),
            out: WriteBuffer::new(),
            chunk_kib: CHUNK_FIRST_KIB,
            small_reads: 0,
            buffer_bytes: 0,
            read_bytes: 0,
            written_bytes: 0,
            written: 0,
        }
    }

    pub(super) fn stream(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Writes pending output, many packets in a system call. `Ready` when all is written.
    pub(super) fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.out.is_empty() {
            let first = self.out.chunk();
            // A single chunk, the usual case, goes without an I/O vector, which costs time here and in the kernel.
            let written = if first.len() == self.out.len() {
                let written = Pin::new(&mut self.stream).poll_write(context, first);
                written.map_ok(|written| {
                    self.out.advance(written);
                    written
                })
            } else {
                pin!(self.stream.write_buf(&mut self.out)).poll(context)
            };
            let written = match written {
                Poll::Ready(written) => written?,
                Poll::Pending => return Poll::Pending,
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written_bytes = self.written_bytes.saturating_add(written as u32); // counted each lap, which is less
            self.written += written as u64;
        }
        Poll::Ready(Ok(()))
    }

    /// Reads available bytes into `input`; 0 = the peer has closed its side.
    pub(super) fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.input.capacity() == 0 {
            (self.input, self.buffer_bytes) = SPARE_INPUT.take();
        }
        let before = self.input.capacity();
        // A partly received packet with reserved memory continues in it.
        let is_reserved = self.input.len() >= RESERVED_FROM && before > self.input.len();
        self.input.reserve(if is_reserved { 1 } else { self.chunk_kib as usize * 1024 });
        if self.input.capacity() != before {
            self.buffer_bytes = self.input.capacity() as u32; // a few packets of 268 MB at most
        }
        let room = self.input.capacity() - self.input.len();
        match pin!(self.stream.read_buf(&mut self.input)).poll(context) {
            Poll::Ready(Ok(read)) => {
                self.adapt(read, room);
                self.read_bytes = self.read_bytes.saturating_add(read as u32);
                Poll::Ready(Ok(read))
            }
            other => other,
        }
    }

    /// Whether a payload that would be shared, not copied, is a small part of the buffer it was read into.
    pub(super) fn is_small_part(&self, payload_bytes: usize) -> bool {
        payload_bytes >= WriteBuffer::SHARE_FROM && payload_bytes < self.buffer_bytes as usize / 4
    }

    /// Bytes of this connection that the socket has accepted.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Value of [`Transport::written`] once the current output is written.
    pub(super) fn end_of_output(&self) -> u64 {
        self.written + self.out.len() as u64
    }

    /// Bytes read and written since the last call.
    pub(super) fn take_traffic(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.read_bytes).into(), std::mem::take(&mut self.written_bytes).into())
    }

    /// Takes the thread's spare output buffer, which is warm, because much output may follow.
    pub(super) fn expect_burst(&mut self) {
        SPARE.with_borrow_mut(|spare| {
            if spare.capacity() > self.out.capacity() {
                self.out.swap_memory(spare);
            }
        });
    }

    /// Gives an empty input buffer to the thread, for its next connection that reads.
    pub(super) fn rest_input(&mut self) {
        if !self.input.is_empty() {
            self.rest_beginning();
        } else if self.input.capacity() > 0 {
            let input = std::mem::take(&mut self.input);
            if self.buffer_bytes <= CHUNK_MAX {
                SPARE_INPUT.set((input, self.buffer_bytes));
            }
        }
    }

    /// Moves the beginning of a small packet out of a large buffer, and gives that to the thread.
    #[cold]
    fn rest_beginning(&mut self) {
        if self.input.len() >= RESERVED_FROM || self.buffer_bytes as usize <= 2 * RESERVED_FROM {
            return;
        }
        let mut beginning = BytesMut::with_capacity(self.input.len());
        beginning.extend_from_slice(&self.input);
        self.input.clear();
        let input = std::mem::replace(&mut self.input, beginning);
        let bytes = std::mem::replace(&mut self.buffer_bytes, self.input.capacity() as u32);
        if bytes <= CHUNK_MAX {
            SPARE_INPUT.set((input, bytes));
        }
    }

    /// Gives memory of a burst to the thread or frees it, as the connection has nothing to do.
    pub(super) fn idle(&mut self) {
        self.rest_input();
        SPARE.with_borrow_mut(|spare| {
            if self.out.capacity() > spare.capacity() && self.out.capacity() <= SPARE_MAX {
                self.out.swap_memory(spare);
            }
        });
        self.out.shrink();
    }

    /// Waits for input and reads it.
    pub(super) async fn read(&mut self) -> io::Result<usize> {
        std::future::poll_fn(|context| self.poll_read(context)).await
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
        let all = std::future::poll_fn(|context| self.poll_write(context));
        tokio::time::timeout(patience, all).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Closes so that the peer can read the last packets.
    ///
    /// A socket closed with unread input would reset the connection and discard the last packet.
    pub(super) async fn close(mut self) {
        let farewell = async {
            self.flush(LINGER).await?;
            self.stream.shutdown().await?;
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

    fn adapt(&mut self, read: usize, room: usize) {
        if read >= room {
            self.chunk_kib = (self.chunk_kib * 4).min(CHUNK_MAX_KIB);
            self.small_reads = 0;
        } else if read < self.chunk_kib as usize * 128 && self.chunk_kib > CHUNK_FIRST_KIB {
            self.small_reads += 1;
            if self.small_reads == SMALL_READS {
                self.chunk_kib /= 4;
                self.small_reads = 0;
            }
        } else {
            self.small_reads = 0;
        }
    }
}

thread_local! {
    /// Spare output buffer: one a thread, since nearly all bursts are written at once.
    static SPARE: RefCell<Vec<u8>> = RefCell::default();
    /// Spare input buffer and its size: a thread reads from one connection after the other.
    static SPARE_INPUT: Cell<(BytesMut, u32)> = Cell::default();
}

/// Maximum size of the spare output buffer, in bytes.
const SPARE_MAX: usize = 1 << 20;
const CHUNK_FIRST_KIB: u16 = 4;
const CHUNK_MAX_KIB: u16 = 64;
const CHUNK_MAX: u32 = CHUNK_MAX_KIB as u32 * 1024;
/// Larger beginnings of packets have memory for the rest: see `arrival`.
const RESERVED_FROM: usize = super::arrival::FREE_BYTES;
const SMALL_READS: u8 = 32;
/// Bytes of early input at which a client waiting for an answer is not read any more.
const EARLY_BYTES: usize = 64 * 1024;
/// How long, and up to how many bytes, the broker reads input after its last packet.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 1 << 20;
