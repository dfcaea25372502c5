//! Explanations of a choice: its candidates with all figures that it depends on.

use std::time::Duration;

use crate::{
    availability::Finding,
    group_view::View,
    load::{Availability, MemberLoad},
    nanos::Nanos,
    policy::adaptive::{Weight, in_steps, weigh},
    reason::Reason,
    rules::Rules,
    standing::MemberId,
};

/// The explanation of a choice; see [`Members::pick_explained`](crate::Members::pick_explained).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The deciding criterion.
    pub reason: Reason,
    /// Number of members in the group.
    pub members: usize,
    /// The candidates as weighed before the message was booked, in join order.
    ///
    /// With more than [`CANDIDATES_MAX`](Self::CANDIDATES_MAX) members, those with the shortest predicted wait, and the
    /// chosen one. With more than 64, the chosen one and a sample.
    pub candidates: Vec<Candidate>,
}

impl Explanation {
    /// Maximum number of candidates in an explanation.
    pub const CANDIDATES_MAX: usize = 16;

    pub(crate) fn new(
        rules: &Rules,
        kept: Option<MemberId>,
        mut candidates: Vec<Candidate>,
        members: usize,
        chosen: MemberId,
    ) -> Self {
        let reason = Reason::of(rules, kept, &candidates, members, chosen);
        if candidates.len() > Self::CANDIDATES_MAX {
            let mut merits: Vec<_> = candidates.iter().map(|candidate| candidate.merit(chosen)).collect();
            let (_, &mut worst, _) = merits.select_nth_unstable(Self::CANDIDATES_MAX - 1);
            candidates.retain(|candidate| candidate.merit(chosen) <= worst);
        }
        Self { reason, members, candidates }
    }
}

/// A member as a pick would weigh it; see [`Members::explain`](crate::Members::explain).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// Id of the member.
    pub member: MemberId,
    /// Whether it can take messages. Only members of the best availability in the group are chosen.
    pub availability: Availability,
    /// Whether it asked for no further messages: it then ranks after full members.
    pub is_draining: bool,
    /// m_q + m_s: messages at the client by its last report, and those sent since.
    pub pending: u64,
    /// Messages handed to it that are neither written (QoS 0) nor acknowledged (QoS above 0).
    pub in_flight: u64,
    /// Predicted time until it could begin with a new message.
    pub predicted_wait: Duration,
    /// Addition by `adaptive` because the member is slow.
    pub penalty: Duration,
    /// Whether the penalty is zero because the member was idle for long: it may have become faster.
    pub is_probed: bool,
    /// Assumed processing time of a message, from all evidence; zero = no member's speed in the group is known.
    pub processing_time: Duration,
    /// Whether `processing_time` is the member's own, not a guess from the group's.
    pub is_speed_known: bool,
    /// How many times faster than the group's mean the member seems to be, if more than 16 times: it probably does not do
    /// its work, so `adaptive` does not prefer it.
    pub times_faster: Option<u64>,
    /// Time for which evidence of its work (a report, an acknowledgement) has been overdue.
    pub late: Duration,
    /// t_p, the mean of its last five reported processing times, as `thesis_score` uses it; zero = unknown.
    pub reported_processing_time: Duration,
    /// Time of its last choice in any of its groups, or of the establishment of its session.
    pub sent_at: Nanos,
    /// Its turn in the group's rotation: smaller if it was chosen, or joined, longer ago.
    pub turn: u64,
    /// Whether it rejected more than half of its last 20 messages: it gets few.
    pub is_suspect: bool,
    /// Whether its every slot is overdue: it gets no messages while others can take them.
    pub is_stuck: bool,
    /// How eligible it is; smaller is better. Only candidates of the best rank are considered.
    pub(crate) rank: u64,
}

impl Candidate {
    /// Weighs a member. Takes no lock, since a publisher may call it.
    pub(crate) fn of(member: MemberId, load: &MemberLoad, turn: u64, view: &View, now: Nanos) -> Self {
        let hot = load.hot();
        let Weight { wait, penalty, late, service } = weigh(hot, view, now.0);
        let (own_ns, eligibility) = (hot.speed().processing_ns(), hot.eligibility());
        Self {
            member,
            availability: load.availability(),
            is_draining: load.is_draining(),
            pending: load.pending(),
            in_flight: hot.outstanding().messages,
            predicted_wait: Duration::from_nanos(wait),
            penalty: Duration::from_nanos(penalty),
            is_probed: penalty == 0 && view.floor_ns() > 0,
            processing_time: Duration::from_nanos(service),
            is_speed_known: own_ns > 0,
            times_faster: view.mean_ns.checked_div(own_ns).filter(|_| own_ns < view.floor_ns()),
            late: Duration::from_nanos(late),
            reported_processing_time: Duration::from_nanos(load.processing_ns()),
            sent_at: Nanos(hot.sent_at()),
            turn,
            is_suspect: eligibility.has(Finding::Rejects),
            is_stuck: eligibility.has(Finding::Stuck),
            rank: hot.rank(),
        }
    }

    /// Sort key, smaller for better candidates, smallest for the chosen one, unique for each.
    fn merit(&self, chosen: MemberId) -> (bool, u64, u64, u64, MemberId) {
        (self.member != chosen, self.rank, self.steps(), self.turn, self.member)
    }

    /// The value by which `adaptive` compares members of one rank. If it is equal, their turns decide.
    pub(crate) fn steps(&self) -> u64 {
        in_steps(nanoseconds(self.predicted_wait), nanoseconds(self.penalty))
    }
}

/// Converts `duration` to nanoseconds.
fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Acknowledged, Dispatch, Group, LoadReport, Policy, Rng};

    const NOW: Nanos = Nanos(5_000_000_000);

    /// Creates members with queues of these lengths, each message 10 ms.
    fn group(rules: impl Into<Rules>, queues: &[u64]) -> Group<u64> {
        let group = Group::new(rules);
        for (id, &messages_in_queue) in (0..).zip(queues) {
            let load = Arc::new(MemberLoad::new(Nanos(id)));
            let processing_time = Duration::from_millis(10);
            load.report(&LoadReport { messages_in_queue, processing_time, draining: false }, NOW);
            group.join(MemberId(id), load, 1, id, Nanos(id));
        }
        group
    }

    fn at(now: Nanos) -> Dispatch {
        Dispatch { at: now, bytes: 100, ..Dispatch::default() }
    }

    fn explained(group: &Group<u64>, dispatch: &Dispatch) -> (u64, Explanation) {
        let members = group.members();
        let (member, explanation) = members.pick_explained(dispatch, 0, &mut Rng::new(1)).expect("there are members");
        (*member.value(), explanation)
    }

    #[test]
    fn explanation_gives_the_deciding_reason() {
        for (policy, queues, reason) in [
            (Policy::Adaptive, &[3, 0, 2][..], Reason::LeastWait),
            (Policy::Adaptive, &[3, 0, 0], Reason::OldestTurn),
            (Policy::Adaptive, &[3], Reason::OnlyCandidate),
            (Policy::Adaptive, &[1; 65], Reason::BestOfSample),
            (Policy::ThesisScore, &[3, 0, 2], Reason::Score),
            (Policy::RoundRobin, &[3, 0, 2], Reason::Turn),
            (Policy::Random, &[3, 0, 2], Reason::Random),
        ] {
            assert_eq!(explained(&group(policy, queues), &at(NOW)).1.reason, reason, "{policy} {queues:?}");
        }
        let alone = group(Policy::Random, &[0, 0, 0]);
        alone.members().iter().skip(1).for_each(|member| member.load().set_availability(Availability::Full));
        assert_eq!(explained(&alone, &at(NOW)).1.reason, Reason::OnlyCandidate);
    }

    #[test]
    fn explanation_shows_probe_of_a_slow_member() {
        for others in [2, 70] {
            let group = group(Policy::Adaptive, &vec![0; others]);
            let slow = Arc::new(MemberLoad::new(Nanos(0)));
            slow.assume_speed(Duration::from_secs(1));
            group.join(MemberId(99), slow, 1, 99, Nanos(0));
            let told: Vec<_> = (0..300)
                .map(|step| {
                    let now = Nanos(NOW.0 + 10_000_000_000 + step * 20_000_000);
                    let (chosen, explanation) = explained(&group, &at(now));
                    let members = group.members();
                    let member = members.iter().find(|member| *member.value() == chosen).expect("it was chosen");
                    member.load().written(1, 100, false, now);
                    (chosen, explanation.reason == Reason::Probe)
                })
                .collect();
            assert!(told.iter().all(|&(chosen, is_probe)| (chosen == 99) == is_probe), "{others} others");
            assert!(told.contains(&(99, true)) || others > 64, "{others} others");
        }
    }

    #[test]
    fn suspiciously_fast_member_is_named_and_not_preferred() {
        let group = group(Policy::Adaptive, &[0, 0, 0]);
        let hole = Arc::new(MemberLoad::new(Nanos(0)));
        (0..5).for_each(|_| hole.acknowledged(&Acknowledged::one(NOW, 100, Nanos(NOW.0 + 10_000))));
        group.join(MemberId(99), hole, 1, 99, Nanos(3));
        let (_, explanation) = explained(&group, &at(Nanos(NOW.0 + 1_000_000_000)));
        let told: Vec<_> = explanation.candidates.iter().map(|candidate| candidate.times_faster).collect();
        assert_eq!((&told[..3], told[3].is_some_and(|times| times > 500)), (&[None; 3][..], true), "{told:?}");
        assert_eq!(explanation.candidates[3].penalty, explanation.candidates[0].penalty);
    }

    #[test]
    fn suspect_is_named_and_gets_its_trial() {
        for policy in [Policy::Adaptive, Policy::RoundRobin, Policy::LeastInflight, Policy::HashTopic] {
            let group = group(policy, &[0, 0]);
            let members = group.members();
            let suspect = members.iter().nth(1).expect("two").load();
            suspect.refused(11, 1100, NOW);
            let (chosen, explanation) = explained(&group, &at(NOW));
            assert_eq!((chosen, explanation.reason), (0, Reason::OnlyCandidate), "{policy}");
            let told: Vec<_> = explanation.candidates.iter().map(|candidate| candidate.is_suspect).collect();
            assert_eq!(told, [false, true], "{policy}");
            let is_trial = (0..300).any(|step| {
                let now = Nanos(NOW.0 + 2_000_000_000 + step * 5_000_000);
                let dispatch =
                    Dispatch { publisher: Rng::new(step).next_u64(), topic: Rng::new(step).next_u64(), ..at(now) };
                let (chosen, explanation) = explained(&group, &dispatch);
                let load = members.iter().nth(chosen as usize).expect("two").load();
                load.written(1, 100, false, now);
                assert_eq!(chosen == 1, explanation.reason == Reason::Trial, "{policy}: {explanation:?}");
                chosen == 1
            });
            assert!(is_trial, "{policy}");
        }
    }

    #[test]
    fn candidates_are_as_they_were_before_the_booking() {
        let group = group(Policy::Adaptive, &[3, 0, 2]);
        let (chosen, explanation) = explained(&group, &at(NOW));
        assert_eq!((chosen, explanation.members), (1, 3));
        let shown: Vec<_> = explanation
            .candidates
            .iter()
            .map(|candidate| (candidate.member.0, candidate.pending, candidate.in_flight))
            .collect();
        assert_eq!(shown, [(0, 3, 0), (1, 0, 0), (2, 2, 0)]);
        assert_eq!(explanation.candidates[1].predicted_wait, Duration::ZERO);
        assert!(explanation.candidates[0].predicted_wait >= Duration::from_millis(30));
    }

    #[test]
    fn explanation_of_large_group_has_best_and_chosen_members() {
        let queues: Vec<u64> = (0..40).map(|id| (id * 7) % 40).collect();
        for policy in [Policy::Adaptive, Policy::Random] {
            let (chosen, explanation) = explained(&group(policy, &queues), &at(NOW));
            let told: Vec<_> = explanation.candidates.iter().map(|candidate| candidate.pending).collect();
            assert_eq!((explanation.members, told.len()), (40, Explanation::CANDIDATES_MAX));
            assert!(explanation.candidates.iter().any(|candidate| candidate.member.0 == chosen), "{policy}");
            let best = (0..15).all(|pending| told.contains(&pending));
            assert!(best, "{policy}: {told:?}");
        }
        let queues: Vec<u64> = (0..1000).collect();
        let (chosen, explanation) = explained(&group(Policy::Adaptive, &queues), &at(NOW));
        assert_eq!((explanation.members, explanation.candidates.len()), (1000, Explanation::CANDIDATES_MAX));
        assert!(explanation.candidates.iter().any(|candidate| candidate.member.0 == chosen));
    }

    #[test]
    fn explaining_does_not_change_choices() {
        for policy in Policy::ALL {
            for len in [3, 100] {
                let queues: Vec<u64> = (0..len).map(|id| id % 5).collect();
                let (plain, told) = (group(policy, &queues), group(policy, &queues));
                let (mut plain_rng, mut told_rng) = (Rng::new(3), Rng::new(3));
                for step in 0..500 {
                    let dispatch = at(Nanos(NOW.0 + step * 1_000_000));
                    let (plain, told) = (plain.members(), told.members());
                    let plain = plain.pick(&dispatch, &mut plain_rng).map(|member| *member.value());
                    let told = told.pick_explained(&dispatch, 0, &mut told_rng).map(|(member, _)| *member.value());
                    assert_eq!(plain, told, "{policy}, {len} members, step {step}");
                }
            }
        }
    }

    #[test]
    fn explanation_shows_pinned_key_with_every_policy() {
        for policy in [Policy::Adaptive, Policy::RoundRobin, Policy::HashTopic] {
            for len in [3, 200] {
                let group = group(
                    Rules { policy, is_ordered: true, may_break_order: true, shadow: None, ..Rules::default() },
                    &vec![0; len],
                );
                let dispatch = Dispatch { key: Some(7), is_acknowledged: true, ..at(NOW) };
                let (first, explanation) = explained(&group, &dispatch);
                assert_ne!(explanation.reason, Reason::Key, "{policy}, {len} members");
                let (second, explanation) = explained(&group, &dispatch);
                assert_eq!((second, explanation.reason), (first, Reason::Key), "{policy}, {len} members");
            }
        }
    }
}
