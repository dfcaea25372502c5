use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use tenbin_codec::{AckProperties, Decoder, ReasonCode, Text, WriteBuffer};
use tenbin_session::{Connection, PendingAck, Session};
use tokio::io::{Interest, Ready};
use tokio::net::TcpStream;

use super::pings::Pings;
use crate::command::Reply;
use crate::{ClientErrorKind, DisconnectReason};

/// One Network Connection: the socket, what is read and not decoded, what is encoded and not written.
pub(super) struct Link {
    pub(super) decoder: Decoder,
    pub(super) input: BytesMut,
    pub(super) connection: Connection,
    pub(super) out: WriteBuffer,
    pub(super) pings: Pings,
    stream: TcpStream,
    /// Bytes written so far.
    written: u64,
    /// QoS 0 messages in `out`: answered when so many bytes are written.
    unwritten: VecDeque<(u64, Reply<ReasonCode>)>,
    /// Bytes of `out` that are not replies to the broker, nearly: what was there after the last request.
    requested: usize,
}

impl Link {
    pub(super) fn new(
        stream: TcpStream,
        input: BytesMut,
        decoder: Decoder,
        connection: Connection,
        pings: Pings,
    ) -> Self {
        Self {
            decoder,
            input,
            connection,
            out: WriteBuffer::new(),
            pings,
            stream,
            written: 0,
            unwritten: VecDeque::new(),
            requested: 0,
        }
    }

    /// Waits until the socket can be read, if `reading`, or written, if there is something to write. For ever
    /// if neither. Cancel safe.
    pub(super) async fn ready(&self, reading: bool) -> io::Result<Ready> {
        let interest = match (reading, self.out.is_empty()) {
            (true, true) => Interest::READABLE,
            (true, false) => Interest::READABLE | Interest::WRITABLE,
            (false, false) => Interest::WRITABLE,
            (false, true) => return std::future::pending().await,
        };
        self.stream.ready(interest).await
    }

    /// Reads what is there, at most about [`READ_CHUNK`]. `false`: nothing is.
    pub(super) fn read(&mut self) -> Result<bool, DisconnectReason> {
        // A packet that is larger than a chunk grows the buffer as it comes, whatever size it claims to have.
        if self.input.capacity() - self.input.len() < READ_MIN {
            self.input.reserve(READ_CHUNK);
        }
        match self.stream.try_read_buf(&mut self.input) {
            Ok(0) => Err(DisconnectReason::Closed),
            Ok(_) => Ok(true),
            Err(error) if is_try_again(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes as much as the socket takes now, many packets at a time.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let before = self.written;
        while !self.out.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let filled = self.out.chunks_vectored(&mut slices);
            match self.stream.try_write_vectored(&slices[..filled]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.out.advance(count);
                    self.written += count as u64;
                }
                Err(error) if is_try_again(&error) => break,
                Err(error) => return Err(error),
            }
        }
        if self.written > before {
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
            self.unwritten.push_back((self.written + self.out.len() as u64, reply));
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
                if self.out.is_empty() {
                    return Ok(());
                }
                self.ready(false).await?;
            }
        });
        let timed_out = || DisconnectReason::from(io::Error::from(io::ErrorKind::TimedOut));
        written.await.unwrap_or_else(|_| Err(timed_out()))?;
        // SHUT_WR through the asynchronous interface alone; it never waits.
        tokio::io::AsyncWriteExt::shutdown(&mut self.stream).await?;
        let _ = tokio::time::timeout(limit, async {
            loop {
                self.input.clear();
                if self.ready(true).await.is_err() || self.read().is_err() {
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
}

fn is_try_again(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// The read buffer grows by so many bytes at a time.
const READ_CHUNK: usize = 64 * 1024;
/// With less room than this, a read is not worth its call.
const READ_MIN: usize = 4 * 1024;
/// Requests wait when so many bytes are not written.
const OUT_MAX: usize = 64 * 1024;
/// Replies may be so many bytes.
const REPLIES_MAX: usize = 1024 * 1024;
/// Pieces in one vectored write.
const SLICES: usize = 64;
