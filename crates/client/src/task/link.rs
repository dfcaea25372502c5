use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tenbin_codec::{AckProperties, Decoder, ReasonCode, Text, WriteBuffer};
use tenbin_session::{Connection, PendingAck, Session};

use super::pings::Pings;
use super::stream::Stream;
use crate::command::Reply;
use crate::{ClientErrorKind, DisconnectReason, Rejection};

/// A Network Connection with its buffers for undecoded input and unwritten output.
pub(super) struct Link {
    pub(super) decoder: Decoder,
    pub(super) input: BytesMut,
    pub(super) connection: Connection,
    pub(super) out: WriteBuffer,
    pub(super) pings: Pings,
    /// Growth of `input`, in bytes.
    read_buffer: usize,
    stream: Stream,
    /// Bytes of the stream already processed by [`Link::flush`].
    written: u64,
    /// Replies for QoS 0 messages in `out`, due once the given number of bytes is written.
    unwritten: VecDeque<(u64, Reply<ReasonCode>)>,
    /// Upper bound of the bytes in `out` that are not replies to the broker: the length of `out` after the last
    /// request.
    requested: usize,
}

impl Link {
    /// `read_buffer`: growth of `input`, in bytes.
    pub(super) fn new(
        stream: Stream,
        input: BytesMut,
        decoder: Decoder,
        connection: Connection,
        pings: Pings,
        read_buffer: usize,
    ) -> Self {
        Self {
            decoder,
            input,
            connection,
            out: WriteBuffer::new(),
            pings,
            read_buffer,
            written: stream.written(),
            stream,
            unwritten: VecDeque::new(),
            requested: 0,
        }
    }

    /// Waits until bytes are read, if `reading`, or written, or an early report is due. True if bytes are read. Cancel
    /// safe.
    pub(super) async fn exchange(&mut self, reading: bool) -> Result<bool, DisconnectReason> {
        if reading {
            self.make_room();
        }
        let input = reading.then_some(&mut self.input);
        tokio::select! {
            read = self.stream.exchange(input, &mut self.out) => read,
            () = self.pings.news() => Ok(false),
        }
    }

    /// Reads available bytes, at most about the growth of the buffer. `false` if there are none.
    pub(super) fn read(&mut self) -> Result<bool, DisconnectReason> {
        self.make_room();
        self.stream.read_now(&mut self.input)
    }

    /// Writes without waiting, up to the room in the socket, and completes the tickets of written messages.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.stream.write_now(&mut self.out)?;
        if self.stream.written() > self.written {
            self.written = self.stream.written();
            self.requested = self.requested.min(self.out.len());
            self.pings.sent(Instant::now());
            while self.unwritten.front().is_some_and(|(end, _)| *end <= self.written) {
                if let Some((_, reply)) = self.unwritten.pop_front() {
                    let _ = reply.send(Ok(ReasonCode::Success));
                }
            }
        }
        Ok(())
    }

    /// Completes `reply` once the message that was just appended is written: QoS 0 has no acknowledgement.
    pub(super) fn answer_when_written(&mut self, reply: Reply<ReasonCode>) {
        if !reply.is_closed() {
            self.unwritten.push_back((self.stream.written() + self.out.len() as u64, reply));
        }
    }

    /// Acknowledges a message. Adds a load report if one is due and acknowledgements carry them.
    pub(super) fn acknowledge(&mut self, ack: PendingAck, now: Instant) {
        let report = self.pings.report_for_ack(now).and_then(|report| Text::try_from(report.to_json()).ok());
        match report.map(AckProperties::with_load_report) {
            Some(report) => {
                self.connection.acknowledge_with(ack, ReasonCode::Success, report, now, &mut self.out);
            }
            None => self.connection.acknowledge(ack, ReasonCode::Success, now, &mut self.out),
        }
    }

    /// Rejects a message.
    pub(super) fn reject(&mut self, ack: PendingAck, rejection: &Rejection, now: Instant) {
        let report = self.pings.report_for_ack(now).and_then(|report| Text::try_from(report.to_json()).ok());
        let mut properties = report.map(AckProperties::with_load_report).unwrap_or_default();
        properties.user_properties.extend(rejection.properties());
        match properties.user_properties.is_empty() {
            true => self.connection.acknowledge(ack, rejection.reason, now, &mut self.out),
            false => self.connection.acknowledge_with(ack, rejection.reason, properties, now, &mut self.out),
        }
    }

    /// Whether too much is unwritten to take further requests.
    pub(super) fn is_congested(&self) -> bool {
        self.out.len() >= OUT_MAX
    }

    /// Records that a request was appended.
    pub(super) fn requested(&mut self) {
        self.requested = self.out.len();
    }

    /// Whether the broker reads the client's replies.
    ///
    /// At most 65,535 messages are open, and their replies are far below this limit. Without it, a broker that sends
    /// and never reads could exhaust the memory.
    pub(super) fn replies_leave(&self) -> bool {
        self.out.len() <= self.requested + REPLIES_MAX
    }

    /// Writes everything, shuts the stream down, and waits for the broker to close it. Each step may take `limit`.
    ///
    /// Closing a socket with unread bytes would reset the connection, and the broker might not see the DISCONNECT.
    pub(super) async fn finish(mut self, limit: Duration) -> Result<(), DisconnectReason> {
        let written = tokio::time::timeout(limit, async {
            loop {
                self.flush()?;
                if self.stream.is_written(&self.out) {
                    return self.stream.shutdown().await.map_err(DisconnectReason::from);
                }
                self.stream.exchange(None, &mut self.out).await?;
            }
        });
        let timed_out = || DisconnectReason::from(io::Error::from(io::ErrorKind::TimedOut));
        written.await.unwrap_or_else(|_| Err(timed_out()))?;
        let _ = tokio::time::timeout(limit, async {
            loop {
                self.input.clear();
                self.make_room();
                if self.stream.read(&mut self.input).await.is_err() {
                    return;
                }
            }
        })
        .await;
        Ok(())
    }

    /// Closes a lost connection. Reports a violation to the broker, as far as possible without waiting.
    ///
    /// Fails the tickets of unwritten QoS 0 messages, which are not sent again.
    pub(super) fn close(mut self, reason: &DisconnectReason) -> Session {
        if let DisconnectReason::Violation(violation) = reason {
            self.connection.disconnect(violation.reason(), &mut self.out);
            let _ = self.flush();
        }
        for (_, reply) in self.unwritten {
            let _ = reply.send(Err(ClientErrorKind::Lost(reason.clone())));
        }
        self.connection.into_session()
    }

    fn make_room(&mut self) {
        // The buffer of a larger packet grows as its bytes arrive, regardless of its claimed size.
        if self.input.capacity() - self.input.len() < READ_MIN {
            self.input.reserve(self.read_buffer);
        }
    }
}

/// A read with less room than this is not worth the system call.
const READ_MIN: usize = 4 * 1024;
/// Unwritten bytes at which requests wait.
const OUT_MAX: usize = 64 * 1024;
/// Most unwritten bytes of replies.
const REPLIES_MAX: usize = 1024 * 1024;
