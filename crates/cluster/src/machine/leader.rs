//! The leader and its copy.

use std::time::Duration;

use super::handover::Handover;
use super::joins::FailedJoins;
use super::{Machine, State, Turn};
use crate::event::{Action, Loss, Notice};
use crate::node::Node;
use crate::record::Record;
use crate::settings::Rule;

/// The node that leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Leader {
    pub(super) copy: CopyState,
    /// Why the copy is to end.
    pub(super) loss: Option<Loss>,
    pub(super) handover: Option<Handover>,
    /// When the newest answered beacon was sent.
    answered_sent: Option<Duration>,
    /// When the copy's node answered last, or its copy began.
    pub(super) answered: Duration,
    /// Since when there has been one copy.
    pub(super) alone_since: Duration,
    /// No copy begins before.
    pub(super) join_after: Duration,
    /// The node that had the copy before.
    pub(super) previous: Option<Node>,
    pub(super) failed_joins: FailedJoins,
    /// The last [`Action::SetLease`].
    lease: Option<Duration>,
    is_fenced: bool,
    pub(super) is_held: bool,
    pub(super) next_beacon: Duration,
}

/// The copy at another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum CopyState {
    /// There is none.
    Alone,
    /// It is made; nothing waits for it.
    Joining { node: Node, session: u64 },
    /// Operations wait for it, and it has yet to confirm everything before.
    Required { node: Node, session: u64 },
    /// It is the follower's. It counts once the follower's mark is on its disk.
    Following { node: Node, session: u64, is_marked: bool },
}

impl CopyState {
    pub(super) fn node(self) -> Option<Node> {
        match self {
            Self::Alone => None,
            Self::Joining { node, .. } | Self::Required { node, .. } | Self::Following { node, .. } => Some(node),
        }
    }

    fn session(self) -> Option<u64> {
        match self {
            Self::Alone => None,
            Self::Joining { session, .. } | Self::Required { session, .. } | Self::Following { session, .. } => {
                Some(session)
            }
        }
    }
}

impl Leader {
    pub(super) fn has_follower(&self) -> bool {
        matches!(self.copy, CopyState::Following { .. }) && self.loss.is_none()
    }

    /// True if this node may have messages that no other node has.
    pub(super) fn is_alone(&self) -> bool {
        !matches!(self.copy, CopyState::Following { .. })
    }

    /// Number of copies that count. One that is lost counts no more, also while the record still has it.
    pub(super) fn copies(&self) -> u8 {
        1 + u8::from(matches!(self.copy, CopyState::Following { is_marked: true, .. }) && self.loss.is_none())
    }

    pub(super) fn may_act(&self, now: Duration) -> bool {
        !self.is_fenced && self.lease.is_none_or(|until| now < until)
    }

    pub(super) fn is_fenced(&self) -> bool {
        self.is_fenced
    }

    pub(super) fn lease(&self) -> Option<Duration> {
        self.lease
    }
}

impl Machine {
    /// The leader of a new epoch, after the record `base`, begins to act.
    pub(super) fn lead(&mut self, base: Record, record: Record, turn: &mut Turn<'_>) {
        let others = [Some(base.leader), base.follower, base.joiner];
        let previous = others.into_iter().flatten().find(|node| *node != self.settings.node);
        let is_held = self.settings.copies_minimum > 1;
        if is_held {
            turn.act(Action::Hold);
        }
        turn.act(Action::SetLease { until: None });
        turn.act(Action::Serve);
        self.notice(Notice::Leads { epoch: record.epoch }, turn);
        self.state = State::Leader(Leader {
            copy: CopyState::Alone,
            loss: None,
            handover: None,
            answered_sent: None,
            answered: turn.now,
            alone_since: turn.now,
            join_after: turn.now,
            previous,
            failed_joins: FailedJoins::default(),
            lease: None,
            is_fenced: false,
            is_held,
            next_beacon: turn.now,
        });
        if record.joiner.is_some() {
            self.leader_entered(record, turn);
        }
    }

    /// Goes on, as far as the time and the last input allow.
    pub(super) fn leading(&mut self, turn: &mut Turn<'_>) {
        self.send_beacon(turn);
        self.note_silence(turn);
        self.handing_over(turn);
        self.look_at_copy(turn);
        self.update_lease(turn);
        self.fence_or_serve(turn);
    }

    fn send_beacon(&mut self, turn: &mut Turn<'_>) {
        let (Some(record), State::Leader(leader)) = (self.record, &mut self.state) else { return };
        if turn.now >= leader.next_beacon {
            leader.next_beacon = turn.now + self.settings.timing.beacon_every;
            if leader.handover.is_some_and(Handover::is_told) {
                return;
            }
            // Rule 9: the beacon carries the time at which it is sent. Its answer counts from then.
            let number = u64::try_from(turn.now.as_micros()).unwrap_or(u64::MAX);
            // While the mark of a newer record is being written, the record is told already: it is in force.
            turn.act(Action::SendBeacon { number, record });
        }
    }

    /// Counts a copy as lost whose node is silent. A change of the record that is under way is done first.
    fn note_silence(&mut self, turn: &Turn<'_>) {
        let State::Leader(leader) = &mut self.state else { return };
        let is_silent = leader.copy.node().is_some()
            && turn.now >= leader.answered + self.settings.timing.dead_after
            && !leader.handover.is_some_and(Handover::is_told);
        if is_silent && self.change.is_none() {
            leader.loss = leader.loss.or(Some(Loss::Silent));
        }
    }

    /// Finds a node to copy to, or goes on without one that is lost.
    fn look_at_copy(&mut self, turn: &mut Turn<'_>) {
        let is_bound = self.is_bound();
        let (Some(record), State::Leader(leader)) = (self.record, &mut self.state) else { return };
        if self.change.is_some() {
            return;
        }
        let next = Record { epoch: record.epoch + 1, follower: None, joiner: None, ..record };
        let Some(node) = leader.copy.node() else {
            if let Some(joiner) = self.choose_joiner(turn.now) {
                self.begin_change(Record { joiner: Some(joiner), ..next }, false, turn);
            }
            return;
        };
        let Some(loss) = leader.loss else { return };
        // A node that is bound to its copy waits for it: the follower may have been promoted.
        let may_join = self.peers.without_all(self.barred_peers).contains(node);
        let must_wait = !may_join || turn.now < leader.join_after || !leader.failed_joins.permit(node, turn.now);
        if is_bound && must_wait {
            return;
        }
        let next = Record { joiner: Some(node).filter(|_| is_bound), ..next };
        let CopyState::Following { session, .. } = leader.copy else {
            // Nothing acknowledged depends on a joiner.
            if let CopyState::Required { node, session } = leader.copy {
                turn.act(Action::Release { session });
                leader.copy = CopyState::Joining { node, session };
            }
            self.notice(Notice::CopyLost { node, loss }, turn);
            return self.begin_change(next, false, turn);
        };
        if !self.settings.has(Rule::ChangeBeforeAlone) {
            leader.copy = CopyState::Alone;
            turn.act(Action::Release { session });
            return;
        }
        // Rule 7: an acknowledgement after the sync, and before the record changes, could be of a message that is on no
        // disk.
        if !self.settings.is_sync_always && !leader.is_held && self.settings.has(Rule::HoldBeforeAlone) {
            leader.is_held = true;
            turn.act(Action::Hold);
        }
        self.notice(Notice::CopyLost { node, loss }, turn);
        // Rule 2: the record changes first. Rule 7: everything confirmed is synced before.
        self.begin_change(next, true, turn);
    }

    /// True if this leader takes no other node for its copy than the one that had it. With manual agreement a follower
    /// may be promoted unseen, and a copy at a third node could then confirm messages that the promoted one lacks.
    pub(super) fn is_bound(&self) -> bool {
        self.is_manual() && self.settings.copies_minimum > 1
    }

    /// Rule 9: the leader acts while the record, by its own last swap, has no follower, or while the lease has a fifth
    /// left. From the moment at which it asks for a follower there may be one.
    pub(super) fn update_lease(&mut self, turn: &mut Turn<'_>) {
        let pauses = self.pauses();
        let State::Leader(leader) = &mut self.state else { return };
        let asks = self.change.is_some_and(|change| change.next.follower.is_some());
        let needs_lease = asks || matches!(leader.copy, CopyState::Following { .. });
        let lease = self.settings.timing.lease;
        let until = needs_lease.then(|| leader.answered_sent.map_or(Duration::ZERO, |sent| sent + lease / 5 * 4));
        let until = if pauses { Some(Duration::ZERO) } else { until };
        if until != leader.lease {
            leader.lease = until;
            turn.act(Action::SetLease { until });
        }
    }

    /// A leader that reaches neither its follower nor the engine ends its clients.
    fn fence_or_serve(&mut self, turn: &mut Turn<'_>) {
        let State::Leader(leader) = &mut self.state else { return };
        let is_silent = turn.now >= leader.answered + self.settings.timing.dead_after;
        let has_lease = leader.lease.is_none_or(|until| turn.now < until);
        let has_engine = !self.is_engine_away && matches!(self.settings.agreement, crate::Agreement::Engine);
        if leader.is_fenced && has_lease {
            leader.is_fenced = false;
            turn.act(Action::Serve);
        } else if !leader.is_fenced && !has_lease && is_silent && !has_engine {
            leader.is_fenced = true;
            turn.act(Action::Fence);
        }
    }

    pub(super) fn answer(&mut self, node: Node, number: u64, marked: bool, turn: &mut Turn<'_>) {
        let State::Leader(leader) = &mut self.state else { return };
        let sent = Duration::from_micros(number);
        if leader.copy.node() != Some(node) || sent > turn.now {
            return;
        }
        // Rule 9: the follower's promise begins at its answer, which is later than the beacon.
        let from = if self.settings.has(Rule::LeaseFromSent) { sent } else { turn.now };
        leader.answered_sent = leader.answered_sent.max(Some(from));
        leader.answered = turn.now;
        let holds = from + self.settings.timing.lease / 5 * 4 > turn.now;
        // Rule 5: until its mark is on its disk, a follower that is killed cannot show that its copy is whole.
        if let CopyState::Following { is_marked, .. } = &mut leader.copy
            && marked
            && !*is_marked
        {
            *is_marked = true;
            leader.failed_joins = FailedJoins::default();
            if leader.is_held && leader.loss.is_none() {
                leader.is_held = false;
                turn.act(Action::Unhold);
            }
            self.notice(Notice::CopyComplete { node }, turn);
        }
        if holds {
            self.lease_returns(turn);
        }
    }

    pub(super) fn caught_up(&mut self, ended: u64, turn: &mut Turn<'_>) {
        let State::Leader(leader) = &mut self.state else { return };
        let CopyState::Joining { node, session } = leader.copy else { return };
        if session != ended || self.change.is_some() || leader.loss.is_some() {
            return;
        }
        // Rule 4: operations wait for the joiner before it becomes the follower.
        leader.copy = CopyState::Required { node, session };
        if self.settings.has(Rule::ConfirmBeforeFollower) {
            turn.act(Action::Require { session });
        } else {
            self.confirmed(session, turn);
        }
    }

    pub(super) fn confirmed(&mut self, confirmed: u64, turn: &mut Turn<'_>) {
        let (Some(record), State::Leader(leader)) = (self.record, &mut self.state) else { return };
        let CopyState::Required { node, session } = leader.copy else {
            if leader.copy.session() == Some(confirmed) {
                self.handover_confirmed(turn);
            }
            return;
        };
        if session == confirmed && self.change.is_none() && leader.loss.is_none() {
            // Rule 4: the joiner has confirmed everything, so it may be the follower.
            let next = Record { epoch: record.epoch + 1, follower: Some(node), joiner: None, ..record };
            self.change_with_lease(next, turn);
        }
    }

    /// The lease counts before the request that names a follower leaves.
    fn change_with_lease(&mut self, next: Record, turn: &mut Turn<'_>) {
        let State::Leader(leader) = &mut self.state else { return };
        let until = leader.answered_sent.map_or(Duration::ZERO, |sent| sent + self.settings.timing.lease / 5 * 4);
        leader.lease = Some(until);
        turn.act(Action::SetLease { until: Some(until) });
        self.begin_change(next, false, turn);
    }

    /// Rule 10: a follower whose copy has failed is replaced at once.
    pub(super) fn copy_failed(&mut self, failed: u64) {
        if let State::Leader(leader) = &mut self.state
            && leader.copy.session() == Some(failed)
            // A follower that takes over ends its copy.
            && !leader.handover.is_some_and(Handover::is_told)
        {
            leader.loss = leader.loss.or(Some(Loss::Failed));
        }
    }

    pub(super) fn follower_restarted(&mut self) {
        if let State::Leader(leader) = &mut self.state
            && leader.copy.node().is_some()
        {
            leader.loss = leader.loss.or(Some(Loss::Restarted));
        }
    }

    pub(super) fn follower_refuses(&mut self, node: Node) {
        if let State::Leader(leader) = &mut self.state
            && leader.copy.node() == Some(node)
        {
            leader.loss = leader.loss.or(Some(Loss::Refused));
        }
    }

    /// The record has changed as this leader wanted, and its mark is on the disk.
    pub(super) fn leader_entered(&mut self, record: Record, turn: &mut Turn<'_>) {
        let minimum = self.settings.copies_minimum;
        let State::Leader(leader) = &mut self.state else { return };
        let before = leader.copy;
        let was_following = matches!(before, CopyState::Following { .. });
        if record.follower.is_none() && minimum > 1 && !leader.is_held {
            leader.is_held = true;
            turn.act(Action::Hold);
        }
        if was_following {
            leader.alone_since = turn.now;
            leader.previous = before.node();
            self.handover_failed(turn);
        }
        let State::Leader(leader) = &mut self.state else { return };
        let was_complete = matches!(before, CopyState::Following { is_marked: true, .. });
        if let Some(node) = before.node().filter(|_| record.follower.is_none() && !was_complete) {
            leader.failed_joins.add(node, turn.now, &self.settings.timing);
        }
        if let Some(node) = record.joiner {
            let session = record.epoch;
            if let Some(session) = before.session() {
                turn.act(Action::Release { session });
            }
            leader.join_after = turn.now + self.settings.timing.read_every;
            leader.copy = CopyState::Joining { node, session };
            leader.loss = None;
            leader.answered = turn.now;
            leader.answered_sent = None;
            turn.act(Action::AcceptCopy { node, session });
        } else if let (Some(node), Some(session)) = (record.follower, before.session()) {
            leader.copy = CopyState::Following { node, session, is_marked: false };
        } else {
            if let Some(session) = before.session() {
                turn.act(Action::Release { session });
            }
            if minimum < 2 && leader.is_held {
                leader.is_held = false;
                turn.act(Action::Unhold);
            }
            leader.join_after = turn.now + if was_complete { Duration::ZERO } else { self.settings.timing.read_every };
            leader.copy = CopyState::Alone;
            leader.loss = None;
        }
        self.leading(turn);
    }
}

#[cfg(test)]
impl Leader {
    /// All times.
    pub(super) fn times(&mut self) -> impl IntoIterator<Item = &mut Duration> {
        let known = [&mut self.answered, &mut self.alone_since, &mut self.join_after, &mut self.next_beacon];
        let handover = self.handover.as_mut().map(|handover| &mut handover.until);
        let failed_joins = [self.failed_joins.time()];
        known.into_iter().chain(failed_joins).chain(&mut self.answered_sent).chain(&mut self.lease).chain(handover)
    }
}
