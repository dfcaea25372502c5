use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, BytesMut};
use tenbin_codec::WriteBuffer;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::DisconnectReason;
use crate::byte_stream::ByteStream;

/// Byte stream of a connection, with waiting and non-waiting operations.
pub(super) struct Stream {
    bytes: Box<dyn ByteStream>,
    /// Bytes written so far.
    written: u64,
    /// Whether nothing is buffered in `bytes`, as TLS may do.
    is_flushed: bool,
}

impl Stream {
    pub(super) fn new(bytes: Box<dyn ByteStream>) -> Self {
        Self { bytes, written: 0, is_flushed: true }
    }

    /// Bytes written so far.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Waits until bytes were read into `input`, if given, or written from `out`. True if bytes were read. Cancel safe.
    ///
    /// Waits for ever if there is neither `input` nor anything to write.
    pub(super) async fn exchange(
        &mut self,
        mut input: Option<&mut BytesMut>,
        out: &mut WriteBuffer,
    ) -> Result<bool, DisconnectReason> {
        poll_fn(|cx| {
            if let Some(input) = &mut input
                && let Poll::Ready(read) = self.poll_read(cx, input)
            {
                return Poll::Ready(read.map(|()| true));
            }
            let wrote = ready!(self.poll_write(cx, out));
            Poll::Ready(wrote.map(|()| false).map_err(DisconnectReason::from))
        })
        .await
    }

    /// Waits until bytes were read into `input`. Cancel safe.
    pub(super) async fn read(&mut self, input: &mut BytesMut) -> Result<(), DisconnectReason> {
        poll_fn(|cx| self.poll_read(cx, input)).await
    }

    /// Reads available bytes, at most the free capacity of `input`. `false` if there are none.
    pub(super) fn read_now(&mut self, input: &mut BytesMut) -> Result<bool, DisconnectReason> {
        at_once(|cx| self.poll_read(cx, input)).transpose().map(|read| read.is_some())
    }

    /// Writes all of `out`.
    pub(super) async fn write(&mut self, out: &mut WriteBuffer) -> io::Result<()> {
        while !self.is_written(out) {
            poll_fn(|cx| self.poll_write(cx, out)).await?;
        }
        Ok(())
    }

    /// Writes as much of `out` as possible without waiting, many packets at a time.
    pub(super) fn write_now(&mut self, out: &mut WriteBuffer) -> io::Result<()> {
        while let Some(wrote) = at_once(|cx| self.poll_write(cx, out)) {
            wrote?;
        }
        Ok(())
    }

    /// Whether all of `out` is written and flushed.
    pub(super) fn is_written(&self, out: &WriteBuffer) -> bool {
        out.is_empty() && self.is_flushed
    }

    /// Closes the sending direction.
    pub(super) async fn shutdown(&mut self) -> io::Result<()> {
        self.bytes.shutdown().await
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, input: &mut BytesMut) -> Poll<Result<(), DisconnectReason>> {
        Poll::Ready(match ready!(pin!(self.bytes.read_buf(input)).poll(cx)) {
            Ok(0) => Err(DisconnectReason::Closed),
            Ok(_) => Ok(()),
            Err(error) => Err(error.into()),
        })
    }

    /// Ready after some bytes were written or flushed; pending for ever if there are none.
    fn poll_write(&mut self, cx: &mut Context<'_>, out: &mut WriteBuffer) -> Poll<io::Result<()>> {
        if self.is_written(out) {
            return Poll::Pending;
        }
        let bytes = Pin::new(&mut self.bytes);
        if out.is_empty() {
            ready!(bytes.poll_flush(cx))?;
            self.is_flushed = true;
            return Poll::Ready(Ok(()));
        }
        let mut slices = [IoSlice::new(&[]); SLICES];
        let filled = out.chunks_vectored(&mut slices);
        let count = ready!(bytes.poll_write_vectored(cx, &slices[..filled]))?;
        if count == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        out.advance(count);
        self.written += count as u64;
        self.is_flushed = false;
        Poll::Ready(Ok(()))
    }
}

/// Polls once without waiting. Registers no wake-up: callers that want to wait must poll again.
///
/// Runs outside the cooperative budget: otherwise an exhausted budget would look like a stream without data.
fn at_once<T>(poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Option<T> {
    let mut polled = pin!(tokio::task::unconstrained(poll_fn(poll)));
    match polled.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// Most buffers in one vectored write.
const SLICES: usize = 64;
