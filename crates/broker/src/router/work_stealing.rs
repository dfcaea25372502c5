//! Work stealing: redelivers messages that wait for a blocked member of a share group to members that would finish them
//! clearly earlier.

use std::collections::VecDeque;
use std::time::Duration;

use tenbin_balancer::{Availability, Candidate, Dispatch, Member, MemberId, Members, Rng};
use tenbin_session::Delivery;

use super::share_group::{GroupMember, SharedGroup};
use super::{Receiver, Router};
use crate::values::Moment;

/// A candidate for taking over messages, with the load planned so far.
struct Helper {
    member: MemberId,
    /// Time until the member has finished all its messages, those planned here included.
    wait: Duration,
    /// Processing time of one message; zero = unknown.
    service: Duration,
    /// Messages that could be sent at once.
    room: usize,
}

impl Router {
    /// Redelivers messages that wait for a member to members that would finish them clearly earlier.
    ///
    /// Returns the number of messages moved. `stalled_for`: time since a message was last sent to the member.
    pub(crate) fn relieve(&self, from: &Receiver, stalled_for: Duration, now: Moment, rng: &mut Rng) -> usize {
        let mut moved = 0;
        let waiting = from.outbox.waiting_by_group();
        // Those beyond the bound have their turn another time.
        let begin = rng.next_u64() as usize % waiting.len().max(1);
        let some = waiting.iter().cycle().skip(begin).take(waiting.len().min(OFFERED_AT_ONCE));
        for &(number, waiting) in some {
            let Some(group) = self.index.group_by_number(number) else { continue };
            let mut helpers = group.helpers(MemberId(from.number), waiting, stalled_for, now, rng);
            let newest = from.outbox.withdraw_newest(number, helpers.len());
            moved += newest.len();
            let mut returned = Vec::new();
            for delivery in newest {
                // The numbers of helpers and messages are equal, unless some messages have left the queue since.
                if let Some(helper) = helpers.pop_front() {
                    returned.extend(group.give(delivery, helper, now));
                }
            }
            self.redispatch(returned, now.at, rng);
        }
        moved
    }
}

impl SharedGroup {
    /// Returns a member for each of the newest messages to move from `from`, in the order from oldest to newest.
    ///
    /// Starting with the newest, each message goes to the helper that would finish it first. That helper must be able
    /// to send it at once. It must finish it in less than half of the time it would take with `from`, and at least
    /// [`MARGIN`] earlier. So no messages move between members that are all at their limits, nor back and forth between
    /// two. Messages that belong together, by a key or by the policy, stay.
    fn helpers(
        &self,
        from: MemberId,
        waiting: usize,
        stalled_for: Duration,
        now: Moment,
        rng: &mut Rng,
    ) -> VecDeque<MemberId> {
        let members = self.members.members();
        let rules = members.rules();
        if rules.is_ordered || rules.policy.has_affinity() || members.len() < 2 {
            return VecDeque::new();
        }
        let dispatch = Dispatch { at: now.nanos, is_acknowledged: true, ..Dispatch::default() };
        let Some(own) = members.iter().find(|member| member.id() == from) else { return VecDeque::new() };
        let own = members.weigh(own, &dispatch);
        let candidates = candidates(&members, rng);
        let mut helpers: Vec<_> = candidates.filter_map(|member| helper(&members, member, from, &dispatch)).collect();
        let mut takers = VecDeque::new();
        while takers.len() < waiting.min(MOVED_MAX) {
            let first = helpers.iter_mut().filter(|helper| helper.room > 0).min_by_key(|helper| helper.finish());
            let Some(first) = first else { break };
            if finish_of(&own, waiting, takers.len(), stalled_for) <= first.finish() * 2 + MARGIN {
                break;
            }
            first.wait += first.service;
            first.room -= 1;
            takers.push_front(first.member);
        }
        takers
    }

    /// Gives a message to this member. Returns it if the member cannot take it any more.
    fn give(&self, delivery: Delivery, to: MemberId, now: Moment) -> Option<Delivery> {
        let members = self.members.members();
        let dispatch = self.dispatch_again(&delivery, now.nanos);
        let takes =
            |member: &Member<GroupMember>| member.id() == to && member.value().outbox.takes(dispatch.bytes as usize);
        match members.pick_where(&dispatch, takes) {
            Some(member) => self.hand_to(member.value(), delivery, now),
            None => Some(delivery),
        }
    }
}

impl Helper {
    /// Time until it would have finished one more message.
    fn finish(&self) -> Duration {
        self.wait + self.service
    }
}

/// Returns all members, or a random range of [`LOOKED_AT_MAX`].
fn candidates<'a>(
    members: &'a Members<'_, GroupMember>,
    rng: &mut Rng,
) -> impl Iterator<Item = &'a Member<GroupMember>> {
    let count = members.len();
    let first = if count > LOOKED_AT_MAX { (rng.next_u64() % count as u64) as usize } else { 0 };
    members.iter().skip(first).chain(members.iter().take(first)).take(LOOKED_AT_MAX)
}

fn helper(
    members: &Members<'_, GroupMember>,
    member: &Member<GroupMember>,
    from: MemberId,
    dispatch: &Dispatch,
) -> Option<Helper> {
    let load = member.load();
    let takes_more = load.availability() == Availability::Ready && !load.is_draining() && !load.is_passed_over();
    if member.id() == from || !takes_more {
        return None;
    }
    let room = member.value().outbox.takes_at_once();
    if room == 0 {
        return None;
    }
    let Candidate { member, predicted_wait, processing_time, .. } = members.weigh(member, dispatch);
    Some(Helper { member, wait: predicted_wait, service: processing_time, room })
}

/// Estimates when `own` would finish its newest waiting message after `moved` newer ones went to others. A member that
/// has been blocked for some time is assumed to stay blocked for as long again.
fn finish_of(own: &Candidate, waiting: usize, moved: usize, stalled_for: Duration) -> Duration {
    let outstanding = own.in_flight.max(waiting as u64);
    let share = (outstanding - moved as u64) as f64 / outstanding as f64;
    own.predicted_wait.mul_f64(share).max(stalled_for)
}

/// Minimum gain: less is not worth the work.
const MARGIN: Duration = Duration::from_millis(100);
/// Maximum number of messages moved at once.
const MOVED_MAX: usize = 256;
/// Maximum number of groups whose messages are offered at once.
const OFFERED_AT_ONCE: usize = 64;
/// Maximum number of members considered.
const LOOKED_AT_MAX: usize = 64;
