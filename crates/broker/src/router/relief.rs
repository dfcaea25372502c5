//! Work taken back: what waits for a member of a share group who cannot be sent it goes to others who would finish it
//! clearly earlier.

use std::collections::VecDeque;
use std::time::Duration;

use tenbin_balancer::{Availability, Candidate, Dispatch, Member, MemberId, Members, Rng};
use tenbin_session::Delivery;

use super::shared::{GroupMember, SharedGroup};
use super::{Receiver, Router};
use crate::clock::Moment;

/// One who could take over, while it is decided how much.
struct Helper {
    member: MemberId,
    /// When it would have finished everything, from now on.
    wait: Duration,
    /// What one message takes it; zero = nobody knows.
    service: Duration,
    /// Messages that would go out at once.
    room: usize,
}

impl Router {
    /// Gives to others what waits for a member, where they would finish it clearly earlier; how many messages that
    /// were. `stalled_for`: nothing has been sent to it for so long.
    pub(crate) fn relieve(&self, from: &Receiver, stalled_for: Duration, now: Moment, rng: &mut Rng) -> usize {
        let mut moved = 0;
        for (number, waiting) in from.outbox.waiting_by_group() {
            let Some(group) = self.index.group_by_number(number) else { continue };
            let mut helpers = group.helpers(MemberId(from.number), waiting, stalled_for, now, rng);
            let newest = from.outbox.withdraw_newest(number, helpers.len());
            moved += newest.len();
            let mut returned = Vec::new();
            for delivery in newest {
                // As many as there are messages, unless some have gone meanwhile.
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
    /// Who takes over the newest of the messages that wait for `from`, the oldest of them first.
    ///
    /// From the newest on, one goes to the helper who would finish it first, as long as that is in less than half of
    /// the time, and [`MARGIN`] less, than it would take where it is; and as long as the helper can be sent it at once.
    /// So nothing moves between members who are all at their limits, nor back and forth between two. Where messages
    /// belong together, by a key or by the policy, they stay.
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

    /// Gives a message to this member; it comes back where that cannot have it any more.
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
    /// When it would have finished one message more.
    fn finish(&self) -> Duration {
        self.wait + self.service
    }
}

/// All members, or some of very many.
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
    if member.id() == from || member.load().availability() != Availability::Ready || member.load().is_draining() {
        return None;
    }
    let room = member.value().outbox.takes_at_once();
    if room == 0 {
        return None;
    }
    let Candidate { member, predicted_wait, processing_time, .. } = members.weigh(member, dispatch);
    Some(Helper { member, wait: predicted_wait, service: processing_time, room })
}

/// When the newest of the messages that wait for `own` would be finished if so many newer ones went to others. One that
/// has been blocked for a while is taken to be so for as long again, whatever is known of it.
fn finish_of(own: &Candidate, waiting: usize, moved: usize, stalled_for: Duration) -> Duration {
    let outstanding = own.in_flight.max(waiting as u64);
    let share = (outstanding - moved as u64) as f64 / outstanding as f64;
    own.predicted_wait.mul_f64(share).max(stalled_for)
}

/// What has to be gained at least: less is not worth the work.
const MARGIN: Duration = Duration::from_millis(100);
/// Messages that are moved at once.
const MOVED_MAX: usize = 256;
/// Members that are looked at.
const LOOKED_AT_MAX: usize = 64;
