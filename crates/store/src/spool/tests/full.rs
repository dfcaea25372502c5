//! Tests of a disk that messages fill and that is drained again.

use super::{
    SMALL,
    memory_disk::MemoryDisk,
    model::Call,
    place,
    rig::{End, Rig},
    untagged,
};
use crate::Sync;
use crate::spool::{
    Health, Options, QueueId,
    segment::{is_spare, number_of},
};

/// About eight messages.
const SEGMENT: usize = 16 << 10;
const OPTIONS: Options = Options { segment_bytes: SEGMENT as u32, ..SMALL };
const SPACE: usize = 16 * SEGMENT;
const BODY: usize = 2_000;

fn message(sequence: u64) -> Call {
    Call::Message { places: vec![untagged(place(2, sequence))], origin: None, body: vec![sequence as u8; BODY] }
}

fn acknowledge(sequence: u64) -> Call {
    Call::Acknowledge { queue: 2, from: sequence, to: sequence }
}

/// Appends messages while there is room, `burst` of them before each write. Returns their number.
fn fill(rig: &mut Rig, first: u64, burst: u64) -> u64 {
    let mut sequence = first;
    loop {
        for _ in 0..burst {
            let Some(booked) = rig.spool.take_room(BODY as u64 + 184, false) else {
                assert!(rig.commit(), "{:?}", rig.spool.health());
                return sequence - first;
            };
            rig.call(&message(sequence));
            rig.spool.give_room(booked);
            sequence += 1;
        }
        assert!(rig.commit(), "{:?}", rig.spool.health());
    }
}

/// Acknowledges every other message first, so that no two acknowledgements share a record.
fn drain(rig: &mut Rig, first: u64, count: u64) {
    let end = first + count;
    for sequence in (first..end).step_by(2).chain((first + 1..end).step_by(2)) {
        rig.call(&acknowledge(sequence));
        assert!(rig.commit(), "{sequence} of {count}: {:?}", rig.spool.health());
    }
}

fn segments(disk: &MemoryDisk) -> usize {
    disk.names().iter().filter(|name| number_of(name).is_some()).count()
}

#[test]
fn full_disk_refuses_messages_and_takes_acknowledgements() {
    for burst in [1, 7, 40, 1_000] {
        let mut rig = Rig::with_space(OPTIONS, SPACE);
        assert!(rig.commit());
        let count = fill(&mut rig, 1, burst);
        assert!(count as usize * BODY > SPACE / 3, "{burst}: {count}");
        drain(&mut rig, 1, count);
        assert_eq!(rig.spool.health(), Health::Writing);
        assert!(segments(&rig.disk) <= 4, "{burst}: {:?}", rig.disk.names());
        let again = fill(&mut rig, 10_000, burst);
        assert!(again * 2 > count, "{burst}: {count}, then {again}");
        rig.end(End::Killed).assert_as_model();
    }
}

#[test]
fn full_log_is_drained_after_a_restart_without_free_space() {
    for end in [End::Killed, End::Closed, End::PowerCut(7)] {
        let mut rig = Rig::with_space(OPTIONS, SPACE);
        assert!(rig.commit());
        let count = fill(&mut rig, 1, 5);
        // Another program takes all free and all released space.
        let no_space = |disk: &MemoryDisk| disk.set_faults(|faults| faults.space = Some(0));
        let mut rig = rig.try_end(end, no_space).unwrap();
        rig.assert_as_model();
        drain(&mut rig, 1, count);
        let mut rig = rig.try_end(End::Killed, no_space).unwrap();
        assert!(rig.spool.queue(QueueId(2)).is_none(), "{end:?}: acknowledged messages came again");
        assert!(rig.commit());
        assert!(segments(&rig.disk) <= 4, "{end:?}: {:?}", rig.disk.names());
        assert!(fill(&mut rig, 10_000, 5) > 0, "{end:?}");
    }
}

#[test]
fn small_segments_of_a_full_disk_are_drained_after_a_restart() {
    let first = 32 << 10;
    for end in [End::Killed, End::Closed, End::PowerCut(7)] {
        // There is plenty of space at the start, so that segments begin small.
        let mut rig = Rig::new(Options { segment_bytes: 32 * first, ..SMALL });
        assert!(rig.commit());
        // Too little for segments of the full size.
        rig.disk.set_faults(|faults| faults.space = Some(24 * first as usize));
        let mut count = 0;
        while count < 50 {
            rig.call(&message(count + 1));
            assert!(rig.commit(), "{:?}", rig.spool.health());
            count += 1;
        }
        let is_small = |rig: &Rig| rig.disk.names().iter().all(|name| rig.disk.content(name).len() <= first as usize);
        assert!(is_small(&rig), "segments have not grown: {:?}", rig.disk.names());
        let no_space = |disk: &MemoryDisk| disk.set_faults(|faults| faults.space = Some(0));
        let mut rig = rig.try_end(end, no_space).unwrap();
        rig.assert_as_model();
        drain(&mut rig, 1, count);
        let mut rig = rig.try_end(End::Killed, no_space).unwrap();
        assert!(rig.spool.queue(QueueId(2)).is_none(), "{end:?}: acknowledged messages came again");
        assert!(rig.commit());
        assert!(is_small(&rig), "{end:?}: {:?}", rig.disk.names());
    }
}

#[test]
fn log_continues_in_last_segment_if_no_file_can_be_made() {
    for seed in 1..60 {
        let sync = if seed % 3 == 0 { Sync::Never } else { Sync::Always };
        let mut rig = Rig::new(Options { sync, segment_bytes: 1 << 20, ..SMALL });
        (1..=100).for_each(|sequence| rig.call(&message(sequence)));
        assert!(rig.commit());
        // A torn write: its records must not come back.
        (101..=110).for_each(|sequence| rig.call(&message(sequence)));
        rig.disk.set_faults(|faults| faults.failing_syncs = 1);
        rig.work(1);
        let no_files = |disk: &MemoryDisk| {
            for name in disk.names() {
                let content = disk.content(&name);
                let is_begun = content.get(64..).is_some_and(|bytes| bytes.iter().any(|&byte| byte != 0));
                if is_spare(&name) || !is_begun {
                    disk.take_away(&name);
                }
            }
            disk.set_faults(|faults| faults.space = Some(0));
        };
        let opened = rig.try_end(End::PowerCut(seed), no_files);
        if sync == Sync::Never && opened.is_err() {
            continue; // Nothing was confirmed, and there is no segment.
        }
        let mut rig = opened.unwrap();
        for sequence in 1..=50 {
            rig.call(&acknowledge(2 * sequence));
            assert!(rig.commit(), "{:?}", rig.spool.health());
        }
        rig.assert_as_model();
        let mut rig = rig.try_end(End::PowerCut(seed + 1), no_files).unwrap();
        rig.call(&acknowledge(1));
        assert!(rig.commit());
        rig.end(End::Killed).assert_as_model();
    }
}

#[test]
fn acknowledgements_do_not_wait_for_messages_without_room() {
    let mut rig = Rig::with_space(OPTIONS, SPACE);
    (1..=5).for_each(|sequence| rig.call(&message(sequence)));
    assert!(rig.commit());
    // The last of these are in a segment without a file.
    let room = rig.spool.take_room(15 * (BODY as u64 + 184), false).expect("the disk is empty");
    (6..=20).for_each(|sequence| rig.call(&message(sequence)));
    rig.spool.give_room(room);
    rig.disk.set_faults(|faults| faults.space = Some(0));
    rig.call(&acknowledge(1));
    assert!(rig.commit(), "{:?}", rig.spool.health());
    assert!(rig.spool.take_room(1, false).is_none() && rig.spool.take_room(1, true).is_none(), "for acknowledgements");
    drain(&mut rig, 2, 19);
    assert!(fill(&mut rig, 10_000, 5) > 0);
    rig.end(End::Killed).assert_as_model();
}

#[test]
fn commits_below_a_maximum_do_not_list_the_directory() {
    let mut rig = Rig::new(Options { bytes_maximum: 1 << 30, ..OPTIONS });
    for sequence in 1..=500 {
        rig.call(&message(sequence));
        assert!(rig.commit());
        rig.call(&acknowledge(sequence));
        assert!(rig.commit());
    }
    // Even on a slow machine, not once for each write.
    assert!(rig.disk.looks() < 500, "{} times", rig.disk.looks());
}

#[test]
fn log_stays_below_its_maximum_until_it_is_drained() {
    let maximum = 20 * SEGMENT as u64;
    let mut rig = Rig::new(Options { bytes_maximum: maximum, ..OPTIONS });
    assert!(rig.commit());
    let count = fill(&mut rig, 1, 3);
    assert!(count as usize * BODY > 8 * SEGMENT, "{count}");
    let Health::NoRoom { error, .. } = rig.spool.health() else { panic!("{:?}", rig.spool.health()) };
    assert!(error.contains("maximum of 320 KiB"), "{error}");
    drain(&mut rig, 1, count);
    assert!(rig.spool.used_bytes() <= maximum);
    assert_eq!(rig.spool.health(), Health::Writing);
    // Other files count, too.
    rig.spool.set_bytes_elsewhere(maximum);
    let more = fill(&mut rig, 10_000, 3);
    assert!(more < count / 2, "{more} of {count}");
}
