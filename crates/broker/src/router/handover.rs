//! Messages that are taken from a member of share groups and go to others.

use std::collections::HashSet;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use tenbin_balancer::{FreedKeys, MemberId, Nanos, Rng};
use tenbin_codec::TopicFilter;
use tenbin_session::Delivery;

use super::held_key::{HeldKey, ordering_key};
use super::waiting::Refused;
use super::{Router, SharedGroup};
use crate::outbox::Outbox;

/// A member whose messages are being taken from it. While this is there, what is published to its groups waits: nothing
/// may get before those messages to where they go.
#[derive(Debug)]
#[must_use = "what is published waits for its end"]
pub(crate) struct Handover<'a> {
    router: &'a Router,
    /// The session's number.
    from: u64,
    groups: Vec<Arc<SharedGroup>>,
    /// Groups that it leaves, and had no messages of: theirs may wait for it.
    left_empty: Vec<Arc<SharedGroup>>,
}

/// What may be taken from a member's queue.
#[derive(Debug)]
pub(crate) struct Freed(Vec<(NonZeroU64, FreedKeys)>);

impl Router {
    /// Messages are going to be taken from the member of this number: to be called before they are taken, or it goes
    /// offline.
    pub(crate) fn begin_handover(&self, from: u64, outbox: &Outbox) -> Handover<'_> {
        let groups = outbox.groups().into_iter().filter_map(|number| self.index.group_by_number(number));
        let groups: Vec<_> = groups.inspect(|group| group.begin_handover()).collect();
        Handover { router: self, from, groups, left_empty: Vec::new() }
    }

    /// As [`Router::begin_handover`], for the groups of `filters`.
    pub(crate) fn begin_leaving<'f>(&self, from: u64, filters: impl Iterator<Item = &'f TopicFilter>) -> Handover<'_> {
        let groups = filters.filter_map(TopicFilter::shared).filter_map(|shared| self.index.group(&shared));
        let groups = groups.inspect(|group| group.begin_handover()).collect();
        Handover { router: self, from, groups, left_empty: Vec::new() }
    }

    /// A member of share groups goes: takes what waits for it. `under_way`: groups of messages that will be taken too. Only
    /// groups with messages or with an order wait: it may be a member of thousands.
    pub(crate) fn detach(
        &self,
        from: u64,
        outbox: &Outbox,
        under_way: impl Iterator<Item = NonZeroU64>,
    ) -> (Handover<'_>, Vec<Delivery>) {
        let of_member = outbox.groups().into_iter().filter_map(|number| self.index.group_by_number(number));
        // Messages that were given to it and have not come to its queue come back. A later message of their key must not go
        // to another member first.
        let (ordered, left_empty): (Vec<_>, Vec<_>) = of_member.partition(|group| group.members.rules().is_ordered);
        left_empty.iter().for_each(|group| group.departs());
        let mut handover = Handover { router: self, from, groups: Vec::new(), left_empty };
        let ordered = ordered.iter().map(|group| group.number());
        let (mut known, mut begun) = (HashSet::new(), under_way.chain(ordered).collect::<HashSet<_>>());
        loop {
            for group in begun.iter().filter_map(|&number| self.index.group_by_number(number)) {
                group.begin_handover();
                handover.groups.push(group);
            }
            known.extend(begun);
            match outbox.detach(|group| known.contains(&group)) {
                Ok(taken) => {
                    handover.left_empty.retain(|group| !known.contains(&group.number()));
                    return (handover, taken);
                }
                Err(unknown) => begun = unknown, // came meanwhile
            }
        }
    }

    /// Gives messages that were taken from a member of share groups to others, each group's in order; while nobody takes
    /// them they wait with the group. Those of a group that has ended are dropped and counted.
    pub(crate) fn redispatch(&self, deliveries: Vec<Delivery>, now: Instant, rng: &mut Rng) {
        let now = self.clock.moment(now);
        self.for_each_group(deliveries, |group, deliveries| group.give_to_others(deliveries, now, rng));
    }

    /// Gives messages to members that were published just now, and came back from those who had been chosen: `returned`
    /// says from whom. As [`Router::redispatch`], behind what waits. A message that finds no room goes to `refused`.
    pub(super) fn choose_again(
        &self,
        returned: Vec<(u64, Delivery)>,
        now: Instant,
        refused: &mut Refused,
        rng: &mut Rng,
    ) {
        for (number, delivery) in &returned {
            self.keys_done(HeldKey::of(delivery), *number);
        }
        let deliveries = returned.into_iter().map(|(_, delivery)| delivery).collect();
        let now = self.clock.moment(now);
        self.for_each_group(deliveries, |group, deliveries| group.wait(deliveries, now, refused, rng));
    }

    fn for_each_group(
        &self,
        mut deliveries: Vec<Delivery>,
        mut give: impl FnMut(&Arc<SharedGroup>, &mut dyn Iterator<Item = Delivery>),
    ) {
        deliveries.sort_by_key(|delivery| delivery.share); // stable
        let mut deliveries = deliveries.into_iter().peekable();
        while let Some(share) = deliveries.peek().map(|delivery| delivery.share) {
            let mut of_group = std::iter::from_fn(|| deliveries.next_if(|delivery| delivery.share == share));
            match share.and_then(|number| self.index.group_by_number(number)) {
                Some(group) => give(&group, &mut of_group),
                None => self.index.count_dropped(of_group.count() as u64),
            }
        }
    }
}

impl Handover<'_> {
    /// Frees keys of a member that goes on working: all but those of which it has begun messages. Nothing may come into
    /// its queue, nor go out, between this and taking out what [`Freed::contains`] says.
    pub(crate) fn free<'q>(&self, queue: impl Iterator<Item = &'q Delivery> + Clone, now: Nanos) -> Freed {
        let free_keys = |group: &Arc<SharedGroup>| {
            let number = group.number();
            let queued = queue.clone().filter(|delivery| delivery.share == Some(number)).filter_map(|delivery| {
                Some((ordering_key(delivery.share_key)?, delivery.published_qos.is_acknowledged()))
            });
            (number, group.members.members().free_keys(MemberId(self.from), queued, now))
        };
        Freed(self.groups.iter().map(free_keys).collect())
    }

    /// Groups that the member has left meanwhile and that have others.
    pub(crate) fn left(&self) -> HashSet<NonZeroU64> {
        let is_left = |group: &&Arc<SharedGroup>| {
            let members = group.members.members();
            !members.is_empty() && members.iter().all(|member| member.id() != MemberId(self.from))
        };
        self.groups.iter().filter(is_left).map(|group| group.number()).collect()
    }

    /// The messages are taken: they go to others, and then what was published meanwhile.
    pub(crate) fn finish(mut self, deliveries: Vec<Delivery>, now: Instant, rng: &mut Rng) {
        self.router.redispatch(deliveries, now, rng);
        self.end(now, rng);
    }

    fn end(&mut self, now: Instant, rng: &mut Rng) {
        let now = self.router.clock.moment(now);
        for group in self.groups.drain(..) {
            group.end_handover(now, rng);
        }
        for group in self.left_empty.drain(..).filter(|group| group.waiting.has_line()) {
            group.dispatch_waiting(now, rng);
        }
    }
}

impl Freed {
    pub(crate) fn contains(&self, delivery: &Delivery) -> bool {
        let Some(group) = delivery.share else { return false };
        let Some(key) = ordering_key(delivery.share_key) else { return true };
        // It has left the groups that are not here.
        self.0.iter().find(|(number, _)| *number == group).is_none_or(|(_, keys)| keys.contains(key))
    }
}

impl Drop for Handover<'_> {
    fn drop(&mut self) {
        // Nothing is left to do after `finish`.
        if !self.groups.is_empty() || !self.left_empty.is_empty() {
            self.end(Instant::now(), &mut Rng::new(self.from));
        }
    }
}
