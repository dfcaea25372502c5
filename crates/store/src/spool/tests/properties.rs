//! Property tests: after any calls and any ends, a spool equals its model.

use std::time::Duration;

use proptest::prelude::*;

use super::{
    SMALL,
    calls::{Caller, Wish, wish},
    fixed,
    memory_disk::Faults,
    rig::{End, Rig},
};
use crate::Sync;
use crate::spool::{Health, Options, reclaim::Pieces};

#[derive(Clone, Debug)]
enum Step {
    Call(Wish),
    Work(usize),
    Commit,
    Compare,
    End(End),
    /// The next opening fails, possibly with a power cut.
    EndAndFail(End, Faults, Option<u64>),
    SyncsFail(u32),
    Full(bool),
    Space(Option<usize>),
    ShortWrites(bool),
    OpensFail(u32),
    ReadsFail(u32),
    NamesFail(u32),
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![
        1 => Just(End::Closed),
        1 => Just(End::Killed),
        2 => any::<u64>().prop_map(End::PowerCut),
    ]
}

/// Faults during an opening.
fn faults() -> impl Strategy<Value = Faults> {
    let none = Faults::default();
    prop_oneof![
        4 => (0..12_u32).prop_map(move |left| Faults { changes_left: Some(left), ..none }),
        2 => Just(Faults { failing_syncs: 1, ..none }),
        1 => (1..3_u32).prop_map(move |failing_names| Faults { failing_names, ..none }),
        1 => Just(Faults { failing_reads: 1, ..none }),
        1 => Just(Faults { failing_opens: 1, ..none }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let seed = prop::option::weighted(0.7, any::<u64>());
    prop_oneof![
        80 => wish().prop_map(Step::Call),
        10 => (1..4_usize).prop_map(Step::Work),
        10 => Just(Step::Commit),
        4 => Just(Step::Compare),
        3 => end().prop_map(Step::End),
        1 => (end(), faults(), seed).prop_map(|(end, faults, seed)| Step::EndAndFail(end, faults, seed)),
        2 => (1..4_u32).prop_map(Step::SyncsFail),
        2 => any::<bool>().prop_map(Step::Full),
        1 => prop::option::of(0..20_000_usize).prop_map(Step::Space),
        2 => any::<bool>().prop_map(Step::ShortWrites),
        1 => (1..3_u32).prop_map(Step::OpensFail),
        1 => (1..3_u32).prop_map(Step::ReadsFail),
        1 => (1..4_u32).prop_map(Step::NamesFail),
    ]
}

/// Less than a segment, and about one message.
fn pieces() -> impl Strategy<Value = Option<Pieces>> {
    prop::option::of((1..1_500_usize, 1..2_000_usize).prop_map(|(block, step)| Pieces { block, step }))
}

fn run(options: Options, pieces: Option<Pieces>, steps: Vec<Step>) {
    let (mut rig, mut caller) = (Rig::new(options), Caller::default());
    if let Some(pieces) = pieces {
        rig = rig.copying_in(pieces);
    }
    for step in steps {
        match step {
            Step::Call(wish) => {
                caller.calls(&wish, rig.model()).iter().for_each(|call| rig.call(call));
            }
            Step::Work(steps) => drop(rig.work(steps)),
            Step::Commit => {
                let is_safe = rig.commit();
                let health = rig.spool.health();
                assert_eq!(is_safe, !matches!(health, Health::Failed { .. }), "{health:?}");
                if is_safe && options.sync == Sync::Always {
                    assert!(rig.spool.durable() >= rig.spool.begin().end());
                }
            }
            Step::Compare => {
                rig.disk.set_faults(|faults| (faults.failing_opens, faults.failing_reads) = (0, 0));
                rig.assert_as_model();
            }
            Step::End(end) => rig = rig.end(end),
            Step::EndAndFail(end, faults, seed) => {
                // Data that survived only in the page cache need not survive a power cut.
                let is_doubted = matches!(end, End::Killed) && seed.is_some() && options.sync != Sync::Always;
                let mut left = rig.leave(if is_doubted { End::Doubted } else { end });
                left.try_open(faults);
                seed.into_iter().for_each(|seed| left.cut_power(seed));
                rig = left.open().unwrap();
            }
            Step::SyncsFail(count) => rig.disk.set_faults(|faults| faults.failing_syncs = count),
            Step::Full(is_full) => rig.disk.set_faults(|faults| faults.is_full = is_full),
            Step::Space(space) => rig.disk.set_faults(|faults| faults.space = space),
            Step::OpensFail(count) => rig.disk.set_faults(|faults| faults.failing_opens = count),
            Step::ReadsFail(count) => rig.disk.set_faults(|faults| faults.failing_reads = count),
            Step::NamesFail(count) => rig.disk.set_faults(|faults| faults.failing_names = count),
            Step::ShortWrites(short) => rig.disk.set_faults(|faults| faults.short_writes = short),
        }
    }
    // All faults are over: no appended record may be lost.
    rig.disk.set_faults(|faults| *faults = Default::default());
    (0..8).any(|_| rig.commit());
    assert_eq!(rig.spool.health(), Health::Writing);
    rig.assert_as_model();
    rig.end(End::Killed).assert_as_model();
}

proptest! {
    #![proptest_config(fixed(200))]

    #[test]
    fn no_durable_record_is_lost(pieces in pieces(), steps in prop::collection::vec(step(), 1..250)) {
        run(SMALL, pieces, steps);
    }
}

proptest! {
    #![proptest_config(fixed(60))]

    #[test]
    fn no_durable_record_is_lost_while_segments_grow(
        pieces in pieces(),
        steps in prop::collection::vec(step(), 1..250),
    ) {
        run(Options { segment_bytes: 16 * SMALL.segment_bytes, ..SMALL }, pieces, steps);
    }

    #[test]
    fn sync_interval_keeps_written_records_after_kill(
        pieces in pieces(),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let long = Sync::Interval(Duration::from_secs(3_600));
        run(Options { sync: long, ..SMALL }, pieces, steps);
    }

    #[test]
    fn sync_never_keeps_written_records_after_kill(
        pieces in pieces(),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        run(Options { sync: Sync::Never, ..SMALL }, pieces, steps);
    }
}
