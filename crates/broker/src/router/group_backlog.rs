//! The group backlog: messages of a share group that no member has, and messages in redelivery between members.
//!
//! ```text
//!   new messages ──► │ spill: on disk │ ──► │ queue: publishers take turns │ ──► a member with room
//!                                                                          ▲
//!                         messages taken back from a member: they come first
//! ```
//!
//! No message overtakes an earlier one of its publisher: while there is a backlog, new messages go behind it, and only
//! the holder of its lock gives messages to members. Publishers take turns, unless the group's rules keep the order of
//! arrival ([`FairBy`]). Messages whose key is pinned to a full member leave the backlog for a queue of that
//! member ([`PinnedKeys`]), so that messages of other keys can proceed.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tenbin_balancer::{Nanos, Rng};
use tenbin_codec::SharedFilter;
use tenbin_session::Delivery;

use super::choice::Source;
use super::held_key::ordering_key;
use super::share_group::{GroupQueues, Placed, SharedGroup, beginning};
use crate::backlog::{FailedRead, FairHead, NextPage, Refilled, Spill};
use crate::durable::{Durable, Location, Page, QueueId, Sequence};
use crate::memory::Account;
use crate::values::{FairBy, Moment};

mod hold;
mod order;
mod pinned;

pub(crate) use hold::HoldingGroup;

use hold::Hold;
use order::Order;
use pinned::PinnedKeys;

/// Messages of one batch that share groups refused, and entries that the batch got late.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// Numbers of the messages, see [`Delivery::message`].
    pub(super) messages: Vec<u32>,
    /// The groups, each with the ordering key of the refused message, if any.
    keys: Vec<(NonZeroU64, Option<u64>)>,
    /// Groups with messages that were not appended with the batch, each with the highest entry made since.
    late: Vec<(NonZeroU64, Sequence)>,
    /// Groups that hold the publisher's acknowledgements.
    pub(super) holding: Vec<HoldingGroup>,
}

/// Backlog of one share group.
#[derive(Debug, Default)]
pub(super) struct GroupBacklog {
    queued: Mutex<Queued>,
    /// True while new messages must queue behind the backlog.
    ///
    /// Written under the lock, release/acquire: a thread that reads `false` sees the former backlog's messages with
    /// their members, and the balancer's records of them.
    has_backlog: AtomicBool,
    /// Membership epoch: counts members that left or lost their messages. Raised before the messages are taken;
    /// release/acquire, as above.
    membership_epoch: AtomicU64,
    /// The backlog is at its limit, on disk or, without a disk, in memory. Written under the lock, read as a hint;
    /// relaxed.
    is_over_quota: AtomicBool,
    hold: Hold,
}

#[derive(Debug, Default)]
struct Queued {
    /// Filled by [`Queued::append`].
    queue: FairHead,
    /// The rule for the order of `queue`, and the order that it has.
    fair_by: FairBy,
    order: Order,
    /// Length of the backlog beyond which acknowledgements are held.
    hold_beyond: Option<Duration>,
    /// Messages that left the backlog because their keys are pinned to full members.
    pinned: PinnedKeys,
    /// The on-disk backlog, behind `queue`.
    spill: Spill,
    /// Redeliveries in progress. Their messages are older than the backlog, which therefore stays.
    redeliveries: usize,
    /// When the front of the backlog last found no member.
    refused_at: Option<Nanos>,
    /// When no member took the front of a full backlog, though it need not have begun with it.
    full_at: Option<Nanos>,
}

impl GroupBacklog {
    pub(super) fn new(fair_by: FairBy, hold_beyond: Option<Duration>) -> Self {
        Self { queued: Mutex::new(Queued { fair_by, hold_beyond, ..Queued::default() }), ..Self::default() }
    }

    /// Returns whether new messages must queue behind earlier ones.
    #[inline]
    pub(super) fn has_backlog(&self) -> bool {
        self.has_backlog.load(Ordering::Acquire)
    }

    /// Announces messages that may have to wait, before the caller looks for a member. A member that can begin with a
    /// message afterwards sees the announcement, or the caller sees that it can ([`SharedGroup::may_begin`]).
    fn announce(&self) {
        self.has_backlog.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Returns whether the backlog is at its limit.
    #[inline]
    pub(super) fn is_over_quota(&self) -> bool {
        self.is_over_quota.load(Ordering::Relaxed)
    }

    /// Returns the membership epoch, which changes when a member departs.
    ///
    /// Messages chosen for that member before, and not in its queue yet, come back; later ones must not overtake them.
    #[inline]
    pub(super) fn membership_epoch(&self) -> u64 {
        self.membership_epoch.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, Queued> {
        self.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queued {
    fn len(&self) -> usize {
        self.queue.len() + self.pinned.len() + self.spill.entries.messages()
    }

    /// Returns whether it is too early to offer the backlog to all members again.
    fn was_refused_lately(&self, now: Nanos) -> bool {
        let is_any = !self.queue.is_empty() || !self.pinned.is_empty();
        is_any && is_lately(self.refused_at, now)
    }

    /// Returns whether new messages of all keys must queue.
    fn holds_up_all(&self) -> bool {
        self.redeliveries > 0 || !self.queue.is_empty() || !self.spill.entries.is_empty()
    }

    /// Returns whether new messages of at least one key must queue.
    fn exists(&self) -> bool {
        self.holds_up_all() || !self.pinned.is_empty()
    }
}

impl SharedGroup {
    /// Returns the number of messages in the backlog.
    pub(super) fn waiting(&self) -> usize {
        self.backlog.lock().len()
    }

    /// Restores the backlog of the last run, and returns its queue.
    pub(super) fn restore_waiting(&self, durable: &Durable) -> Option<QueueId> {
        let queue = self.stored()?;
        let waiting = durable.waiting_entries(&queue);
        self.change_queued(|queued| queued.spill.entries = waiting.into());
        Some(queue.id())
    }

    /// Drops expired messages, then returns whether the backlog is still at its limit.
    #[cold]
    pub(super) fn is_still_over_quota(&self, now: Instant) -> bool {
        let expired = self.change_queued(|queued| {
            queued.queue.drop_expired(now) + queued.pinned.drop_expired(now, &self.queues.budget)
        });
        self.queues.metrics.dropped_expired.add(expired);
        self.backlog.is_over_quota()
    }

    /// Counts a message that the group refuses because its backlog is at the limit.
    #[cold]
    pub(super) fn refuse(&self) {
        self.queues.metrics.refused_over_quota.add(1);
    }

    /// Gives new messages to members, or adds them to the backlog until a member has room. QoS 0 messages do not wait.
    ///
    /// The deliveries must be as published, since the member that gets them applies its own terms. They are newer than
    /// the backlog.
    ///
    /// A QoS 1 or 2 message without room goes to `refused`, and so do the later ones of its key (or without key): a
    /// smaller one must not overtake it.
    pub(super) fn wait(
        self: &Arc<Self>,
        deliveries: impl Iterator<Item = Delivery>,
        now: Moment,
        refused: &mut Refused,
        rng: &mut Rng,
    ) {
        let goes_on = self.change_queued(|queued| {
            self.backlog.announce();
            // A member that gets room calls `dispatch_waiting`. This attempt is for members that had room all the time.
            // It is not made for each message, because asking all members in vain is expensive.
            let had_some = !queued.queue.is_empty();
            let goes_on = !queued.was_refused_lately(now.nanos) && self.dispatch_some(queued, now, rng);
            for delivery in deliveries {
                let key = (self.number(), ordering_key(delivery.share_key));
                let is_acknowledged = delivery.published_qos.is_acknowledged();
                let is_late = delivery.stored.is_none();
                let is_behind = is_acknowledged && refused.keys.contains(&key);
                let left = if is_behind || self.lacks_disk_room(&delivery) {
                    Some(delivery)
                } else if queued.holds_up_all() && is_acknowledged {
                    self.keep(queued, delivery, is_late, refused, now)
                } else {
                    let left = self.place_or_block(queued, delivery, now, rng);
                    left.and_then(|delivery| self.keep(queued, delivery, is_late, refused, now))
                };
                if let Some(delivery) = left {
                    if !is_behind {
                        refused.keys.push(key);
                    }
                    self.done(delivery.stored);
                    self.refuse();
                    refused.messages.push(delivery.message);
                }
                while self.is_full(queued) && self.give_oldest(queued, now, rng) {}
            }
            // The caller that takes the last message in memory starts the read of the next page.
            let is_next = had_some || queued.spill.refill.is_due(now.at);
            goes_on || is_next && queued.queue.is_empty() && !queued.spill.entries.is_empty()
        });
        if goes_on {
            self.dispatch_waiting(now, rng);
        }
        self.hold_acknowledgements(&mut refused.holding);
    }

    /// Redelivers messages of a member, which are older than the backlog. Messages that no member takes go to its
    /// front.
    ///
    /// The limits do not apply: the publishers already have their acknowledgements.
    pub(super) fn give_to_others(&self, deliveries: impl Iterator<Item = Delivery>, now: Moment, rng: &mut Rng) {
        self.change_queued(|queued| {
            let mut left = Vec::new();
            for delivery in deliveries {
                // No message may overtake one that has to stay.
                let may_go = left.is_empty() || !delivery.published_qos.is_acknowledged();
                if !may_go {
                    left.push(delivery);
                } else if let Placed::Nobody(delivery) | Placed::Kept(_, delivery) =
                    self.place(delivery, Source::Client, now, rng)
                {
                    left.push(delivery);
                }
            }
            for delivery in left.into_iter().rev() {
                self.keep_first(queued, delivery);
            }
        });
    }

    /// Gives the backlog to connected members, as far as they have room. Call it when a member connects, joins, or has
    /// room again.
    pub(super) fn dispatch_waiting(self: &Arc<Self>, now: Moment, rng: &mut Rng) {
        self.dispatch(now, rng);
        self.read_on(now.at);
    }

    /// Gives the backlog to members, if there is one. Call it when a member has fewer messages outstanding.
    pub(super) fn may_begin(self: &Arc<Self>, now: Moment, rng: &mut Rng) {
        fence(Ordering::SeqCst); // see `announce`
        if self.backlog.has_backlog() {
            self.dispatch_waiting(now, rng);
        }
    }

    fn dispatch(&self, now: Moment, rng: &mut Rng) {
        while self.change_queued(|queued| self.dispatch_some(queued, now, rng)) {}
    }

    /// Starts the read of the next page of the on-disk backlog, if memory holds no earlier messages.
    fn read_on(self: &Arc<Self>, now: Instant) {
        let Some((durable, queue)) = self.queues.durable.as_ref().zip(self.stored()) else { return };
        let page = self.change_queued(|queued| {
            let is_next = queued.queue.is_empty() && queued.redeliveries == 0;
            if is_next { queued.spill.next_page(&queue, PAGE_BYTES, now) } else { NextPage::None }
        });
        let NextPage::Read(page) = page else { return };
        // The group may end during the read.
        let group = Arc::downgrade(self);
        durable.reader.page_for(page, move |page| {
            if let Some(group) = group.upgrade() {
                group.take_page(page);
            }
        });
    }

    /// Gives a page that was read to the members, on the reading thread.
    ///
    /// That takes no longer than a publisher's batch of as many messages. Pages that other readers wait for come before
    /// this group's next one.
    fn take_page(self: &Arc<Self>, page: Page) {
        let now = self.queues.clock.moment(Instant::now());
        let is_broken = page.is_broken;
        let refilled = self.change_queued(|queued| {
            let mut read = Vec::new();
            let put = |delivery| read.push(Delivery { share: Some(self.number()), ..delivery });
            let refilled = queued.spill.refill(page, now.at, put);
            // Behind messages that members gave back meanwhile, which are older.
            read.into_iter().for_each(|delivery| queued.append(delivery));
            refilled
        });
        let Some(Refilled { done, failed }) = refilled else {
            // The read was cancelled, or there was a panic behind it.
            return if is_broken {
                self.read_on(now.at)
            };
        };
        if let Some(failed) = failed {
            self.read_failed(failed);
        }
        self.end_places(done);
        self.dispatch(now, &mut Rng::new(now.nanos.0));
        self.read_on(now.at);
    }

    /// Schedules another read after a failed one.
    #[cold]
    fn read_failed(self: &Arc<Self>, failed: FailedRead) {
        if failed.is_first {
            let SharedFilter { share_name, filter } = self.name();
            let (share_name, filter) = (beginning(share_name.text().as_str()), beginning(filter.text().as_str()));
            tracing::error!(share_name, filter, "messages of the share group cannot be read: they stay on disk");
        }
        self.queues.unread.add(self, failed.retry_at);
    }

    /// Repeats a failed read if its pause is over, even if no client publishes or connects.
    #[cold]
    pub(super) fn read_again(self: &Arc<Self>, now: Instant) {
        // From here on, the caller that takes the last message in memory may also start the read. Its clock reading may
        // be older than `now`.
        self.change_queued(|queued| queued.spill.refill.end_pause(now));
        self.read_on(now);
    }

    /// Removes the entries of expired messages, and counts them.
    fn end_places(&self, places: Vec<Sequence>) {
        let Some((durable, queue)) = self.queues.durable.as_ref().zip(self.stored()) else { return };
        self.queues.metrics.dropped_expired.add(places.len() as u64);
        durable.done(places.into_iter().map(|sequence| queue.at(sequence)));
    }

    /// Drops an expired message whose turn has come: no member would begin with it in time.
    fn expire(&self, delivery: &Delivery) {
        self.queues.metrics.dropped_expired.add(1);
        self.done(delivery.stored);
    }

    /// Discards the on-disk backlog and any page that is being read.
    pub(super) fn forget_tail(&self) {
        self.change_queued(|queued| queued.spill.clear());
    }

    /// Begins a redelivery of messages from a member. New messages wait until [`SharedGroup::end_redelivery`].
    pub(super) fn begin_redelivery(&self) {
        self.departs();
        self.change_queued(|queued| {
            self.backlog.announce();
            queued.redeliveries += 1;
            // The member may have older messages of their keys: those go first.
            queued.pinned.move_to_front_of(&mut queued.queue, &self.queues.budget);
        });
    }

    /// Advances the membership epoch: publishers that chose the departing member, and have not given it the message
    /// yet, choose again.
    pub(super) fn departs(&self) {
        self.backlog.membership_epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends a redelivery: all its messages are with other members or in the backlog.
    pub(super) fn end_redelivery(self: &Arc<Self>, now: Moment, rng: &mut Rng) {
        self.change_queued(|queued| queued.redeliveries -= 1);
        self.dispatch_waiting(now, rng);
    }

    /// Counts a QoS 0 message that no member takes now.
    pub(super) fn drop_unacknowledged(&self) {
        self.queues.metrics.dropped_offline.add(1);
    }

    /// Drops the backlog of a group that has ended.
    pub(super) fn drop_waiting(&self) {
        let dropped = self.change_queued(|queued| {
            queued.pinned.move_to_front_of(&mut queued.queue, &self.queues.budget);
            queued.queue.clear()
        });
        self.queues.metrics.dropped_offline.add(dropped);
    }

    /// Gives the oldest messages to members, and returns whether to continue. It is limited per call, since publishers
    /// wait for the lock.
    fn dispatch_some(&self, queued: &mut Queued, now: Moment, rng: &mut Rng) -> bool {
        if queued.redeliveries > 0 {
            return false;
        }
        self.dispatch_pinned(queued, now, rng);
        for _ in 0..DISPATCHED_AT_ONCE {
            let Some(delivery) = queued.queue.pop(&self.queues.budget) else { return false };
            if delivery.is_expired(now.at) {
                self.expire(&delivery);
            } else if let Some(delivery) = self.place_or_block(queued, delivery, now, rng) {
                queued.queue.put_back(delivery.as_published());
                queued.refused_at = Some(now.nanos);
                return false;
            }
        }
        true
    }

    /// Gives the oldest message to a member that cannot begin with it yet, because the backlog is full. Returns whether a
    /// member took it.
    #[cold]
    fn give_oldest(&self, queued: &mut Queued, now: Moment, rng: &mut Rng) -> bool {
        if queued.redeliveries > 0 || is_lately(queued.full_at, now.nanos) {
            return false;
        }
        let Some(delivery) = queued.queue.pop(&self.queues.budget) else { return false };
        let left = match self.place(delivery, Source::FullBacklog, now, rng) {
            Placed::Given => return true,
            Placed::Kept(_, delivery) | Placed::Nobody(delivery) => delivery,
        };
        queued.queue.put_back(left.as_published());
        queued.full_at = Some(now.nanos);
        false
    }

    /// Puts a message at the end of the backlog, if it may wait. Returns it if there is no room.
    ///
    /// `is_late`: it was not appended with its batch.
    fn keep(
        &self,
        queued: &mut Queued,
        delivery: Delivery,
        is_late: bool,
        batch: &mut Refused,
        now: Moment,
    ) -> Option<Delivery> {
        let mut delivery = self.may_wait(delivery)?;
        if is_late || !batch.late.is_empty() {
            self.keep_in_order(&mut delivery, is_late, batch);
        }
        let GroupQueues { limits, budget, metrics, .. } = &*self.queues;
        match Location::of(delivery.stored) {
            Location::Group(_) if queued.queue.is_short() && !queued.spill.holds_back() => {
                queued.append(delivery.detach());
            }
            Location::Group(sequence) => queued.spill.add(sequence, &delivery),
            // Messages on disk would come after it.
            _ if !queued.spill.entries.is_empty() => return Some(delivery),
            _ => {
                if !queued.queue.fits(&delivery, limits, budget) {
                    metrics.dropped_expired.add(queued.queue.drop_expired(now.at));
                    if !queued.queue.fits(&delivery, limits, budget) {
                        return Some(delivery);
                    }
                }
                queued.append(delivery.detach());
            }
        }
        None
    }

    /// Gives the entries of a batch the order of its messages. A late entry is above those of later messages, which were
    /// appended before: these move behind it.
    #[cold]
    fn keep_in_order(&self, delivery: &mut Delivery, is_late: bool, batch: &mut Refused) {
        let Location::Group(entry) = Location::of(delivery.stored) else { return };
        match batch.late.iter_mut().find(|(group, _)| *group == self.number()) {
            None if is_late => batch.late.push((self.number(), entry)),
            Some((_, last)) if is_late => *last = entry.max(*last),
            Some((_, last)) if entry < *last => {
                let queue = self.queues.durable.as_ref().zip(self.stored());
                if let Some(moved) = queue.and_then(|(durable, queue)| durable.move_to_end(&queue, entry)) {
                    *last = moved;
                    delivery.stored = Location::Group(moved).to_stored();
                }
            }
            _ => {}
        }
    }

    /// Puts a message at the front of the backlog, if it may wait. No limit applies: members' queues bound the number of
    /// such messages.
    fn keep_first(&self, queued: &mut Queued, delivery: Delivery) {
        if let Some(delivery) = self.may_wait(delivery) {
            let delivery = if delivery.stored.is_none() { delivery.detach() } else { delivery };
            queued.queue.push_front(delivery);
        }
    }

    /// Converts a message to the form in which it waits. Returns `None` for QoS 0, which is dropped.
    fn may_wait(&self, delivery: Delivery) -> Option<Delivery> {
        let delivery = delivery.as_published();
        if delivery.qos.is_acknowledged() {
            return Some(self.kept(delivery));
        }
        self.drop_unacknowledged();
        None
    }

    /// Charges the on-disk backlog to another account.
    pub(super) fn pays(&self, account: &Arc<Account>) {
        self.change_queued(|queued| queued.spill.entries.move_to(account));
    }

    /// Changes the backlog, and updates the budget of all queues. The lock keeps the order between concurrent
    /// dispatchers; only outbox locks are taken under it.
    fn change_queued<R>(&self, change: impl FnOnce(&mut Queued) -> R) -> R {
        let mut queued = self.backlog.lock();
        let result = change(&mut queued);
        queued.queue.settle(&self.queues.budget);
        self.backlog.has_backlog.store(queued.exists(), Ordering::Release);
        queued.spill.entries.charge_to(|| self.payer.load_full());
        self.backlog.is_over_quota.store(self.is_full(&queued), Ordering::Relaxed);
        self.update_hold(&queued);
        result
    }

    fn is_full(&self, Queued { queue, spill, .. }: &Queued) -> bool {
        let limits = &self.queues.limits;
        limits.disk_is_over(&spill.entries) || limits.memory_is_over(queue.usage()) && self.stored().is_none()
    }
}

/// Returns whether it is too early to ask all members again, after they took nothing at `refused_at`.
fn is_lately(refused_at: Option<Nanos>, now: Nanos) -> bool {
    refused_at.is_some_and(|at| now.0 < at.0.saturating_add(ASKED_AGAIN_NS))
}

/// Bytes of message bodies in one read.
const PAGE_BYTES: usize = 64 * 1024;
/// Messages given to members before the lock is released for publishers.
const DISPATCHED_AT_ONCE: usize = 256;
/// Nanoseconds before members that took nothing are asked again, unless one reports room.
const ASKED_AGAIN_NS: u64 = 1_000_000;

#[cfg(test)]
mod tests;
