//! Breadth-first search over the real machines: every history with few faults.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use super::happening::Event;
use super::world::{Bounds, NOW, World};
use crate::machine::Step;
use crate::settings::Rule;

/// Result of a search.
struct Found {
    states: usize,
    depth: usize,
    violation: Option<(&'static str, Vec<Event>)>,
}

/// A fast hash of a whole world.
#[derive(Default)]
struct Fingerprint(u64);

impl Hasher for Fingerprint {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let mixed = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ mixed >> 31;
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(byte.into());
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }
}

fn fingerprint<const N: usize>(world: &World<N>) -> u64 {
    let mut hasher = Fingerprint::default();
    world.hash(&mut hasher);
    hasher.finish()
}

/// Visits all states in the order of their distance from the start, up to a number of states.
fn search<const N: usize>(start: World<N>, most: usize) -> Found {
    let first = fingerprint(&start);
    let mut seen: HashMap<u64, (u64, Event)> = HashMap::from([(first, (first, Event::Time))]);
    let mut level = vec![(first, start)];
    let mut depth = 0;
    while !level.is_empty() && seen.len() < most {
        let mut next = Vec::new();
        for (from, world) in level {
            for event in world.events() {
                let mut after = world.clone();
                after.apply(event);
                let print = fingerprint(&after);
                if seen.contains_key(&print) {
                    continue;
                }
                seen.insert(print, (from, event));
                if let Some(violation) = after.violation {
                    let path = path(&seen, first, print);
                    return Found { states: seen.len(), depth, violation: Some((violation, path)) };
                }
                next.push((print, after));
            }
        }
        level = next;
        depth += 1;
    }
    Found { states: seen.len(), depth, violation: None }
}

fn path(seen: &HashMap<u64, (u64, Event)>, first: u64, mut at: u64) -> Vec<Event> {
    let mut events = Vec::new();
    while at != first {
        let (before, event) = seen[&at];
        events.push(event);
        at = before;
    }
    events.reverse();
    events
}

const BOUNDS: Bounds = Bounds {
    kills: 1,
    losses: 1,
    answers: 1,
    cuts: 1,
    handovers: 1,
    messages: 2,
    epochs: 7,
    is_sync_always: false,
    twin_of: None,
    without: None,
};

const NO_FAULTS: Bounds = Bounds { kills: 0, losses: 0, answers: 0, cuts: 0, handovers: 0, ..BOUNDS };

/// A cluster whose second copy is complete.
fn pair<const N: usize>(bounds: Bounds) -> World<N> {
    World::new(bounds).settle(World::has_two_copies)
}

/// Nothing goes wrong in the first `most` states.
#[track_caller]
fn holds<const N: usize>(name: &str, start: World<N>, most: usize) {
    let Found { states, depth, violation } = search(start, most);
    println(&format!("{name}: {states} states, {depth} steps"));
    assert_eq!(violation, None, "{name}");
    assert!(states >= most, "{name}: only {states} states");
}

/// Without the rule, this goes wrong.
#[track_caller]
fn breaks(rule: Rule, bounds: Bounds, expected: &str) {
    breaks_from(rule, pair::<2>(Bounds { without: Some(rule), ..bounds }), expected);
}

/// As [`breaks`], from another start.
#[track_caller]
fn breaks_from<const N: usize>(rule: Rule, start: World<N>, expected: &str) {
    let Found { states, violation, .. } = search(start, 1_500_000);
    let (violation, path) = violation.expect("the rule is needed");
    println(&format!("without {rule:?}: {violation} after {} steps, {states} states: {path:?}", path.len()));
    assert_eq!(violation, expected, "{path:?}");
}

#[expect(clippy::print_stderr, reason = "figures of the search")]
fn println(line: &str) {
    eprintln!("{line}");
}

#[test]
fn c2_c6_hold_in_every_short_history_of_a_pair() {
    holds("pair, interval", pair::<2>(BOUNDS), 250_000);
    holds("pair, always", pair::<2>(Bounds { is_sync_always: true, ..BOUNDS }), 250_000);
    holds("first start", World::<2>::new(BOUNDS), 100_000);
}

#[test]
fn c2_c6_hold_with_one_or_two_kinds_of_faults() {
    let one = Bounds { messages: 1, ..NO_FAULTS };
    holds("kills", pair::<2>(Bounds { kills: 2, ..one }), 150_000);
    holds("kill and power cut", pair::<2>(Bounds { kills: 1, losses: 1, ..one }), 150_000);
    holds("kill and lost answers", pair::<2>(Bounds { kills: 1, answers: 2, ..one }), 150_000);
    holds("handovers", pair::<2>(Bounds { handovers: 2, ..one }), 150_000);
    holds("handover and kill", pair::<2>(Bounds { handovers: 1, kills: 1, ..one }), 150_000);
    holds("handover and cut", pair::<2>(Bounds { handovers: 1, cuts: 1, ..one }), 150_000);
    holds("handover and lost answers", pair::<2>(Bounds { handovers: 1, answers: 2, ..one }), 150_000);
    holds("cuts", pair::<2>(Bounds { cuts: 2, ..one }), 150_000);
}

#[test]
fn c2_c6_hold_in_short_histories_of_three_nodes() {
    holds("three nodes", pair::<3>(Bounds { messages: 1, ..BOUNDS }), 150_000);
}

#[test]
#[ignore = "minutes, and gigabytes of memory"]
fn c2_c6_hold_in_longer_histories() {
    let one = Bounds { messages: 1, ..NO_FAULTS };
    holds("pair, interval", pair::<2>(BOUNDS), 5_000_000);
    holds("pair, always", pair::<2>(Bounds { is_sync_always: true, ..BOUNDS }), 5_000_000);
    holds("kills and power cut", pair::<2>(Bounds { kills: 2, losses: 1, ..one }), 5_000_000);
    holds("kill and lost answers", pair::<2>(Bounds { kills: 1, answers: 2, ..one }), 5_000_000);
    holds("first start", World::<2>::new(BOUNDS), 3_000_000);
    holds("three nodes", pair::<3>(Bounds { messages: 1, ..BOUNDS }), 3_000_000);
}

const LOST: &str = "the leader lacks an acknowledged message";
const TWO: &str = "two nodes act";

#[test]
fn without_rule_1_a_stale_leader_acknowledges() {
    let bounds = Bounds { answers: 1, messages: 1, ..NO_FAULTS };
    breaks(Rule::ReadAfterUnknown, bounds, "a stale leader acknowledges");
}

#[test]
fn without_rule_2_two_nodes_act() {
    breaks(Rule::ChangeBeforeAlone, Bounds { messages: 0, ..NO_FAULTS }, TWO);
}

#[test]
fn without_rule_3_two_nodes_act() {
    breaks(Rule::Seal, Bounds { messages: 0, ..NO_FAULTS }, TWO);
}

#[test]
fn without_rule_4_acknowledged_messages_are_lost() {
    let bounds = Bounds { without: Some(Rule::ConfirmBeforeFollower), messages: 1, ..NO_FAULTS };
    let start = World::<2>::new(bounds).settle(World::is_copying);
    let (violation, path) = search(start, 1_500_000).violation.expect("the rule is needed");
    assert_eq!(violation, LOST, "{path:?}");
}

#[test]
fn without_rule_5_acknowledged_messages_are_lost() {
    breaks(Rule::Mark, Bounds { losses: 1, messages: 1, ..NO_FAULTS }, LOST);
}

#[test]
fn without_rule_6_acknowledged_messages_are_lost() {
    breaks(Rule::Boot, Bounds { losses: 1, messages: 1, ..NO_FAULTS }, LOST);
}

#[test]
fn without_rule_7_acknowledged_messages_are_lost() {
    breaks(Rule::SyncBeforeAlone, Bounds { losses: 1, messages: 1, ..NO_FAULTS }, LOST);
}

#[test]
fn without_rule_7_messages_after_the_sync_are_lost() {
    breaks(Rule::HoldBeforeAlone, Bounds { losses: 1, messages: 1, ..NO_FAULTS }, LOST);
}

#[test]
fn without_rule_8_a_restarted_leader_is_a_second_one() {
    breaks(Rule::RestartAlone, Bounds { kills: 1, messages: 0, ..NO_FAULTS }, TWO);
}

#[test]
fn without_rule_8_a_restarted_follower_leads_too_early() {
    breaks(Rule::RestartWait, Bounds { kills: 1, cuts: 1, messages: 0, ..NO_FAULTS }, TWO);
}

#[test]
fn without_rule_9_a_takeover_comes_too_early() {
    breaks(Rule::LeaseWait, Bounds { cuts: 1, messages: 0, ..NO_FAULTS }, TWO);
}

#[test]
fn without_rule_9_a_late_answer_prolongs_the_lease() {
    breaks(Rule::LeaseFromSent, Bounds { messages: 0, ..NO_FAULTS }, TWO);
}

#[test]
fn without_rule_9_a_leader_that_hands_over_acts_on() {
    breaks(Rule::HandoverPause, Bounds { handovers: 1, messages: 0, ..NO_FAULTS }, TWO);
}

#[test]
fn without_rule_10_two_writers_share_a_directory() {
    let bounds = Bounds { messages: 0, ..NO_FAULTS };
    breaks(Rule::DropBroker, bounds, "a copy is written below an open broker");
}

/// Two processes of one name in a cluster of one name, which start at any time.
const TWO_LEADERS: Bounds = Bounds { twin_of: Some(0), messages: 1, ..NO_FAULTS };
/// A pair, and a second process with the follower's name.
const TWO_FOLLOWERS: Bounds = Bounds { twin_of: Some(1), messages: 1, ..NO_FAULTS };

/// The second process of a name starts while the first one is copied to.
fn during_join(bounds: Bounds) -> World<3> {
    let mut world = World::<3>::new(bounds).settle(World::is_copying);
    world.apply(Event::Start(2));
    world
}

#[test]
fn second_process_of_a_name_never_acts() {
    let lead = Bounds { kills: 1, answers: 1, ..TWO_LEADERS };
    holds("second leader at the first start", World::<2>::new(lead), 100_000);
    holds("second leader of a pair", pair::<3>(Bounds { twin_of: Some(0), ..lead }), 150_000);
    holds("second follower", pair::<3>(Bounds { kills: 1, ..TWO_FOLLOWERS }), 150_000);
    let joined = during_join(Bounds { kills: 1, ..TWO_FOLLOWERS }).settle(World::has_two_copies);
    holds("second follower since the join", joined, 150_000);
}

#[test]
fn without_rule_11_two_processes_of_a_name_act() {
    let bounds = Bounds { without: Some(Rule::OwnDirectory), ..TWO_LEADERS };
    breaks_from(Rule::OwnDirectory, World::<2>::new(bounds), TWO);
}

#[test]
fn without_rule_11_a_second_follower_takes_over() {
    let bounds = Bounds { without: Some(Rule::OwnDirectory), ..TWO_FOLLOWERS };
    let both_follow = |world: &World<3>| {
        let follows = |n: usize| world.nodes[n].machine.as_ref().is_some_and(|m| m.status(NOW).step == Step::Following);
        world.has_two_copies() && follows(1) && follows(2)
    };
    breaks_from(Rule::OwnDirectory, during_join(bounds).settle(both_follow), TWO);
}
