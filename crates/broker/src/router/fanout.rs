use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHashMap;
use tenbin_session::Delivery;

use crate::outbox::{Outbox, Pressure};

/// The deliveries of one batch, grouped by receiver, so that each receiver is locked and woken once.
#[derive(Debug, Default)]
pub(super) struct Fanout {
    /// The first `used` belong to this batch; the others keep their memory for the next.
    batches: Vec<Batch>,
    used: usize,
    /// Address of the outbox to position in `batches`; the batch keeps the outbox alive.
    positions: FxHashMap<usize, usize>,
    waiting: usize,
    /// Some receiver has lagged since the last [`Fanout::take_pressure`].
    pressure: bool,
    /// What members of share groups could not take, and their numbers.
    returned: Vec<(u64, Delivery)>,
}

#[derive(Debug)]
struct Batch {
    /// The receiver's.
    number: u64,
    outbox: Option<Arc<Outbox>>,
    deliveries: Vec<Delivery>,
}

impl Fanout {
    #[inline]
    pub(super) fn add(&mut self, number: u64, outbox: &Arc<Outbox>, delivery: Delivery, now: Instant) {
        let position = *self.positions.entry(Arc::as_ptr(outbox).addr()).or_insert(self.used);
        if position == self.used {
            match self.batches.get_mut(position) {
                Some(batch) => (batch.number, batch.outbox) = (number, Some(Arc::clone(outbox))),
                None => self.batches.push(Batch { number, outbox: Some(Arc::clone(outbox)), deliveries: Vec::new() }),
            }
            self.used += 1;
        }
        self.batches[position].deliveries.push(delivery);
        self.waiting += 1;
        if self.waiting >= BATCH_MAX {
            self.flush(now);
        }
    }

    /// Hands everything over.
    pub(super) fn flush(&mut self, now: Instant) {
        let mut returned = Vec::new();
        for batch in &mut self.batches[..self.used] {
            if let Some(outbox) = batch.outbox.take() {
                self.pressure |= outbox.push(&mut batch.deliveries, &mut returned, now) == Pressure::Lags;
                self.returned.extend(returned.drain(..).map(|delivery| (batch.number, delivery)));
            }
        }
        self.batches.truncate(KEPT);
        self.used = 0;
        self.positions.clear();
        self.waiting = 0;
    }
}

impl Fanout {
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
/// Batches whose memory is kept.
const KEPT: usize = 64;
