use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHashMap;
use tenbin_codec::PlainPublish;
use tenbin_session::Delivery;

use crate::outbox::{Batch, Outbox, Pressure, Wire};

/// The deliveries of one batch, grouped by receiver, so that each receiver is locked and woken once.
#[derive(Debug, Default)]
pub(super) struct Fanout {
    /// The first `used` belong to this batch; the others keep their memory for the next.
    parts: Vec<Part>,
    used: usize,
    /// The place in `parts` behind the one that was found last.
    next: usize,
    /// Address of the outbox to place in `parts`; the part keeps the outbox alive.
    places: FxHashMap<usize, usize>,
    waiting: usize,
    /// Single messages of share groups are among what waits.
    holds_of_groups: bool,
    /// Departures of members of keyed groups as they were before messages of these were added.
    departures: Vec<(NonZeroU64, u64)>,
    /// Some receiver has lagged since the last [`Fanout::take_pressure`].
    pressure: bool,
    /// What members of share groups could not take, and their numbers.
    returned: Vec<(u64, Delivery)>,
}

/// What one receiver gets.
#[derive(Debug)]
struct Part {
    /// The receiver's.
    number: u64,
    /// The receiver's connection when it was first chosen.
    connection: u32,
    outbox: Option<Arc<Outbox>>,
    batch: Batch,
}

impl Fanout {
    #[inline]
    pub(super) fn add(&mut self, number: u64, outbox: &Arc<Outbox>, delivery: Delivery, now: Instant) {
        self.holds_of_groups |= delivery.share.is_some();
        self.batch_for(number, outbox).add(delivery);
        self.added(now);
    }

    /// A message as the packet that the receiver gets, for a share group or none.
    #[inline]
    pub(super) fn add_plain(
        &mut self,
        (number, outbox, wire): (u64, &Arc<Outbox>, Wire),
        (share, share_key): (Option<NonZeroU64>, Option<NonZeroU64>),
        message: &PlainPublish<'_>,
        now: Instant,
    ) {
        self.batch_for(number, outbox).add_plain(wire, share, share_key, message);
        self.added(now);
    }

    #[inline]
    fn batch_for(&mut self, number: u64, outbox: &Arc<Outbox>) -> &mut Batch {
        // Whether to all or in turn: mostly the receivers come in the same order again.
        let next = if self.next < self.used { self.next } else { 0 };
        let is_next = |part: &Part| part.outbox.as_ref().is_some_and(|other| Arc::ptr_eq(other, outbox));
        let place = match self.parts.get(next) {
            Some(part) if is_next(part) => next,
            _ => self.find(number, outbox),
        };
        self.next = place + 1;
        &mut self.parts[place].batch
    }

    fn find(&mut self, number: u64, outbox: &Arc<Outbox>) -> usize {
        let place = *self.places.entry(Arc::as_ptr(outbox).addr()).or_insert(self.used);
        if place == self.used {
            let (connection, outbox) = (outbox.connection(), Some(Arc::clone(outbox)));
            match self.parts.get_mut(place) {
                Some(part) => (part.number, part.connection, part.outbox) = (number, connection, outbox),
                None => self.parts.push(Part { number, connection, outbox, batch: Batch::default() }),
            }
            self.used += 1;
        }
        place
    }

    #[inline]
    fn added(&mut self, now: Instant) {
        self.waiting += 1;
        if self.waiting >= BATCH_MAX {
            self.flush(now);
        }
    }

    /// Hands everything over.
    pub(super) fn flush(&mut self, now: Instant) {
        let mut returned = Vec::new();
        for Part { number, connection, outbox, batch } in &mut self.parts[..self.used] {
            if let Some(outbox) = outbox.take() {
                self.pressure |= outbox.push_batch(batch, *connection, &mut returned, now) == Pressure::Lags;
                batch.shrink(KEPT_BYTES / self.used);
                self.returned.extend(returned.drain(..).map(|delivery| (*number, delivery)));
            }
        }
        self.parts.truncate(KEPT);
        self.used = 0;
        self.next = 0;
        self.places.clear();
        self.waiting = 0;
        self.holds_of_groups = false;
        self.departures.clear();
    }

    /// A message of this group was added, whose member was picked after so many departures.
    pub(super) fn picked_at(&mut self, group: NonZeroU64, departures: u64) {
        if !self.departures.iter().any(|&(other, _)| other == group) {
            self.departures.push((group, departures));
        }
    }

    /// Whether a member of this group has departed since messages of it were added.
    pub(super) fn has_missed(&self, group: NonZeroU64, departures: u64) -> bool {
        self.departures.iter().any(|&(other, since)| other == group && since != departures)
    }

    /// Whether what waits may hold messages of a share group that have to keep their order there.
    pub(super) fn holds_of_groups(&self) -> bool {
        self.holds_of_groups
    }

    /// Whether anything has to go to other members of its share groups.
    #[inline]
    pub(super) fn has_returned(&self) -> bool {
        !self.returned.is_empty()
    }

    /// What has to, and the numbers of the members that had been chosen.
    pub(super) fn take_returned(&mut self) -> Vec<(u64, Delivery)> {
        std::mem::take(&mut self.returned)
    }

    /// Whether a receiver lagged, asked once per batch.
    pub(super) fn take_pressure(&mut self) -> bool {
        std::mem::take(&mut self.pressure)
    }
}

/// Deliveries that are held back at most.
const BATCH_MAX: usize = 2048;
/// Bytes that all batches together keep place for.
const KEPT_BYTES: usize = 1 << 20;
/// Receivers' batches whose memory is kept.
const KEPT: usize = 64;
