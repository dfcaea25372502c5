//! The reason for a choice, in one word.

use std::cmp::Ordering;

use crate::{
    chooser::READY,
    explain::Candidate,
    policy::{Policy, adaptive::SCAN_MAX},
    rules::Rules,
    standing::MemberId,
};

/// Why a member was chosen, as far as its candidates show; see [`Members::explain`](crate::Members::explain).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// No other member of the best rank was available.
    OnlyCandidate,
    /// It has the shortest predicted wait.
    LeastWait,
    /// Others have the same wait, but were chosen more recently.
    OldestTurn,
    /// It is slow and was idle for long: it may have become faster.
    Probe,
    /// It rejected most of its last messages, and gets one that shows whether it still does.
    Trial,
    /// The best of a few members drawn at random.
    BestOfSample,
    /// It has earlier messages of the same ordering key.
    Key,
    /// It has the best score by the members' reports.
    Score,
    /// It was next in the rotation, by weight under weighted policies.
    Turn,
    /// Drawn at random, by speed if that is the policy.
    Random,
    /// The publisher or the topic belongs to it, or to a full member that it replaces for now.
    Hash,
    /// It has the fewest messages, or bytes, outstanding.
    LeastInFlight,
    /// It has the shortest expected response time.
    LeastResponseTime,
    /// A policy of the caller's own has chosen it.
    Custom,
    /// It was the best when it was compared, but these figures differ: there was a concurrent publisher.
    Overtaken,
}

impl Reason {
    /// The reason's name, e.g. `least_wait`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OnlyCandidate => "only_candidate",
            Self::LeastWait => "least_wait",
            Self::OldestTurn => "oldest_turn",
            Self::Probe => "probe",
            Self::Trial => "trial",
            Self::BestOfSample => "best_of_sample",
            Self::Key => "key",
            Self::Score => "score",
            Self::Turn => "turn",
            Self::Random => "random",
            Self::Hash => "hash",
            Self::LeastInFlight => "least_in_flight",
            Self::LeastResponseTime => "least_response_time",
            Self::Custom => "custom",
            Self::Overtaken => "overtaken",
        }
    }

    /// Returns why a pick by `rules` took `chosen` from a group of `len` members.
    ///
    /// `candidates` are all or some of them, as weighed before the pick; `kept` is the member that held the ordering
    /// key.
    pub(crate) fn of(
        rules: &Rules,
        kept: Option<MemberId>,
        candidates: &[Candidate],
        len: usize,
        chosen: MemberId,
    ) -> Self {
        let Some(taken) = candidates.iter().find(|candidate| candidate.member == chosen) else {
            return Self::Overtaken;
        };
        let best_rank = candidates.iter().map(|candidate| candidate.rank).min().unwrap_or_default();
        let mut rivals =
            candidates.iter().filter(|candidate| candidate.rank == best_rank && candidate.member != chosen);
        if taken.rank == best_rank && rivals.clone().next().is_none() {
            return Self::OnlyCandidate;
        }
        if kept == Some(chosen) {
            return Self::Key;
        }
        if taken.is_suspect && taken.rank == READY {
            return Self::Trial;
        }
        match rules.policy {
            Policy::Adaptive => {
                // Compare all but the turns.
                let place = |candidate: &Candidate| (candidate.rank, candidate.steps());
                let least = rivals.clone().map(place).min().unwrap_or((u64::MAX, u64::MAX));
                let is_oldest = rivals.all(|rival| place(rival) > least || taken.turn < rival.turn);
                match place(taken).cmp(&least) {
                    Ordering::Less | Ordering::Equal if taken.is_probed => Self::Probe,
                    _ if len > SCAN_MAX => Self::BestOfSample,
                    Ordering::Less => Self::LeastWait,
                    Ordering::Equal if is_oldest => Self::OldestTurn,
                    _ => Self::Overtaken,
                }
            }
            Policy::ThesisScore => Self::Score,
            Policy::RoundRobin | Policy::WeightedRoundRobin => Self::Turn,
            Policy::Random | Policy::Capacity => Self::Random,
            Policy::Sticky | Policy::HashClientId | Policy::HashTopic => Self::Hash,
            Policy::LeastInflight | Policy::LeastBytes => Self::LeastInFlight,
            Policy::LeastResponseTime => Self::LeastResponseTime,
            Policy::PowerOfTwo => Self::BestOfSample,
            Policy::Custom(_) => Self::Custom,
        }
    }
}
