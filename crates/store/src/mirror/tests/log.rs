//! A spool with a copy: either end dies at any operation, and whichever leads afterwards has everything confirmed.

use std::fs;
use std::sync::Arc;

use proptest::prelude::*;

use super::{Pair, Store, content};
use crate::Sync;
use crate::mirror::copying::PIECE_BYTES;
use crate::spool::Options;
use crate::spool::tests::{Caller, End, MemoryDisk, Model, Rig, SMALL, Wish, fixed, message, wish};

#[derive(Clone, Debug)]
enum Step {
    Call(Wish),
    Work(usize),
    Commit,
    Join,
    WaitForCopy,
    /// The copy's disk fails after some operations.
    CopyFails(u32),
    CopySyncFails,
    /// The leader's process ends, and the copy takes over if it may. Otherwise the leader begins again.
    LeaderDies {
        power: Option<u64>,
    },
    SyncsFail(u32),
    NamesFail(u32),
    ShortWrites(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        80 => wish().prop_map(Step::Call),
        20 => (1..4_usize).prop_map(Step::Work),
        10 => Just(Step::Commit),
        6 => Just(Step::Join),
        4 => Just(Step::WaitForCopy),
        2 => (0..60_u32).prop_map(Step::CopyFails),
        1 => Just(Step::CopySyncFails),
        3 => prop::option::of(any::<u64>()).prop_map(|power| Step::LeaderDies { power }),
        1 => (1..4_u32).prop_map(Step::SyncsFail),
        1 => (1..4_u32).prop_map(Step::NamesFail),
        1 => any::<bool>().prop_map(Step::ShortWrites),
    ]
}

/// A leader, and another directory, which is a copy or may become one.
struct Mirrored {
    rig: Rig,
    pair: Pair,
    other: MemoryDisk,
}

impl Mirrored {
    fn new(options: Options) -> Self {
        Self::lead(MemoryDisk::default(), MemoryDisk::default(), options, &[Model::default()])
    }

    /// Opens `disk` as the leader's; `before` has its possible contents.
    fn lead(disk: MemoryDisk, other: MemoryDisk, options: Options, before: &[Model]) -> Self {
        let pair = Pair::default();
        let mirrored = pair.mirror.disk(Arc::new(disk.clone()));
        Self { rig: Rig::through(disk, mirrored, options, before), pair, other }
    }

    /// Lets the other directory join, unless it is a copy.
    fn join(&self) {
        if self.pair.is_alone() {
            self.other.set_faults(|faults| *faults = Default::default());
            self.pair.join(Arc::new(self.other.clone()));
        }
    }

    /// Kills the leader. The copy takes over if it may, after a power cut at both if `power` is given. If it may not, the
    /// leader begins again.
    fn fail_over(self, power: Option<u64>) -> Self {
        let Self { rig, pair, other } = self;
        let takes_over = pair.kill_leader();
        let options = rig.options;
        let (disk, contents) = rig.kill();
        let (mut leads, mut follows) = if takes_over { (other, disk) } else { (disk, other) };
        if let Some(seed) = power {
            (leads, follows) = (leads.after_power_cut(seed), follows.after_power_cut(!seed));
        }
        leads.set_faults(|faults| *faults = Default::default());
        follows.set_faults(|faults| *faults = Default::default());
        Self::lead(leads, follows, options, &contents)
    }
}

fn run(options: Options, steps: Vec<Step>) {
    let (mut node, mut caller) = (Mirrored::new(options), Caller::default());
    for step in steps {
        match step {
            Step::Call(wish) => caller.calls(&wish, node.rig.model()).iter().for_each(|call| node.rig.call(call)),
            Step::Work(steps) => node.rig.work_some(steps),
            Step::Commit => drop(node.rig.commit()),
            Step::Join => node.join(),
            Step::WaitForCopy => node.pair.wait(),
            Step::CopyFails(left) => node.other.set_faults(|faults| faults.changes_left = Some(left)),
            Step::CopySyncFails => node.other.set_faults(|faults| faults.failing_syncs = 1),
            Step::LeaderDies { power } => {
                // Rule 6: unless each commit is synced, a node after a power cut does not take over.
                let power = power.filter(|_| options.sync == Sync::Always);
                node = node.fail_over(power);
            }
            Step::SyncsFail(count) => node.rig.disk.set_faults(|faults| faults.failing_syncs = count),
            Step::NamesFail(count) => node.rig.disk.set_faults(|faults| faults.failing_names = count),
            Step::ShortWrites(short) => node.rig.disk.set_faults(|faults| faults.short_writes = short),
        }
    }
    node.rig.disk.set_faults(|faults| *faults = Default::default());
    node.join();
    node.pair.wait();
    (0..8).any(|_| node.rig.commit());
    node.rig.assert_as_model();
    node = node.fail_over(None);
    node.rig.assert_as_model();
    node.rig.end(End::Killed).assert_as_model();
}

proptest! {
    #![proptest_config(fixed(120))]

    #[test]
    fn copy_that_takes_over_has_everything_confirmed(steps in prop::collection::vec(step(), 1..250)) {
        run(SMALL, steps);
    }

    #[test]
    fn copy_that_takes_over_has_every_settled_write(steps in prop::collection::vec(step(), 1..200)) {
        run(Options { sync: Sync::Never, ..SMALL }, steps);
    }
}

#[test]
fn copy_equals_the_leaders_segments() {
    let mut node = Mirrored::new(SMALL);
    for sequence in 1..40 {
        node.rig.call(&message(1, sequence));
        assert!(node.rig.commit());
        if sequence == 20 {
            node.join();
            node.pair.wait();
        }
    }
    let (leader, copy) = (node.rig.disk.clone(), node.other.clone());
    assert!(!node.pair.is_alone());
    let names: Vec<String> = copy.names().into_iter().filter(|name| name != "copying").collect();
    assert_eq!(leader.names(), names);
    let segments = names.into_iter().filter(|name| name.ends_with(".log"));
    let end = node.rig.spool.begin().end();
    for name in segments.filter(|name| crate::spool::number_of(name) < Some(end.segment())) {
        assert_eq!(leader.content(&name), copy.content(&name), "{name}");
    }
}

#[test]
fn join_of_a_fresh_store_sends_and_counts_no_booked_space() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (directory.path().join("a"), directory.path().join("b"));
    // The first copy has nothing. The second one has nearly all, and pieces of it are compared or replaced.
    for (round, most) in [(0, 200_000), (1, 3 * PIECE_BYTES as u64)] {
        let leader = Store::open(&first, Sync::Always);
        // The first segments are small.
        for sequence in 1..=10 {
            leader.spool.wait(leader.append(10 * round + sequence, 10_000)).unwrap();
        }
        let files = fs::read_dir(first.join("spool")).unwrap();
        let booked: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
        assert!(booked >= 4 * PIECE_BYTES as u64, "{booked}");
        let copy = leader.begin_copy(&second, Sync::Always);
        leader.wait_for_follower();
        let stats = leader.mirror.stats();
        assert!((100_000..=most).contains(&stats.log_bytes), "{stats:?}");
        assert!((stats.log_bytes..=most).contains(&stats.copied_bytes), "{stats:?}");
        assert!(stats.log.bytes <= most, "{stats:?}");
        leader.mirror.end();
        copy.seal();
    }
    assert_eq!(content(&second), content(&first));
}
