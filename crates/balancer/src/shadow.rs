//! A shadow policy, evaluated beside the active one.
//!
//! ```text
//!   a message ──► shadow: its own turns ──► the member it would have chosen ─┐
//!            └──► active policy ──► chosen, booked ──────────────────────────┴──► compared
//!                                        │
//!   loads, the group's figures ◄─────────┘ read by both
//! ```
//!
//! The shadow books nothing. It sees the loads that result from the active policy, and shows its *next* choice, not the
//! loads to which its own choices would have led. It draws from a copy of the active policy's random numbers, so
//! dispatch is the same with and without it.

use std::sync::Arc;

use crate::{
    dispatch::Dispatch,
    members::Seated,
    pick::{Table, choose, preview},
    policy::{Policy, adaptive::weigh},
    policy_state::PolicyState,
    rng::Rng,
    seats::Seats,
    sync::{AtomicU64, OwnLine, Relaxed, change},
};

/// The shadow of one snapshot of a group.
#[derive(Debug)]
pub(crate) struct Shadow {
    /// The same members, with turns of the shadow's own.
    seats: Seats,
    /// State of the shadow's policy.
    state: PolicyState,
    record: Arc<ShadowRecord>,
}

/// The shadow's record, which outlives snapshots as long as the rules stay.
#[derive(Debug)]
pub(crate) struct ShadowRecord {
    policy: Policy,
    /// Every field is an independent count, `Relaxed`, increased by each pick.
    sums: OwnLine<Sums>,
}

#[derive(Debug, Default)]
struct Sums {
    compared: AtomicU64,
    agreed: AtomicU64,
    /// Sum in ns by which the active policy's choices had longer predicted waits than the shadow's.
    saved: AtomicU64,
    /// Sum in ns by which the shadow's choices had longer predicted waits than the active policy's.
    lost: AtomicU64,
}

/// Comparison of a group's shadow policy with the active policy, since the rules contain both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShadowFigures {
    /// The shadow policy.
    pub policy: Policy,
    /// Number of compared choices: all.
    pub compared: u64,
    /// Number of choices in which both chose the same member.
    pub agreed: u64,
    /// Sum of the predicted waits of the shadow's choices, minus the sum for the active policy's choices, in ns by the
    /// clocks of `adaptive`. Below zero the shadow would have been better.
    pub wait_difference_ns: i64,
}

impl Shadow {
    /// Creates a shadow. `roster`: members with the shadow's turns; `before`: the policy's earlier state; `next_turn`:
    /// lower bound of the next turn to assign.
    pub(crate) fn new<T>(
        roster: &[Seated<T>],
        record: Arc<ShadowRecord>,
        before: Option<&PolicyState>,
        next_turn: u64,
    ) -> Self {
        let loads = roster.iter().map(|seated| Arc::clone(&seated.member.load)).collect();
        let turns: Vec<u64> = roster.iter().map(|seated| seated.turn).collect();
        let state = PolicyState::new(&record.policy.into(), roster, before);
        let seats = Seats::new(loads, &turns);
        seats.go_on_from(next_turn);
        Self { seats, state, record }
    }

    pub(crate) fn seats(&self) -> &Seats {
        &self.seats
    }

    pub(crate) fn state(&self) -> &PolicyState {
        &self.state
    }

    pub(crate) fn record(&self) -> &Arc<ShadowRecord> {
        &self.record
    }

    /// Picks by `act`, and compares the choice with the shadow's. `may_wait`: it may choose none.
    #[cold]
    pub(crate) fn pick_beside(
        &self,
        acting: Table<'_>,
        dispatch: &Dispatch,
        rng: &mut Rng,
        may_wait: bool,
        act: impl FnOnce(&mut Rng) -> Option<usize>,
    ) -> Option<usize> {
        let record = &*self.record;
        let table = Table { policy: record.policy, seats: &self.seats, state: &self.state, view: acting.view };
        let view = acting.view.at(dispatch.at, acting.seats);
        // A message that waits takes no turn.
        let mut same_rng = rng.clone();
        let preferred = match may_wait {
            true => preview(table, dispatch, &mut same_rng.clone())?,
            false => choose(table, &view, dispatch, &mut same_rng)?,
        };
        let preferred_wait = weigh(self.seats.loads()[preferred].hot(), &view, dispatch.at.0).wait;
        let chosen = act(rng)?;
        if may_wait {
            choose(table, &view, dispatch, &mut same_rng);
        }
        // The clock of the chosen member already includes the message.
        let booked = weigh(acting.seats.loads()[chosen].hot(), &view, dispatch.at.0);
        let is_same = chosen == preferred;
        record.compare(is_same, preferred_wait, booked.wait.saturating_sub(booked.service));
        Some(chosen)
    }

    /// Takes the turn of a member that was chosen without a policy.
    pub(crate) fn take_turn(&self, index: usize) {
        self.seats.take_turn(index, self.seats.next_turn());
    }
}

impl ShadowRecord {
    pub(crate) fn new(policy: Policy) -> Self {
        Self { policy, sums: OwnLine(Sums::default()) }
    }

    fn compare(&self, is_same: bool, preferred_wait: u64, chosen_wait: u64) {
        let Sums { compared, agreed, saved, lost } = &self.sums.0;
        compared.fetch_add(1, Relaxed);
        if is_same {
            agreed.fetch_add(1, Relaxed);
            return;
        }
        change(saved, |sum| sum.saturating_add(chosen_wait.saturating_sub(preferred_wait)));
        change(lost, |sum| sum.saturating_add(preferred_wait.saturating_sub(chosen_wait)));
    }

    pub(crate) fn figures(&self) -> ShadowFigures {
        let Sums { compared, agreed, saved, lost } = &self.sums.0;
        let limited = |sum: &AtomicU64| i64::try_from(sum.load(Relaxed)).unwrap_or(i64::MAX);
        ShadowFigures {
            policy: self.policy,
            compared: compared.load(Relaxed),
            agreed: agreed.load(Relaxed),
            wait_difference_ns: limited(lost) - limited(saved),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Group, LoadReport, MemberId, MemberLoad, Nanos, Rules};

    /// Three members: two report different speeds, one has an unknown speed.
    fn group(rules: Rules) -> Group<u64> {
        let group = Group::new(rules);
        for id in 0..3 {
            group.join(MemberId(id), Arc::new(MemberLoad::new(Nanos(0))), 1, id, Nanos(0));
        }
        group
    }

    fn dispatch(step: u64) -> Dispatch {
        Dispatch { at: Nanos(step * 300_000), bytes: 100, publisher: step % 5, topic: step % 7, ..Dispatch::default() }
    }

    /// Sends messages to three members that report and finish, while others come and go.
    fn run(group: &Group<u64>, seed: u64) -> Vec<u64> {
        let mut rng = Rng::new(seed);
        let mut chosen = Vec::new();
        for step in 1..2_000 {
            let dispatch = dispatch(step);
            if step % 100 == 0 {
                for member in group.members().iter().take(2) {
                    let messages_in_queue = step / 100 % 4;
                    let processing_time = Duration::from_millis(1 + *member.value() * 3);
                    let report = LoadReport { messages_in_queue, processing_time, draining: false };
                    member.load().report(&report, dispatch.at);
                }
            }
            match step {
                700 => group.join(MemberId(9), Arc::new(MemberLoad::new(dispatch.at)), 1, 9, dispatch.at),
                1_300 => assert!(group.leave(MemberId(1))),
                _ => {}
            }
            let members = group.members();
            if step % 50 == 0 {
                chosen
                    .extend(members.pick_where(&dispatch, |member| *member.value() != 0).map(|member| *member.value()));
            }
            let member = members.pick(&dispatch, &mut rng).expect("there are members");
            chosen.push(*member.value());
            if step % 3 == 0 {
                member.load().written(1, 100, false, dispatch.at);
            }
        }
        chosen
    }

    #[test]
    fn shadow_policy_does_not_change_choices() {
        for policy in Policy::ALL {
            let alone = run(&group(policy.into()), 5);
            for shadow in Policy::ALL {
                let both = run(&group(Rules { shadow: Some(shadow), ..policy.into() }), 5);
                assert!(alone == both, "{policy} with {shadow}");
            }
        }
    }

    #[test]
    fn shadow_with_the_same_policy_agrees() {
        for policy in Policy::ALL {
            let group = group(Rules { shadow: Some(policy), ..policy.into() });
            run(&group, 7);
            let figures = group.members().shadow().expect("it has one");
            let expected = ShadowFigures { policy, compared: 1_999, agreed: 1_999, wait_difference_ns: 0 };
            assert_eq!(figures, expected);
        }
    }

    #[test]
    fn later_shadow_continues_from_present_state() {
        let group = group(Policy::RoundRobin.into());
        assert_eq!(group.members().shadow(), None);
        assert!((0..4).all(|step| group.members().pick(&dispatch(step), &mut Rng::new(1)).is_some()));
        group.set_rules(Rules { shadow: Some(Policy::RoundRobin), ..Policy::RoundRobin.into() });
        run(&group, 1);
        let figures = group.members().shadow().expect("it has one now");
        assert_eq!((figures.compared, figures.agreed), (1_999, 1_999));
        group.set_rules(Rules { shadow: Some(Policy::RoundRobin), ..Policy::Random.into() });
        assert_eq!(group.members().shadow().map(|figures| figures.compared), Some(0), "new rules, new figures");
    }

    #[test]
    fn shadow_wait_difference_is_that_of_the_clocks() {
        // One message of 8 ms waits with "0", none with "1", which would take as long.
        let group = Group::new(Rules { shadow: Some(Policy::Adaptive), ..Policy::RoundRobin.into() });
        for id in 0..2 {
            let load = Arc::new(MemberLoad::new(Nanos(0)));
            let report =
                LoadReport { messages_in_queue: 1 - id, processing_time: Duration::from_millis(8), draining: false };
            load.report(&report, Nanos(1));
            group.join(MemberId(id), load, 1, id, Nanos(1));
        }
        let members = group.members();
        let wait = members.explain(&dispatch(1))[0].predicted_wait;
        assert!(wait > Duration::from_millis(7) && wait < Duration::from_millis(17), "{wait:?}");
        assert_eq!(members.pick(&dispatch(1), &mut Rng::new(1)).map(|member| *member.value()), Some(0));
        let figures = members.shadow().expect("it has one");
        let wait_difference_ns = -i64::try_from(wait.as_nanos()).expect("short");
        assert_eq!(figures, ShadowFigures { policy: Policy::Adaptive, compared: 1, agreed: 0, wait_difference_ns });
    }
}
