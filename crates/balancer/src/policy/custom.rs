//! A chooser of the caller's own, with `adaptive` behind it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{
    chooser::{Candidates, Chooser, READY},
    dispatch::Dispatch,
    group_view::View,
    pick::Table,
    policy::adaptive,
    rng::Rng,
};

/// Returns the slot that chooser `number` chooses. `adaptive` chooses where it chooses none that is ready. `None` if the
/// group is empty.
pub(crate) fn choose(table: Table<'_>, number: u8, view: &View, dispatch: &Dispatch, rng: &mut Rng) -> Option<usize> {
    let Table { seats, state, .. } = table;
    let candidates = Candidates { seats, ids: &state.ids, weights: &state.weights, view, at: dispatch.at };
    let ask = |chooser: &dyn Chooser| {
        catch_unwind(AssertUnwindSafe(|| chooser.choose(dispatch, &candidates, rng))).ok().flatten()
    };
    let chosen = state.choosers.get(number).and_then(ask);
    match chosen.filter(|&index| seats.loads().get(index).is_some_and(|load| load.rank() == READY)) {
        Some(index) => Some(index),
        None => adaptive::preview(seats, view, dispatch, rng).map(|seen| seen.index),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use crate::{
        Acknowledged, Availability, Candidates, Chooser, ChooserError, Choosers, Dispatch, Group, MemberId, MemberLoad,
        Nanos, Policy, Reason, Rng, Rules,
    };

    /// `least_inflight`, written as a chooser.
    struct Fewest;

    impl Chooser for Fewest {
        fn choose(&self, _: &Dispatch, candidates: &Candidates<'_>, _: &mut Rng) -> Option<usize> {
            candidates.ready().min_by_key(|&index| (candidates.in_flight(index), candidates.turn(index)))
        }
    }

    /// Always this answer.
    struct Always(Option<usize>);

    impl Chooser for Always {
        fn choose(&self, _: &Dispatch, _: &Candidates<'_>, _: &mut Rng) -> Option<usize> {
            self.0
        }
    }

    struct Panics;

    impl Chooser for Panics {
        fn choose(&self, _: &Dispatch, _: &Candidates<'_>, _: &mut Rng) -> Option<usize> {
            panic!("as the test wants");
        }
    }

    fn group(rules: impl Into<Rules>, choosers: Choosers) -> Group<u64> {
        let group = Group::with_choosers(rules, Arc::new(choosers));
        for id in 0..5 {
            group.join(MemberId(id), Arc::new(MemberLoad::new(Nanos(id))), 1, id, Nanos(id));
        }
        group
    }

    fn own(chooser: impl Chooser) -> (Policy, Choosers) {
        let mut choosers = Choosers::default();
        (choosers.add("own", chooser).expect("there is room"), choosers)
    }

    /// Picks with members that acknowledge some of their messages; returns the chosen ones.
    fn played(group: &Group<u64>) -> Vec<u64> {
        let (mut rng, mut dice) = (Rng::new(7), Rng::new(8));
        let pick = |step: u64| {
            let at = Nanos(1_000_000 * step);
            let dispatch = Dispatch { at, bytes: 100, is_acknowledged: true, ..Dispatch::default() };
            let members = group.members();
            let chosen = members.pick(&dispatch, &mut rng).expect("there are members");
            for member in members.iter() {
                if member.load().snapshot().outstanding_messages > 0 && dice.below(3) == 0 {
                    member.load().acknowledged(&Acknowledged::one(Nanos(at.0 - 500_000), 100, at));
                }
            }
            *chosen.value()
        };
        (1..2000).map(pick).collect()
    }

    #[test]
    fn own_least_inflight_chooses_as_the_built_in_one() {
        let (policy, choosers) = own(Fewest);
        let built_in = played(&group(Policy::LeastInflight, Choosers::default()));
        assert_eq!(played(&group(policy, choosers)), built_in);
    }

    #[test]
    fn adaptive_chooses_where_the_chooser_does_not() {
        let adaptive = played(&group(Policy::Adaptive, Choosers::default()));
        for answer in [None, Some(5), Some(usize::MAX)] {
            let (policy, choosers) = own(Always(answer));
            assert_eq!(played(&group(policy, choosers)), adaptive, "{answer:?}");
        }
        let (policy, choosers) = own(Panics);
        assert_eq!(played(&group(policy, choosers)), adaptive, "it panics");
        assert_eq!(played(&group(Policy::Custom(3), Choosers::default())), adaptive, "there is no such chooser");
    }

    #[test]
    fn member_that_is_not_ready_is_not_chosen() {
        let (policy, choosers) = own(Always(Some(2)));
        let group = group(policy, choosers);
        let pick = || {
            let members = group.members();
            members.pick(&Dispatch::default(), &mut Rng::new(1)).map(|member| *member.value())
        };
        assert_eq!(pick(), Some(2));
        group.members().iter().nth(2).expect("five").load().set_availability(Availability::Full);
        assert_ne!(pick(), Some(2));
    }

    #[test]
    fn own_policy_is_explained_and_can_be_a_shadow() {
        let (policy, choosers) = own(Always(Some(4)));
        let beside = Rules { shadow: Some(policy), ..Policy::RoundRobin.into() };
        let both = group(beside, choosers);
        let members = both.members();
        for _ in 0..10 {
            members.pick(&Dispatch::default(), &mut Rng::new(1));
        }
        let figures = members.shadow().expect("the rules have one");
        assert_eq!((figures.policy, figures.compared, figures.agreed), (policy, 10, 2));
        let (policy, choosers) = own(Always(Some(4)));
        let acting = group(policy, choosers);
        let (chosen, explanation) = acting
            .members()
            .pick_explained(&Dispatch::default(), 0, &mut Rng::new(1))
            .map(|(m, e)| (*m.value(), e))
            .expect("five");
        assert_eq!((chosen, explanation.reason), (4, Reason::Custom));
    }

    #[test]
    fn names_of_choosers_are_unique_and_bounded() {
        let mut choosers = Choosers::default();
        for number in 0..Choosers::MAX {
            let name = format!("own{number}");
            let policy = choosers.add(&name, Fewest).expect("there is room");
            assert_eq!((choosers.policy(&name), choosers.name_of(policy)), (Some(policy), &name[..]));
        }
        assert_eq!(choosers.add("one_more", Fewest), Err(ChooserError::TooMany));
        assert_eq!(choosers.add("own3", Fewest), Err(ChooserError::NameTaken("own3".to_owned())));
        assert_eq!(choosers.add("adaptive", Fewest), Err(ChooserError::NameTaken("adaptive".to_owned())));
        assert_eq!(choosers.name_of(Policy::Random), "random");
    }
}
