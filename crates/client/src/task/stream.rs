use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, BytesMut};
use tenbin_codec::WriteBuffer;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::DisconnectReason;
use crate::byte_stream::ByteStream;

/// The bytes of a connection: read and written as far as it goes at once, or waited for.
pub(super) struct Stream {
    bytes: Box<dyn ByteStream>,
    /// Bytes written so far.
    written: u64,
    /// Nothing that was written waits in `bytes`, where TLS may keep it.
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

    /// Waits until something was read into `input`, if it is given, or written of `out`, if there is something. For
    /// ever if neither. Whether something was read. Cancel safe.
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

    /// Waits until something was read into `input`. Cancel safe.
    pub(super) async fn read(&mut self, input: &mut BytesMut) -> Result<(), DisconnectReason> {
        poll_fn(|cx| self.poll_read(cx, input)).await
    }

    /// Reads what is there, at most what `input` has room for. `false`: nothing is.
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

    /// Writes as much of `out` as goes out now, many packets at a time.
    pub(super) fn write_now(&mut self, out: &mut WriteBuffer) -> io::Result<()> {
        while let Some(wrote) = at_once(|cx| self.poll_write(cx, out)) {
            wrote?;
        }
        Ok(())
    }

    /// Whether all of `out` has gone out.
    pub(super) fn is_written(&self, out: &WriteBuffer) -> bool {
        out.is_empty() && self.is_flushed
    }

    /// Ends our direction.
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

    /// Ready when something has gone out; never where nothing is to.
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

/// What `poll` comes to without waiting. Nobody is woken for it: whoever wants to wait polls once more. The task's budget
/// does not count, for without it there would be nothing where there is something.
fn at_once<T>(poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Option<T> {
    let mut polled = pin!(tokio::task::unconstrained(poll_fn(poll)));
    match polled.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// Pieces in one vectored write.
const SLICES: usize = 64;
