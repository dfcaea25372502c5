//! Spare, joiner and follower.

use std::time::Duration;

use super::agreement::Call;
use super::{Machine, State, Turn};
use crate::event::{Action, LinkEnd, Notice, PromotionRefused};
use crate::node::Node;
use crate::record::{Record, Role};
use crate::settings::Rule;

/// The link to the leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Link {
    /// The node at the other end.
    pub(super) to: Option<Node>,
    pub(super) state: LinkState,
    /// It was open before.
    pub(super) was_up: bool,
    /// When the leader was heard last, or the link was first wanted.
    pub(super) heard: Duration,
}

/// State of the link to the leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum LinkState {
    /// Open.
    Up,
    /// Not open.
    #[default]
    Down,
    /// A new link was refused, or the leader has said farewell.
    Refused,
}

/// A joiner's copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum JoinerCopy {
    /// The mark is being replaced first.
    Marking,
    /// Under way.
    Copying,
    /// Has ended.
    Broken,
}

impl Machine {
    /// Keeps a link to the record's leader.
    pub(super) fn connect(&mut self, turn: &mut Turn<'_>) {
        let leader = self.record.map(|record| record.leader).filter(|leader| *leader != self.settings.node);
        // A link of a process that does not act would keep its namesake's out.
        let Some(leader) = leader.filter(|_| self.namesake.is_none()) else { return self.disconnect(turn) };
        if self.link.to != Some(leader) {
            self.link = Link { to: Some(leader), heard: turn.now, ..Link::default() };
            turn.act(Action::Connect { leader });
        }
    }

    pub(super) fn disconnect(&mut self, turn: &mut Turn<'_>) {
        if self.link.to.is_some() {
            self.link = Link::default();
            turn.act(Action::Disconnect);
        }
    }

    /// True if the leader does not seem to be there.
    pub(super) fn leader_is_lost(&self, now: Duration) -> bool {
        let timing = &self.settings.timing;
        self.link.state == LinkState::Refused || now >= self.link.heard + timing.dead_after + timing.follower_later
    }

    pub(super) fn link_up(&mut self, leader: Node) {
        if self.link.to == Some(leader) {
            self.link.state = LinkState::Up;
            self.link.was_up = true;
        }
    }

    pub(super) fn link_down(&mut self, leader: Node, end: LinkEnd) {
        if self.link.to == Some(leader) {
            let is_broken = end == LinkEnd::Broken;
            self.link.state = if is_broken { LinkState::Down } else { LinkState::Refused };
            self.must_read |= !is_broken;
            if end == LinkEnd::Farewell {
                // The leader does not act, so its lease is over.
                self.promised = Duration::ZERO;
            }
        }
    }

    /// The leader is about to be replaced.
    pub(super) fn leader_leaves(&mut self) {
        self.link.state = LinkState::Refused;
    }

    pub(super) fn beacon(&mut self, number: u64, record: Record, turn: &mut Turn<'_>) {
        let seals = self.settings.has(Rule::Seal);
        let is_standby = matches!(self.state, State::Spare | State::Joiner { .. } | State::Follower { .. });
        // Rule 3: a node that takes over grants nothing.
        if !is_standby && seals || self.link.to != Some(record.leader) {
            return;
        }
        if is_standby {
            self.link.state = LinkState::Up;
            self.link.heard = turn.now;
            if let State::Follower { is_handed_over, .. } = &mut self.state {
                // The leader has changed its mind.
                *is_handed_over = false;
            }
            self.adopt(record, turn);
        }
        // Rule 3: a follower obeys one leader and epoch.
        let is_obeyed = self.record == Some(record);
        // Rule 10: a node whose copy has ended is silent, so that the leader replaces it even if it sees no end.
        let is_copy = match self.state {
            State::Joiner { copy, .. } => copy != JoinerCopy::Broken,
            State::Follower { session, .. } => session.is_some(),
            _ => !seals,
        };
        if is_obeyed && is_copy {
            // Rule 9: the answer promises not to take over within the lease.
            self.promised = self.promised.max(turn.now + self.settings.timing.lease);
            let is_follower = matches!(self.state, State::Follower { .. });
            let is_marked = is_follower && self.mark.is_some_and(|mark| mark.record == record);
            turn.act(Action::AnswerBeacon { number, is_marked });
        }
    }

    /// A joiner or follower has a newer record.
    pub(super) fn standby_adopts(&mut self, record: Record, turn: &mut Turn<'_>) {
        if let State::Joiner { session, copy } = self.state {
            let is_follower = self.role(record) == Role::Follower;
            // The leader makes a joiner its follower once it has confirmed everything, and no second copy begins in one
            // session. So the directory is complete, even if the copy has ended since.
            if is_follower && record.epoch == session + 1 && copy != JoinerCopy::Marking {
                let session = (copy == JoinerCopy::Copying).then_some(session);
                self.state = State::Follower { session, is_promoted: false, is_handed_over: false };
                self.write_mark(record, turn);
                return;
            }
        }
        turn.act(Action::Seal);
        self.place(turn);
    }

    /// Begins the joiner's copy, unless it has begun.
    pub(super) fn begin_copy(&mut self, turn: &mut Turn<'_>) {
        let (Some(record), State::Joiner { session, copy: JoinerCopy::Marking }) = (self.record, self.state) else {
            return;
        };
        // Rule 4: the directory is no copy any more, so its mark must say that the node is a joiner.
        let is_marked = self.mark.is_some_and(|mark| mark.record == record);
        if !is_marked || self.mark_job.is_some() {
            if self.mark_next.or(self.mark_job) != Some(record) {
                self.write_mark(record, turn);
            }
            return;
        }
        self.state = State::Joiner { session, copy: JoinerCopy::Copying };
        turn.act(Action::StartCopy { leader: record.leader, session });
    }

    pub(super) fn copy_broken(&mut self, broken: u64) {
        match &mut self.state {
            // Rule 10: the leader learns it by the end of the copy's connections.
            State::Joiner { session, copy } if *session == broken => *copy = JoinerCopy::Broken,
            State::Follower { session, .. } if *session == Some(broken) => *session = None,
            _ => {}
        }
    }

    /// A follower without a leader reads the record before it takes over.
    pub(super) fn following(&mut self, turn: &mut Turn<'_>) {
        let State::Follower { is_promoted, .. } = self.state else { return };
        if self.is_manual() && is_promoted {
            self.take_over(turn);
        }
    }

    /// The record was read, and names this node as follower.
    pub(super) fn take_over_if_due(&mut self, turn: &mut Turn<'_>) {
        let State::Follower { is_promoted, is_handed_over, .. } = self.state else { return };
        // Rule 3: a follower seals only right after a read. So a pair goes on without the engine.
        if (is_promoted || is_handed_over || self.leader_is_lost(turn.now)) && !self.is_manual() {
            self.take_over(turn);
        }
    }

    fn take_over(&mut self, turn: &mut Turn<'_>) {
        let Some(record) = self.record.filter(|_| self.may_take_over()) else { return };
        let is_handover = matches!(self.state, State::Follower { is_handed_over: true, .. });
        self.notice(Notice::TakingOver { epoch: record.epoch, is_handover }, turn);
        // Rule 3: from here on nothing is accepted, confirmed or granted.
        if self.settings.has(Rule::Seal) {
            turn.act(Action::Seal);
            self.disconnect(turn);
        }
        self.open(record, turn);
    }

    pub(super) fn promote(&mut self, accept_loss: bool, turn: &mut Turn<'_>) {
        let answer = match self.state {
            State::Leader(_) | State::Opening(_) | State::Creating => Err(PromotionRefused::Leads),
            State::Follower { session, is_handed_over, .. } => {
                let may_be_behind = self.is_manual()
                    && self.settings.copies_minimum < 2
                    && (session.is_none() || self.link.state != LinkState::Up || self.leader_is_lost(turn.now));
                if may_be_behind && !accept_loss {
                    Err(PromotionRefused::MayBeBehind)
                } else {
                    self.state = State::Follower { session, is_promoted: true, is_handed_over };
                    self.must_read |= self.call == Call::None;
                    Ok(())
                }
            }
            // A node that was a copy once and whose directory is still whole.
            State::Spare | State::Barred if self.is_unfit => Err(PromotionRefused::Unfit),
            _ if self.namesake.is_some() => Err(PromotionRefused::Namesake),
            State::Spare | State::Barred if self.is_manual() && self.has_whole_copy() => {
                match self.record.filter(|_| accept_loss) {
                    Some(record) => {
                        turn.act(Action::Promotion(Ok(())));
                        self.disconnect(turn);
                        return self.open(record, turn);
                    }
                    None => Err(PromotionRefused::MayBeBehind),
                }
            }
            _ if self.known_namesake().is_some() => Err(PromotionRefused::Namesake),
            _ => Err(PromotionRefused::NoCopy),
        };
        turn.act(Action::Promotion(answer));
    }

    /// True if the directory was a leader's or follower's, and no copy has begun since.
    pub(super) fn has_whole_copy(&self) -> bool {
        let role = self.mark.map(|mark| mark.record.role_of(self.settings.node));
        matches!(role, Some(Role::Leader | Role::Follower))
    }
}
