use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// Bytes a second at which output of a lingering stream has to leave, once it waits.
const RATE: u32 = 64 * 1024;
/// Time in which the peer may close its side after ours.
const LINGER_TIME: Duration = Duration::from_secs(2);
/// Bytes that are read and dropped in this time.
const LINGER_BYTES: usize = 1024 * 1024;

/// A stream that fails when its peer reads too slowly.
#[derive(Debug)]
pub struct WriteDeadline<S> {
    stream: S,
    time: Duration,
    /// When the waiting output must have left; `None` = nothing waits.
    deadline: Option<Pin<Box<Sleep>>>,
    end: End,
}

#[derive(Debug, Clone, Copy)]
enum End {
    /// It ends as the stream below does.
    Plain,
    /// It is open, and will linger.
    Open,
    /// Our side is closed, and this number of bytes may still come from the peer.
    Lingering(usize),
}

impl<S> WriteDeadline<S> {
    /// All output that waits has `time` together.
    pub fn new(stream: S, time: Duration) -> Self {
        Self { stream, time, deadline: None, end: End::Plain }
    }

    /// Output that waits has `time`, and a second more for each 64 KiB that leave. The stream closes in two steps: a socket
    /// that is dropped while unread bytes wait is reset, and the peer may miss the last answer.
    pub fn lingering(stream: S, time: Duration) -> Self {
        Self { stream, time, deadline: None, end: End::Open }
    }

    fn is_late(&mut self, context: &mut Context<'_>, time: Duration) -> bool {
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(time)));
        deadline.as_mut().poll(context).is_ready()
    }

    /// Judges a write: one that waits has a deadline, which written bytes of a lingering stream put off.
    fn judge(&mut self, context: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let is_put_off = written.is_ready() && !matches!(self.end, End::Plain);
        let waits = written.is_pending() || self.deadline.is_some();
        if is_put_off {
            if let (Some(deadline), Poll::Ready(Ok(count))) = (&mut self.deadline, &written) {
                let more = Duration::from_secs(1) * u32::try_from(*count).unwrap_or(u32::MAX) / RATE;
                let later = deadline.deadline() + more;
                deadline.as_mut().reset(later);
            }
        } else if waits && self.is_late(context, self.time) {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read")));
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteDeadline<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WriteDeadline<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judge(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.judge(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// The server flushes once it has written everything.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context).map_ok(|()| 0);
        ready!(self.judge(context, flushed))?;
        self.deadline = None;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !matches!(self.end, End::Lingering(_)) {
            let closed = Pin::new(&mut self.stream).poll_shutdown(context);
            if let End::Plain = self.end {
                return self.judge(context, closed.map_ok(|()| 0)).map_ok(|_| ());
            }
            ready!(closed)?;
            (self.end, self.deadline) = (End::Lingering(LINGER_BYTES), None);
        }
        loop {
            let End::Lingering(left) = self.end else { return Poll::Ready(Ok(())) };
            let mut space = [0; 4096];
            let mut ignored = ReadBuf::new(&mut space);
            let is_over = match Pin::new(&mut self.stream).poll_read(context, &mut ignored) {
                Poll::Ready(Ok(())) => ignored.filled().is_empty() || left < ignored.filled().len(),
                Poll::Ready(Err(_)) => true,
                Poll::Pending if self.is_late(context, LINGER_TIME) => true,
                Poll::Pending => return Poll::Pending,
            };
            if is_over {
                return Poll::Ready(Ok(()));
            }
            self.end = End::Lingering(left - ignored.filled().len());
        }
    }
}
