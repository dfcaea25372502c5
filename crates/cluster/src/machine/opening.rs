//! From a whole directory to a leader: takeovers, promotions and restarts.

use std::time::Duration;

use super::agreement::Phase;
use super::{After, Machine, State, Turn};
use crate::event::{Action, Namesake, Notice, PromotionRefused};
use crate::record::{Record, Role};
use crate::settings::Rule;

/// Epochs that a promotion by command skips, so that it outranks all changes that the old leader makes alone.
pub(super) const PROMOTION: u64 = 1 << 20;

/// Reads of the record within which a leader that reaches the engine learns of a forced one: one that is under way, the
/// pause, the next one, and room for clocks of another rate.
const FORCE_READS: u32 = 4;

/// A node that opens its broker and then makes itself the leader of a new epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Opening {
    /// The record that it replaces.
    pub(super) base: Record,
    /// The broker is open.
    is_open: bool,
    /// Everything that was written before is on the disk.
    is_synced: bool,
    /// An operator forces the node to lead, although its directory lacks the mark for it.
    pub(super) is_forced: bool,
    /// The record names this forced node, which waits until then.
    pub(super) waits_until: Option<Duration>,
}

impl Machine {
    /// Opens the broker in order to lead after the record `base`. The end of the lease may come later.
    pub(super) fn open(&mut self, base: Record, turn: &mut Turn<'_>) {
        self.disconnect_unless_leaky(turn);
        turn.act(Action::SetLease { until: Some(Duration::ZERO) });
        turn.act(Action::OpenBroker);
        // Rule 7: operations that are only in memory are synced first. Nothing is acknowledged between that and the swap.
        let must_sync = !self.settings.is_sync_always && self.settings.has(Rule::SyncBeforeAlone);
        self.state = State::Opening(Opening {
            base,
            is_open: false,
            is_synced: !must_sync,
            is_forced: false,
            waits_until: None,
        });
        if must_sync {
            self.sync_disk(turn);
        }
    }

    /// The disk has everything that was written before the last [`Action::SyncDisk`].
    pub(super) fn opening_synced(&mut self, turn: &mut Turn<'_>) {
        if let State::Opening(opening) = &mut self.state {
            opening.is_synced = true;
            self.opening(turn);
        }
    }

    /// As [`open`](Self::open), by an operator's word: the record's nodes are gone for ever.
    pub(super) fn force(&mut self, has_store: bool, accept_loss: bool, turn: &mut Turn<'_>) {
        let answer = match (self.state, self.record) {
            (State::Leader(_) | State::Opening(_) | State::Creating, _) => Err(PromotionRefused::Leads),
            // It takes over, once the leader is lost.
            (State::Follower { .. }, _) => return self.promote(accept_loss, turn),
            _ if self.is_manual() => return self.promote(accept_loss, turn),
            (State::Spare | State::Barred, Some(record)) => {
                let is_whole = self.has_whole_copy() || self.mark.is_none() && has_store;
                if self.is_unfit {
                    Err(PromotionRefused::Unfit)
                } else if self.namesake.is_some() {
                    Err(PromotionRefused::Namesake)
                } else if !is_whole {
                    Err(PromotionRefused::NoCopy)
                } else if record.leader != self.settings.node && !self.leader_is_lost(turn.now) {
                    Err(PromotionRefused::LeaderLives)
                } else if !accept_loss {
                    Err(PromotionRefused::MayBeBehind)
                } else {
                    self.notice(Notice::TakingOver { epoch: record.epoch, is_handover: false }, turn);
                    self.disconnect(turn);
                    self.open(record, turn);
                    if let State::Opening(opening) = &mut self.state {
                        opening.is_forced = true;
                    }
                    Ok(())
                }
            }
            (State::Joiner { .. }, _) => Err(PromotionRefused::NoCopy),
            _ => Err(PromotionRefused::NoRecord),
        };
        turn.act(Action::Promotion(answer));
    }

    /// True while this node opens its broker because an operator forces it.
    pub(super) fn is_forced(&self) -> bool {
        matches!(self.state, State::Opening(Opening { is_forced: true, .. }))
    }

    /// A leader that still acts, and reaches the engine, learns of this forced node by a read, and ends. Before that time
    /// has passed this node neither acts nor writes its mark, so that it does not act after a restart either.
    ///
    /// False: this node is not forced.
    pub(super) fn waits_as_forced(&mut self, turn: &Turn<'_>) -> bool {
        let wait = self.settings.timing.read_every * FORCE_READS;
        let must_wait = self.settings.has(Rule::ForceWait);
        match &mut self.state {
            State::Opening(opening) if opening.is_forced && must_wait => {
                opening.waits_until = Some(turn.now + wait);
                true
            }
            _ => false,
        }
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
        let State::Opening(opening) = &mut self.state else { return };
        if opening.waits_until.take_if(|until| turn.now >= *until).is_some()
            && let Some(record) = self.record
        {
            self.write_mark(record, turn);
        }
        let State::Opening(opening) = self.state else { return };
        // Rule 9: a takeover waits for the end of the lease that this node has granted.
        let must_wait = turn.now < self.promised && self.settings.has(Rule::LeaseWait);
        if !opening.is_open || !opening.is_synced || self.change.is_some() || must_wait {
            return;
        }
        let base = self.record.unwrap_or(opening.base);
        let is_restart = base.leader == self.settings.node;
        if is_restart && base.epoch > 1 && !self.settings.has(Rule::RestartAlone) {
            return self.lead(base, base, turn);
        }
        // Rule 8: a restarted leader begins an epoch without followers before it confirms anything.
        let next = Record {
            epoch: base.epoch + if opening.is_forced || self.is_manual() && !is_restart { PROMOTION } else { 1 },
            leader: self.settings.node,
            follower: None,
            joiner: base.follower.or(base.joiner).filter(|_| is_restart && self.is_bound()),
            nonce: 0,
            leader_directory: 0,
            copy_directory: 0,
        };
        self.begin_change(next, false, turn);
    }

    /// Another record was first, or an earlier request of this node was executed late.
    pub(super) fn overtaken(&mut self, record: Record, turn: &mut Turn<'_>) {
        self.change = None;
        match self.state {
            State::Creating => self.place(turn),
            // What it began with the old record is over: a forced node begins anew by the operator's next word.
            State::Opening(opening) if self.may_lead(None) && !opening.is_forced => {}
            State::Opening(_) => self.close(After::Place, turn),
            State::Leader(leader) => {
                let is_forced = self.may_have_more(record);
                let may_have_more = leader.is_alone() && self.is_manual() || is_forced;
                if leader.handover.is_some() {
                    turn.act(Action::Switched(Ok(())));
                }
                if self.role(record) == Role::Leader && self.settings.has(Rule::OwnDirectory) {
                    // Rule 11: while this process leads, nothing that an earlier one has sent can change the record any more.
                    // So a process with a copy of this directory has written it.
                    return self.namesake_found(Namesake::HasCopy, turn);
                }
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

    /// Rule 10: a leader whose disk fails a sync ends, if there is a follower.
    pub(super) fn disk_failed(&mut self, turn: &mut Turn<'_>) {
        self.syncs = self.syncs.saturating_sub(1);
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
