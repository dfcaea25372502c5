//! Shared-subscription messages that are blocked at a member, and how many more the member could be sent at once.

use std::num::NonZeroU64;

use rustc_hash::FxHashMap;
use tenbin_session::Delivery;

use super::hints::Hint;
use super::{Booked, Outbox, State};

/// Span of message numbers in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NumberSpan {
    /// Number of the oldest message.
    pub(crate) head: u64,
    /// Number that the next message gets.
    pub(crate) next: u64,
}

impl Outbox {
    /// Receiver: whether messages, possibly of share groups, were blocked when it last took from the queue.
    pub(crate) fn keeps_back(&self) -> bool {
        self.hints.has(Hint::KEEPS_BACK)
    }

    /// Span of the queued messages; `None` = the queue is empty.
    pub(crate) fn line(&self) -> Option<NumberSpan> {
        let state = self.state();
        Some(NumberSpan { head: state.queue.head()?, next: state.queue.next_number() })
    }

    /// Share groups with queued messages, and their message counts.
    pub(crate) fn waiting_by_group(&self) -> Vec<(NonZeroU64, usize)> {
        let mut counts: FxHashMap<NonZeroU64, usize> = FxHashMap::default();
        for (group, messages) in self.state().queue.shares() {
            *counts.entry(group).or_default() += messages;
        }
        counts.into_iter().collect()
    }

    /// Removes at most `count` of the newest unsent messages of a share group; returns the oldest of them first.
    pub(crate) fn withdraw_newest(&self, group: NonZeroU64, count: usize) -> Vec<Delivery> {
        if count == 0 {
            return Vec::new(); // avoids splitting runs
        }
        let withdrawn = self.state().queue.withdraw_newest(group, count, &self.common.budget);
        self.take_back(withdrawn.iter().map(Booked::of).sum());
        withdrawn
    }

    /// How many more messages could be sent at once, as far as send quota and socket are known.
    pub(crate) fn takes_at_once(&self) -> usize {
        let state = self.state();
        let is_blocked = !state.consumer.is_connected() || state.consumer.blocked.socket || self.keeps_back();
        if is_blocked { 0 } else { (state.quota_left as usize).saturating_sub(state.queue.len()) }
    }
}

impl State {
    /// Whether messages are queued for a member of share groups.
    pub(super) fn has_shared_work(&self) -> bool {
        !self.queue.is_empty() && !self.groups.is_empty()
    }
}
