//! Which member of a share group gets a message: the balancer's pick, and what only the broker knows.

use tenbin_balancer::{Availability, Dispatch, Explanation, Member, Members, Rng};

use super::decisions::Decision;
use super::shared::{GroupMember, SharedGroup, beginning};

/// Who of a group gets this message? The answer outlives all but the members.
#[derive(Clone, Copy)]
pub(super) struct Question<'a, 'm> {
    pub(super) group: &'m SharedGroup,
    pub(super) members: &'a Members<'a, GroupMember>,
    pub(super) dispatch: &'m Dispatch,
    /// For display.
    pub(super) topic: &'m [u8],
}

/// Who gets a message, which is booked there then.
pub(super) enum Choice<'a> {
    Member(&'a Member<GroupMember>),
    /// There are members, and none takes it now, or others wait already: it waits with the group.
    Nobody,
    /// The group has ended.
    NoMember,
}

impl<'a> Question<'a, '_> {
    /// For a message that has just been published: nobody while earlier ones wait, or if a member has departed `since`.
    #[inline]
    pub(super) fn choose_for_new(self, since: Option<u64>, rng: &mut Rng) -> Choice<'a> {
        let waiting = &self.group.waiting;
        let has_departed = || since.is_some_and(|since| waiting.departures() != since);
        // QoS 0 does not wait.
        let has_to_queue = || self.dispatch.is_acknowledged && (waiting.has_line() || has_departed());
        if has_to_queue() && !self.members.is_empty() {
            return Choice::Nobody;
        }
        match self.choose(rng) {
            // Whoever takes messages from a member says that there is a line before it frees their keys: a pick that has
            // found a key free finds that line too, or the earlier messages at their new member.
            Choice::Member(member) if has_to_queue() => {
                self.take_back(member);
                Choice::Nobody
            }
            choice => choice,
        }
    }

    /// For a message that has nothing to wait for.
    #[inline]
    pub(super) fn choose(self, rng: &mut Rng) -> Choice<'a> {
        let Self { group, members, dispatch, .. } = self;
        if group.decisions.is_due(dispatch.at) && group.decisions.claim(dispatch.at, members.len()) {
            let Some((member, explanation)) = members.pick_explained(dispatch, rng) else { return Choice::NoMember };
            let choice = self.settle(member);
            self.tell(member, explanation, &choice);
            return choice;
        }
        match members.pick(dispatch, rng) {
            Some(member) => self.settle(member),
            None => Choice::NoMember,
        }
    }

    /// Who gets the message, now that a pick has booked it on `member`.
    fn settle(self, member: &'a Member<GroupMember>) -> Choice<'a> {
        let packet_bytes = self.dispatch.bytes as usize;
        if !self.is_wanted_by(member) {
            self.take_back(member);
            return Choice::Nobody;
        }
        if member.value().outbox.takes(packet_bytes) {
            return Choice::Member(member);
        }
        // Another one may take larger packets; if none does, the chosen one drops it by the rule.
        let able = |other: &Member<GroupMember>| self.is_wanted_by(other) && other.value().outbox.takes(packet_bytes);
        let Some(able) = self.members.pick_where(self.dispatch, able) else { return Choice::Member(member) };
        self.take_back(member);
        Choice::Member(able)
    }

    /// Who drains wants nothing new, but what follows messages of the same key that it has; and QoS 0, which does not
    /// wait for better times, is better off there than lost.
    fn is_wanted_by(self, member: &Member<GroupMember>) -> bool {
        let (load, Dispatch { is_acknowledged, .. }) = (member.load(), self.dispatch);
        load.availability() != Availability::Offline
            && (!is_acknowledged || !load.is_draining() || self.members.follows_others(member.id(), self.dispatch))
    }

    /// A pick has booked the message on a member who does not get it.
    pub(super) fn take_back(self, member: &Member<GroupMember>) {
        member.load().taken_back(1, self.dispatch.bytes.into(), self.dispatch.at);
        not_given(self.members, self.dispatch, member);
    }

    /// Keeps how the balancer came to pick a member, and what became of that.
    #[cold]
    fn tell(self, picked: &Member<GroupMember>, explanation: Explanation, choice: &Choice<'_>) {
        let Self { group, members, dispatch, topic } = self;
        let (chosen, reason) = match choice {
            Choice::Member(chosen) if chosen.id() == picked.id() => (Some(chosen), explanation.reason.name()),
            Choice::Member(chosen) => (Some(chosen), "packet_size"),
            Choice::Nobody | Choice::NoMember => (None, "nobody"),
        };
        // Both are in join order.
        let mut known = members.iter();
        let named = explanation.candidates.iter().filter_map(|candidate| {
            let member = known.find(|member| member.id() == candidate.member)?;
            Some((member.value().client_id.clone(), *candidate))
        });
        let decision = Decision {
            number: 0,
            at: dispatch.at,
            topic: beginning(&String::from_utf8_lossy(topic)).into(),
            bytes: dispatch.bytes,
            policy: members.rules().policy,
            chosen: chosen.map(|member| member.value().client_id.clone()),
            reason,
            members: explanation.members,
            candidates: named.collect(),
            unrecorded: 0,
        };
        group.decisions.keep(decision, group.given(members));
    }
}

/// A message whose booking on `member` has been taken back leaves its key too.
pub(super) fn not_given(members: &Members<'_, GroupMember>, dispatch: &Dispatch, member: &Member<GroupMember>) {
    if let Some(key) = dispatch.key.filter(|_| dispatch.is_acknowledged) {
        members.key_done(key, member.id());
    }
}
