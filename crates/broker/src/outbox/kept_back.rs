//! Messages of share groups that wait for a member who cannot be sent them now, and those that could go out at once.

use std::num::NonZeroU64;
use std::sync::atomic::Ordering;

use tenbin_session::Delivery;

use super::{Booked, Outbox, State};

/// Who waits in a queue: numbers of messages, which rise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Line {
    /// Of the oldest one.
    pub(crate) head: u64,
    /// Of the one that comes next.
    pub(crate) next: u64,
}

impl Outbox {
    /// Receiver: whether something waits that it could not send when it looked last, and that may be a share group's.
    pub(crate) fn keeps_back(&self) -> bool {
        self.keeps_back.load(Ordering::Relaxed)
    }

    /// Who waits; `None` = nobody.
    pub(crate) fn line(&self) -> Option<Line> {
        let state = self.state();
        Some(Line { head: state.queue.head()?, next: state.queue.next_number() })
    }

    /// The share groups that something waits for, and how much.
    pub(crate) fn waiting_by_group(&self) -> Vec<(NonZeroU64, usize)> {
        let mut counts: Vec<(NonZeroU64, usize)> = Vec::new();
        for (group, messages) in self.state().queue.shares() {
            match counts.iter_mut().find(|(other, _)| *other == group) {
                Some((_, count)) => *count += messages,
                None => counts.push((group, messages)),
            }
        }
        counts
    }

    /// Takes back the newest messages that a share group gave to this member and that are not sent, so many at most;
    /// the oldest of them first.
    pub(crate) fn withdraw_newest(&self, group: NonZeroU64, count: usize) -> Vec<Delivery> {
        if count == 0 {
            return Vec::new(); // nothing is looked at one by one for it
        }
        let withdrawn = self.state().queue.withdraw_newest(group, count, &self.common.budget);
        self.take_back(withdrawn.iter().map(Booked::of).sum());
        withdrawn
    }

    /// How many messages more would go out at once, as far as send quota and socket are known.
    pub(crate) fn takes_at_once(&self) -> usize {
        let state = self.state();
        let is_blocked = !state.attached || state.socket_blocked || self.keeps_back();
        if is_blocked { 0 } else { state.quota_left.saturating_sub(state.queue.len()) }
    }

    pub(super) fn set_keeps_back(&self, keeps_back: bool) {
        if keeps_back != self.keeps_back() {
            self.keeps_back.store(keeps_back, Ordering::Relaxed);
        }
    }
}

impl State {
    /// Whether anything waits for a member of share groups.
    pub(super) fn has_shared_work(&self) -> bool {
        !self.queue.is_empty() && !self.groups.is_empty()
    }
}
