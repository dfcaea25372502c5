//! QoS 0 messages that wait as the packets which their receiver gets: many in a row cost little more than one.

use std::collections::VecDeque;
use std::num::NonZeroU64;

use bytes::BytesMut;
use tenbin_codec::{PlainPublish, ProtocolVersion, QoS};
use tenbin_session::Delivery;

use super::Booked;
use super::queue::Dropped;
use super::spares::Spares;

/// A connection that takes packets as they are, and the form that they need: good for as long as the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wire {
    /// Which of the queue's connections.
    pub(super) connection: u32,
    pub(crate) version: ProtocolVersion,
}

impl Wire {
    /// Number of a connection, and the version if it takes packets as they are.
    pub(super) fn to_bits(connection: u32, version: Option<ProtocolVersion>) -> u64 {
        u64::from(connection) << 8 | version.map_or(0, |version| if version.is_v5() { 5 } else { 4 })
    }

    pub(super) fn connection_in(bits: u64) -> u32 {
        (bits >> 8) as u32
    }

    #[inline]
    pub(super) fn from_bits(bits: u64) -> Option<Self> {
        let version = match bits & 0xFF {
            5 => ProtocolVersion::V5,
            4 => ProtocolVersion::V311,
            _ => return None,
        };
        Some(Self { connection: Self::connection_in(bits), version })
    }
}

/// Packets in a row, of one publisher and, where a share group chose this receiver for them, of one group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    pub(crate) wire: Wire,
    /// As [`Delivery::share`] and [`Delivery::share_key`]. A key of QoS 0 messages is held by nobody: nothing has to be
    /// told of each single one.
    pub(crate) share: Option<NonZeroU64>,
    pub(crate) share_key: Option<NonZeroU64>,
    pub(crate) messages: u32,
    /// Of the packets.
    pub(crate) bytes: usize,
    /// Bytes of the messages' templates, if they had any.
    pub(crate) template_bytes: u64,
}

impl Run {
    /// One without messages yet.
    pub(crate) fn new(wire: Wire, share: Option<NonZeroU64>, share_key: Option<NonZeroU64>) -> Self {
        Self { wire, share, share_key, messages: 0, bytes: 0, template_bytes: 0 }
    }

    /// Whether a message on this way can be added.
    #[inline]
    pub(crate) fn goes_on(&self, wire: Wire, share: Option<NonZeroU64>, share_key: Option<NonZeroU64>) -> bool {
        (self.wire, self.share, self.share_key) == (wire, share, share_key) && self.bytes < RUN_BYTES
    }

    /// A message more, whose packet of so many bytes follows the others.
    #[inline]
    pub(crate) fn add(&mut self, message: &PlainPublish<'_>, bytes: usize) {
        self.messages += 1;
        self.bytes += bytes;
        self.template_bytes += message.template_len() as u64;
    }

    /// What share groups have booked for it.
    pub(crate) fn booked(&self) -> Booked {
        match self.share {
            Some(_) => Booked::plain(self.messages, self.template_bytes),
            None => Booked::NOTHING,
        }
    }

    /// Its messages, one by one: `packets` are its own.
    pub(super) fn deliveries(self, mut packets: &[u8]) -> impl Iterator<Item = Delivery> {
        let mut block = BytesMut::new();
        std::iter::from_fn(move || {
            let (message, rest) = PlainPublish::split_first(self.wire.version, packets)?;
            packets = rest;
            let delivery = Delivery::new(message.template(&mut block), QoS::AtMostOnce, false);
            Some(Delivery { share: self.share, share_key: self.share_key, ..delivery })
        })
    }

    /// Memory that it stands for in a queue, in bytes.
    pub(super) fn queued_bytes(&self) -> usize {
        self.bytes + size_of::<Numbered>()
    }
}

/// A FIFO of runs.
#[derive(Debug, Default)]
pub(super) struct Runs {
    runs: VecDeque<Numbered>,
    /// The packets of all of them, from `read` on.
    packets: Vec<u8>,
    read: usize,
    messages: usize,
    /// What they stand for in the queue.
    bytes: usize,
}

/// The number is that of the run's first message; the others have those that follow.
#[derive(Debug)]
struct Numbered {
    number: u64,
    run: Run,
}

impl Runs {
    pub(super) fn messages(&self) -> usize {
        self.messages
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn front_number(&self) -> Option<u64> {
        self.runs.front().map(|front| front.number)
    }

    /// The share groups that messages are here for, and how many each time.
    pub(super) fn shares(&self) -> impl Iterator<Item = (NonZeroU64, usize)> {
        self.runs.iter().filter_map(|Numbered { run, .. }| Some((run.share?, run.messages as usize)))
    }

    pub(super) fn push_back(&mut self, number: u64, run: Run, packets: &[u8]) {
        debug_assert_eq!(run.bytes, packets.len(), "a run has its packets");
        if self.packets.capacity() == 0 {
            self.packets = SPARES.with(Spares::take).unwrap_or_default();
        }
        self.messages += run.messages as usize;
        self.bytes += run.queued_bytes();
        self.packets.extend_from_slice(packets);
        self.runs.push_back(Numbered { number, run });
    }

    /// Takes the front out, and appends its packets to `packets`.
    pub(super) fn take_front(&mut self, packets: &mut Vec<u8>) -> Option<Run> {
        let run = self.runs.pop_front()?.run;
        if self.runs.is_empty() && self.read == 0 && packets.is_empty() {
            std::mem::swap(packets, &mut self.packets);
        } else {
            packets.extend_from_slice(&self.packets[self.read..self.read + run.bytes]);
            self.read += run.bytes;
        }
        self.gone(run);
        Some(run)
    }

    /// Drops the oldest message; whether there was one.
    pub(super) fn drop_front(&mut self, dropped: &mut Dropped) -> bool {
        let Some(front) = self.runs.front_mut() else { return false };
        let packets = &self.packets[self.read..];
        let Some((message, rest)) = PlainPublish::split_first(front.run.wire.version, packets) else {
            return false; // not with packets of our own
        };
        let mut first = Run::new(front.run.wire, front.run.share, front.run.share_key);
        first.add(&message, packets.len() - rest.len());
        dropped.add_run(&first);
        self.read += first.bytes;
        if front.run.messages == 1 {
            let run = front.run;
            self.runs.pop_front();
            self.gone(run);
        } else {
            front.number += 1;
            front.run.messages -= 1;
            front.run.bytes -= first.bytes;
            front.run.template_bytes -= first.template_bytes;
            self.messages -= 1;
            self.bytes -= first.bytes;
            self.compact();
        }
        true
    }

    /// Takes everything out, as single messages with their numbers.
    pub(super) fn take_single(&mut self) -> Vec<(u64, Delivery)> {
        let Self { runs, packets, read, .. } = std::mem::take(self);
        let mut packets = &packets[read..];
        let mut single = Vec::new();
        for Numbered { number, run } in runs {
            let (own, rest) = packets.split_at(run.bytes);
            packets = rest;
            single.extend((number..).zip(run.deliveries(own)));
        }
        single
    }

    /// Drops the runs that no share group has sent.
    pub(super) fn drop_unshared(&mut self, dropped: &mut Dropped) {
        let Self { runs, packets, read, .. } = std::mem::take(self);
        let mut packets = &packets[read..];
        for Numbered { number, run } in runs {
            let (own, rest) = packets.split_at(run.bytes);
            packets = rest;
            match run.share {
                Some(_) => self.push_back(number, run, own),
                None => dropped.add_run(&run),
            }
        }
    }

    /// Forgets everything, and counts it among what is `dropped`.
    pub(super) fn clear(&mut self, dropped: &mut Dropped) {
        for Numbered { run, .. } in std::mem::take(self).runs {
            dropped.add_run(&run);
        }
    }

    /// A run has left, and its packets are behind `read` or elsewhere.
    fn gone(&mut self, run: Run) {
        self.messages -= run.messages as usize;
        self.bytes -= run.queued_bytes();
        self.compact();
    }

    /// Gives memory back that holds nothing any more.
    fn compact(&mut self) {
        if self.runs.is_empty() {
            self.packets.clear();
            self.read = 0;
            if self.packets.capacity() > KEPT_BYTES {
                let burst = std::mem::take(&mut self.packets);
                if burst.capacity() <= SPARE_BYTES_MAX {
                    SPARES.with(|spares| spares.give(burst));
                }
            }
            if self.runs.capacity() > KEPT_RUNS {
                self.runs = VecDeque::new();
            }
        } else if self.read >= COMPACT_FROM && self.read >= self.packets.len() / 2 {
            self.packets.drain(..self.read);
            self.read = 0;
        }
    }
}

thread_local! {
    /// Empty queues' memory for packets.
    static SPARES: Spares<Vec<u8>> = const { Spares::new() };
}

/// Bytes from which a run takes no more messages: what one receiver is sent at once has a bound.
const RUN_BYTES: usize = 16 * 1024;
/// Bytes that a spare has at most.
const SPARE_BYTES_MAX: usize = 128 * 1024;
/// Bytes of memory that an empty queue keeps.
const KEPT_BYTES: usize = 1024;
/// Places for runs that it keeps.
const KEPT_RUNS: usize = 32;
/// Bytes that have been read and still lie before the others.
const COMPACT_FROM: usize = 64 * 1024;
