//! Findings about a client that let picks pass over it: it rejects messages, or does not acknowledge them in time.

use super::{Evidence, MemberLoad};
use crate::{
    acknowledged::Acknowledged,
    availability::Finding,
    nanos::Nanos,
    rules::Rules,
    sync::{Relaxed, lock},
};

impl MemberLoad {
    /// Takes messages of `bytes` in total that the client refused. They cost it their processing time all the same:
    /// otherwise a client that refuses everything at once would always seem idle. The time until the refusal is no
    /// evidence of speed.
    ///
    /// A client that refused more than half of its last 20 messages is a *suspect*. It counts as
    /// [`Full`](crate::Availability::Full), with a message now and then that shows whether it still refuses them: a second after
    /// the last refusal, then 2, 4, up to 64 seconds. When it accepts one, the next follows at once.
    pub fn refused(&self, messages: u32, bytes: u64, now: Nanos) {
        let mut known = lock(&self.reported.known);
        let evidence = self.evidence(&mut known);
        evidence.taken_back += u64::from(messages);
        evidence.learner.interrupt();
        self.hot.refused();
        self.hot.no_longer_outstanding(messages, bytes);
        self.hot.learn(now.0, |seen| evidence.estimate.taken_back(seen));
        evidence.rejections.rejected(messages);
        self.judge_rejections(evidence, now);
    }

    /// Sets how many of the client's messages are overdue: they went to other members, and the client may still acknowledge
    /// them. Call it after each change, before [`acknowledged`](Self::acknowledged) for the late acknowledgement itself.
    ///
    /// An overdue message stays booked until its late acknowledgement or the end of the session, since its Packet
    /// Identifier stays in use. A client whose every slot is overdue is passed over: it counts as
    /// [`Full`](crate::Availability::Full), and messages that [may wait](crate::Members::pick_late) do not go to it. Its slots are
    /// its [`limit`](Self::limit) by the default rules, or eight if it may have any number; more, if it acknowledged others
    /// in spite of as many overdue ones.
    pub fn set_overdue(&self, messages: u32) {
        let mut known = lock(&self.reported.known);
        let evidence = self.evidence(&mut known);
        evidence.slots.set_overdue(messages);
        self.judge_slots(evidence);
    }

    /// Handles acknowledgements of a client with rejections or overdue messages.
    #[cold]
    pub(super) fn accepted(&self, evidence: &mut Evidence, acknowledged: &Acknowledged) {
        evidence.slots.acknowledged();
        self.judge_slots(evidence);
        evidence.rejections.accepted(acknowledged.messages);
        self.judge_rejections(evidence, acknowledged.at);
    }

    fn judge_slots(&self, evidence: &Evidence) {
        let is_stuck = evidence.slots.are_overdue(self.limit(&Rules::default()));
        self.hot.set_finding(Finding::Stuck, is_stuck);
    }

    fn judge_rejections(&self, evidence: &Evidence, now: Nanos) {
        let (is_suspect, pause_ns) = (evidence.rejections.is_suspect(), evidence.rejections.pause_ns());
        self.reported.trial_at.store(trial_units(now.0.saturating_add(pause_ns)), Relaxed);
        let is_tried = is_suspect && pause_ns == 0;
        self.hot.change_eligibility(|is| is.with(Finding::Rejects, is_suspect).with(Finding::Tried, is_tried));
    }

    /// Begins or ends the trial of a suspect, by the clock and its outstanding messages. Scans of its groups call this.
    #[cold]
    pub(crate) fn consider_trial(&self, now: u64) {
        let since_due = trial_units(now).wrapping_sub(self.reported.trial_at.load(Relaxed));
        let is_due = since_due < 1 << (u32::BITS - 1);
        self.hot.set_finding(Finding::Tried, is_due && self.hot.outstanding().messages == 0);
    }

    /// Returns whether the client gets no messages while other members can take them, although it may be ready: it is a
    /// [suspect](Self::refused), or its every slot is [overdue](Self::set_overdue).
    pub fn is_passed_over(&self) -> bool {
        self.hot.eligibility().is_passed_over()
    }
}

/// Converts an instant to the unit of [`Reported::trial_at`].
fn trial_units(now: u64) -> u32 {
    (now / TRIAL_UNIT_NS) as u32
}

/// About a millisecond.
const TRIAL_UNIT_NS: u64 = 1 << 20;
