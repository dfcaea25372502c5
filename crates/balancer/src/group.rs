//! A share group and its published members.

use std::sync::Arc;

use crate::{
    chooser::Choosers,
    group_view::GroupView,
    load::MemberLoad,
    members::{Member, Members, Seated, Snapshot},
    nanos::Nanos,
    policy::weighted_round_robin::Strides,
    rules::Rules,
    shadow::ShadowRecord,
    standing::{MemberId, Standing},
    sync::{Mutex, OwnLine, Published, lock},
};

/// The members that share one subscription; each message goes to one of them.
///
/// `T` is the caller's value for a member, e.g. the handle of its queue. Readers use published snapshots and never
/// wait, even while a member joins or leaves. Joining and leaving cost time and memory in proportion to the number of
/// members, since each publishes a new snapshot. The last user of a snapshot frees it, with the values of former
/// members.
#[derive(Debug)]
pub struct Group<T> {
    /// Serializes `join`, `leave` and `set_rules`; no reader takes it. No other lock is taken under it.
    writers: Mutex<()>,
    /// Stored by writers under `writers`, loaded by all threads. Its release/acquire makes a member's fields visible to
    /// its readers.
    published: Published<Snapshot<T>>,
    /// Figures of the whole group, with which members are compared.
    view: OwnLine<GroupView>,
    /// Policies of the caller's own.
    choosers: Arc<Choosers>,
}

impl<T> Group<T> {
    /// Creates an empty group with these rules; a single [`Policy`](crate::Policy) is also accepted.
    pub fn new(rules: impl Into<Rules>) -> Self {
        Self::with_choosers(rules, Arc::default())
    }

    /// As [`new`](Self::new), with policies of the caller's own ([`Policy::Custom`](crate::Policy::Custom)).
    pub fn with_choosers(rules: impl Into<Rules>, choosers: Arc<Choosers>) -> Self {
        let rules = rules.into();
        let shadow = rules.shadow.map(|policy| Arc::new(ShadowRecord::new(policy)));
        Self {
            writers: Mutex::new(()),
            published: Published::new(Snapshot::new(rules, Vec::new(), shadow, None, &choosers)),
            view: OwnLine(GroupView::new()),
            choosers,
        }
    }

    /// The rules of the group.
    pub fn rules(&self) -> Rules {
        self.published.load().rules()
    }

    /// Replaces the rules; picks in progress may still use the old ones.
    ///
    /// Members, their loads and turns stay. Pinned publishers or keys stay if both rules are sticky, or both ordered.
    pub fn set_rules(&self, rules: impl Into<Rules>) {
        let rules = rules.into();
        self.update(|current, roster, shadow| {
            if *current == rules {
                return false;
            }
            *current = rules;
            // The new shadow starts with the group's present state.
            *shadow = rules.shadow.map(|policy| Arc::new(ShadowRecord::new(policy)));
            roster.iter_mut().for_each(Seated::begin_shadow);
            true
        });
    }

    /// Adds a member whose id is also its identity; see [`join_with`](Self::join_with).
    pub fn join(&self, id: MemberId, load: Arc<MemberLoad>, weight: u32, value: T, now: Nanos) {
        self.join_with(id, Standing::of(id, weight), load, value, now);
    }

    /// Adds a member, last in join order and in rotation. `load` belongs to the client and is shared by all its groups;
    /// joining does not change it.
    ///
    /// If `id` is a member already, `standing`, `load` and `value` replace its own. It keeps its position, its turn and
    /// its time of joining.
    pub fn join_with(&self, id: MemberId, standing: Standing, load: Arc<MemberLoad>, value: T, now: Nanos) {
        let standing = Standing { weight: standing.weight.max(1), ..standing };
        self.view.0.joined(load.hot());
        self.update(|_, roster, _| match roster.iter_mut().find(|seated| seated.member.id == id) {
            Some(seated) => {
                let joined_at = seated.member.joined_at;
                seated.member = Arc::new(Member { id, value, load, standing, joined_at });
                true
            }
            None => {
                let (turn, shadow_turn) = self.published.load().next_turns();
                let member = Arc::new(Member { id, value, load, standing, joined_at: now });
                roster.push(Seated {
                    member,
                    turn,
                    period_left: Strides::first_period(turn),
                    shadow_turn,
                    shadow_period_left: Strides::first_period(shadow_turn),
                });
                true
            }
        });
    }

    /// Removes a member; returns `false` if there was none with this id. A pick in progress may still return it.
    pub fn leave(&self, id: MemberId) -> bool {
        let was_member = self.update(|_, roster, _| {
            let before = roster.len();
            roster.retain(|seated| seated.member.id != id);
            roster.len() < before
        });
        if self.is_empty() {
            self.view.0.forget_speeds();
        }
        was_member
    }

    /// Returns the present members. Takes no lock.
    pub fn members(&self) -> Members<'_, T> {
        Members { snapshot: self.published.load(), view: &self.view.0 }
    }

    /// Returns the present number of members.
    pub fn len(&self) -> usize {
        self.published.load().len()
    }

    /// Returns whether there is no member at present.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Applies `change` to the rules, the members and the shadow's record, and publishes them if it returns `true`.
    fn update(
        &self,
        change: impl FnOnce(&mut Rules, &mut Vec<Seated<T>>, &mut Option<Arc<ShadowRecord>>) -> bool,
    ) -> bool {
        let writer = lock(&self.writers);
        let current = self.published.load();
        let (mut rules, mut roster, mut shadow) = (current.rules(), current.roster(), current.shadow().cloned());
        let changed = change(&mut rules, &mut roster, &mut shadow);
        if changed {
            self.published.store(Snapshot::new(rules, roster, shadow, Some(&current), &self.choosers));
        }
        // `current` outlives the lock: it may drop a value whose destructor uses the group.
        drop(writer);
        changed
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{sync::mpsc::sync_channel, thread, time::Duration};

    use super::*;
    use crate::{Availability, Dispatch, LoadReport, Policy, Rng};

    fn at(now: u64) -> Dispatch {
        Dispatch { at: Nanos(now), ..Dispatch::default() }
    }

    fn load() -> Arc<MemberLoad> {
        Arc::new(MemberLoad::new(Nanos(0)))
    }

    fn group_of(policy: Policy, values: &[&'static str]) -> Group<&'static str> {
        let group = Group::new(policy);
        for (id, value) in (0..).zip(values) {
            group.join(MemberId(id), load(), 1, *value, Nanos(id));
        }
        group
    }

    fn picks(group: &Group<&'static str>, count: usize) -> Vec<&'static str> {
        let mut rng = Rng::new(1);
        (0..count).filter_map(|_| group.members().pick(&at(100), &mut rng).map(|member| *member.value())).collect()
    }

    #[test]
    fn members_are_in_join_order() {
        let group = group_of(Policy::RoundRobin, &["a", "b", "c"]);
        assert!(group.leave(MemberId(1)));
        assert!(!group.leave(MemberId(1)));
        group.join(MemberId(1), load(), 1, "d", Nanos(9));
        let members = group.members();
        let listed: Vec<_> =
            members.iter().map(|member| (member.id().0, *member.value(), member.joined_at().0)).collect();
        assert_eq!(listed, [(0, "a", 0), (2, "c", 2), (1, "d", 9)]);
        assert_eq!((group.len(), group.is_empty(), members.len(), members.is_empty()), (3, false, 3, false));
    }

    #[test]
    fn an_empty_group_picks_nobody() {
        for policy in Policy::ALL {
            let group = group_of(policy, &["a"]);
            assert!(group.leave(MemberId(0)));
            assert!(group.is_empty());
            assert!(group.members().pick(&at(1), &mut Rng::new(0)).is_none());
        }
    }

    #[test]
    fn joining_again_replaces_the_value_and_keeps_the_place() {
        let group = group_of(Policy::RoundRobin, &["a", "b", "c"]);
        assert_eq!(picks(&group, 1), ["a"]);
        let replacement = load();
        group.join(MemberId(1), Arc::clone(&replacement), 1, "B", Nanos(50));
        assert_eq!(group.len(), 3);
        assert_eq!(picks(&group, 5), ["B", "c", "a", "B", "c"]);
        let members = group.members();
        let member = members.iter().nth(1).expect("three members");
        assert!(Arc::ptr_eq(member.load(), &replacement));
        assert_eq!((member.id(), member.joined_at()), (MemberId(1), Nanos(1)));
        assert_eq!(replacement.snapshot().sent_since_report, 2);
    }

    #[test]
    fn equal_members_take_turns_at_one_instant() {
        for policy in [Policy::RoundRobin, Policy::ThesisScore] {
            let group = group_of(policy, &["a", "b", "c"]);
            assert_eq!(picks(&group, 7), ["a", "b", "c", "a", "b", "c", "a"], "{policy}");
            group.join(MemberId(3), load(), 1, "d", Nanos(100));
            assert!(group.leave(MemberId(1)));
            if policy == Policy::RoundRobin {
                assert_eq!(picks(&group, 6), ["c", "a", "d", "c", "a", "d"], "newcomers come last");
            }
        }
    }

    #[test]
    fn turns_are_the_groups_own_and_loads_are_shared() {
        let shared = [load(), load()];
        let groups = [Policy::RoundRobin, Policy::RoundRobin].map(|policy| {
            let group = Group::new(policy);
            group.join(MemberId(0), Arc::clone(&shared[0]), 1, "a", Nanos(0));
            group.join(MemberId(1), Arc::clone(&shared[1]), 1, "b", Nanos(0));
            group
        });
        for _ in 0..2 {
            assert_eq!((picks(&groups[0], 1), picks(&groups[1], 2)), (vec!["a"], vec!["a", "b"]));
            assert_eq!((picks(&groups[0], 1), picks(&groups[1], 2)), (vec!["b"], vec!["a", "b"]));
        }
        assert_eq!(shared.each_ref().map(|load| load.snapshot().sent_since_report), [6, 6]);
        shared[0].set_availability(Availability::Offline);
        assert_eq!((picks(&groups[0], 2), picks(&groups[1], 2)), (vec!["b", "b"], vec!["b", "b"]));
    }

    #[test]
    fn new_rules_keep_the_members_and_their_turns() {
        let group = group_of(Policy::RoundRobin, &["a", "b", "c"]);
        assert_eq!(picks(&group, 1), ["a"]);
        let rules = Rules {
            policy: Policy::ThesisScore,
            is_ordered: true,
            may_break_order: true,
            shadow: Some(Policy::Random),
            late_binding: crate::LateBinding::Off,
            concurrency: 3,
        };
        group.set_rules(rules);
        assert_eq!((group.rules(), group.members().rules()), (rules, rules));
        assert_eq!(picks(&group, 1), ["b"]);
        group.set_rules(Policy::RoundRobin);
        assert_eq!(picks(&group, 4), ["c", "a", "b", "c"]);
    }

    #[test]
    fn speed_of_a_group_is_the_sum_of_members_at_work() {
        let group = group_of(Policy::Adaptive, &["25 ms", "50 ms", "unknown", "drains", "away"]);
        let members = group.members();
        let loads: Vec<_> = members.iter().map(|member| Arc::clone(member.load())).collect();
        assert_eq!(members.messages_per_second(), 0.0);
        for (load, ms) in loads.iter().zip([25, 50, 0, 10, 10]) {
            load.assume_speed(Duration::from_millis(ms));
        }
        let report = LoadReport { draining: true, processing_time: Duration::from_millis(10), ..LoadReport::default() };
        loads[3].report(&report, Nanos(1));
        loads[1].set_availability(Availability::Full);
        loads[4].set_availability(Availability::Offline);
        assert_eq!(members.messages_per_second().round(), 60.0);
    }

    #[test]
    fn weighted_shares_hold_while_members_come_and_go() {
        let group = Group::new(Policy::WeightedRoundRobin);
        for (id, weight, value) in [(0, 1, "a"), (1, 2, "b"), (2, 0, "c")] {
            group.join(MemberId(id), load(), weight, value, Nanos(0));
        }
        let mut counts = std::collections::HashMap::new();
        for round in 0..400 {
            // A guest of great weight that is never present when a message comes.
            group.join(MemberId(9), load(), 500, "guest", Nanos(0));
            assert!(group.leave(MemberId(9)));
            if round % 2 == 0 {
                picks(&group, 2).into_iter().for_each(|value| *counts.entry(value).or_insert(0_i32) += 1);
            }
        }
        for (value, share) in [("a", 100), ("b", 200), ("c", 100)] {
            assert!((counts[value] - share).abs() <= 4, "{counts:?}");
        }
        let weights: Vec<_> = group.members().iter().map(|member| member.standing().weight).collect();
        assert_eq!(weights, [1, 2, 1]);
        group.set_rules(Policy::RoundRobin);
        assert_eq!(picks(&group, 6).iter().filter(|&&value| value == "b").count(), 2);
    }

    #[test]
    fn hashed_keys_stay_with_the_client_whatever_its_id() {
        for (policy, by_publisher) in [(Policy::HashClientId, true), (Policy::HashTopic, false)] {
            let group = Group::new(policy);
            let join = |session: u64, identity: u64, value: &'static str| {
                let standing = Standing { weight: 1, identity };
                group.join_with(MemberId(session), standing, load(), value, Nanos(0));
            };
            let chosen = || {
                let mut keys = Rng::new(1);
                let pick = |_| {
                    let (key, other) = (keys.next_u64(), u64::MAX / 3);
                    let (publisher, topic) = if by_publisher { (key, other) } else { (other, key) };
                    let dispatch = Dispatch { publisher, topic, ..at(1) };
                    group.members().pick(&dispatch, &mut Rng::new(9)).map(|member| *member.value())
                };
                (0..300).map(pick).collect::<Vec<_>>()
            };
            join(1, 0xA, "a");
            join(2, 0xB, "b");
            join(3, 0xC, "c");
            let before = chosen();
            assert!(["a", "b", "c"].iter().all(|value| before.contains(&Some(value))), "{policy}");
            assert!(group.leave(MemberId(2)));
            let without: Vec<_> = before.iter().zip(chosen()).filter(|(was, is)| *was != is).collect();
            assert!(!without.is_empty() && without.iter().all(|(was, _)| **was == Some("b")), "{policy}");
            join(77, 0xB, "b");
            assert_eq!(chosen(), before, "{policy}");
        }
    }

    #[test]
    fn explaining_shows_every_member() {
        let group = group_of(Policy::ThesisScore, &["a", "b"]);
        assert_eq!(picks(&group, 1), ["a"]);
        let members = group.members();
        let shown: Vec<_> = members
            .explain(&at(200))
            .into_iter()
            .map(|candidate| (candidate.member.0, candidate.pending, candidate.in_flight, candidate.sent_at.0))
            .collect();
        assert_eq!(shown, [(0, 1, 1, 100), (1, 0, 0, 0)]);
    }

    #[test]
    fn an_outdated_snapshot_still_works() {
        let group = group_of(Policy::ThesisScore, &["a"]);
        let members = group.members();
        assert!(group.leave(MemberId(0)));
        assert_eq!(members.pick(&at(1), &mut Rng::new(0)).map(Member::id), Some(MemberId(0)));
        assert!(group.is_empty());
    }

    #[test]
    fn readers_go_on_while_a_writer_holds_the_lock() {
        for policy in Policy::ALL {
            let group = group_of(policy, &["a", "b"]);
            thread::scope(|scope| {
                // Released before the scope waits for the reader, so that a failure does not hang.
                let _writer = lock(&group.writers);
                let (done, finished) = sync_channel(1);
                let group = &group;
                scope.spawn(move || {
                    assert_eq!(picks(group, 10).len(), 10);
                    assert_eq!((group.members().iter().count(), group.len()), (2, 2));
                    // The test has given up if the channel is closed.
                    let _ = done.send(());
                });
                finished.recv_timeout(Duration::from_secs(60)).expect("a reader does not wait for the writer");
            });
        }
    }

    #[test]
    fn member_value_may_use_the_group_when_dropped() {
        struct Leaver(Arc<Group<Option<Leaver>>>, u64);
        impl Drop for Leaver {
            fn drop(&mut self) {
                self.0.leave(MemberId(self.1));
            }
        }
        let group = Arc::new(Group::new(Policy::RoundRobin));
        group.join(MemberId(1), load(), 1, None, Nanos(0));
        group.join(MemberId(0), load(), 1, Some(Leaver(Arc::clone(&group), 1)), Nanos(0));
        assert!(group.leave(MemberId(0)));
        assert!(group.is_empty());
    }
}
