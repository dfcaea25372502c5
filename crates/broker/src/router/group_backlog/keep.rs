//! How a message begins to wait: at the end of the backlog or at its front, in memory or on disk.

use std::time::Instant;

use tenbin_session::Delivery;

use super::super::share_group::{GroupQueues, SharedGroup};
use super::{Queued, Refused, shares};
use crate::durable::{Location, Sequence};
use crate::values::{Bound, Moment};

impl SharedGroup {
    /// Counts a message that the group refuses because its backlog is at the limit.
    #[cold]
    pub(in crate::router) fn refuse(&self) {
        self.refuse_by(&self.backlog.lock(), Instant::now());
    }

    /// As [`SharedGroup::refuse`], under the lock.
    #[cold]
    pub(super) fn refuse_by(&self, queued: &Queued, now: Instant) {
        let Queued { queue, spill, .. } = queued;
        let GroupQueues { limits, metrics, concerns, .. } = &*self.queues;
        let is_stored = self.stored().is_some();
        let bound = match self.has_failures(queued) {
            true if is_stored => Bound::StoredQueueBytes,
            true => Bound::QueueMessages,
            false => limits.full_bound(queue.usage(), [&spill.entries], is_stored),
        };
        metrics.refused_over_quota.add(1);
        metrics.bounds.hit(bound, 1, now);
        concerns.refused_by(|| self.full_name(), bound);
    }

    /// Puts a message at the end of the backlog, if it may wait. Returns it if there is no room.
    ///
    /// `is_late`: it was not appended with its batch.
    pub(super) fn keep(
        &self,
        queued: &mut Queued,
        delivery: Delivery,
        is_late: bool,
        batch: &mut Refused,
        now: Moment,
    ) -> Option<Delivery> {
        let mut delivery = self.may_wait(delivery)?;
        let bytes = delivery.queued_bytes();
        if is_late || !batch.late.is_empty() {
            self.keep_in_order(&mut delivery, is_late, batch);
        }
        let GroupQueues { limits, budget, metrics, .. } = &*self.queues;
        match delivery.location() {
            Some(Location::Group(_)) if queued.queue.is_short() && !queued.spill.holds_back() => {
                queued.append(delivery.detach());
            }
            Some(Location::Group(sequence)) => queued.spill.add(Sequence(sequence), &delivery),
            // Messages on disk would come after it.
            _ if !queued.spill.entries.is_empty() => return Some(delivery),
            _ => {
                if !queued.queue.fits(&delivery, limits, budget) {
                    if !self.dooms_expired() {
                        metrics.dropped_expired.add(queued.queue.drop_expired(now.at));
                    }
                    let limits = match self.has_share(queued, batch.publisher) {
                        true => &shares::widened_limits(limits),
                        false => limits,
                    };
                    if !queued.queue.fits(&delivery, limits, budget) {
                        return Some(delivery);
                    }
                }
                queued.append(delivery.detach());
            }
        }
        self.count_share(queued, batch.publisher, bytes);
        None
    }

    /// Gives the entries of a batch the order of its messages. A late entry is above those of later messages, which were
    /// appended before: these move behind it.
    #[cold]
    fn keep_in_order(&self, delivery: &mut Delivery, is_late: bool, batch: &mut Refused) {
        let Some(Location::Group(entry)) = delivery.location() else { return };
        let entry = Sequence(entry);
        match batch.late.iter_mut().find(|(group, _)| *group == self.number()) {
            None if is_late => batch.late.push((self.number(), entry)),
            Some((_, last)) if is_late => *last = entry.max(*last),
            Some((_, last)) if entry < *last => {
                let queue = self.queues.durable.as_ref().zip(self.stored());
                if let Some(moved) = queue.and_then(|(durable, queue)| durable.move_to_end(&queue, entry)) {
                    *last = moved;
                    delivery.stored = Some(Location::Group(moved.0).to_stored());
                }
            }
            _ => {}
        }
    }

    /// Puts a message at the front of the backlog, if it may wait. No limit applies: members' queues bound the number of
    /// such messages.
    pub(super) fn keep_first(&self, queued: &mut Queued, delivery: Delivery) {
        if let Some(delivery) = self.may_wait(delivery) {
            let delivery = if delivery.stored.is_none() { delivery.detach() } else { delivery };
            queued.queue.push_front(delivery);
        }
    }

    /// Converts a message to the form in which it waits. Returns `None` for QoS 0, which is dropped.
    pub(super) fn may_wait(&self, delivery: Delivery) -> Option<Delivery> {
        let delivery = delivery.as_published();
        if delivery.qos.is_acknowledged() {
            return Some(self.kept(delivery));
        }
        self.drop_unacknowledged();
        None
    }
}
