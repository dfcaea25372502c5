//! Chooses the member of a share group for a message: the balancer's pick, corrected by broker state.

use tenbin_balancer::{Availability, Burst, Dispatch, Explanation, Member, Members, Rng};
#[cfg(feature = "otel")]
use tenbin_codec::PublishTemplate;

use super::decisions::Decision;
use super::share_group::{GroupMember, SharedGroup, beginning};

/// A request to choose a member for a message. The answer borrows only the members.
#[derive(Clone, Copy)]
pub(super) struct Question<'a, 'm> {
    pub(super) group: &'m SharedGroup,
    pub(super) members: &'a Members<'a, GroupMember>,
    pub(super) dispatch: &'m Dispatch,
    pub(super) source: Source,
    /// For reports.
    pub(super) topic: &'m [u8],
    /// The message, for its span; `None`: it has no properties.
    #[cfg(feature = "otel")]
    pub(super) template: Option<&'m PublishTemplate>,
}

/// Where the message was until now.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// With its publisher, or with another member.
    Client,
    /// In the group backlog, with as many others.
    Backlog(usize),
    /// First in a full group backlog: it may not wait until a member can begin with it.
    FullBacklog,
}

/// The result of a choice. The message is booked on a chosen member.
pub(super) enum Choice<'a> {
    Member(&'a Member<GroupMember>),
    /// No member takes the message now, or earlier messages wait: it goes to the group backlog.
    Nobody,
    /// The group has ended.
    Ended,
}

impl<'a> Question<'a, '_> {
    /// Chooses for a new message of a publisher's `burst`. Returns no member while earlier messages wait, or if a member has
    /// departed since epoch `since`.
    #[inline]
    pub(super) fn choose_for_new(self, since: Option<u64>, burst: &mut Burst, rng: &mut Rng) -> Choice<'a> {
        let backlog = &self.group.backlog;
        let has_departed = || since.is_some_and(|since| backlog.membership_epoch() != since);
        // QoS 0 messages do not wait.
        let has_to_queue = || self.dispatch.is_acknowledged && (backlog.has_backlog() || has_departed());
        if has_to_queue() && !self.has_ended() {
            return Choice::Nobody;
        }
        match self.choose_by(|dispatch, _, rng| self.members.pick_in_burst(dispatch, burst, rng), rng) {
            // A redelivery announces the backlog before it frees the member's keys. So a pick that found a key free
            // sees the backlog here, or the earlier messages are with their new member.
            Choice::Member(member) if has_to_queue() => {
                self.take_back(member);
                backlog.unbooked();
                Choice::Nobody
            }
            choice => choice,
        }
    }

    /// Chooses for a message that no earlier one blocks.
    pub(super) fn choose(self, rng: &mut Rng) -> Choice<'a> {
        self.choose_by(|dispatch, waiting, rng| self.members.pick_late(dispatch, waiting, rng), rng)
    }

    /// As [`Question::choose`]. `pick` chooses for a message that may wait behind a number of others.
    #[inline(always)]
    fn choose_by(
        self,
        pick: impl FnOnce(&Dispatch, usize, &mut Rng) -> Option<&'a Member<GroupMember>>,
        rng: &mut Rng,
    ) -> Choice<'a> {
        let Self { group, members, dispatch, source, .. } = self;
        let waiting = match source {
            Source::Client => Some(0),
            Source::Backlog(others) => Some(others),
            Source::FullBacklog => None,
        };
        if let Some(waiting) = waiting
            && group.decisions.is_due(dispatch.at)
            && group.decisions.claim(dispatch.at, members.len())
        {
            let Some((member, explanation)) = members.pick_explained(dispatch, waiting, rng) else {
                return self.nobody();
            };
            let choice = self.settle(member);
            self.tell(member, explanation, &choice);
            return choice;
        }
        #[cfg(feature = "otel")]
        if let Some(waiting) = waiting.filter(|_| self.has_span()) {
            let Some((member, explanation)) = members.pick_explained(dispatch, waiting, rng) else {
                return self.nobody();
            };
            let choice = self.settle(member);
            self.note_choice(member, &explanation, &choice);
            return choice;
        }
        let picked = match waiting {
            Some(waiting) => pick(dispatch, waiting, rng),
            None => members.pick(dispatch, rng),
        };
        match picked {
            Some(member) => self.settle(member),
            None => self.nobody(),
        }
    }

    fn nobody(self) -> Choice<'a> {
        if self.has_ended() { Choice::Ended } else { Choice::Nobody }
    }

    /// Returns whether the group has ended with its last member.
    pub(super) fn has_ended(self) -> bool {
        self.members.is_empty() && !self.group.stands()
    }

    /// Confirms or corrects the choice, after a pick has booked the message on `member`.
    fn settle(self, member: &'a Member<GroupMember>) -> Choice<'a> {
        let packet_bytes = self.dispatch.bytes as usize;
        if !self.is_wanted_by(member) {
            self.take_back(member);
            return Choice::Nobody;
        }
        if member.value().outbox.takes(packet_bytes) {
            return Choice::Member(member);
        }
        // Another member may take larger packets. If none does, the chosen one drops the message by the rule for large
        // packets.
        let able = |other: &Member<GroupMember>| self.is_wanted_by(other) && other.value().outbox.takes(packet_bytes);
        let Some(able) = self.members.pick_where(self.dispatch, able) else { return Choice::Member(member) };
        self.take_back(member);
        Choice::Member(able)
    }

    /// Returns whether a member should get the message. A draining member gets only messages that follow others of
    /// their key there, and QoS 0 messages, which would otherwise be lost.
    fn is_wanted_by(self, member: &Member<GroupMember>) -> bool {
        let (load, Dispatch { is_acknowledged, .. }) = (member.load(), self.dispatch);
        load.availability() != Availability::Offline
            && (!is_acknowledged || !load.is_draining() || self.members.follows_others(member.id(), self.dispatch))
    }

    /// Chooses another member than the given one, which had the message before, if there is one that can take it. Only for
    /// messages of which no order is kept.
    #[cold]
    pub(super) fn another_than(self, member: &'a Member<GroupMember>) -> &'a Member<GroupMember> {
        let is_other = |other: &Member<GroupMember>| {
            other.id() != member.id()
                && other.load().availability() == Availability::Ready
                && !other.load().is_draining()
                && !other.load().is_passed_over()
                && other.load().can_begin()
                && other.value().outbox.takes(self.dispatch.bytes as usize)
        };
        if self.dispatch.key.is_some() {
            return member;
        }
        let Some(other) = self.members.pick_where(self.dispatch, is_other) else { return member };
        self.take_back(member);
        other
    }

    /// Cancels the booking of a message on a member that does not get it.
    pub(super) fn take_back(self, member: &Member<GroupMember>) {
        member.load().taken_back(1, self.dispatch.bytes.into(), self.dispatch.at);
        not_given(self.members, self.dispatch, member);
    }

    /// The member that gets the message, and why.
    #[inline]
    fn outcome<'c>(
        self,
        picked: &Member<GroupMember>,
        explanation: &Explanation,
        choice: &Choice<'c>,
    ) -> (Option<&'c Member<GroupMember>>, &'static str) {
        match choice {
            Choice::Member(chosen) if chosen.id() != picked.id() => (Some(chosen), "packet_size"),
            Choice::Member(chosen) if matches!(self.source, Source::Backlog(_)) => (Some(chosen), "waited"),
            Choice::Member(chosen) => (Some(chosen), explanation.reason.name()),
            Choice::Nobody | Choice::Ended => (None, "nobody"),
        }
    }

    /// Records how the balancer picked a member, and the outcome.
    #[cold]
    fn tell(self, picked: &Member<GroupMember>, explanation: Explanation, choice: &Choice<'_>) {
        #[cfg(feature = "otel")]
        self.note_choice(picked, &explanation, choice);
        let Self { group, members, dispatch, topic, .. } = self;
        let (chosen, reason) = self.outcome(picked, &explanation, choice);
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

#[cfg(feature = "otel")]
mod spans;

/// Releases a message's key from `member`, after its booking there was cancelled.
pub(super) fn not_given(members: &Members<'_, GroupMember>, dispatch: &Dispatch, member: &Member<GroupMember>) {
    if let Some(key) = dispatch.key.filter(|_| dispatch.is_acknowledged) {
        members.key_done(key, member.id());
    }
}
