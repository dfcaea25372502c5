//! From a whole directory to a leader: takeovers, promotions and restarts.

use std::time::Duration;

use super::agreement::Phase;
use super::{After, Machine, State, Turn};
use crate::event::{Action, Notice};
use crate::record::Record;
use crate::settings::Rule;

/// Epochs that a promotion by command skips, so that it outranks all changes that the old leader makes alone.
pub(super) const PROMOTION: u64 = 1 << 20;

/// A node that opens its broker and then makes itself the leader of a new epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Opening {
    /// The record that it replaces.
    pub(super) base: Record,
    /// The broker is open.
    is_open: bool,
}

impl Machine {
    /// Opens the broker in order to lead after the record `base`. The end of the lease may come later.
    pub(super) fn open(&mut self, base: Record, turn: &mut Turn<'_>) {
        self.disconnect_unless_leaky(turn);
        turn.act(Action::SetLease { until: Some(Duration::ZERO) });
        turn.act(Action::OpenBroker);
        self.state = State::Opening(Opening { base, is_open: false });
    }

    fn disconnect_unless_leaky(&mut self, turn: &mut Turn<'_>) {
        if self.settings.has(Rule::Seal) {
            self.disconnect(turn);
        }
    }

    pub(super) fn broker_opened(&mut self, turn: &mut Turn<'_>) {
        if let State::Opening(opening) = &mut self.state {
            opening.is_open = true;
            self.opening(turn);
        }
    }

    pub(super) fn opening(&mut self, turn: &mut Turn<'_>) {
        let State::Opening(opening) = self.state else { return };
        // Rule 9: a takeover waits for the end of the lease that this node has granted.
        let must_wait = turn.now < self.promised && self.settings.has(Rule::LeaseWait);
        if !opening.is_open || self.change.is_some() || must_wait {
            return;
        }
        let base = self.record.unwrap_or(opening.base);
        let is_restart = base.leader == self.settings.node;
        if is_restart && base.epoch > 1 && !self.settings.has(Rule::RestartAlone) {
            return self.lead(base, base, turn);
        }
        // Rule 8: a restarted leader begins an epoch without followers before it confirms anything.
        let next = Record {
            epoch: base.epoch + if self.is_manual() && !is_restart { PROMOTION } else { 1 },
            leader: self.settings.node,
            follower: None,
            joiner: base.follower.or(base.joiner).filter(|_| is_restart && self.is_bound()),
            nonce: 0,
        };
        // Rule 7: operations that are only in memory are synced first.
        self.begin_change(next, true, turn);
    }

    /// Another record was first, or an earlier request of this node was executed late.
    pub(super) fn overtaken(&mut self, record: Record, turn: &mut Turn<'_>) {
        self.change = None;
        match self.state {
            State::Creating => self.place(turn),
            State::Opening(_) if self.may_lead(None) => {}
            State::Opening(_) => self.close(After::Place, turn),
            State::Leader(leader) => {
                let may_have_more = leader.is_alone() && self.is_manual();
                self.notice(Notice::Deposed { epoch: record.epoch, leader: record.leader }, turn);
                // Rule 10: a deposed leader ends its clients and drops its broker, and joins then.
                if self.settings.has(Rule::DropBroker) {
                    self.close(if may_have_more { After::SetAside } else { After::Place }, turn);
                } else {
                    turn.act(Action::SetLease { until: Some(Duration::ZERO) });
                    self.place(turn);
                }
            }
            _ => {}
        }
    }

    pub(super) fn broker_failed(&mut self, turn: &mut Turn<'_>) {
        if matches!(self.state, State::Opening(_)) {
            self.change = None;
            self.is_unfit = true;
            self.notice(Notice::BrokerFailed, turn);
            self.state = State::Spare;
            self.place(turn);
        }
    }

    /// Rule 10: a leader whose disk has failed hands over, if there is a follower.
    pub(super) fn disk_failed(&mut self, turn: &mut Turn<'_>) {
        self.notice(Notice::DiskFailed, turn);
        let must_end = match &self.state {
            State::Leader(leader) => {
                leader.has_follower() || self.change.is_some_and(|change| change.phase == Phase::Syncing)
            }
            State::Opening(_) => true,
            _ => false,
        };
        if must_end {
            self.is_unfit = true;
            self.close(After::Place, turn);
        }
    }
}
