//! Compares an ordered group that may break its order with a naive model.
//!
//! While messages of a key are outstanding, the next one goes to the same member. Exceptions: that member is full or
//! offline and another is more available, or the message would wait there for more than a second. Otherwise the policy
//! decides.

#![cfg(not(loom))]

use std::{sync::Arc, time::Duration};

use proptest::prelude::*;
use tenbin_balancer::{
    Acknowledged, Availability, Dispatch, Group, LoadReport, MemberId, MemberLoad, Nanos, Policy, Rng, Rules,
};

const CLIENTS: usize = 4;
const KEYS: usize = 5;
const BYTES: u32 = 100;
const GRACE: u64 = 5_000_000;
/// Rank of a draining member: after full ones, before offline ones.
const DRAINING: u8 = 2;
/// Unit to which the crate rounds times up.
const UNIT: u64 = 1 << 20;

#[derive(Clone, Debug)]
enum Event {
    Advance(u64),
    Pick { key: usize, is_acknowledged: bool },
    Done { message: prop::sample::Index, is_taken_back: bool },
    SetAvailability { client: usize, availability: Availability },
    Report { client: usize, draining: bool },
    Leave { client: usize },
    Join { client: usize },
}

fn event() -> impl Strategy<Value = Event> {
    let availability =
        prop_oneof![4 => Just(Availability::Ready), 1 => Just(Availability::Full), 1 => Just(Availability::Offline)];
    prop_oneof![
        4 => prop_oneof![3 => 0..8_000_000_u64, 1 => Just(20_000_000)].prop_map(Event::Advance),
        12 => (0..KEYS, prop::bool::weighted(0.8)).prop_map(|(key, is_acknowledged)| {
            Event::Pick { key, is_acknowledged }
        }),
        8 => (any::<prop::sample::Index>(), prop::bool::weighted(0.2)).prop_map(|(message, is_taken_back)| {
            Event::Done { message, is_taken_back }
        }),
        1 => (0..CLIENTS, availability).prop_map(|(client, availability)| {
            Event::SetAvailability { client, availability }
        }),
        1 => (0..CLIENTS, any::<bool>()).prop_map(|(client, draining)| Event::Report { client, draining }),
        1 => (0..CLIENTS).prop_map(|client| Event::Leave { client }),
        1 => (0..CLIENTS).prop_map(|client| Event::Join { client }),
    ]
}

#[derive(Clone, Copy, Debug)]
struct Outstanding {
    key: usize,
    client: usize,
    sent_at: u64,
}

#[derive(Debug, Default)]
struct Model {
    now: u64,
    /// Members in the order of their turns, oldest first.
    turns: Vec<usize>,
    outstanding: Vec<Outstanding>,
    /// Member of each key's last message, and the time until which it counts as in flight if it needs no
    /// acknowledgement.
    last: [Option<(usize, u64)>; KEYS],
    /// Keys that left messages behind, until these are completed: their order is already broken.
    is_torn: [bool; KEYS],
}

/// Spreads a key like a caller's hash.
fn hash(key: usize) -> u64 {
    Rng::new(key as u64).next_u64()
}

fn check(policy: Policy, events: &[Event]) -> Result<(), TestCaseError> {
    let group = Group::new(Rules { policy, is_ordered: true, may_break_order: true, shadow: None, ..Rules::default() });
    let loads: [Arc<MemberLoad>; CLIENTS] = std::array::from_fn(|_| Arc::new(MemberLoad::new(Nanos(0))));
    let rank = |client: &usize| {
        let load = &loads[*client];
        (load.availability() as u8).max(if load.is_draining() { DRAINING } else { 0 })
    };
    let mut model = Model::default();
    let mut rng = Rng::new(5);
    for (client, load) in loads.iter().enumerate() {
        group.join(MemberId(client as u64), Arc::clone(load), 1, client, Nanos(0));
        model.turns.push(client);
    }
    for event in events {
        let now = Nanos(model.now);
        match *event {
            Event::Advance(by) => model.now += by,
            Event::SetAvailability { client, availability } => loads[client].set_availability(availability),
            Event::Report { client, draining } => {
                loads[client].report(&LoadReport { draining, ..LoadReport::default() }, now);
            }
            Event::Leave { client } => {
                group.leave(MemberId(client as u64));
                model.turns.retain(|&member| member != client);
            }
            Event::Join { client } => {
                group.join(MemberId(client as u64), Arc::clone(&loads[client]), 1, client, now);
                if !model.turns.contains(&client) {
                    model.turns.push(client);
                }
            }
            Event::Done { message, is_taken_back } => {
                if model.outstanding.is_empty() {
                    continue;
                }
                let message = model.outstanding.remove(message.index(model.outstanding.len()));
                match is_taken_back {
                    true => loads[message.client].taken_back(1, BYTES.into(), now),
                    false => loads[message.client].acknowledged(&Acknowledged::one(Nanos(message.sent_at), BYTES, now)),
                }
                group.members().key_done(hash(message.key), MemberId(message.client as u64));
            }
            Event::Pick { key, is_acknowledged } => {
                let key_hash = Some(hash(key));
                let dispatch =
                    Dispatch { at: now, bytes: BYTES, is_acknowledged, key: key_hash, ..Dispatch::default() };
                let members = group.members();
                let wait = |client: usize| {
                    let id = MemberId(client as u64);
                    let candidate = members.explain(&dispatch).into_iter().find(|candidate| candidate.member == id);
                    candidate.map(|candidate| candidate.predicted_wait)
                };
                let best = model.turns.iter().map(rank).min();
                let bearable = |client: usize| {
                    // A draining member keeps its messages.
                    let is_available =
                        loads[client].availability() == Availability::Ready || Some(rank(&client)) == best;
                    is_available && wait(client).is_some_and(|wait| wait <= Duration::from_secs(1))
                };
                let is_outstanding = model.outstanding.iter().any(|message| message.key == key);
                model.is_torn[key] &= is_outstanding;
                let is_torn = model.is_torn[key];
                let kept = model.last[key].filter(|&(client, _)| bearable(client));
                let has_to_stay = |until: u64| !is_torn && (now.0 < until || is_outstanding);
                let is_free = |(_, until): (usize, u64)| now.0 > until + 2 * UNIT && !is_outstanding;
                let oldest = model.turns.iter().copied().find(|client| Some(rank(client)) == best);
                let picked = members.pick(&dispatch, &mut rng).map(|member| *member.value());
                prop_assert_eq!(picked.is_some(), oldest.is_some());
                let Some(picked) = picked else { continue };
                match kept {
                    Some((kept, until)) if has_to_stay(until) => prop_assert_eq!(picked, kept, "key {}", key),
                    kept if policy == Policy::RoundRobin && kept.is_none_or(is_free) => {
                        prop_assert_eq!(Some(picked), oldest);
                    }
                    // Too close to tell whether the key is free.
                    Some((kept, _)) if picked == kept => {}
                    _ => prop_assert_eq!(Some(rank(&picked)), best),
                }
                let until = match (is_acknowledged, model.last[key]) {
                    (false, _) => now.0 + wait(picked).expect("a member").as_nanos() as u64 + GRACE,
                    (true, Some((client, until))) if client == picked => until,
                    (true, _) => 0,
                };
                model.is_torn[key] |= is_outstanding && model.last[key].is_some_and(|(client, _)| client != picked);
                model.last[key] = Some((picked, until));
                model.turns.retain(|&member| member != picked);
                model.turns.push(picked);
                if is_acknowledged {
                    model.outstanding.push(Outstanding { key, client: picked, sent_at: now.0 });
                } else {
                    loads[picked].written(1, BYTES.into(), false, now);
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn keys_stay_while_outstanding_and_otherwise_take_turns(
        events in prop::collection::vec(event(), 0..150),
    ) {
        check(Policy::RoundRobin, &events)?;
    }

    #[test]
    fn keys_stay_while_outstanding_with_every_policy(
        policy in prop::sample::select(Policy::ALL.to_vec()), events in prop::collection::vec(event(), 0..150),
    ) {
        // Sticky chooses by publisher, and all publishers are the same here.
        if policy != Policy::Sticky {
            check(policy, &events)?;
        }
    }
}

#[test]
fn a_key_that_is_too_hot_for_one_member_moves() {
    let group = Group::new(Rules {
        policy: Policy::Adaptive,
        is_ordered: true,
        may_break_order: true,
        shadow: None,
        ..Rules::default()
    });
    let loads = [0, 1].map(|id| {
        let load = Arc::new(MemberLoad::new(Nanos(0)));
        group.join(MemberId(id), Arc::clone(&load), 1, id, Nanos(0));
        let (sent_at, now) = (Nanos(0), Nanos(100_000_000));
        let dispatch = Dispatch { at: sent_at, is_acknowledged: true, ..Dispatch::default() };
        group.members().pick_where(&dispatch, |member| member.id() == MemberId(id));
        load.acknowledged(&Acknowledged::one(sent_at, 0, now));
        load
    });
    let dispatch = Dispatch { at: Nanos(200_000_000), is_acknowledged: true, key: Some(7), ..Dispatch::default() };
    let members = group.members();
    let picked: Vec<_> =
        (0..24).map(|_| *members.pick(&dispatch, &mut Rng::new(1)).expect("two members").value()).collect();
    let first = picked[0];
    let stayed = picked.iter().take_while(|&&id| id == first).count();
    assert!((10..=12).contains(&stayed), "{picked:?}");
    assert_eq!(picked[stayed..stayed + 5], [1 - first; 5], "and stays there");
    assert_eq!(loads.iter().map(|load| load.snapshot().outstanding_messages).sum::<u64>(), 24);
}

#[test]
fn former_member_holds_keys_until_acknowledged_or_offline() {
    let rules = Rules { policy: Policy::RoundRobin, is_ordered: true, ..Rules::default() };
    for is_offline in [false, true] {
        let group = Group::new(rules);
        let load = |_| Arc::new(MemberLoad::new(Nanos(0)));
        let loads: [_; 3] = std::array::from_fn(load);
        group.join(MemberId(0), Arc::clone(&loads[0]), 1, 0, Nanos(0));
        let pick = |dispatch: &Dispatch| group.members().pick(dispatch, &mut Rng::new(1)).map(|member| *member.value());
        assert_eq!([1, 1, 2].map(|number| pick(&keyed(number))), [Some(0); 3]);
        group.join(MemberId(1), Arc::clone(&loads[1]), 1, 1, Nanos(0));
        assert!(group.leave(MemberId(0)));
        assert_eq!((pick(&keyed(1)), pick(&keyed(2)), pick(&keyed(3))), (None, None, Some(1)));
        assert_eq!(group.members().held_by(&keyed(1)), Some(MemberId(0)));
        assert!(group.members().has_departed(MemberId(0)));
        assert_eq!(pick(&Dispatch { is_acknowledged: false, ..keyed(1) }), Some(1), "QoS 0 does not wait");
        // Other changes of the members forget nothing.
        group.join(MemberId(2), Arc::clone(&loads[2]), 1, 2, Nanos(0));
        assert!(group.leave(MemberId(2)));
        if is_offline {
            loads[0].set_availability(Availability::Offline);
        } else {
            group.members().key_done(hash(1), MemberId(0));
            assert_eq!((pick(&keyed(1)), pick(&keyed(2))), (None, None));
            group.members().key_done(hash(1), MemberId(0));
        }
        assert_eq!((pick(&keyed(1)), group.members().held_by(&keyed(1))), (Some(1), None));
        assert_eq!(pick(&keyed(2)), is_offline.then_some(1));
        // A member that is back keeps the keys that it still holds.
        group.join(MemberId(0), Arc::clone(&loads[0]), 1, 0, Nanos(0));
        assert_eq!(pick(&keyed(2)), Some(u64::from(is_offline)));
        assert!(!group.members().has_departed(MemberId(0)));
    }
}

/// A message of a key that needs an acknowledgement.
fn keyed(key: usize) -> Dispatch {
    Dispatch { at: Nanos(1), is_acknowledged: true, key: Some(hash(key)), ..Dispatch::default() }
}

#[test]
fn unkeyed_messages_and_unordered_groups_are_not_pinned() {
    for (is_ordered, key) in [(true, None), (false, Some(7))] {
        let group = Group::new(Rules {
            policy: Policy::RoundRobin,
            is_ordered,
            may_break_order: true,
            shadow: None,
            ..Rules::default()
        });
        for id in 0..3 {
            group.join(MemberId(id), Arc::new(MemberLoad::new(Nanos(0))), 1, id, Nanos(0));
        }
        let dispatch = Dispatch { is_acknowledged: true, key, ..Dispatch::default() };
        let members = group.members();
        let picked: Vec<_> =
            (0..4).map(|_| *members.pick(&dispatch, &mut Rng::new(1)).expect("three members").value()).collect();
        assert_eq!(picked, [0, 1, 2, 0]);
    }
}

#[test]
fn pins_survive_membership_and_compatible_rule_changes() {
    for policy in [Policy::RoundRobin, Policy::Sticky] {
        let rules = Rules { policy, is_ordered: true, may_break_order: true, shadow: None, ..Rules::default() };
        let group = Group::new(rules);
        let join = |id| group.join(MemberId(id), Arc::new(MemberLoad::new(Nanos(0))), 1, id, Nanos(0));
        (0..3).for_each(join);
        let dispatch = Dispatch { is_acknowledged: true, key: Some(7), publisher: 9, ..Dispatch::default() };
        let pick = || group.members().pick(&dispatch, &mut Rng::new(1)).map(|member| *member.value());
        let first = pick();
        join(10);
        assert_eq!(pick(), first);
        assert!(group.leave(MemberId((first.expect("a member") + 1) % 3)));
        assert_eq!(pick(), first);
        group.set_rules(Rules { shadow: Some(Policy::Random), ..rules });
        assert_eq!(pick(), first);
        assert!(group.leave(MemberId(first.expect("a member"))));
        let second = pick();
        assert_ne!(second, first);
        assert_eq!(pick(), second);
    }
}

#[test]
fn missing_key_done_frees_key_of_idle_member() {
    let group = Group::new(Rules {
        policy: Policy::RoundRobin,
        is_ordered: true,
        may_break_order: true,
        shadow: None,
        ..Rules::default()
    });
    let loads = [0, 1].map(|id| {
        let load = Arc::new(MemberLoad::new(Nanos(0)));
        group.join(MemberId(id), Arc::clone(&load), 1, id, Nanos(0));
        load
    });
    let dispatch = |key| Dispatch { bytes: BYTES, is_acknowledged: true, key, ..Dispatch::default() };
    let pick = |key| group.members().pick(&dispatch(key), &mut Rng::new(1)).map(|member| *member.value());
    // The test makes no `key_done` call.
    assert_eq!(pick(Some(7)), Some(0));
    loads[0].taken_back(1, BYTES.into(), Nanos(1));
    assert_eq!(pick(Some(7)), Some(1), "free to take its turn");
    assert_eq!(pick(None), Some(0));
    assert_eq!(pick(Some(7)), Some(1), "where the one before is");
}

#[test]
fn draining_member_keeps_keys_of_outstanding_messages() {
    let group = Group::new(Rules {
        policy: Policy::RoundRobin,
        is_ordered: true,
        may_break_order: true,
        shadow: None,
        ..Rules::default()
    });
    let loads = [0, 1].map(|id| {
        let load = Arc::new(MemberLoad::new(Nanos(0)));
        group.join(MemberId(id), Arc::clone(&load), 1, id, Nanos(0));
        load
    });
    let dispatch = |key| Dispatch { bytes: BYTES, is_acknowledged: true, key: Some(key), ..Dispatch::default() };
    let members = group.members();
    let pick = |key| members.pick(&dispatch(key), &mut Rng::new(1)).map(|member| *member.value());
    let [begun, waits] = [1_u64, 2].map(|slot| slot << 52);
    assert_eq!([pick(begun), pick(7 << 52), pick(waits)], [Some(0), Some(1), Some(0)]);
    assert!(!members.follows_others(MemberId(0), &dispatch(begun)), "it is the first");
    loads[0].report(&LoadReport { draining: true, ..LoadReport::default() }, Nanos(0));
    assert_eq!(pick(begun), Some(0));
    assert!(members.follows_others(MemberId(0), &dispatch(begun)));
    assert!(!members.follows_others(MemberId(1), &dispatch(begun)));
    // `begun` has two messages, of which only one can be taken back.
    let freed = members.free_keys(MemberId(0), [(begun, true), (waits, true)], Nanos(0));
    assert_eq!([begun, waits].map(|key| freed.contains(key)), [false, true]);
    assert_eq!([pick(begun), pick(waits), pick(3 << 52)], [Some(0), Some(1), Some(1)]);
    (0..3).for_each(|_| members.key_done(begun, MemberId(0)));
    assert_eq!(pick(begun), Some(1));
    // A full or offline member keeps no key.
    for availability in [Availability::Full, Availability::Offline] {
        loads[0].report(&LoadReport::default(), Nanos(0));
        loads[1].set_availability(Availability::Offline);
        let key = (10 + availability as u64) << 52;
        assert_eq!(pick(key), Some(0));
        loads[1].set_availability(Availability::Ready);
        loads[0].report(&LoadReport { draining: true, ..LoadReport::default() }, Nanos(0));
        assert_eq!(pick(key), Some(0));
        loads[0].set_availability(availability);
        assert_eq!(pick(key), Some(1));
        loads[0].set_availability(Availability::Ready);
    }
}

#[test]
fn key_stays_with_full_or_slow_member_if_order_is_strict() {
    for may_break_order in [false, true] {
        for is_slow in [false, true] {
            let group = Group::new(Rules {
                policy: Policy::Adaptive,
                is_ordered: true,
                may_break_order,
                shadow: None,
                ..Rules::default()
            });
            let loads = [0, 1].map(|_| Arc::new(MemberLoad::new(Nanos(0))));
            for (id, load) in loads.iter().enumerate() {
                group.join(MemberId(id as u64), Arc::clone(load), 1, id, Nanos(0));
            }
            let mut rng = Rng::new(1);
            let mut pick = |at: u64| {
                let dispatch = Dispatch {
                    at: Nanos(at),
                    bytes: BYTES,
                    is_acknowledged: true,
                    key: Some(7),
                    ..Dispatch::default()
                };
                *group.members().pick(&dispatch, &mut rng).expect("there are members").value()
            };
            let first = pick(0);
            match is_slow {
                true => loads[first].report(
                    &LoadReport { messages_in_queue: 100, processing_time: Duration::from_secs(1), draining: false },
                    Nanos(1),
                ),
                false => loads[first].set_availability(Availability::Full),
            }
            for at in 2..50 {
                let is_kept = pick(at * 1_000_000) == first;
                assert_eq!(is_kept, !may_break_order, "slow: {is_slow}");
                if may_break_order {
                    break;
                }
            }
            loads[first].set_availability(Availability::Offline);
            assert_ne!(pick(100_000_000), first, "it has gone");
        }
    }
}
