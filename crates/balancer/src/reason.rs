//! What decided a choice, in a word.

use std::cmp::Ordering;

use crate::{
    explain::Candidate,
    members::MemberId,
    policy::{Policy, adaptive::SCAN_MAX},
    rules::Rules,
};

/// Why a member was chosen, as far as its candidates tell; see [`Members::explain`](crate::Members::explain).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// Nobody else could take messages, or nobody better.
    OnlyCandidate,
    /// It will have finished what it was sent first.
    LeastWait,
    /// Others would have finished as early; it was chosen longest ago.
    OldestTurn,
    /// Slow, and not asked for long: it may have become faster.
    Probe,
    /// The best of a few who were drawn at random.
    BestOfSample,
    /// Earlier messages of the same ordering key are with it.
    Key,
    /// The best score by the members' reports.
    Score,
    /// Its turn, by weight if there are weights.
    Turn,
    /// Drawn at random, by speed if that is the policy.
    Random,
    /// It is where the publisher or the topic belongs, for the moment if that one is full.
    Hash,
    /// It has the fewest messages, or bytes, that are not done with.
    LeastInFlight,
    /// It answers soonest.
    LeastResponseTime,
    /// It was the best when it was compared, but not by these figures: somebody else published meanwhile.
    Overtaken,
}

impl Reason {
    /// The word for it, e.g. `least_wait`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OnlyCandidate => "only_candidate",
            Self::LeastWait => "least_wait",
            Self::OldestTurn => "oldest_turn",
            Self::Probe => "probe",
            Self::BestOfSample => "best_of_sample",
            Self::Key => "key",
            Self::Score => "score",
            Self::Turn => "turn",
            Self::Random => "random",
            Self::Hash => "hash",
            Self::LeastInFlight => "least_in_flight",
            Self::LeastResponseTime => "least_response_time",
            Self::Overtaken => "overtaken",
        }
    }

    /// Why a pick by `rules` took `chosen` from a group of `len` members, of whom `candidates`, as they were before
    /// it, are all or some; `kept` is the one that earlier messages of the key were with.
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
        let best_rank = candidates.iter().map(Candidate::rank).min().unwrap_or_default();
        let mut rivals =
            candidates.iter().filter(|candidate| candidate.rank() == best_rank && candidate.member != chosen);
        if taken.rank() == best_rank && rivals.clone().next().is_none() {
            return Self::OnlyCandidate;
        }
        if kept == Some(chosen) {
            return Self::Key;
        }
        match rules.policy {
            Policy::Adaptive => {
                // By what is compared, the turns apart.
                let place = |candidate: &Candidate| (candidate.rank(), candidate.steps());
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
        }
    }
}
