//! Tests of segments that are copied in many steps, cannot be read, or are reclaimed on a full disk.

use super::{
    SMALL,
    memory_disk::Faults,
    message,
    model::Call,
    place,
    rig::{End, Rig},
    untagged,
};
use crate::spool::{
    Body, Health, Options, QueueId,
    committer::CommitStep,
    reclaim::{FAILURES_MAX, FILES_A_STEP, Pieces},
    segment::{is_spare, log_name},
};

/// About two messages per step.
const FINE: Pieces = Pieces { block: 300, step: 300 };

fn acknowledge(queue: u64, from: u64, to: u64) -> Call {
    Call::Acknowledge { queue, from, to }
}

/// A backlog in queue 2, followed by more acknowledged messages. Its copying has begun but not ended.
fn copying(mut rig: Rig) -> Rig {
    (1..=40).for_each(|sequence| rig.call(&message(2, sequence)));
    assert!(rig.commit());
    let mut sequence = 0;
    while rig.spool.stats().copied_bytes == 0 {
        sequence += 1;
        rig.call(&message(1, sequence));
        rig.call(&acknowledge(1, sequence, sequence));
        rig.work(1);
    }
    assert!(rig.is_copying());
    rig
}

fn assert_whole(mut rig: Rig) {
    rig.disk.set_faults(|faults| *faults = Faults::default());
    (0..8).any(|_| rig.commit());
    assert_eq!(rig.spool.health(), Health::Writing);
    rig.assert_as_model();
    rig.end(End::Killed).assert_as_model();
}

#[test]
fn changes_during_copying_of_segment_take_effect() {
    let mut rig = copying(Rig::new(SMALL).copying_in(FINE));
    for sequence in 1..=10 {
        // Some of each kind are already copied, some are not.
        rig.call(&acknowledge(2, 3 * sequence, 3 * sequence));
        let to = if sequence % 2 == 0 { 3 } else { 4 };
        rig.call(&Call::Move { from: place(2, 3 * sequence + 1), to: place(to, sequence), tag: Some(vec![7; 9]) });
        rig.call(&Call::Mark { place: place(2, 3 * sequence + 2), mark: sequence as u32, body: Body::Kept });
        rig.work(1);
        rig.assert_as_model();
    }
    assert!(rig.is_copying());
    rig.call(&Call::DropQueue(3));
    assert!(rig.commit());
    rig.assert_as_model();
    assert!(!rig.is_copying());
    assert_whole(rig);
}

#[test]
fn copying_stops_when_its_segment_dies() {
    // One write covers several segments, so it reuses the file before the next step reads it.
    let options = Options { write_bytes: 64 << 10, ..SMALL };
    let mut rig = copying(Rig::new(options).copying_in(Pieces { block: 1, step: 1 }));
    let first = rig.disk.file(&log_name(1));
    rig.call(&Call::DropQueue(2));
    rig.work(2);
    let name = |rig: &Rig| rig.disk.name_of(first).unwrap();
    assert!(is_spare(&name(&rig)));
    (1..100).for_each(|sequence| rig.call(&message(3, sequence)));
    rig.work(1);
    assert!(!is_spare(&name(&rig)));
    assert_eq!(rig.spool.health(), Health::Writing);
    assert!(rig.commit());
    assert_whole(rig);
}

#[test]
fn copying_resumes_after_every_kind_of_failure() {
    for count in 1..4 {
        for faults in [
            Faults { failing_opens: count, ..Faults::default() },
            Faults { failing_reads: count, ..Faults::default() },
            Faults { failing_syncs: count, ..Faults::default() },
            Faults { failing_names: count, ..Faults::default() },
        ] {
            let mut rig = copying(Rig::new(SMALL).copying_in(FINE));
            let oldest = rig.oldest();
            rig.disk.set_faults(|all| *all = faults);
            for _ in 0..6 {
                rig.work(1_000);
                assert!(!matches!(rig.spool.health(), Health::Damaged { .. }), "{faults:?}");
            }
            assert!(rig.commit() && rig.oldest() > oldest, "{faults:?}");
            assert_whole(rig);
        }
    }
}

#[test]
fn repeated_read_errors_are_reported_until_read_succeeds() {
    let mut rig = copying(Rig::new(SMALL).copying_in(FINE));
    rig.disk.set_faults(|faults| faults.failing_reads = FAILURES_MAX);
    for _ in 0..FAILURES_MAX {
        assert_eq!(rig.spool.health(), Health::Writing);
        rig.work(1_000);
    }
    let Health::Damaged { error } = rig.spool.health() else { panic!("{:?}", rig.spool.health()) };
    assert!(error.contains("0000000001.log") && error.contains("input/output error"), "{error}");
    assert!(rig.commit());
    assert_eq!(rig.spool.health(), Health::Writing);
    assert_whole(rig);
}

#[test]
fn drained_backlog_is_reclaimed_despite_one_old_message() {
    let mut rig = Rig::new(SMALL);
    rig.call(&message(2, 1));
    (1..=400).for_each(|sequence| rig.call(&message(1, sequence)));
    assert!(rig.commit());
    let segments = rig.spool.stats().segments;
    assert!(segments > 20);
    rig.call(&acknowledge(1, 1, 400));
    assert!(rig.commit());
    assert!(rig.spool.stats().segments <= 5, "{:?}", rig.spool.stats());
    assert_whole(rig);
    // The same with one message left in each segment.
    let mut rig = Rig::new(SMALL);
    (1..=400).for_each(|sequence| rig.call(&message(if sequence % 16 == 0 { 2 } else { 1 }, sequence)));
    assert!(rig.commit());
    rig.call(&acknowledge(1, 1, 400));
    assert!(rig.commit());
    assert!(rig.spool.stats().segments <= segments / 2, "{:?}", rig.spool.stats());
    assert_whole(rig);
}

#[test]
fn large_file_is_shortened_for_reuse() {
    let mut rig = Rig::new(SMALL);
    for sequence in 1..10 {
        rig.call(&Call::Message { places: vec![untagged(place(1, sequence))], origin: None, body: vec![3; 100_000] });
        rig.call(&acknowledge(1, sequence, sequence));
        (0..20).for_each(|more| rig.call(&message(2, 20 * sequence + more)));
        rig.call(&acknowledge(2, 0, 1_000));
        while rig.work(1) == CommitStep::More {
            let spares: Vec<_> = rig.disk.names().into_iter().filter(|name| is_spare(name)).collect();
            assert!(spares.iter().all(|name| rig.disk.content(name).len() <= 4096), "{spares:?}");
        }
    }
    for name in rig.disk.names() {
        assert!(rig.disk.content(&name).len() <= 4096, "{name} {}", rig.disk.content(&name).len());
    }
}

#[test]
fn many_files_are_removed_in_bounded_steps() {
    let mut rig = Rig::new(SMALL);
    (1..=1_000).for_each(|sequence| rig.call(&message(1, sequence)));
    assert!(rig.commit());
    rig.call(&Call::DropQueue(1));
    let mut before = rig.disk.names().len();
    assert!(before > 60);
    while rig.work(1) == CommitStep::More {
        let now = rig.disk.names().len();
        assert!(now + FILES_A_STEP as usize >= before, "{before} {now}");
        before = now;
    }
    assert!(rig.disk.names().len() <= 7, "{:?}", rig.disk.names());
    assert_whole(rig);
}

/// Appends messages until the spool is congested.
fn fill(rig: &mut Rig) -> u64 {
    let mut sequence = 0;
    while !rig.spool.is_congested() {
        sequence += 1;
        rig.call(&message(2, sequence));
        assert!(rig.commit());
    }
    sequence
}

#[test]
fn full_disk_is_reported_in_time_and_backlog_can_drain() {
    let mut rig = Rig::new(SMALL);
    rig.disk.set_faults(|faults| faults.space = Some(10 * 4096));
    let count = fill(&mut rig);
    let Health::NoRoom { error, .. } = rig.spool.health() else { panic!("{:?}", rig.spool.health()) };
    assert!(error.contains(".log"), "{error}");
    // Each acknowledgement is a separate record; together they take more than one segment.
    for sequence in (1..=count).step_by(2).chain((2..=count).step_by(2)) {
        rig.call(&acknowledge(2, sequence, sequence));
        assert!(rig.commit(), "{sequence} of {count}: {:?}", rig.spool.health());
    }
    assert_eq!(rig.spool.health(), Health::Writing);
    assert!(!rig.spool.is_congested());
    // Fill it again.
    assert!(fill(&mut rig) > count / 2);
    rig.call(&Call::DropQueue(2));
    assert!(rig.commit());
    assert_eq!(rig.spool.health(), Health::Writing);
    assert_whole(rig);
}

#[test]
fn full_disk_still_copies_old_messages_and_reclaims() {
    let mut rig = Rig::new(SMALL);
    rig.disk.set_faults(|faults| faults.space = Some(10 * 4096));
    let count = fill(&mut rig);
    // All but the first and the last.
    for sequence in 2..count {
        rig.call(&acknowledge(2, sequence, sequence));
        assert!(rig.commit(), "{sequence} of {count}: {:?}", rig.spool.health());
    }
    assert_eq!(rig.spool.health(), Health::Writing);
    assert!(rig.oldest() > 1 && !rig.spool.is_congested());
    assert_whole(rig);
}

#[test]
fn messages_appended_without_room_wait_in_memory() {
    let mut rig = Rig::new(SMALL);
    rig.disk.set_faults(|faults| faults.space = Some(10 * 4096));
    let count = fill(&mut rig);
    (count + 1..count + 200).for_each(|sequence| rig.call(&message(2, sequence)));
    assert!(!rig.commit());
    assert!(matches!(rig.spool.health(), Health::Failed { .. }) && rig.spool.is_congested());
    rig.assert_as_model();
    rig.disk.set_faults(|faults| faults.space = Some(100 * 4096));
    assert!((0..8).any(|_| rig.commit()));
    assert_eq!(rig.spool.health(), Health::Writing);
    assert!(!rig.spool.is_congested());
    assert_whole(rig);
}

#[test]
fn move_onto_marked_entry_removes_its_mark() {
    let mut rig = Rig::new(Options { segment_bytes: 4096, ..SMALL });
    rig.call(&message(1, 1));
    for sequence in 1..40 {
        rig.call(&message(7, sequence));
        rig.call(&acknowledge(7, sequence, sequence));
    }
    assert!(rig.commit());
    // This message keeps the segment of the following records alive.
    rig.call(&message(8, 1));
    rig.call(&message(2, 1));
    rig.call(&Call::Mark { place: place(2, 1), mark: 9, body: Body::Done });
    rig.call(&Call::Move { from: place(1, 1), to: place(2, 1), tag: None });
    rig.call(&Call::Move { from: place(2, 1), to: place(3, 1), tag: None });
    rig.call(&acknowledge(3, 1, 1));
    assert!(rig.commit());
    assert!(rig.oldest() > 1);
    assert_eq!(rig.spool.queues(), [QueueId(8)]);
    assert_whole(rig);
}
