//! Reads and changes of the record, and the mark.

use std::time::Duration;

use super::handover::Handover;
use super::{Machine, State, Turn};
use crate::event::{Action, Notice, Swapped, Unreachable};
use crate::record::{Mark, Record};
use crate::settings::{Agreement, Rule};

/// The engine's call that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Call {
    /// None.
    None,
    /// A read.
    Read,
    /// A compare-and-swap.
    Swap,
}

/// A change of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Change {
    /// Epoch of the record that it replaces; 0: there is none.
    pub(super) expected: u64,
    /// The new record.
    pub(super) next: Record,
    /// How far it is.
    pub(super) phase: Phase,
}

/// How far a change is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// The mark of the present record is being written.
    Premarking,
    /// The disk is being synced.
    Syncing,
    /// The swap waits for the end of another call.
    Waiting,
    /// The swap is under way.
    Swapping,
    /// A read has to show the outcome.
    Deciding,
    /// The record is changed, and the mark is being written.
    Marking,
}

impl Machine {
    /// Begins a change of the record. It goes on until it is done or the record has another epoch.
    pub(super) fn begin_change(&mut self, mut next: Record, needs_sync: bool, turn: &mut Turn<'_>) {
        let expected = self.record.map_or(0, |record| record.epoch);
        next.nonce = self.settings.nonce.wrapping_add(next.epoch);
        // Rule 11: a record tells the directories of its nodes.
        next = self.with_directories(next);
        let lags = self.mark.is_none_or(|mark| mark.record.epoch < expected)
            && self.settings.has(Rule::Mark)
            && !self.is_forced();
        let phase = match self.record {
            // Rule 7: what only memory has is synced before there is one copy.
            _ if needs_sync && !self.settings.is_sync_always && self.settings.has(Rule::SyncBeforeAlone) => {
                self.sync_disk(turn);
                Phase::Syncing
            }
            // Rule 5: the mark is at most one epoch behind the record.
            Some(record) if lags => {
                self.write_mark(record, turn);
                Phase::Premarking
            }
            _ => Phase::Waiting,
        };
        self.change = Some(Change { expected, next, phase });
        self.swap_if_possible(turn);
    }

    /// Rule 1: the record is changed by compare-and-swap on the adopted epoch. With manual agreement the mark is the
    /// record.
    pub(super) fn swap_if_possible(&mut self, turn: &mut Turn<'_>) {
        let Some(change) = self.change.as_mut().filter(|change| change.phase == Phase::Waiting) else { return };
        let (expected, record) = (change.expected, change.next);
        if let Agreement::Manual { .. } = self.settings.agreement {
            self.done(turn);
        } else if self.call == Call::None {
            change.phase = Phase::Swapping;
            self.call = Call::Swap;
            turn.act(Action::Swap { expected, record });
        }
    }

    pub(super) fn swapped(&mut self, outcome: Swapped, turn: &mut Turn<'_>) {
        self.call = Call::None;
        self.engine_answers(outcome != Swapped::Unknown, turn);
        let Some(change) = self.change.as_mut().filter(|change| change.phase == Phase::Swapping) else { return };
        match outcome {
            Swapped::Done => self.done(turn),
            Swapped::Unknown if !self.settings.has(Rule::ReadAfterUnknown) => self.done(turn),
            // Rule 1: only a read shows the present record. A refused request may be a repeated one.
            Swapped::Refused | Swapped::Unknown => {
                change.phase = Phase::Deciding;
                self.must_read = outcome == Swapped::Refused;
                self.read_at = turn.now;
            }
        }
    }

    pub(super) fn record_read(&mut self, answer: Result<Option<Record>, Unreachable>, turn: &mut Turn<'_>) {
        self.call = Call::None;
        self.engine_answers(answer.is_ok(), turn);
        let Ok(found) = answer else { return };
        let epoch = found.map_or(0, |record| record.epoch);
        let known = self.known_epoch();
        if epoch < known {
            // A joiner's leader may have told it of a newer record during the read.
            let is_behind = self.change.is_some() || matches!(self.state, State::Starting { .. } | State::Leader(_));
            if is_behind {
                let notice =
                    if found.is_none() { Notice::RecordMissing } else { Notice::RecordOlder { found: epoch, known } };
                self.notice(notice, turn);
            }
            return;
        }
        // The engine has the record again.
        let _ = self.last_error.take_if(|notice| matches!(notice, Notice::RecordMissing | Notice::RecordOlder { .. }));
        if let Some(change) = self.change.as_mut().filter(|change| change.phase == Phase::Deciding) {
            if found == Some(change.next) {
                return self.done(turn);
            }
            if epoch == change.expected {
                // The same request is repeated: an earlier one may still be executed.
                change.phase = Phase::Waiting;
                return;
            }
        }
        match (found, self.state) {
            (Some(record), State::Follower { .. }) if self.record == Some(record) => self.take_over_if_due(turn),
            (Some(record), _) => self.adopt(record, turn),
            (None, State::Starting { .. }) => self.create(turn),
            (None, _) => {}
        }
    }

    /// Nominates this node as the first leader.
    pub(super) fn create(&mut self, turn: &mut Turn<'_>) {
        if !self.is_fit() {
            return;
        }
        self.state = State::Creating;
        let next = Record {
            epoch: 1,
            leader: self.settings.node,
            follower: None,
            joiner: None,
            nonce: 0,
            leader_directory: 0,
            copy_directory: 0,
        };
        self.begin_change(next, false, turn);
    }

    /// The record is the one of the change.
    fn done(&mut self, turn: &mut Turn<'_>) {
        let Some(change) = self.change.as_mut() else { return };
        let next = change.next;
        change.phase = Phase::Marking;
        // Rule 5: the node acts in the new epoch once its mark is on the disk.
        self.record = Some(next);
        if !self.waits_as_forced(turn) {
            self.write_mark(next, turn);
        }
    }

    /// Writes the mark, after the write that is under way.
    pub(super) fn write_mark(&mut self, record: Record, turn: &mut Turn<'_>) {
        if self.mark_job.is_some() {
            self.mark_next = Some(record);
        } else {
            self.mark_job = Some(record);
            turn.act(Action::WriteMark(record));
        }
    }

    /// Writes the mark of a follower's record again: the record tells more than before. The leader waits for this mark.
    pub(super) fn mark_again(&mut self, record: Record, turn: &mut Turn<'_>) {
        // Rule 6: without a session, the mark may be of an earlier boot, and has to say so.
        if let State::Follower { session: Some(_), .. } = self.state {
            self.write_mark(record, turn);
        }
    }

    pub(super) fn mark_written(&mut self, turn: &mut Turn<'_>) {
        let Some(record) = self.mark_job.take() else { return };
        self.mark = Some(Mark { record, is_same_boot: true });
        if let Some(next) = self.mark_next.take() {
            self.write_mark(next, turn);
        }
        self.begin_copy(turn);
        let Some(change) = self.change.as_mut() else { return };
        match change.phase {
            Phase::Premarking if record.epoch == change.expected => change.phase = Phase::Waiting,
            Phase::Marking if record == change.next => {
                self.change = None;
                self.entered(record, turn);
            }
            _ => {}
        }
    }

    pub(super) fn sync_disk(&mut self, turn: &mut Turn<'_>) {
        self.syncs += 1;
        turn.act(Action::SyncDisk);
    }

    pub(super) fn synced(&mut self, turn: &mut Turn<'_>) {
        self.syncs = self.syncs.saturating_sub(1);
        if self.syncs > 0 {
            // An older one, of a leader that was replaced in between.
            return;
        }
        self.opening_synced(turn);
        if let Some(change) = self.change.as_mut().filter(|change| change.phase == Phase::Syncing) {
            let next = change.next;
            self.change = None;
            self.begin_change(next, false, turn);
        }
    }

    /// A change is done, and its mark is on the disk.
    fn entered(&mut self, record: Record, turn: &mut Turn<'_>) {
        match self.state {
            State::Creating => self.place(turn),
            State::Opening(opening) => self.lead(opening.base, record, turn),
            State::Leader(_) => self.leader_entered(record, turn),
            _ => {}
        }
    }

    fn engine_answers(&mut self, answers: bool, turn: &mut Turn<'_>) {
        if self.is_engine_away == answers {
            self.is_engine_away = !answers;
            self.notice(if answers { Notice::EngineBack } else { Notice::EngineAway }, turn);
        }
    }

    /// Time between two reads: shorter while there is no leader or an outcome is unknown.
    pub(super) fn read_interval(&self, now: Duration) -> Duration {
        let timing = &self.settings.timing;
        let often = match self.state {
            // Nothing is urgent for a process that does not act.
            State::Starting { .. } | State::Creating | State::Barred => self.known_namesake().is_none(),
            State::Follower { is_handed_over: true, .. } => true,
            // Clients wait for the news.
            State::Leader(leader) if leader.handover.is_some_and(Handover::is_told) => return timing.read_often / 10,
            State::Spare | State::Joiner { .. } | State::Follower { .. } => self.leader_is_lost(now),
            State::Opening(_) | State::Leader(_) => self.change.is_some_and(|change| change.phase == Phase::Deciding),
            State::Closing { .. } | State::Stopped => false,
        };
        if often && !self.is_manual() { timing.read_often } else { timing.read_every }
    }

    pub(super) fn read_if_due(&mut self, turn: &mut Turn<'_>) {
        let is_due = self.must_read || turn.now >= self.read_at + self.read_interval(turn.now);
        if self.call != Call::None || !is_due || self.state == State::Stopped {
            return;
        }
        if let Some(Change { phase: Phase::Waiting, .. }) = self.change {
            return;
        }
        self.must_read = false;
        self.read_at = turn.now;
        if !self.is_manual() {
            self.call = Call::Read;
        }
        turn.act(Action::Read);
    }

    pub(super) fn peer_record(&mut self, record: Record, turn: &mut Turn<'_>) {
        if self.is_manual() {
            self.adopt(record, turn);
        }
    }

    /// With manual agreement, a node waits for the others' records before it follows its own.
    pub(super) fn starting(&mut self, until: Duration, turn: &mut Turn<'_>) {
        let Agreement::Manual { first } = self.settings.agreement else { return };
        if turn.now < until {
            return;
        }
        match self.mark {
            Some(mark) => self.adopt(mark.record, turn),
            None if first == self.settings.node => self.create(turn),
            None => {}
        }
    }
}
