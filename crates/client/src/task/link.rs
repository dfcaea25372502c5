use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tenbin_codec::{AckProperties, Decoder, ReasonCode, Text, WriteBuffer};
use tenbin_session::{Connection, PendingAck, Session};

use super::pings::Pings;
use super::stream::Stream;
use crate::command::Reply;
use crate::{ClientErrorKind, DisconnectReason};

/// One Network Connection: the stream, what is read and not decoded, what is encoded and not written.
pub(super) struct Link {
    pub(super) decoder: Decoder,
    pub(super) input: BytesMut,
    pub(super) connection: Connection,
    pub(super) out: WriteBuffer,
    pub(super) pings: Pings,
    stream: Stream,
    /// Bytes of which it is known that they are written.
    written: u64,
    /// QoS 0 messages in `out`: answered when so many bytes are written.
    unwritten: VecDeque<(u64, Reply<ReasonCode>)>,
    /// Bytes of `out` that are not replies to the broker, nearly: what was there after the last request.
    requested: usize,
}

impl Link {
    pub(super) fn new(stream: Stream, input: BytesMut, decoder: Decoder, connection: Connection, pings: Pings) -> Self {
        Self {
            decoder,
            input,
            connection,
            out: WriteBuffer::new(),
            pings,
            written: stream.written(),
            stream,
            unwritten: VecDeque::new(),
            requested: 0,
        }
    }

    /// Waits until something is read, if `reading`, or written, if there is something to write, or something is to be
    /// reported early. Whether something is read. Cancel safe.
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

    /// Reads what is there, at most about [`READ_CHUNK`]. `false`: nothing is.
    pub(super) fn read(&mut self) -> Result<bool, DisconnectReason> {
        self.make_room();
        self.stream.read_now(&mut self.input)
    }

    /// Writes as much as goes out now, and answers for what has gone.
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

    /// The message that was just appended has no acknowledgement: `reply` is due when it is written.
    pub(super) fn answer_when_written(&mut self, reply: Reply<ReasonCode>) {
        if !reply.is_closed() {
            self.unwritten.push_back((self.stream.written() + self.out.len() as u64, reply));
        }
    }

    /// Acknowledges a message, with a load report where one is due and acknowledgements carry them.
    pub(super) fn acknowledge(&mut self, ack: PendingAck, now: Instant) {
        let report = self.pings.report_for_ack(now).and_then(|report| Text::try_from(report.to_json()).ok());
        match report.map(AckProperties::with_load_report) {
            Some(report) => {
                self.connection.acknowledge_with(ack, ReasonCode::Success, report, now, &mut self.out);
            }
            None => self.connection.acknowledge(ack, ReasonCode::Success, now, &mut self.out),
        }
    }

    /// Whether so much waits to be written that no further requests are taken.
    pub(super) fn is_congested(&self) -> bool {
        self.out.len() >= OUT_MAX
    }

    /// A request was appended.
    pub(super) fn requested(&mut self) {
        self.requested = self.out.len();
    }

    /// Whether the broker reads what we reply. It can hold 65,535 messages open at most, whose replies are far
    /// below this limit; without it, one that sends and never reads could fill the memory.
    pub(super) fn replies_leave(&self) -> bool {
        self.out.len() <= self.requested + REPLIES_MAX
    }

    /// Writes what there is, ends the stream and waits for the broker to do the same, all within `limit`.
    /// Closing with unread bytes would reset the connection, and the broker might not see the DISCONNECT.
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

    /// Closes a connection that is lost, and tells the broker where it broke a rule, as far as it can be told
    /// without waiting. Messages that were not written are not sent again: their QoS is 0.
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
        // A packet that is larger than a chunk grows the buffer as it comes, whatever size it claims to have.
        if self.input.capacity() - self.input.len() < READ_MIN {
            self.input.reserve(READ_CHUNK);
        }
    }
}

/// The read buffer grows by so many bytes at a time.
const READ_CHUNK: usize = 64 * 1024;
/// With less room than this, a read is not worth its call.
const READ_MIN: usize = 4 * 1024;
/// Requests wait when so many bytes are not written.
const OUT_MAX: usize = 64 * 1024;
/// Replies may be so many bytes.
const REPLIES_MAX: usize = 1024 * 1024;
