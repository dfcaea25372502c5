//! The client's share groups that may have a backlog. Its connection looks at these, not at all of its groups.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::atomic::{Ordering, fence};

use tenbin_balancer::Availability;

use super::hints::Hint;
use super::{Outbox, State};

/// Groups that may have a backlog, which take turns.
#[derive(Debug, Default)]
pub(super) struct Backlogs {
    /// With the number of looks that found no backlog.
    groups: BTreeMap<NonZeroU64, u8>,
    /// Least number of the next group.
    next: u64,
    /// Groups to look at before the round is over.
    left: usize,
    /// The round offers the backlogs to other members, even if the client can take no messages.
    is_offer: bool,
}

/// A share group to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) group: NonZeroU64,
    /// It is the last one of the round.
    pub(crate) is_last: bool,
    /// There are enough groups for the client to forget the ones without a backlog.
    pub(crate) are_many: bool,
}

impl Backlogs {
    pub(super) fn begin_round(&mut self) {
        self.left = self.groups.len();
    }

    pub(super) fn remove(&mut self, group: NonZeroU64) {
        self.groups.remove(&group);
        self.left = self.left.min(self.groups.len());
    }

    fn take_next(&mut self) -> Option<Look> {
        self.left = self.left.checked_sub(1)?;
        let next = NonZeroU64::new(self.next).unwrap_or(NonZeroU64::MIN);
        let (&group, _) = self.groups.range(next..).next().or_else(|| self.groups.first_key_value())?;
        self.next = group.get().saturating_add(1);
        self.is_offer &= self.left > 0;
        Some(Look { group, is_last: self.left == 0, are_many: self.groups.len() > REMEMBERED })
    }
}

impl Outbox {
    /// Notes that a share group of the client has a backlog.
    pub(crate) fn note_backlog(&self, group: NonZeroU64) {
        let mut state = self.state();
        if state.groups.get(&group).is_some_and(|tally| tally.note_backlog()) {
            state.backlogs.get_or_insert_default().groups.insert(group, 0);
            self.hints.put(Hint::HAS_BACKLOGS, true);
        }
    }

    /// Receiver: returns whether share groups of the client may have backlogs. Call it after the change that lets the client
    /// take messages: either this sees the announcement of a backlog, or the group sees the change.
    #[inline]
    pub(crate) fn may_have_backlogs(&self) -> bool {
        fence(Ordering::SeqCst); // see `SharedGroup::announce`
        self.hints.has(Hint::HAS_BACKLOGS)
    }

    /// Notes that a share group of the client had no backlog. Returns whether the client forgets the group: after several
    /// such looks, since the group then has to look for all members that do not know of its next backlog.
    pub(crate) fn found_no_backlog(&self, group: NonZeroU64) -> bool {
        let mut state = self.state();
        if let Some(empty_looks) = state.backlogs.as_mut().and_then(|backlogs| backlogs.groups.get_mut(&group))
            && *empty_looks + 1 < FORGOTTEN_AFTER
        {
            *empty_looks += 1;
            return false;
        }
        if let Some(tally) = state.groups.get(&group) {
            tally.forget_backlog();
        }
        self.remove_backlog(&mut state, group);
        true
    }

    pub(super) fn remove_backlog(&self, state: &mut State, group: NonZeroU64) {
        if let Some(backlogs) = &mut state.backlogs {
            backlogs.remove(group);
            self.hints.put(Hint::HAS_BACKLOGS, !backlogs.groups.is_empty());
        }
    }

    /// Share groups of the client that may have a backlog.
    pub(crate) fn known_backlogs(&self) -> Vec<NonZeroU64> {
        self.state().backlogs.as_ref().map_or_else(Vec::new, |backlogs| backlogs.groups.keys().copied().collect())
    }

    /// Returns the next group that may have a backlog. `begins`: all of them are to be looked at from now on.
    pub(crate) fn next_backlog(&self, begins: bool) -> Option<Look> {
        let mut state = self.state();
        let backlogs = state.backlogs.as_deref_mut()?;
        if begins {
            backlogs.begin_round();
        }
        backlogs.take_next()
    }

    /// Offers the backlogs to other members in the next round, even if the client can take no messages.
    pub(crate) fn offer_backlogs(&self) {
        if let Some(backlogs) = &mut self.state().backlogs {
            backlogs.is_offer = true;
        }
    }

    /// Looks at this group again, as the next one.
    pub(crate) fn look_again(&self, group: NonZeroU64) {
        if let Some(backlogs) = &mut self.state().backlogs {
            backlogs.next = group.get();
            backlogs.left += 1;
        }
    }

    /// Lets the receiver's task look at the other groups of the round in its next lap.
    ///
    /// Unless `is_needed` or an [offer](Self::offer_backlogs), only if the client can take messages. Otherwise it begins
    /// another round when it can.
    pub(crate) fn look_later(&self, is_needed: bool) {
        let mut state = self.state();
        let is_ready = || self.load.availability() == Availability::Ready && !self.load.is_draining();
        let is_offer = state.backlogs.as_ref().is_some_and(|backlogs| backlogs.is_offer);
        if is_needed || is_offer || is_ready() && self.load.can_begin() {
            self.hints.set(Hint::HAS_ROOM_AGAIN);
            self.wake(state);
        } else if let Some(backlogs) = &mut state.backlogs {
            backlogs.left = 0;
        }
    }
}

/// Groups that a client remembers although they have no backlog any more. A client with few groups forgets none, so that
/// no group has to tell it again.
const REMEMBERED: usize = 32;
/// Looks that find no backlog until the client forgets the group.
pub(crate) const FORGOTTEN_AFTER: u8 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn number(number: u64) -> NonZeroU64 {
        NonZeroU64::new(number).unwrap()
    }

    fn backlogs(groups: impl IntoIterator<Item = u64>) -> Backlogs {
        Backlogs { groups: groups.into_iter().map(|group| (number(group), 0)).collect(), ..Backlogs::default() }
    }

    fn take(backlogs: &mut Backlogs, most: usize) -> Vec<u64> {
        std::iter::from_fn(|| backlogs.take_next()).take(most).map(|look| look.group.get()).collect()
    }

    #[test]
    fn each_round_looks_at_every_group_once() {
        let mut backlogs = backlogs([3, 5, 9]);
        assert_eq!(take(&mut backlogs, 9), [0; 0]);
        backlogs.begin_round();
        assert_eq!(take(&mut backlogs, 2), [3, 5]);
        backlogs.begin_round();
        assert_eq!(take(&mut backlogs, 9), [9, 3, 5]);
        backlogs.begin_round();
        backlogs.remove(number(9));
        assert_eq!(take(&mut backlogs, 9), [3, 5]);
    }

    #[test]
    fn offer_is_over_when_each_group_was_looked_at() {
        let mut backlogs = backlogs([3, 5, 9]);
        backlogs.is_offer = true;
        backlogs.begin_round();
        take(&mut backlogs, 2);
        assert!(backlogs.is_offer);
        take(&mut backlogs, 1);
        assert!(!backlogs.is_offer);
    }
}
