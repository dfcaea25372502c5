//! Copies bytes between two sockets, both ways, without a buffer for each connection.
//!
//! A thread has one buffer: bytes are read from one socket and written to the other one in the same poll. A socket that is
//! full leaves a rest, which is the only memory that a connection allocates, and nothing more is read until it is written.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::super::link::stream::NodeStream;

thread_local! {
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; BUFFER_BYTES].into_boxed_slice());
}

/// One way of a connection.
#[derive(Debug, Default)]
pub(super) enum Way {
    /// All bytes that were read are written.
    #[default]
    Empty,
    /// TLS holds written bytes back until its socket has room.
    Unflushed,
    /// Bytes for a full socket, and the number of them that are written.
    Rest(Box<[u8]>, usize),
    /// The source has ended, and the target is not told yet.
    Ending,
    Ended,
}

/// Copies between the sockets until both have ended or one has failed; an end is passed on. Counts the bytes in `copied`.
///
/// # Errors
/// One of the sockets fails.
pub(super) async fn both_ways(client: &mut TcpStream, leader: &mut NodeStream, copied: &AtomicU64) -> io::Result<()> {
    let (mut up, mut down) = (Way::Empty, Way::Empty);
    poll_fn(|cx| {
        let up = up.poll(cx, client, leader, copied)?;
        let down = down.poll(cx, leader, client, copied)?;
        if up.is_ready() && down.is_ready() { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await
}

impl Way {
    /// Copies until a socket has to be waited for, or the way has ended.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
        copied: &AtomicU64,
    ) -> Poll<io::Result<()>> {
        loop {
            match self {
                Self::Empty => {
                    let Some(next) = ready!(BUFFER.with_borrow_mut(|buffer| pass(cx, from, to, buffer, copied)))?
                    else {
                        continue;
                    };
                    *self = next;
                }
                Self::Rest(bytes, written) => {
                    *written += ready!(write(cx, to, &bytes[*written..]))?;
                    if *written == bytes.len() {
                        *self = Self::Unflushed;
                    }
                }
                Self::Unflushed => {
                    ready!(Pin::new(&mut *to).poll_flush(cx))?;
                    *self = Self::Empty;
                }
                Self::Ending => {
                    // A target that has failed needs no end.
                    let _ = ready!(Pin::new(&mut *to).poll_shutdown(cx));
                    *self = Self::Ended;
                }
                Self::Ended => return Poll::Ready(Ok(())),
            }
        }
    }
}

/// Reads once and writes once. Returns the next state if it is another one.
fn pass(
    cx: &mut Context<'_>,
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    buffer: &mut [u8],
    copied: &AtomicU64,
) -> Poll<io::Result<Option<Way>>> {
    let mut read = ReadBuf::new(buffer);
    ready!(Pin::new(from).poll_read(cx, &mut read))?;
    let bytes = read.filled();
    if bytes.is_empty() {
        return Poll::Ready(Ok(Some(Way::Ending)));
    }
    copied.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    let written = match write(cx, to, bytes) {
        Poll::Ready(written) => written?,
        Poll::Pending => 0,
    };
    if written < bytes.len() {
        return Poll::Ready(Ok(Some(Way::Rest(bytes[written..].into(), 0))));
    }
    let is_flushed = Pin::new(to).poll_flush(cx)?.is_ready();
    Poll::Ready(Ok((!is_flushed).then_some(Way::Unflushed)))
}

fn write(cx: &mut Context<'_>, to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Poll<io::Result<usize>> {
    match ready!(Pin::new(to).poll_write(cx, bytes))? {
        0 => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
        written => Poll::Ready(Ok(written)),
    }
}

const BUFFER_BYTES: usize = 64 << 10;
