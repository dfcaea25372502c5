//! Giving a group's backlog to its members.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use tenbin_balancer::{Nanos, Rng};
use tenbin_session::Delivery;

use super::super::choice::Source;
use super::super::share_group::{Placed, SharedGroup};
use super::Queued;
use super::retries::Retries;
use crate::durable::Ended;
use crate::outbox::Outbox;
use crate::values::Moment;

impl SharedGroup {
    /// Gives the backlog to connected members, as far as they have room. Call it when a member connects, joins, or has
    /// room again.
    pub(in super::super) fn dispatch_waiting(self: &Arc<Self>, now: Moment, rng: &mut Rng) {
        self.dispatch(now, rng);
        self.read_on(now.at);
    }

    /// Gives the backlog to members, if there is one. Call it when one of them can begin with more.
    pub(in super::super) fn may_begin(self: &Arc<Self>, now: Moment, rng: &mut Rng) {
        fence(Ordering::SeqCst); // see `announce`
        if self.backlog.has_backlog() {
            self.dispatch_waiting(now, rng);
        }
    }

    /// Gives some of the backlog to members. Returns whether to call it again. `forgets`: the member that asks forgets the
    /// group if it repeatedly had no backlog.
    pub(in super::super) fn serve_member(
        self: &Arc<Self>,
        outbox: &Outbox,
        forgets: bool,
        now: Moment,
        rng: &mut Rng,
    ) -> bool {
        if !self.backlog.has_backlog() {
            if !forgets || !outbox.found_no_backlog(self.number()) {
                return false;
            }
            self.tell_new_member(outbox); // unless it has a backlog again
            if !self.backlog.has_backlog() {
                return false;
            }
        }
        let goes_on = self.change_queued(|queued| self.dispatch_some(queued, now, rng));
        if !goes_on {
            self.read_on(now.at);
        }
        goes_on
    }

    pub(super) fn dispatch(&self, now: Moment, rng: &mut Rng) {
        while self.change_queued(|queued| self.dispatch_some(queued, now, rng)) {}
    }

    /// Drops an expired message at its turn: no member would begin with it in time.
    pub(super) fn expire(&self, delivery: Delivery) {
        if let Some(delivery) = self.doom_expired(delivery) {
            self.queues.metrics.dropped_expired.add(1);
            self.end_stored(Ended::Expired, delivery.stored);
        }
    }

    /// Gives the oldest messages to members, and returns whether to continue. It is limited per call, since publishers
    /// wait for the lock.
    pub(super) fn dispatch_some(&self, queued: &mut Queued, now: Moment, rng: &mut Rng) -> bool {
        if queued.redeliveries > 0 {
            return false;
        }
        self.dispatch_pinned(queued, now, rng);
        for _ in 0..DISPATCHED_AT_ONCE {
            if self.figures.are_behind() || queued.retries.as_deref().is_some_and(Retries::are_too_many) {
                return false; // it goes on as letters are published, and as messages are due
            }
            let Some(delivery) = queued.queue.pop(&self.queues.budget) else { return false };
            if delivery.is_expired(now.at) {
                self.expire(delivery);
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
    pub(super) fn give_oldest(&self, queued: &mut Queued, now: Moment, rng: &mut Rng) -> bool {
        if queued.redeliveries > 0 || is_lately(queued.full_at, now.nanos) {
            return false;
        }
        let Some(delivery) = queued.queue.pop(&self.queues.budget) else { return false };
        if queued.pinned.holds_key_of(&delivery) {
            // It follows messages that wait for the member with its key.
            queued.queue.put_back(delivery);
            queued.full_at = Some(now.nanos);
            return false;
        }
        let left = match self.place(delivery, Source::FullBacklog, now, rng) {
            Placed::Given => return true,
            Placed::Kept(_, delivery) | Placed::Nobody(delivery) => delivery,
        };
        queued.queue.put_back(left.as_published());
        queued.full_at = Some(now.nanos);
        false
    }
}

/// Returns whether it is too early to ask all members again, after they took nothing at `refused_at`.
pub(super) fn is_lately(refused_at: Option<Nanos>, now: Nanos) -> bool {
    refused_at.is_some_and(|at| now.0 < at.0.saturating_add(ASKED_AGAIN_NS))
}

/// Messages given to members before the lock is released for publishers.
const DISPATCHED_AT_ONCE: usize = 256;
/// Nanoseconds before members that took nothing are asked again, unless one reports room.
const ASKED_AGAIN_NS: u64 = 1_000_000;
