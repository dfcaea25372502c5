//! One direction between two machines, which passes, holds or drops each frame. It reads no clock and no socket.

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::bucket::Bucket;
use super::frame;
use super::rng::Rng;
use super::shape::Shape;

/// Bytes that a link holds at most, however long its delay: 200 ms of 10 Gbit/s.
const MOST_HELD: u64 = 256 << 20;

/// Counters of one link since its machines exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Packets that the link passed on, copies included.
    pub packets: u64,
    /// Bytes that the link passed on, in whole Ethernet frames.
    pub bytes: u64,
    /// Packets dropped by `loss` or `partition`.
    pub lost: u64,
    /// Packets dropped because the queue of `rate`, or the receiver's own, was full.
    pub overflowed: u64,
    /// Additional copies made by `duplicate`.
    pub duplicated: u64,
    /// Packets with an inverted bit.
    pub corrupted: u64,
    /// Bytes that the link holds now.
    pub queued_bytes: u64,
}

/// Counters of one direction between two machines.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LinkCounters {
    /// Name of the sending machine.
    pub from: String,
    /// Name of the receiving machine.
    pub to: String,
    /// The counters.
    pub counters: Counters,
}

/// A fault that acts on a link until it is lifted or its time is over.
#[derive(Debug)]
struct Fault {
    id: u64,
    shape: Shape,
    until: Option<Duration>,
}

/// Where a frame goes that the link does not drop.
#[derive(Debug)]
pub(crate) enum Passage<'a> {
    /// On to the receiver at once.
    Now(&'a [u8]),
    /// Held until the given time.
    Held(Duration, Vec<u8>),
}

/// Faults, queue and counters of one direction between two machines.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) counters: Counters,
    faults: Vec<Fault>,
    shape: Shape,
    bucket: Option<Bucket>,
    /// Frames that are held, and the time of the last of them.
    held: u64,
    last_due: Duration,
    draws: Draws,
}

/// One generator for each kind of fault, so that faults do not shift each other's draws.
#[derive(Debug)]
struct Draws {
    loss: Rng,
    duplicate: Rng,
    corrupt: Rng,
    jitter: Rng,
}

impl Link {
    pub(crate) fn new(seed: u64, from: &str, to: &str) -> Self {
        let rng = |purpose| Rng::new(seed, from, to, purpose);
        let draws =
            Draws { loss: rng("loss"), duplicate: rng("duplicate"), corrupt: rng("corrupt"), jitter: rng("jitter") };
        Self {
            counters: Counters::default(),
            faults: Vec::new(),
            shape: Shape::default(),
            bucket: None,
            held: 0,
            last_due: Duration::ZERO,
            draws,
        }
    }

    /// Adds a fault until `until`, or until it is lifted. A fault with the same number is replaced.
    pub(crate) fn impair(&mut self, id: u64, shape: Shape, until: Option<Duration>) {
        self.faults.retain(|fault| fault.id != id);
        self.faults.push(Fault { id, shape, until });
        self.combine();
    }

    pub(crate) fn lift(&mut self, id: u64) {
        self.faults.retain(|fault| fault.id != id);
        self.combine();
    }

    /// Ends the faults whose time is over, and returns the next time at which one ends.
    pub(crate) fn expire(&mut self, now: Duration) -> Option<Duration> {
        let before = self.faults.len();
        self.faults.retain(|fault| fault.until.is_none_or(|until| until > now));
        if self.faults.len() < before {
            self.combine();
        }
        self.faults.iter().filter_map(|fault| fault.until).min()
    }

    fn combine(&mut self) {
        self.shape = self.faults.iter().fold(Shape::default(), |all, fault| all.and(&fault.shape));
        self.bucket = match (self.shape.rate, self.bucket.take()) {
            (Some(rate), Some(bucket)) => Some(bucket.with(rate)),
            (Some(rate), None) => Some(Bucket::new(rate)),
            (None, _) => None,
        };
    }

    /// Decides on a frame of the sender. `pass` returns false if the receiver's interface took no frame.
    pub(crate) fn offer(&mut self, now: Duration, frame: &[u8], mut pass: impl FnMut(Passage<'_>) -> bool) {
        if self.shape.partition {
            self.counters.lost += frame::packets(frame);
        } else if self.shape.needs_packets() {
            for packet in frame::split(frame) {
                self.offer_packet(now, packet, &mut pass);
            }
        } else {
            self.send(now, now, Cow::Borrowed(frame), &mut pass);
        }
    }

    fn offer_packet(&mut self, now: Duration, mut packet: Cow<'_, [u8]>, pass: &mut impl FnMut(Passage<'_>) -> bool) {
        if self.draws.loss.chance(self.shape.loss) {
            self.counters.lost += 1;
            return;
        }
        if self.draws.corrupt.chance(self.shape.corrupt) {
            let packet = packet.to_mut();
            // A receiver does not verify a checksum that the sender left to its card.
            frame::complete_checksum(packet);
            frame::invert_bit(packet, |bits| self.draws.corrupt.below(bits));
            self.counters.corrupted += 1;
        }
        let copy = self.draws.duplicate.chance(self.shape.duplicate).then(|| packet.clone());
        let duplicated = copy.is_some();
        for packet in [Some(packet), copy].into_iter().flatten() {
            let left = match &mut self.bucket {
                Some(bucket) => bucket.leaves(now, frame::wire_bytes(&packet)),
                None => Some(now),
            };
            match left {
                Some(left) => self.send(now, left, packet, pass),
                None => self.counters.overflowed += 1,
            }
        }
        self.counters.duplicated += u64::from(duplicated);
    }

    /// Sends a frame that left the queue at `left` on its way.
    fn send(
        &mut self,
        now: Duration,
        left: Duration,
        frame: Cow<'_, [u8]>,
        pass: &mut impl FnMut(Passage<'_>) -> bool,
    ) {
        let mut due = left.saturating_add(self.shape.delay);
        if !self.shape.jitter.is_zero() {
            let deviation = self.shape.jitter.mul_f64(2.0 * self.draws.jitter.unit());
            due = due.saturating_add(deviation).saturating_sub(self.shape.jitter).max(left);
        }
        if !self.shape.reorder {
            due = due.max(self.last_due);
        }
        if due <= now && self.held == 0 {
            let taken = pass(Passage::Now(&frame));
            self.count(&frame, taken);
            return;
        }
        let bytes = frame::wire_bytes(&frame);
        if self.counters.queued_bytes + bytes > MOST_HELD {
            self.counters.overflowed += frame::packets(&frame);
            return;
        }
        self.last_due = self.last_due.max(due);
        self.held += 1;
        self.counters.queued_bytes += bytes;
        pass(Passage::Held(due, frame.into_owned()));
    }

    /// Takes note that a held frame was offered to the receiver's interface, which took it or not.
    pub(crate) fn released(&mut self, frame: &[u8], taken: bool) {
        self.held -= 1;
        self.counters.queued_bytes -= frame::wire_bytes(frame);
        self.count(frame, taken);
    }

    fn count(&mut self, frame: &[u8], taken: bool) {
        let packets = frame::packets(frame);
        if taken {
            self.counters.packets += packets;
            self.counters.bytes += frame::wire_bytes(frame);
        } else {
            self.counters.overflowed += packets;
        }
    }
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
