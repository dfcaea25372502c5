//! Messages of a share group whose keys are pinned to full members.

use std::collections::HashMap;
use std::time::Instant;

use tenbin_balancer::{MemberId, Rng};
use tenbin_session::Delivery;

use super::super::choice::Source;
use super::super::held_key::ordering_key;
use super::super::share_group::{Placed, SharedGroup};
use super::Queued;
use crate::backlog::FairHead;
use crate::outbox::{Batch, Budget, Head, Reader};
use crate::values::Moment;

/// One queue for each full member.
///
/// A key has at most one queue. All its waiting messages are there, except those in the backlog behind.
#[derive(Debug, Default)]
pub(super) struct PinnedKeys(Vec<OfMember>);

#[derive(Debug)]
struct OfMember {
    /// The member for which the first message was queued.
    member: MemberId,
    queue: Head,
    /// Number of messages in the queue, by key.
    keys: HashMap<u64, u32>,
}

impl PinnedKeys {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|of| of.queue.len()).sum()
    }

    /// Returns whether messages of its key wait here.
    pub(super) fn holds_key_of(&self, delivery: &Delivery) -> bool {
        let key = ordering_key(delivery.share_key).filter(|_| delivery.published_qos.is_acknowledged());
        key.is_some_and(|key| self.0.iter().any(|of| of.keys.contains_key(&key)))
    }

    /// Drops expired messages, and returns their number.
    pub(super) fn drop_expired(&mut self, now: Instant, budget: &Budget) -> u64 {
        let dropped = self.0.iter_mut().map(|of| {
            let dropped = of.queue.drop_expired(now, budget).messages;
            of.count_expired(dropped);
            dropped
        });
        let dropped = dropped.sum();
        self.forget_empty();
        dropped
    }

    /// Moves all messages to the front of the backlog. Each key keeps its order.
    pub(super) fn move_to_front_of(&mut self, queued: &mut FairHead, budget: &Budget) {
        for mut of in self.0.drain(..) {
            let mut batch = Batch::default();
            of.queue.take(usize::MAX, usize::MAX, &mut batch, budget);
            for delivery in batch.singles().drain(..).rev() {
                queued.push_front(delivery);
            }
        }
    }

    fn forget_empty(&mut self) {
        self.0.retain(|of| !of.queue.is_empty());
    }

    fn of_key(&mut self, key: u64) -> Option<&mut OfMember> {
        self.0.iter_mut().find(|of| of.keys.contains_key(&key))
    }

    fn of_member(&mut self, member: MemberId) -> &mut OfMember {
        let place = self.0.iter().position(|of| of.member == member).unwrap_or_else(|| {
            self.0.push(OfMember { member, queue: Head::default(), keys: HashMap::new() });
            self.0.len() - 1
        });
        &mut self.0[place]
    }
}

impl OfMember {
    /// Counts a message of this key out of the queue.
    fn has_left(&mut self, key: Option<u64>) {
        let Some(key) = key else { return };
        if let Some(count) = self.keys.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.keys.remove(&key);
            }
        }
    }

    /// Recounts the keys after `messages` of the queue have expired.
    fn count_expired(&mut self, messages: u64) {
        if messages > 0 {
            self.keys.clear();
            for key in self.queue.iter().filter_map(|delivery| ordering_key(delivery.share_key)) {
                *self.keys.entry(key).or_default() += 1;
            }
        }
    }
}

impl SharedGroup {
    /// Gives a message to a member, or adds it to the queue of the full member that holds its key. Returns it if no
    /// member takes it, or that queue is full.
    pub(super) fn place_or_block(
        &self,
        queued: &mut Queued,
        delivery: Delivery,
        now: Moment,
        rng: &mut Rng,
    ) -> Option<Delivery> {
        let key = ordering_key(delivery.share_key).filter(|_| delivery.published_qos.is_acknowledged());
        if let Some(key) = key
            && let Some(of) = queued.pinned.of_key(key)
        {
            return self.block(of, key, delivery, now);
        }
        match (self.place(delivery, Source::Backlog(queued.queue.len()), now, rng), key) {
            (Placed::Given, _) => None,
            (Placed::Kept(member, delivery), Some(key)) => {
                let left = self.block(queued.pinned.of_member(member), key, delivery, now);
                queued.pinned.forget_empty();
                left
            }
            (Placed::Kept(_, delivery) | Placed::Nobody(delivery), _) => Some(delivery),
        }
    }

    /// Gives queued messages to members, as far as these have room. A message that no member takes blocks only its own
    /// key.
    pub(super) fn dispatch_pinned(&self, queued: &mut Queued, now: Moment, rng: &mut Rng) {
        let budget = &self.queues.budget;
        for of in &mut queued.pinned.0 {
            let (mut aside, mut held) = (Vec::new(), Vec::new());
            while aside.len() < ASIDE_MAX && held.len() < KEYS_TRIED {
                let Some(delivery) = of.queue.pop(budget) else { break };
                let key = ordering_key(delivery.share_key);
                if delivery.is_expired(now.at) {
                    of.has_left(key);
                    self.expire(delivery);
                    continue;
                }
                if held.contains(&key) {
                    aside.push(delivery);
                    continue;
                }
                match self.place(delivery, Source::Backlog(of.queue.len()), now, rng) {
                    Placed::Given => of.has_left(key),
                    Placed::Kept(_, delivery) | Placed::Nobody(delivery) => {
                        aside.push(delivery.as_published());
                        held.push(key);
                    }
                }
            }
            aside.into_iter().rev().for_each(|delivery| of.queue.push_front(delivery, budget));
        }
        queued.pinned.forget_empty();
        if !queued.pinned.is_empty() {
            queued.refused_at = Some(now.nanos);
        }
    }

    /// Adds a message to a full member's queue. Returns it if there is no room.
    fn block(&self, of: &mut OfMember, key: u64, delivery: Delivery, now: Moment) -> Option<Delivery> {
        let queues = &*self.queues;
        let delivery = self.may_wait(delivery)?;
        let fits = of.queue.fits(&delivery, Reader::Absent, &queues.limits, &queues.budget, now.at);
        let expired = of.queue.take_expired().messages;
        of.queue.settle(&queues.budget);
        queues.metrics.dropped_expired.add(expired);
        of.count_expired(expired);
        if !fits {
            return Some(delivery);
        }
        *of.keys.entry(key).or_default() += 1;
        of.queue.append(delivery, Reader::Absent);
        debug_assert!(of.keys.len() <= of.queue.len(), "a key for each message at most");
        of.queue.settle(&queues.budget);
        None
    }
}

/// Messages of a queue skipped per attempt, and keys found blocked.
const ASIDE_MAX: usize = 64;
const KEYS_TRIED: usize = 8;
