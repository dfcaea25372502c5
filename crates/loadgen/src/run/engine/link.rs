use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, Sleep};

use super::frame::Frame;
use super::inbox::Inbox;
use super::transport::Transport;

/// A connection under load: frames come out of it, bytes go into it, and it says now and then that it is there.
#[derive(Debug)]
pub(super) struct Link {
    transport: Transport,
    inbox: Inbox,
    /// What goes out next. INVARIANT: `written <= out.len()`.
    pub(super) out: Vec<u8>,
    written: usize,
    ping: Option<Ping>,
}

/// Keeps a silent connection alive [MQTT-3.1.2-22].
#[derive(Debug)]
struct Ping {
    /// A third of the Keep Alive: of a silent period the next one sends, so that two thirds at most pass.
    period: Duration,
    timer: Pin<Box<Sleep>>,
    /// Whether something was sent in this period.
    has_sent: bool,
}

impl Link {
    /// `received` has been read already; a `keep_alive` of zero is none.
    pub(super) fn new(transport: Transport, received: &[u8], keep_alive: Duration) -> Self {
        let ping = (!keep_alive.is_zero()).then(|| {
            let period = keep_alive / 3;
            Ping { period, timer: Box::pin(tokio::time::sleep(period)), has_sent: true }
        });
        Self { transport, inbox: Inbox::new(received), out: Vec::new(), written: 0, ping }
    }

    /// The bare transport and what was read from it, for packets that come before the load.
    pub(super) fn begin_exchange(&mut self) -> (&mut Transport, BytesMut) {
        let received = BytesMut::from(self.inbox.kept());
        (&mut self.transport, received)
    }

    /// What was read beyond the answer.
    pub(super) fn end_exchange(&mut self, received: &[u8]) {
        self.inbox = Inbox::new(received);
    }

    /// Reads once and hands all whole frames to `take`, in order. `shared` is the thread's buffer.
    ///
    /// # Errors
    /// That the connection has ended, `take`'s, or that the bytes are no frames.
    pub(super) fn poll_frames(
        &mut self,
        cx: &mut Context<'_>,
        shared: &mut [u8],
        take: impl FnMut(Frame<'_>) -> Result<(), String>,
    ) -> Poll<Result<(), String>> {
        self.inbox.poll_frames(cx, &mut self.transport, shared, take)
    }

    /// Writes once of what is to go out; how many bytes of it have gone. Ready with 0 where nothing waits.
    ///
    /// # Errors
    /// The socket's.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, String>> {
        if self.is_written() {
            // Of TLS something may wait below.
            let flushed = ready!(Pin::new(&mut self.transport).poll_flush(cx));
            return Poll::Ready(flushed.map(|()| 0).map_err(|error| error.to_string()));
        }
        let wrote = ready!(Pin::new(&mut self.transport).poll_write(cx, &self.out[self.written..]));
        let wrote = wrote.map_err(|error| error.to_string())?;
        self.written += wrote;
        if let Some(ping) = &mut self.ping {
            ping.has_sent = true;
        }
        Poll::Ready(Ok(wrote))
    }

    /// Whether all that was to go out has gone.
    pub(super) fn is_written(&self) -> bool {
        self.written == self.out.len()
    }

    /// Bytes of `out` that have gone.
    pub(super) fn written(&self) -> usize {
        self.written
    }

    /// Begins anew with an empty `out`, once all has gone.
    pub(super) fn clear(&mut self) {
        debug_assert!(self.is_written());
        self.out.clear();
        self.written = 0;
    }

    /// Appends a PINGREQ to `out` where it is time for one. To be called before the connection waits.
    pub(super) fn poll_ping(&mut self, cx: &mut Context<'_>) {
        let Some(ping) = &mut self.ping else { return };
        while ping.timer.as_mut().poll(cx).is_ready() {
            if !std::mem::take(&mut ping.has_sent) && self.written == self.out.len() {
                self.out.extend_from_slice(&PINGREQ);
            }
            ping.timer.as_mut().reset(Instant::now() + ping.period);
        }
    }

    /// Closes the connection: with `goodbye`, unless a frame has been written in part.
    pub(super) async fn close(mut self, goodbye: Option<&[u8]>) {
        let end = async {
            if let Some(goodbye) = goodbye.filter(|_| self.is_written()) {
                self.transport.write_all(goodbye).await?;
            }
            self.transport.shutdown().await
        };
        // The connection may be gone, which is what is wanted.
        let _ = tokio::time::timeout(CLOSE_LIMIT, end).await;
    }
}

const PINGREQ: [u8; 2] = [0xC0, 0];

/// A broker that reads nothing more is left behind.
const CLOSE_LIMIT: Duration = Duration::from_millis(500);
