use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, Sleep};

use super::frame::Frame;
use super::inbox::Inbox;
use super::transport::Transport;

/// A connection under load: reads frames, writes bytes, and keeps itself alive with PINGREQ.
#[derive(Debug)]
pub(super) struct Link {
    transport: Transport,
    inbox: Inbox,
    /// Bytes to send. INVARIANT: `written <= out.len()`.
    pub(super) out: Vec<u8>,
    written: usize,
    ping: Option<Ping>,
}

/// Keeps a silent connection alive [MQTT-3.1.2-22].
#[derive(Debug)]
struct Ping {
    /// A third of Keep Alive. PINGREQ follows a period without a write, so that at most two thirds pass.
    period: Duration,
    timer: Pin<Box<Sleep>>,
    /// Whether bytes were sent in this period.
    has_sent: bool,
    answers: Option<Answers>,
}

/// Watch over the broker's answers, for a connection that is lost without them.
#[derive(Debug, Default)]
struct Answers {
    /// Whether bytes came in this period.
    have_come: bool,
    /// Periods in a row without a byte.
    silent: u32,
}

impl Link {
    /// A connection whose `received` bytes were read already; a `keep_alive` of zero turns PINGREQ off.
    pub(super) fn new(transport: Transport, received: &[u8], keep_alive: Duration) -> Self {
        let ping = (!keep_alive.is_zero()).then(|| {
            let period = keep_alive / 3;
            Ping { period, timer: Box::pin(tokio::time::sleep(period)), has_sent: true, answers: None }
        });
        Self { transport, inbox: Inbox::new(received), out: Vec::new(), written: 0, ping }
    }

    /// Lets the connection be lost if nothing comes for Keep Alive. No effect without Keep Alive.
    pub(super) fn expect_answers(&mut self) {
        if let Some(ping) = &mut self.ping {
            ping.answers = Some(Answers::default());
        }
    }

    /// The transport and the bytes read from it, for packet exchanges before the load.
    pub(super) fn begin_exchange(&mut self) -> (&mut Transport, BytesMut) {
        let received = BytesMut::from(self.inbox.kept());
        (&mut self.transport, received)
    }

    /// Ends the exchange; `received` are the bytes read beyond the answer.
    pub(super) fn end_exchange(&mut self, received: &[u8]) {
        self.inbox = Inbox::new(received);
    }

    /// Reads once and passes all whole frames to `take`, in order; returns whether there was something to read.
    ///
    /// `shared` is the thread's buffer.
    ///
    /// # Errors
    /// The end of the connection, an error of `take`, or bytes that are not frames.
    pub(super) fn take_frames(
        &mut self,
        cx: &mut Context<'_>,
        shared: &mut [u8],
        take: impl FnMut(Frame<'_>) -> Result<(), String>,
    ) -> Result<bool, String> {
        match self.inbox.poll_frames(cx, &mut self.transport, shared, take) {
            Poll::Ready(taken) => {
                if let Some(answers) = self.ping.as_mut().and_then(|ping| ping.answers.as_mut()) {
                    answers.have_come = true;
                }
                taken.map(|()| true)
            }
            Poll::Pending => Ok(false),
        }
    }

    /// Writes once; returns the number of bytes written, 0 if there are none to write.
    ///
    /// # Errors
    /// The socket's.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, String>> {
        if self.is_written() {
            // TLS may still have buffered bytes.
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

    /// Whether all bytes are written.
    pub(super) fn is_written(&self) -> bool {
        self.written == self.out.len()
    }

    /// Number of bytes of `out` that are written.
    pub(super) fn written(&self) -> usize {
        self.written
    }

    /// Empties `out`. Call it only when all bytes are written.
    pub(super) fn clear(&mut self) {
        debug_assert!(self.is_written());
        self.out.clear();
        self.written = 0;
    }

    /// Appends a PINGREQ to `out` if one is due. Call it before the connection waits.
    ///
    /// # Errors
    /// Answers are expected, and none came for Keep Alive.
    pub(super) fn poll_ping(&mut self, cx: &mut Context<'_>) -> Result<(), String> {
        let Some(ping) = &mut self.ping else { return Ok(()) };
        while ping.timer.as_mut().poll(cx).is_ready() {
            let mut is_due = !std::mem::take(&mut ping.has_sent);
            if let Some(answers) = &mut ping.answers {
                answers.silent = if std::mem::take(&mut answers.have_come) { 0 } else { answers.silent + 1 };
                if answers.silent > SILENT_PERIODS {
                    return Err("nothing came for Keep Alive".to_owned());
                }
                // Messages at QoS 0 alone get no answer.
                is_due |= answers.silent > 0;
            }
            if is_due && self.written == self.out.len() {
                self.out.extend_from_slice(&PINGREQ);
            }
            ping.timer.as_mut().reset(Instant::now() + ping.period);
        }
        Ok(())
    }

    /// Closes the connection; sends `goodbye` first, unless a frame is partly written.
    pub(super) async fn close(mut self, goodbye: Option<&[u8]>) {
        let end = async {
            if let Some(goodbye) = goodbye.filter(|_| self.is_written()) {
                self.transport.write_all(goodbye).await?;
            }
            self.transport.shutdown().await
        };
        // The connection may be gone already.
        let _ = tokio::time::timeout(CLOSE_LIMIT, end).await;
    }
}

/// Periods without a byte from the broker before the connection is lost: Keep Alive in all.
const SILENT_PERIODS: u32 = 2;

const PINGREQ: [u8; 2] = [0xC0, 0];

/// Time limit for closing, as a broker may have stopped reading.
const CLOSE_LIMIT: Duration = Duration::from_millis(500);
