//! Tests of opening the files of an earlier process.

use super::{
    SMALL,
    memory_disk::{Faults, MemoryDisk},
    message,
    model::Call,
    place,
    rig::{End, Rig},
    untagged,
};
use crate::Sync;
use crate::spool::{
    OpenError, Options, QueueId,
    segment::{FIRST_RECORD, Header, log_name},
};

fn flip(disk: &MemoryDisk, name: &str, byte: usize) {
    let mut content = disk.content(name);
    content[byte] ^= 1;
    disk.put(name, content);
}

/// Copied messages, and a segment declared unneeded, none of it confirmed.
fn copied_and_not_confirmed(more: u64) -> Rig {
    let mut rig = Rig::new(SMALL);
    (1..4).for_each(|sequence| rig.call(&message(2, sequence)));
    assert!(rig.commit());
    let mut sequence = 0;
    while sequence < 60 + more || rig.spool.shared.log().index.segments.dead_count() == 0 {
        sequence += 1;
        rig.call(&message(1, sequence));
        rig.call(&Call::Acknowledge { queue: 1, from: sequence, to: sequence });
        rig.work(1);
    }
    rig.disk.set_faults(|faults| faults.failing_syncs = 1);
    rig.work(1);
    rig
}

#[test]
fn power_cut_while_opening_keeps_originals_or_copies() {
    for more in 0..16 {
        for faults in [
            Faults { failing_syncs: 1, ..Faults::default() },
            Faults { changes_left: Some(more as u32 % 8), ..Faults::default() },
        ] {
            let mut left = copied_and_not_confirmed(more).leave(End::Killed);
            left.try_open(faults);
            left.cut_power(more);
            let rig = left.open().unwrap();
            assert_eq!(rig.spool.queue(QueueId(2)).unwrap().waiting, 3, "{more} {faults:?}");
        }
    }
}

#[test]
fn failed_opening_removes_nothing() {
    let mut left = copied_and_not_confirmed(0).leave(End::Killed);
    let before = left.disk.names();
    assert!(!left.try_open(Faults { failing_syncs: 1, ..Faults::default() }));
    assert_eq!(left.disk.names(), before);
}

#[test]
fn closed_log_is_confirmed_under_every_sync_policy() {
    for sync in [Sync::Always, Sync::Interval(std::time::Duration::from_secs(3_600)), Sync::Never] {
        let closed = || {
            let mut rig = Rig::new(Options { sync, segment_bytes: 1 << 20, ..SMALL });
            for sequence in 1..40 {
                rig.call(&message(1, sequence));
                assert!(rig.commit());
            }
            rig.leave(End::Closed)
        };
        for seed in 0..10 {
            let mut left = closed();
            left.cut_power(seed);
            left.open().unwrap().assert_as_model();
        }
        for byte in [600, 5_000] {
            let left = closed();
            flip(&left.disk, "0000000001.log", byte);
            let error = left.open().map(|_| ()).unwrap_err();
            assert!(matches!(error, OpenError::Damaged { .. }), "{sync:?}: {error}");
        }
    }
}

#[test]
fn torn_write_is_not_an_orderly_end() {
    let mut rig = Rig::new(SMALL);
    rig.call(&message(1, 1));
    assert!(rig.commit());
    rig.call(&message(1, 2));
    let end = rig.spool.shared.log().synced.offset() as usize;
    rig.keep_history(|rig| assert!(rig.commit()));
    // Damages it behind its first record, which states the confirmed position.
    let left = rig.leave(End::Doubted);
    flip(&left.disk, "0000000001.log", end + 30);
    let refused = crate::spool::recovery::examine(&left.disk).map(|_| ()).unwrap_err();
    assert!(matches!(refused, OpenError::Damaged { .. }), "it was confirmed: {refused}");
    left.disk.take_away("confirmed");
    let examined = crate::spool::recovery::examine(&left.disk).unwrap();
    assert_eq!((examined.recovered.was_closed, examined.recovered.waiting), (false, 1));
}

#[test]
fn confirmed_position_counts_though_segment_start_is_lost() {
    let mut rig = Rig::new(SMALL);
    // Sixteen messages fill a segment, in four writes.
    (1..=32).for_each(|sequence| rig.call(&message(1, sequence)));
    rig.work(2);
    let ends: Vec<u32> = rig.spool.shared.log().index.segments.iter().map(|segment| segment.end).collect();
    let left = rig.leave(End::Killed);
    let mut content = left.disk.content("0000000002.log");
    content[64..88].fill(0);
    left.disk.put("0000000002.log", content);
    flip(&left.disk, "0000000001.log", ends[0] as usize - 20);
    left.disk.take_away("confirmed");
    let error = left.open().map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("0000000001.log"), "{error}");
}

#[test]
fn failed_sync_is_repaired_before_later_data_is_synced() {
    let options = Options { sync: Sync::Never, ..SMALL };
    for seed in 0..40 {
        let mut rig = Rig::new(options);
        for sequence in 1..60 {
            if sequence == 10 {
                // The next sync happens when the first segment is full.
                rig.disk.set_faults(|faults| faults.failing_syncs = 1);
            }
            rig.call(&message(2, sequence));
            rig.commit();
        }
        assert_eq!(rig.spool.stats().failures, 1);
        let rig = rig.end(End::PowerCut(seed));
        assert!(rig.spool.queue(QueueId(2)).unwrap().waiting >= 32);
    }
}

#[test]
fn file_number_zero_is_not_a_segment() {
    let rig = Rig::new(SMALL);
    let header = Header { number: 0, salt: 1, file_bytes: 4096 };
    let mut content = header.encode().to_vec();
    content.resize(4096, 0);
    rig.try_end(End::Closed, |disk| disk.put(&log_name(0), content)).unwrap();
}

#[test]
fn large_record_replaces_shorter_file_made_ahead() {
    let mut rig = Rig::new(SMALL);
    rig.call(&message(1, 1));
    assert!(rig.commit());
    assert_eq!(rig.disk.content("0000000002.log").len(), 4096);
    rig.call(&Call::Message { places: vec![untagged(place(1, 2))], origin: None, body: vec![7; 20_000] });
    assert!(rig.commit());
    let left = rig.leave(End::Killed);
    let mut content = left.disk.content("0000000002.log");
    let header = Header::decode(content[..FIRST_RECORD as usize].first_chunk().unwrap()).unwrap();
    assert!(header.file_bytes > 20_000 && content.len() == header.file_bytes as usize);
    // As if the last page had not reached the disk.
    content.truncate(content.len() - 512);
    left.disk.put("0000000002.log", content);
    let error = left.open().map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("cut off"), "{error}");
}

#[test]
fn interrupted_removal_of_files_made_ahead_leaves_no_gap() {
    for changes in 0..12 {
        let mut rig = Rig::new(SMALL);
        rig.call(&message(1, 1));
        assert!(rig.commit());
        // Adds two such files.
        let mut left = rig.leave(End::Killed);
        for number in [2, 3] {
            let header = Header { number, salt: 1, file_bytes: 4096 };
            let mut content = header.encode().to_vec();
            content.resize(4096, 0);
            left.disk.put(&log_name(number), content);
        }
        left.try_open(Faults { changes_left: Some(changes), ..Faults::default() });
        left.open().unwrap().assert_as_model();
    }
}
