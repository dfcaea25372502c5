//! QoS 0 messages queued as ready-made packets: a run of many costs little more than one message.

use std::collections::VecDeque;
use std::num::NonZeroU64;

use bytes::BytesMut;
use tenbin_codec::{PlainPublish, ProtocolVersion, QoS};
use tenbin_session::Delivery;

use super::Booked;
use super::buffer_pool::BufferPool;
use super::head::Dropped;

/// A connection that takes ready-made packets, and the format for it; valid as long as the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wire {
    /// Number of the connection in its outbox.
    pub(crate) connection: u32,
    pub(crate) version: ProtocolVersion,
}

/// Consecutive packets of one publisher and, if a share group chose this receiver for them, of one group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    pub(crate) wire: Wire,
    /// Like [`Delivery::share`] and [`Delivery::share_key`]. QoS 0 messages never pin a key, so messages need no
    /// handling one by one.
    pub(crate) share: Option<NonZeroU64>,
    pub(crate) share_key: Option<NonZeroU64>,
    pub(crate) messages: u32,
    /// Total length of the packets.
    pub(crate) bytes: usize,
    /// Bytes that the messages' templates would have.
    pub(crate) template_bytes: u64,
}

impl Run {
    /// An empty run.
    pub(crate) fn new(wire: Wire, share: Option<NonZeroU64>, share_key: Option<NonZeroU64>) -> Self {
        Self { wire, share, share_key, messages: 0, bytes: 0, template_bytes: 0 }
    }

    /// Whether the run can take another message for this connection and group.
    #[inline]
    pub(crate) fn goes_on(&self, wire: Wire, share: Option<NonZeroU64>, share_key: Option<NonZeroU64>) -> bool {
        (self.wire, self.share, self.share_key) == (wire, share, share_key) && self.bytes < RUN_BYTES
    }

    /// Counts another message, whose packet of `bytes` follows the others.
    #[inline]
    pub(crate) fn add(&mut self, message: &PlainPublish<'_>, bytes: usize) {
        self.messages += 1;
        self.bytes += bytes;
        self.template_bytes += message.template_len() as u64;
    }

    /// Bookings of share groups for this run.
    pub(crate) fn booked(&self) -> Booked {
        match self.share {
            Some(_) => Booked::plain(self.messages, self.template_bytes),
            None => Booked::NOTHING,
        }
    }

    /// Decodes the messages one by one from the run's `packets`.
    pub(crate) fn deliveries(self, mut packets: &[u8]) -> impl Iterator<Item = Delivery> {
        let mut block = BytesMut::new();
        std::iter::from_fn(move || {
            let (message, rest) = PlainPublish::split_first(self.wire.version, packets)?;
            packets = rest;
            let delivery = Delivery::new(message.template(&mut block), QoS::AtMostOnce, false);
            Some(Delivery { share: self.share, share_key: self.share_key, ..delivery })
        })
    }

    /// Bytes that the run counts in a queue.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.bytes + size_of::<Numbered>()
    }
}

/// A FIFO of runs.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    runs: VecDeque<Numbered>,
    /// Packets of all runs, starting at `read`.
    packets: Vec<u8>,
    read: usize,
    messages: usize,
    /// Bytes that the runs count in the queue.
    bytes: usize,
}

/// A run with the number of its first message; the others follow consecutively.
#[derive(Debug)]
struct Numbered {
    number: u64,
    run: Run,
}

impl Runs {
    pub(crate) fn messages(&self) -> usize {
        self.messages
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn front_number(&self) -> Option<u64> {
        self.runs.front().map(|front| front.number)
    }

    /// Share groups of the queued messages, with message counts; a group may occur more than once.
    pub(crate) fn shares(&self) -> impl Iterator<Item = (NonZeroU64, usize)> {
        self.runs.iter().filter_map(|Numbered { run, .. }| Some((run.share?, run.messages as usize)))
    }

    pub(crate) fn push_back(&mut self, number: u64, run: Run, packets: &[u8]) {
        debug_assert_eq!(run.bytes, packets.len(), "a run has its packets");
        if self.packets.capacity() == 0 {
            self.packets = POOL.with(BufferPool::take).unwrap_or_default();
        }
        self.messages += run.messages as usize;
        self.bytes += run.queued_bytes();
        self.packets.extend_from_slice(packets);
        self.runs.push_back(Numbered { number, run });
    }

    /// Takes the front run and appends its packets to `packets`.
    pub(crate) fn take_front(&mut self, packets: &mut Vec<u8>) -> Option<Run> {
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

    /// Drops the oldest message; returns whether there was one.
    pub(crate) fn drop_front(&mut self, dropped: &mut Dropped) -> bool {
        let Some(front) = self.runs.front_mut() else { return false };
        let packets = &self.packets[self.read..];
        let Some((message, rest)) = PlainPublish::split_first(front.run.wire.version, packets) else {
            return false; // impossible: packets are our own
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

    /// Takes all runs as single messages with their numbers.
    pub(crate) fn take_single(&mut self) -> Vec<(u64, Delivery)> {
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

    /// Drops the runs without a share group.
    pub(crate) fn drop_unshared(&mut self, dropped: &mut Dropped) {
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

    /// Drops all runs and counts them in `dropped`.
    pub(crate) fn clear(&mut self, dropped: &mut Dropped) {
        for Numbered { run, .. } in std::mem::take(self).runs {
            dropped.add_run(&run);
        }
    }

    /// Updates the totals for a removed run, whose packets lie before `read` or were moved away.
    fn gone(&mut self, run: Run) {
        self.messages -= run.messages as usize;
        self.bytes -= run.queued_bytes();
        self.compact();
    }

    /// Frees or reuses memory that holds no packets any more.
    fn compact(&mut self) {
        if self.runs.is_empty() {
            self.packets.clear();
            self.read = 0;
            if self.packets.capacity() > KEPT_BYTES {
                let burst = std::mem::take(&mut self.packets);
                if burst.capacity() <= SPARE_BYTES_MAX {
                    POOL.with(|buffers| buffers.give(burst));
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
    /// Pool of empty queues' packet buffers.
    static POOL: BufferPool<Vec<u8>> = const { BufferPool::new() };
}

/// Bytes from which on a run takes no more messages; bounds a single write to a receiver.
const RUN_BYTES: usize = 16 * 1024;
/// Maximum size of a pooled buffer, in bytes.
const SPARE_BYTES_MAX: usize = 128 * 1024;
/// Bytes of memory that an empty queue keeps.
const KEPT_BYTES: usize = 1024;
/// Capacity for runs that an empty queue keeps.
const KEPT_RUNS: usize = 32;
/// Bytes of read packets before the unread ones from which on these move to the front.
const COMPACT_FROM: usize = 64 * 1024;
