//! Handover: the leader lets its follower take over in order.
//!
//! The leader stops to act, waits until its follower has confirmed everything, and tells it. The follower then takes over
//! without waiting for the lease. Until the record decides, the leader acts only with a lease that the follower has granted
//! afterwards, or once it has swapped the follower out.

use std::time::Duration;

use super::leader::CopyState;
use super::{After, Machine, State, Turn};
use crate::event::{Action, Loss, Notice, SwitchRefused};
use crate::node::Node;
use crate::record::Record;
use crate::settings::Rule;

/// A handover that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Handover {
    pub(super) why: Why,
    step: HandoverStep,
    /// End of the step.
    pub(super) until: Duration,
}

/// Reason of a handover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Why {
    /// An operator wants it.
    Switch,
    /// The leader's disk cannot be used.
    Disk,
    /// The leader's process is to end.
    Stop,
}

/// How far a handover is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum HandoverStep {
    /// The follower confirms all operations.
    Confirming,
    /// The follower was told.
    Told,
    /// The follower's link has ended: it takes over.
    Taking,
    /// The follower has not begun. Its answer to a new beacon returns the lease.
    Returning,
}

impl Handover {
    /// True while the follower may take over without waiting for a lease. It gets no beacons, and the end of its copy is no
    /// loss.
    pub(super) fn is_told(self) -> bool {
        matches!(self.step, HandoverStep::Told | HandoverStep::Taking)
    }
}

impl Machine {
    pub(super) fn switch(&mut self, to: Option<Node>, turn: &mut Turn<'_>) {
        if let Err(refused) = self.hand_over(Why::Switch, to, turn) {
            turn.act(Action::Switched(Err(refused)));
        }
    }

    /// Rule 10: a leader whose disk cannot be used hands over, if its follower has everything and can take over.
    pub(super) fn disk_unusable(&mut self, turn: &mut Turn<'_>) {
        // The driver says it again.
        let _ = self.hand_over(Why::Disk, None, turn);
    }

    /// Lets the follower lead before this node ends. False: it is to end at once. A `switch` that is under way goes on: its
    /// operator learns how it ends.
    pub(super) fn hands_over_to_stop(&mut self, turn: &mut Turn<'_>) -> bool {
        let State::Leader(leader) = &mut self.state else { return false };
        match &mut leader.handover {
            Some(handover) => std::mem::replace(&mut handover.why, Why::Stop) != Why::Stop,
            None => self.hand_over(Why::Stop, None, turn).is_ok(),
        }
    }

    /// Begins a handover to the follower.
    pub(super) fn hand_over(&mut self, why: Why, to: Option<Node>, turn: &mut Turn<'_>) -> Result<(), SwitchRefused> {
        let (now, own) = (turn.now, self.settings.node);
        let is_changing = self.change.is_some();
        let State::Leader(leader) = &mut self.state else { return Err(SwitchRefused::NotLeader) };
        if self.settings.agreement != crate::Agreement::Engine {
            return Err(SwitchRefused::Manual);
        }
        if to == Some(own) {
            return Err(SwitchRefused::Leads);
        }
        if leader.handover.is_some() {
            return Err(SwitchRefused::UnderWay);
        }
        let (node, session, is_marked) = match leader.copy {
            CopyState::Following { node, session, is_marked } => (node, session, is_marked),
            CopyState::Joining { node, .. } | CopyState::Required { node, .. } => {
                return Err(SwitchRefused::Incomplete(node));
            }
            CopyState::Alone => return Err(SwitchRefused::NoFollower),
        };
        if to.is_some_and(|to| to != node) {
            return Err(SwitchRefused::NotFollower(node));
        }
        if !is_marked {
            return Err(SwitchRefused::Incomplete(node));
        }
        // The follower could not change the record. A node that is to end loses nothing by the attempt.
        if self.is_engine_away && why != Why::Stop {
            return Err(SwitchRefused::EngineAway);
        }
        if is_changing || leader.loss.is_some() || !self.peers.contains(node) || !leader.may_act(now) {
            return Err(SwitchRefused::Silent(node));
        }
        leader.handover =
            Some(Handover { why, step: HandoverStep::Confirming, until: now + self.settings.timing.dead_after });
        // From here on this node does not act.
        self.update_lease(turn);
        self.notice(Notice::HandingOver { node }, turn);
        turn.act(Action::Require { session });
        Ok(())
    }

    /// Everything is confirmed. Nothing acknowledged depends on it: rule 2 holds anyway.
    pub(super) fn handover_confirmed(&mut self, turn: &mut Turn<'_>) {
        if let State::Leader(leader) = &self.state
            && leader.handover.is_some_and(|handover| handover.step == HandoverStep::Confirming)
        {
            self.tell_follower(turn);
        }
    }

    fn tell_follower(&mut self, turn: &mut Turn<'_>) {
        let (Some(record), State::Leader(leader)) = (self.record, &mut self.state) else { return };
        let Some(handover) = &mut leader.handover else { return };
        // All leases that were granted before end in this time.
        let timing = &self.settings.timing;
        (handover.step, handover.until) = (HandoverStep::Told, turn.now + timing.dead_after.max(timing.lease));
        self.read_at = turn.now;
        turn.act(Action::SendHandover { record });
    }

    /// Goes on, as far as the time allows.
    pub(super) fn handing_over(&mut self, turn: &mut Turn<'_>) {
        let State::Leader(leader) = &mut self.state else { return };
        let Some(handover) = &mut leader.handover else { return };
        let is_due = turn.now >= handover.until;
        let is_lost = leader.loss.is_some();
        // A node that is to end need not go on alone first.
        let is_over = is_lost && handover.why == Why::Stop;
        if !is_over && (self.change.is_some() || !is_due && !is_lost) {
            return;
        }
        match (handover.step, handover.why) {
            _ if is_over => self.handover_failed(turn),
            (HandoverStep::Told | HandoverStep::Taking | HandoverStep::Returning, Why::Stop) => {
                self.handover_failed(turn)
            }
            // The follower was not told, so that its answers count as before.
            (HandoverStep::Confirming, _) if is_lost => self.handover_failed(turn),
            (HandoverStep::Confirming, Why::Switch) => self.handover_failed(turn),
            (HandoverStep::Confirming, Why::Disk | Why::Stop) => self.tell_follower(turn),
            // The leader goes on alone once the record has changed.
            _ if is_lost => {}
            (HandoverStep::Told, _) => self.return_lease(turn),
            (HandoverStep::Taking, _) => leader.loss = Some(Loss::Silent),
            (HandoverStep::Returning, _) => {}
        }
    }

    /// Asks the follower for a new lease. Its silence is a loss.
    fn return_lease(&mut self, turn: &mut Turn<'_>) {
        let State::Leader(leader) = &mut self.state else { return };
        let Some(handover) = &mut leader.handover else { return };
        handover.step = HandoverStep::Returning;
        handover.until = turn.now + self.settings.timing.dead_after;
        leader.answered = turn.now;
    }

    /// The follower's link has ended. It closes its link when it takes over.
    pub(super) fn follower_leaves(&mut self, node: Node, turn: &mut Turn<'_>) {
        let until = turn.now + self.settings.timing.takes_over_within;
        if let State::Leader(leader) = &mut self.state
            && leader.copy.node() == Some(node)
            && let Some(handover) = &mut leader.handover
            && handover.step != HandoverStep::Confirming
        {
            (handover.step, handover.until) = (HandoverStep::Taking, until);
        }
    }

    /// A follower that opens a link has not sealed its copy.
    pub(super) fn follower_is_back(&mut self, turn: &mut Turn<'_>) {
        if let State::Leader(leader) = &self.state
            && leader.handover.is_some_and(Handover::is_told)
        {
            self.return_lease(turn);
        }
    }

    /// The follower has answered a beacon, and its lease holds.
    pub(super) fn lease_returns(&mut self, turn: &mut Turn<'_>) {
        if let State::Leader(leader) = &self.state
            && leader.handover.is_some_and(|handover| handover.step == HandoverStep::Returning)
        {
            self.handover_failed(turn);
        }
    }

    /// The follower has not taken over: this node goes on as the leader, unless it is to end.
    pub(super) fn handover_failed(&mut self, turn: &mut Turn<'_>) {
        let State::Leader(leader) = &mut self.state else { return };
        match leader.handover.map(|handover| handover.why) {
            // The follower takes over later, or this node leads again after its restart.
            Some(Why::Stop) => self.close(After::Stop, turn),
            Some(why) => {
                leader.handover = None;
                self.notice(Notice::HandoverFailed, turn);
                if why == Why::Switch {
                    turn.act(Action::Switched(Err(SwitchRefused::Failed)));
                }
            }
            None => {}
        }
    }

    /// True if this leader ends once its follower leads or has not taken over.
    pub(super) fn is_to_stop(&self) -> bool {
        let State::Leader(leader) = &self.state else { return false };
        leader.handover.is_some_and(|handover| handover.why == Why::Stop)
    }

    /// The leader of this record hands over. It acts no more unless it gets an answer to a later beacon.
    pub(super) fn handed_over(&mut self, record: Record) {
        if self.link.to != Some(record.leader) || self.record != Some(record) {
            return;
        }
        self.must_read = true;
        match &mut self.state {
            State::Follower { is_handed_over, .. } => {
                *is_handed_over = true;
                self.promised = Duration::ZERO;
            }
            // There is another leader soon.
            State::Spare | State::Joiner { .. } => self.leader_leaves(),
            _ => {}
        }
    }

    /// True if the lease of this leader is taken away.
    pub(super) fn pauses(&self) -> bool {
        let State::Leader(leader) = &self.state else { return false };
        leader.handover.is_some_and(|handover| !handover.is_told() || self.settings.has(Rule::HandoverPause))
    }
}
