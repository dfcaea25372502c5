//! The messages of a share group that no member has: nobody takes them now, or they are on their way from one member to
//! others.
//!
//! ```text
//!   newest                                        oldest
//!   new messages ──► │ line: Queue │ ──► a member with room
//!                                   ▲
//!                                   └── messages that a member had, or was to have: older than all that wait
//! ```
//!
//! Nothing overtakes the line: as long as there is one, new messages go behind it, and only who holds its lock gives
//! messages to members. Messages whose key stays with a full member leave the line for a queue of that member's
//! ([`Blocked`]), so messages of other keys go on.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tenbin_balancer::{Nanos, Rng};
use tenbin_codec::SharedFilter;
use tenbin_session::Delivery;

use super::held_key::ordering_key;
use super::shared::{GroupQueues, Placed, SharedGroup, beginning};
use crate::clock::Moment;
use crate::durable::{Durable, Page, QueueId, Sequence, Stored, Tail, place, read_again_after};
use crate::memory::Account;
use crate::outbox::{Batch, OutboxLimits, Queue, Reader};

mod blocked;

use blocked::Blocked;

/// Messages of one batch that share groups refuse.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// By [`Delivery::message`].
    pub(super) messages: Vec<u32>,
    /// Groups, each with the key of a refused message, if that has one.
    keys: Vec<(NonZeroU64, Option<u64>)>,
}

/// What waits with a group.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    line: Mutex<Line>,
    /// Whether new messages have to go behind the line. Written under the lock. Release and acquire: who reads `false`
    /// finds with their members what was in the line before, and the balancer's word of it.
    has_line: AtomicBool,
    /// Departures of members so far: messages were going to be taken from one, or it left. Raised before; release and
    /// acquire, as above.
    departures: AtomicU64,
    /// As much waits on disk as may, or in memory where there is none. Written under the lock, read for a hint; relaxed.
    is_over_quota: AtomicBool,
}

#[derive(Debug, Default)]
struct Line {
    queue: Queue,
    /// Messages that left the line, since their keys stay with members that are full.
    blocked: Blocked,
    /// What waits on disk alone, behind the queue.
    tail: Tail,
    /// Members that messages are being taken from: older ones than all that wait, which therefore stay.
    handovers: usize,
    /// When nobody took the front, the last time.
    refused_at: Option<Nanos>,
    /// The last page could not be read.
    unread: Option<Unread>,
}

/// Messages that cannot be read: they stay where they are, and it is tried again.
#[derive(Debug)]
struct Unread {
    pause: Duration,
    /// `None`: the pause is over.
    until: Option<Instant>,
}

impl Waiting {
    /// Whether new messages have to wait because earlier ones do.
    #[inline]
    pub(super) fn has_line(&self) -> bool {
        self.has_line.load(Ordering::Acquire)
    }

    /// Whether nothing more is kept.
    #[inline]
    pub(super) fn is_over_quota(&self) -> bool {
        self.is_over_quota.load(Ordering::Relaxed)
    }

    /// A number that is another one after a member's departure: what was given to it before, and is not in its queue yet,
    /// comes back, and must not be overtaken.
    #[inline]
    pub(super) fn departures(&self) -> u64 {
        self.departures.load(Ordering::Acquire)
    }

    /// A member is going to be left.
    pub(super) fn departs(&self) {
        self.departures.fetch_add(1, Ordering::AcqRel);
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    /// Whether it would be too early to ask all members again.
    fn was_refused_lately(&self, now: Nanos) -> bool {
        let again = |at: Nanos| Nanos(at.0.saturating_add(ASKED_AGAIN_NS));
        let is_any = !self.queue.is_empty() || !self.blocked.is_empty();
        is_any && self.refused_at.is_some_and(|at| now < again(at))
    }

    /// Whether it is too early to read again what could not be read.
    fn rests_from_reading(&self, now: Instant) -> bool {
        self.unread.as_ref().and_then(|unread| unread.until).is_some_and(|until| now < until)
    }

    /// Whether that is over, and nobody has read it since.
    fn is_to_be_read_again(&self, now: Instant) -> bool {
        self.unread.as_ref().is_some_and(|unread| unread.until.is_some_and(|until| until <= now))
    }

    /// Whether a new message of any key has to go behind others.
    fn holds_up_all(&self) -> bool {
        self.handovers > 0 || !self.queue.is_empty() || !self.tail.is_empty()
    }

    /// Whether a new message of some key has to go behind others.
    fn exists(&self) -> bool {
        self.holds_up_all() || !self.blocked.is_empty()
    }
}

impl SharedGroup {
    /// Messages that wait because no member takes anything new.
    pub(super) fn waiting(&self) -> usize {
        let line = self.waiting.lock();
        line.queue.len() + line.blocked.len() + line.tail.messages()
    }

    /// What waits since the last run is there again; the queue that it is in.
    pub(super) fn restore_waiting(&self, durable: &Durable) -> Option<QueueId> {
        let queue = self.stored()?;
        let tail = durable.tail_of_group(&queue);
        self.change_line(|line| line.tail = tail);
        Some(queue.id())
    }

    /// Whether nothing more is kept, now that what has expired has given its place up.
    #[cold]
    pub(super) fn is_still_over_quota(&self, now: Instant) -> bool {
        let expired = self.change_line(|line| {
            let budget = &self.queues.budget;
            line.queue.drop_expired(now, budget).messages + line.blocked.drop_expired(now, budget)
        });
        self.queues.metrics.dropped_expired.add(expired);
        self.waiting.is_over_quota()
    }

    /// A message for the group is not taken in: as much waits as may.
    #[cold]
    pub(super) fn refuse(&self) {
        self.queues.metrics.refused_over_quota.add(1);
    }

    /// Gives messages to members, or keeps them until one is connected and has room: as they were published, for whoever
    /// gets them has terms of its own. They are newer than what waits. QoS 0 does not wait.
    ///
    /// A QoS 1 or 2 message that finds no room goes to `refused`, and so do those of its key behind it, or those without a key: a
    /// smaller one would get before it.
    pub(super) fn wait(
        self: &Arc<Self>,
        deliveries: impl Iterator<Item = Delivery>,
        now: Moment,
        refused: &mut Refused,
        rng: &mut Rng,
    ) {
        let goes_on = self.change_line(|line| {
            // Members that have got room look here; this is for those that have it and had no reason to look. Not for each
            // message: to ask all of them in vain is dear.
            let had_some = !line.queue.is_empty();
            let goes_on = !line.was_refused_lately(now.nanos) && self.dispatch_some(line, now, rng);
            for delivery in deliveries {
                let key = (self.number(), ordering_key(delivery.share_key));
                let is_acknowledged = delivery.published_qos.is_acknowledged();
                let is_behind = is_acknowledged && refused.keys.contains(&key);
                let left = if is_behind || self.lacks_disk_room(&delivery) {
                    Some(delivery)
                } else if line.holds_up_all() && is_acknowledged {
                    self.keep(line, delivery, now)
                } else {
                    let left = self.place_or_block(line, delivery, now, rng);
                    left.and_then(|delivery| self.keep(line, delivery, now))
                };
                if let Some(delivery) = left {
                    if !is_behind {
                        refused.keys.push(key);
                    }
                    self.give_place_up(&delivery);
                    self.refuse();
                    refused.messages.push(delivery.message);
                }
            }
            // Who takes the last one in memory has the next page read.
            let is_next = had_some || line.is_to_be_read_again(now.at);
            goes_on || is_next && line.queue.is_empty() && !line.tail.is_empty()
        });
        if goes_on {
            self.dispatch_waiting(now, rng);
        }
    }

    /// Gives messages to others that a member had, or was to have, and that are older than what waits. What nobody takes
    /// waits in front, whatever the limits say: its publishers have been told that it is taken.
    pub(super) fn give_to_others(&self, deliveries: impl Iterator<Item = Delivery>, now: Moment, rng: &mut Rng) {
        self.change_line(|line| {
            let mut left = Vec::new();
            for delivery in deliveries {
                // None goes past one that has to stay.
                let may_go = left.is_empty() || !delivery.published_qos.is_acknowledged();
                if !may_go {
                    left.push(delivery);
                } else if let Placed::Nobody(delivery) | Placed::Kept(_, delivery) = self.place(delivery, now, rng) {
                    left.push(delivery);
                }
            }
            for delivery in left.into_iter().rev() {
                self.keep_first(line, delivery);
            }
        });
    }

    /// Gives what waits to the members that are connected, as far as they have room. To be called when one has
    /// connected or joined, or has room again.
    pub(super) fn dispatch_waiting(self: &Arc<Self>, now: Moment, rng: &mut Rng) {
        self.dispatch(now, rng);
        self.read_on(now.at);
    }

    fn dispatch(&self, now: Moment, rng: &mut Rng) {
        while self.change_line(|line| self.dispatch_some(line, now, rng)) {}
    }

    /// Has the next page read of what waits on disk, if nothing else waits.
    fn read_on(self: &Arc<Self>, now: Instant) {
        let Some((durable, queue)) = self.queues.durable.as_ref().zip(self.stored()) else { return };
        let page = self.change_line(|line| {
            let is_next = line.queue.is_empty() && line.handovers == 0;
            let is_wanted = is_next && !line.tail.is_being_read() && !line.rests_from_reading(now);
            if is_wanted { Durable::first_page(&queue, &mut line.tail, PAGE_BYTES) } else { None }
        });
        let Some(page) = page else { return };
        // It may end meanwhile.
        let group = Arc::downgrade(self);
        durable.read_for(page, move |page| {
            if let Some(group) = group.upgrade() {
                group.take_page(page);
            }
        });
    }

    /// A page is there: it goes to the members, on the thread that has read it. That takes no longer than a publisher's batch of
    /// as many messages; pages that others wait for come before our next one.
    fn take_page(self: &Arc<Self>, page: Page) {
        let now = self.queues.clock.moment(Instant::now());
        let mut again_at = None;
        let over = self.change_line(|line| {
            if page.is_broken {
                again_at = Some(self.rest_from_reading(line, !page.messages.is_empty(), now.at));
            } else if line.tail.is_being_read() {
                line.unread = None;
            }
            let Line { queue, tail, .. } = line;
            // Behind what members have given back meanwhile, which is older.
            let put = |delivery| queue.append(Delivery { share: Some(self.number()), ..delivery }, Reader::Present);
            tail.is_being_read().then(|| tail.take_page(page, put))
        });
        if let Some(at) = again_at {
            self.queues.unread.add(self, at);
        }
        let Some(over) = over else { return }; // nobody waits for it any more
        self.end_places(over);
        self.dispatch(now, &mut Rng::new(now.nanos.0));
        self.read_on(now.at);
    }

    /// The next messages cannot be read. That may pass: where no file could be opened, say. When it is tried again: as early as
    /// the first time where some before them could be, which are others than the last time.
    #[cold]
    fn rest_from_reading(&self, line: &mut Line, had_some: bool, now: Instant) -> Instant {
        let before = line.unread.take();
        if before.is_none() {
            let SharedFilter { share_name, filter } = self.name();
            let (share_name, filter) = (beginning(share_name.text().as_str()), beginning(filter.text().as_str()));
            tracing::error!(share_name, filter, "messages of the share group cannot be read: they stay where they are");
        }
        let pause = read_again_after(before.filter(|_| !had_some).map(|unread| unread.pause));
        let until = now + pause;
        line.unread = Some(Unread { pause, until: Some(until) });
        until
    }

    /// What could not be read is tried again, whether or not anybody publishes or comes: if it is time.
    #[cold]
    pub(super) fn read_again(self: &Arc<Self>, now: Instant) {
        self.change_line(|line| {
            // From here on whoever takes the last one in memory has it read, by whatever clock.
            if let Some(unread) = line.unread.as_mut().filter(|unread| unread.until.is_some_and(|until| until <= now)) {
                unread.until = None;
            }
        });
        self.read_on(now);
    }

    /// A message that is refused is not wanted where it is stored.
    fn give_place_up(&self, delivery: &Delivery) {
        if let Some(Stored::InGroup(sequence)) = delivery.stored.map(Stored::of)
            && let Some((durable, queue)) = self.queues.durable.as_ref().zip(self.stored())
        {
            durable.done([place(queue.id(), sequence)]);
        }
    }

    /// These have expired.
    fn end_places(&self, places: Vec<Sequence>) {
        let Some((durable, queue)) = self.queues.durable.as_ref().zip(self.stored()) else { return };
        if !places.is_empty() {
            self.queues.metrics.dropped_expired.add(places.len() as u64);
            durable.done(places.into_iter().map(|sequence| place(queue.id(), sequence)));
        }
    }

    /// What waits on disk is not wanted any more, nor a page that is being read.
    pub(super) fn forget_tail(&self) {
        self.change_line(|line| {
            line.tail.stop_reading();
            line.tail.clear();
            line.unread = None;
        });
    }

    /// Messages are going to be taken from a member: until [`SharedGroup::end_handover`], new ones wait.
    pub(super) fn begin_handover(&self) {
        self.departs();
        self.change_line(|line| {
            line.handovers += 1;
            // Older messages of their keys may come from the member: those go before them.
            line.blocked.move_to_front_of(&mut line.queue, &self.queues.budget);
        });
    }

    /// A member goes: who chose it before, and has not given it the message yet, chooses again.
    pub(super) fn departs(&self) {
        self.waiting.departs();
    }

    /// They have been given to others.
    pub(super) fn end_handover(self: &Arc<Self>, now: Moment, rng: &mut Rng) {
        self.change_line(|line| line.handovers -= 1);
        self.dispatch_waiting(now, rng);
    }

    /// Counts a message of QoS 0 that nobody takes now.
    pub(super) fn drop_unacknowledged(&self) {
        self.queues.metrics.dropped_offline.add(1);
    }

    /// The group has ended.
    pub(super) fn drop_waiting(&self) {
        let dropped = self.change_line(|line| {
            line.blocked.move_to_front_of(&mut line.queue, &self.queues.budget);
            line.queue.clear(&self.queues.budget)
        });
        self.queues.metrics.dropped_offline.add(dropped.messages);
    }

    /// Gives the oldest to members; whether to go on. Not all at once: publishers wait for the lock.
    fn dispatch_some(&self, line: &mut Line, now: Moment, rng: &mut Rng) -> bool {
        if line.handovers > 0 {
            return false;
        }
        self.dispatch_blocked(line, now, rng);
        let mut next = Batch::default();
        for _ in 0..DISPATCHED_AT_ONCE {
            line.queue.take(1, 1, &mut next, &self.queues.budget);
            let Some(delivery) = next.singles().pop() else { return false };
            if let Some(delivery) = self.place_or_block(line, delivery, now, rng) {
                line.queue.push_front(delivery.as_published(), &self.queues.budget);
                line.refused_at = Some(now.nanos);
                return false;
            }
        }
        true
    }

    /// Puts a message at the end of the line, if it may wait; it comes back where there is no room.
    fn keep(&self, line: &mut Line, delivery: Delivery, now: Moment) -> Option<Delivery> {
        let delivery = self.may_wait(delivery)?;
        let GroupQueues { limits, budget, metrics, .. } = &*self.queues;
        match delivery.stored.map(Stored::of) {
            Some(_) if line.queue.is_short() && line.tail.is_empty() && !line.tail.is_being_read() => {
                line.queue.append(delivery, Reader::Absent);
            }
            Some(stored) => line.tail.add(stored.sequence(), delivery.template.len()),
            // Others that are on disk would come after it.
            None if !line.tail.is_empty() => return Some(delivery),
            None => {
                let fits = line.queue.fits(&delivery, Reader::Absent, limits, budget, now.at);
                metrics.dropped_expired.add(line.queue.take_expired().messages);
                if !fits {
                    return Some(delivery);
                }
                line.queue.append(delivery, Reader::Absent);
            }
        }
        None
    }

    /// Puts a message at the front of the line, if it may wait. Members had so much at most.
    fn keep_first(&self, line: &mut Line, delivery: Delivery) {
        if let Some(delivery) = self.may_wait(delivery) {
            let delivery = if delivery.stored.is_none() { delivery.detach() } else { delivery };
            line.queue.push_front(delivery, &self.queues.budget);
        }
    }

    /// A message as it waits; `None`: it is of QoS 0, and is dropped.
    fn may_wait(&self, delivery: Delivery) -> Option<Delivery> {
        let delivery = delivery.as_published();
        if delivery.qos.is_acknowledged() {
            return Some(self.kept(delivery));
        }
        self.drop_unacknowledged();
        None
    }

    /// Another owner is charged for what waits from now on.
    pub(super) fn pays(&self, account: &Arc<Account>) {
        self.change_line(|line| line.tail.move_to(account));
    }

    /// Changes what waits, and tells the budget of all queues. The lock keeps two dispatchers from mixing up the order;
    /// outboxes are the only locks taken under it.
    fn change_line<R>(&self, change: impl FnOnce(&mut Line) -> R) -> R {
        let mut line = self.waiting.lock();
        let result = change(&mut line);
        line.queue.settle(&self.queues.budget);
        self.waiting.has_line.store(line.exists(), Ordering::Release);
        let OutboxLimits { messages, bytes, stored_bytes, .. } = self.queues.limits;
        line.tail.charge_to(|| self.payer.load_full());
        let on_disk = line.tail.disk_bytes();
        let is_used_up = (on_disk > 0 && on_disk >= stored_bytes) || line.tail.is_over_limit();
        // By its bytes a little before there is no room: it is not known how large the next message is.
        let is_full = (line.queue.len() >= messages || line.queue.bytes() > bytes / 8 * 7) && self.stored().is_none();
        self.waiting.is_over_quota.store(is_used_up || is_full, Ordering::Relaxed);
        result
    }
}

/// Bytes of bodies that are read at once.
const PAGE_BYTES: usize = 64 * 1024;
/// Messages that are given to members before publishers may come in between.
const DISPATCHED_AT_ONCE: usize = 256;
/// For how long members that took nothing are not asked again, in ns, unless one says that it has room.
const ASKED_AGAIN_NS: u64 = 1_000_000;

#[cfg(test)]
mod tests;
