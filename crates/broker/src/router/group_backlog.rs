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
use tenbin_session::Delivery;

use super::choice::Source;
use super::held_key::ordering_key;
use super::share_group::{GroupMember, Placed, SharedGroup};
use crate::backlog::{FairHead, Spill};
use crate::durable::{Durable, Ended, QueueId, Sequence};
use crate::memory::Account;
use crate::outbox::Outbox;
use crate::values::{FairBy, Moment};

mod ages;
mod dispatching;
mod hold;
mod keep;
mod order;
mod pages;
mod pinned;
mod retries;
mod shares;
pub(super) mod waiting;

pub(crate) use hold::HoldingGroup;

use ages::Ages;
use dispatching::is_lately;
use hold::Hold;
use order::Order;
use pinned::PinnedKeys;
use retries::Retries;
use shares::Shares;

/// Messages of one batch that share groups refused, and entries that the batch got late.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// Hash of the batch's publisher.
    publisher: u64,
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
    /// A publisher took a booking back, for which a message may have been refused. Relaxed: the publisher itself reads
    /// it next, under the lock.
    is_unbooked: AtomicBool,
    /// All members know that the group may have a backlog. Cleared when one joins or forgets it. Relaxed, with fences: see
    /// [`SharedGroup::announce`].
    members_know: AtomicBool,
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
    /// Messages that wait for their next delivery, beside the backlog. `None` = there was none so far.
    retries: Option<Box<Retries>>,
    /// Redeliveries in progress. Their messages are older than the backlog, which therefore stays.
    redeliveries: usize,
    /// When the front of the backlog last found no member.
    refused_at: Option<Nanos>,
    /// When no member took the front of a full backlog, though it need not have begun with it.
    full_at: Option<Nanos>,
    ages: Ages,
    /// Messages of the oldest mark that were dropped so far, as they had waited too long.
    overdue: usize,
    shares: Shares,
}

impl Refused {
    /// For a batch of this publisher.
    pub(super) fn of(publisher: u64) -> Self {
        Self { publisher, ..Self::default() }
    }
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

    /// Notes that a publisher took a booking back. It offers the backlog again when it adds its message.
    pub(super) fn unbooked(&self) {
        self.is_unbooked.store(true, Ordering::Relaxed);
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
        self.queue.len() + self.pinned.len() + self.spill.entries.messages() + self.waiting_retries()
    }

    fn retries(&mut self) -> &mut Retries {
        self.retries.get_or_insert_default()
    }

    fn waiting_retries(&self) -> usize {
        self.retries.as_ref().map_or(0, |retries| retries.len())
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
    pub(crate) fn waiting(&self) -> usize {
        self.backlog.lock().len()
    }

    /// Restores the backlog of the last run, and returns its queue.
    pub(super) fn restore_waiting(&self, durable: &Durable) -> Option<QueueId> {
        let queue = self.stored()?;
        let waiting = durable.waiting_entries(&queue);
        self.change_queued(|queued| {
            self.announce();
            queued.spill.entries = waiting.into();
        });
        Some(queue.id())
    }

    /// Drops expired messages and gives the oldest to members with room, then returns whether the backlog is still at its
    /// limit and has no room for this publisher.
    #[cold]
    pub(super) fn is_still_over_quota(&self, publisher: u64, now: Moment, rng: &mut Rng) -> bool {
        let (expired, is_over) = self.change_queued(|queued| {
            let expired = match self.dooms_expired() {
                true => 0, // they become dead letters in their turn
                false => queued.queue.drop_expired(now.at) + queued.pinned.drop_expired(now.at, &self.queues.budget),
            };
            while self.is_full(queued) && self.give_oldest(queued, now, rng) {}
            let is_over = self.is_full(queued) && !self.has_share(queued, publisher);
            (expired, is_over || self.has_failures(queued))
        });
        self.queues.metrics.dropped_expired.add(expired);
        is_over
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
        let (goes_on, holds_up) = self.change_queued(|queued| {
            self.announce();
            // A member that gets room calls `dispatch_waiting`. This attempt is for members that had room all the time.
            // It is not made for each message, because asking all members in vain is expensive.
            let had_some = !queued.queue.is_empty();
            let is_unbooked = self.backlog.is_unbooked.swap(false, Ordering::Relaxed);
            let may_ask = is_unbooked || !queued.was_refused_lately(now.nanos);
            let goes_on = may_ask && self.dispatch_some(queued, now, rng);
            for delivery in deliveries {
                let key = (self.number(), ordering_key(delivery.share_key));
                let is_acknowledged = delivery.published_qos.is_acknowledged();
                let is_late = delivery.stored.is_none();
                let is_behind = is_acknowledged && refused.keys.contains(&key);
                let left = if is_behind || self.lacks_disk_room(&delivery) || self.has_failures(queued) {
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
                    self.end_stored(Ended::Refused, delivery.stored);
                    self.refuse_by(queued, now.at);
                    refused.messages.push(delivery.message);
                }
                while self.is_full(queued) && self.give_oldest(queued, now, rng) {}
            }
            // The caller that takes the last message in memory starts the read of the next page.
            let is_next = had_some || queued.spill.refill.is_due(now.at);
            let goes_on = goes_on || is_next && queued.queue.is_empty() && !queued.spill.entries.is_empty();
            (goes_on, self.holds_up(queued, refused.publisher))
        });
        if goes_on {
            self.dispatch_waiting(now, rng);
        }
        if holds_up {
            self.hold_acknowledgements(&mut refused.holding);
        }
    }

    /// Redelivers messages of a member, which are older than the backlog. Messages that no member takes go to its
    /// front.
    ///
    /// The limits do not apply: the publishers already have their acknowledgements.
    pub(super) fn give_to_others(&self, deliveries: impl Iterator<Item = Delivery>, now: Moment, rng: &mut Rng) {
        self.change_queued(|queued| {
            self.announce();
            let mut left = Vec::new();
            for delivery in deliveries {
                let Some(delivery) = self.doom_spent(delivery) else { continue };
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

    /// Announces messages that may have to wait, before the caller looks for a member: the group has a backlog from now
    /// on, and its members know. A member that can begin with a message afterwards sees the announcement, or the caller
    /// sees that it can ([`Router::serve`]).
    ///
    /// [`Router::serve`]: super::Router::serve
    fn announce(&self) {
        self.backlog.has_backlog.store(true, Ordering::Relaxed);
        // A member that forgets the group, or joins, clears the flag and looks at `has_backlog` behind a fence. So it sees
        // the backlog, or this sees the flag cleared. Mostly all know, since they seldom forget.
        fence(Ordering::SeqCst);
        if !self.backlog.members_know.load(Ordering::Relaxed) {
            self.tell_each_member();
        }
    }

    #[cold]
    fn tell_each_member(&self) {
        self.backlog.members_know.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        for member in self.members.members().iter() {
            let GroupMember { outbox, tally, .. } = member.value();
            if !tally.knows_backlog() {
                outbox.note_backlog(self.number());
            }
        }
        fence(Ordering::SeqCst); // before the look for a member, see `Outbox::may_have_backlogs`
    }

    /// Tells a new member of the backlog, if there is one.
    pub(super) fn tell_new_member(&self, outbox: &Outbox) {
        self.backlog.members_know.store(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.backlog.has_backlog() {
            outbox.note_backlog(self.number());
        }
    }

    /// Begins a redelivery of messages from a member. New messages wait until [`SharedGroup::end_redelivery`].
    pub(super) fn begin_redelivery(&self) {
        self.departs();
        self.change_queued(|queued| {
            self.announce();
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

    /// Drops the backlog of a group that has ended, counts its messages, and returns their number. The disk is left as
    /// it is.
    pub(super) fn drop_waiting(&self) -> u64 {
        let dropped = self.change_queued(|queued| {
            queued.pinned.move_to_front_of(&mut queued.queue, &self.queues.budget);
            let on_disk = queued.spill.entries.messages() as u64;
            queued.spill.clear();
            queued.queue.clear() + queued.retries.as_mut().map_or(0, |retries| retries.clear()) + on_disk
        });
        self.queues.metrics.dropped_offline.add(dropped);
        dropped
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
        if let Some(retries) = &mut queued.retries {
            retries.settle(&self.queues.budget);
        }
        let exists = queued.exists();
        if !exists {
            queued.shares.clear();
        }
        self.backlog.has_backlog.store(exists, Ordering::Release);
        queued.spill.entries.charge_to(|| self.payer.load_full());
        self.backlog.is_over_quota.store(self.is_full(&queued) || self.has_failures(&queued), Ordering::Relaxed);
        self.update_hold(&queued);
        result
    }

    /// Returns whether so many messages wait for their next delivery, or for the dead letters, that new ones are refused.
    fn has_failures(&self, queued: &Queued) -> bool {
        queued.retries.as_ref().is_some_and(|retries| retries.are_full(&self.queues.limits))
            || self.figures.are_behind()
    }

    /// Sets when members look next for messages that they did not acknowledge in time: see [`Retries::next_look`].
    pub(super) fn next_look(&self, interval: Option<Duration>, now: Instant) -> Option<Instant> {
        let mut queued = self.backlog.lock();
        match interval {
            None => queued.retries.as_mut()?.next_look(None, now),
            interval => queued.retries().next_look(interval, now),
        }
    }

    /// Returns whether messages wait for their next delivery.
    pub(super) fn has_retries(&self) -> bool {
        self.backlog.lock().waiting_retries() > 0
    }

    fn is_full(&self, Queued { queue, spill, .. }: &Queued) -> bool {
        let limits = &self.queues.limits;
        limits.disk_is_over(&spill.entries) || limits.memory_is_over(queue.usage()) && self.stored().is_none()
    }
}

#[cfg(test)]
mod tests;
