//! Input: read, held back while the client has to pause, and cut into packets.

use std::io;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Buf as _;
use tenbin_codec::{DecodeError, Decoded, Decoder, PacketId, PacketType, PlainAcknowledged, PlainPublish};

use super::arrival::{Arrival, FREE_BYTES};
use super::core::Core;
use super::filters::Filters;
use super::read_buffer::ReadBuffer;
use super::stream::Stream;
use super::throttle::{Throttle, Throttled};
use super::transport::Socket;
use crate::values::Rate;

/// Input of one connection, and every reason to pause it that lies in the input itself.
pub(super) struct Inbound {
    decoder: Decoder,
    buffer: ReadBuffer,
    throttle: Throttle,
    /// SUBSCRIBE and UNSUBSCRIBE.
    pub(super) filters: Filters,
    /// The partly received packet.
    pub(super) arrival: Arrival,
    /// Bytes read since this task last yielded.
    read_in_turn: u32,
}

/// Input to decode, or its end.
pub(super) enum Input {
    /// This many bytes were read; 0 = the client has closed its side.
    Read(usize),
    /// A pause is over: decode input read before.
    Resumed,
    Failed(io::Error),
}

impl Inbound {
    pub(super) fn new(decoder: Decoder, buffer: ReadBuffer, publish_rate: Option<Rate>, filters: Filters) -> Self {
        Self {
            decoder,
            buffer,
            throttle: Throttle::new(publish_rate, Instant::now()),
            filters,
            arrival: Arrival::default(),
            read_in_turn: 0,
        }
    }

    /// Reads, unless the client has to pause.
    pub(super) fn poll_read<S: Stream>(
        &mut self,
        core: &Core,
        socket: &mut Socket<S>,
        context: &mut Context<'_>,
    ) -> Option<Input> {
        if self.arrival.waits_for_memory(core, &mut self.buffer, context) {
            return None;
        }
        match self.throttle.poll(context) {
            Throttled::No if self.filters.begin_turn() => Some(Input::Resumed),
            Throttled::No => match socket.poll_read(&mut self.buffer, context) {
                Poll::Ready(Ok(read)) => {
                    self.read_in_turn = self.read_in_turn.saturating_add(read as u32); // a read is far smaller
                    Some(Input::Read(read))
                }
                Poll::Ready(Err(error)) => Some(Input::Failed(error)),
                Poll::Pending => None,
            },
            Throttled::Resumed => Some(Input::Resumed),
            Throttled::Yes => None,
        }
    }

    /// Ends the turn: the task yields before it decodes further packets.
    #[cold]
    pub(super) fn cut_turn(&mut self) {
        self.filters.end_turn();
        self.arrival.progressed();
    }

    /// Whether whole packets may have been read that the next turn decodes.
    #[inline]
    pub(super) fn has_more(&self) -> bool {
        self.filters.is_turn_over()
    }

    /// Whether nothing is to be decoded now, although a whole packet may have been read.
    pub(super) fn is_paused(&self) -> bool {
        self.throttle.is_paused() || self.has_more()
    }

    /// Whether the next packet may be a plain PUBLISH, judged by its first byte.
    #[inline]
    pub(super) fn may_be_plain(&self) -> bool {
        PlainPublish::may_begin(&self.buffer)
    }

    /// The packet after `offset` bytes of input, if it is a plain PUBLISH, and its size. [`Inbound::skip`] removes it.
    #[inline(always)] // once for each message
    pub(super) fn peek_plain(&self, offset: usize) -> Option<(PlainPublish<'_>, usize)> {
        self.decoder.peek_plain(&self.buffer[offset..])
    }

    /// Whether the next packet may be a [`PlainAcknowledged`], judged by its first byte.
    #[inline]
    pub(super) fn may_be_acknowledged(&self) -> bool {
        PlainAcknowledged::may_begin(&self.buffer)
    }

    /// As [`Inbound::peek_plain`], for a [`PlainAcknowledged`].
    #[inline(always)] // once for each message
    pub(super) fn peek_acknowledged(&self, offset: usize) -> Option<(PlainAcknowledged<'_>, usize)> {
        self.decoder.peek_acknowledged(&self.buffer[offset..])
    }

    /// Type and Packet Identifier of the packet after `offset` bytes of input, if it is a plain acknowledgement.
    #[inline(always)] // once for each acknowledgement
    pub(super) fn peek_ack(&self, offset: usize) -> Option<(PacketType, PacketId)> {
        self.decoder.peek_ack(&self.buffer[offset..])
    }

    /// Bytes of input that are not decoded.
    pub(super) fn undecoded(&self) -> usize {
        self.buffer.len()
    }

    /// Removes decoded input.
    #[inline]
    pub(super) fn skip(&mut self, bytes: usize) {
        self.buffer.advance(bytes);
    }

    /// Decodes the next packet.
    #[inline]
    pub(super) fn decode(&mut self) -> Result<Decoded, DecodeError> {
        self.decoder.decode(&mut self.buffer)
    }

    /// Records that all whole packets, `packets` of them, were decoded and the next needs `missing` more bytes.
    #[inline]
    pub(super) fn needs_input(&mut self, core: &Core, missing: usize, packets: u64) {
        if self.arrival.is_watching() || self.buffer.len() + missing > FREE_BYTES {
            self.arrival.needs_input(core, &mut self.buffer, missing, packets);
        }
    }

    /// Counts a PUBLISH; returns whether the client has to pause.
    #[inline]
    pub(super) fn count_publication(&mut self, core: &Core, now: Instant) -> bool {
        let pauses = self.throttle.count(now);
        if pauses {
            core.open.shared.operations.metrics.publishers_paused.add(1);
        }
        pauses
    }

    /// Whether a payload that would be shared, not copied, is a small part of the buffer it was read into.
    pub(super) fn is_small_part(&self, payload_bytes: usize) -> bool {
        self.buffer.is_small_part(payload_bytes)
    }

    /// Whether the task has used up its turn; `has_read`: with input in this lap.
    pub(super) fn ends_turn(&self, has_read: bool) -> bool {
        has_read && self.read_in_turn >= TURN_BYTES || self.has_more()
    }

    pub(super) fn begin_turn(&mut self) {
        self.read_in_turn = 0;
    }

    /// Whether a partly received packet makes no progress; asked while the connection has nothing to do. `disk_waits`
    /// tells whether it is the disk's fault.
    #[inline]
    pub(super) fn is_overdue(&mut self, core: &Core, disk_waits: impl Fn() -> bool, context: &mut Context<'_>) -> bool {
        let has_paused =
            || core.open.shared.operations.leadership.has_paused_within(core.open.shared.config.packet_timeout());
        let is_our_fault = || disk_waits() || self.throttle.is_paused() || has_paused();
        (self.arrival.is_watching() || !self.buffer.is_empty())
            && !self.has_more()
            && self.arrival.is_overdue(core, &self.buffer, is_our_fault, context)
    }

    /// Gives memory to the thread, as the connection has nothing to read.
    #[inline(always)] // a few instructions, in each lap
    pub(super) fn rest(&mut self) {
        self.buffer.rest();
    }

    /// Replaces timers after a migration, as they belong to the old runtime.
    pub(super) fn migrated(&mut self, core: &Core) {
        self.throttle.migrated();
        self.arrival.migrated(core);
    }

    /// Ends the input; returns its undecoded rest.
    pub(super) fn end(self) -> ReadBuffer {
        self.buffer
    }
}

/// Bytes that a task reads before it yields.
const TURN_BYTES: u32 = 256 * 1024;
