//! Tests of damaged files.

use std::{
    sync::Arc,
    task::{Context, Waker},
};

use proptest::prelude::*;

use super::{
    SMALL,
    calls::{Caller, wish},
    fixed,
    memory_disk::MemoryDisk,
    model::{Call, Model},
    place,
    rig::{End, Rig},
    untagged,
    waking::Counted,
};
use crate::spool::{
    Health, Limit, Messages, OpenError, QueueId, Recovered, Sequence, Spool,
    disk::Disk,
    record::BEGIN_BYTES,
    recovery::examine,
    segment::{FIRST_RECORD, log_name, number_of},
};

/// A log of several segments that are all needed, with its content.
fn several_segments() -> Rig {
    let mut rig = Rig::new(SMALL);
    for sequence in 1..80 {
        let body = vec![sequence as u8; 150];
        rig.call(&Call::Message {
            places: vec![untagged(place(1, sequence)), untagged(place(2, sequence))],
            origin: None,
            body,
        });
        if sequence % 3 == 0 {
            rig.call(&Call::Acknowledge { queue: 1, from: sequence, to: sequence });
            assert!(rig.commit());
        }
    }
    assert!(rig.commit());
    assert!(rig.spool.stats().segments >= 4);
    rig
}

/// The files after an orderly end.
fn closed() -> (MemoryDisk, Model) {
    let rig = several_segments();
    let (disk, model) = (rig.disk.clone(), rig.model().clone());
    drop(rig.end(End::Closed));
    (disk, model)
}

fn open(disk: &MemoryDisk) -> Result<(Model, Recovered), OpenError> {
    let (spool, _committer, recovered) = Spool::open_on(Arc::new(disk.clone()), SMALL)?;
    Ok((Model::of(&spool), recovered))
}

fn segments(disk: &MemoryDisk) -> Vec<String> {
    disk.names().into_iter().filter(|name| number_of(name).is_some()).collect()
}

/// The last segment that has records.
fn newest(disk: &MemoryDisk) -> String {
    let segments = segments(disk);
    let is_begun = |name: &&String| disk.content(name)[64..].iter().any(|&byte| byte != 0);
    segments.iter().rev().find(is_begun).unwrap().clone()
}

#[test]
fn intact_log_is_opened() {
    let (disk, model) = closed();
    let (found, recovered) = open(&disk).unwrap();
    assert_eq!(found, model);
    assert!(recovered.was_closed && recovered.segments >= 4 && recovered.waiting > 100, "{recovered:?}");
}

#[test]
fn damage_in_open_spool_is_named_by_read_and_by_health() {
    let mut rig = several_segments();
    let first = segments(&rig.disk)[0].clone();
    let mut content = rig.disk.content(&first);
    content[600] ^= 1;
    // The same file, since it is open.
    rig.disk.open(&first).unwrap().write_at(&content, 0).unwrap();
    let mut messages = Messages::default();
    let limit = Limit { messages: 1_000, bytes: 1 << 20 };
    let error = rig.spool.read(QueueId(2), Sequence(0), limit, &mut messages).unwrap_err();
    assert!(error.to_string().contains(&first), "{error}");
    let before = messages.len() as u64;
    assert!((1..10).contains(&before));
    rig.spool.read(QueueId(2), Sequence(before + 2), limit, &mut messages).unwrap();
    assert_eq!(messages.len() as u64, 79 - before - 1);
    let counted = Arc::new(Counted::default());
    let waker = Waker::from(Arc::clone(&counted));
    assert!(rig.spool.poll_health(&Health::Writing, &mut Context::from_waker(&waker)).is_pending());

    for sequence in 80..200 {
        rig.call(&Call::Message { places: vec![untagged(place(3, sequence))], origin: None, body: vec![1; 150] });
        rig.call(&Call::Acknowledge { queue: 3, from: sequence, to: sequence });
        assert!(rig.commit());
    }
    rig.call(&Call::Acknowledge { queue: 2, from: 30, to: 100 });
    rig.call(&Call::Acknowledge { queue: 1, from: 30, to: 100 });
    (200..260).for_each(|sequence| {
        rig.call(&Call::Message { places: vec![untagged(place(3, sequence))], origin: None, body: vec![1; 150] });
    });
    assert!(rig.commit());
    let Health::Damaged { error } = rig.spool.health() else { panic!("{:?}", rig.spool.health()) };
    assert!(error.contains(&first), "{error}");
    assert_eq!(counted.count(), 1);
}

#[test]
fn a_missing_segment_is_named() {
    let (disk, _) = closed();
    let all = segments(&disk);
    // The last one was made ahead and has no records.
    for name in &all[..all.len() - 1] {
        let disk = disk.copy();
        disk.take_away(name);
        let error = open(&disk).unwrap_err();
        assert!(error.to_string().contains(name.as_str()), "{name}: {error}");
    }
    let disk = disk.copy();
    all[1..].iter().for_each(|name| disk.take_away(name));
    disk.put("0000000009.log", disk.content(&all[0]));
    disk.take_away(&all[0]);
    assert!(matches!(open(&disk), Err(OpenError::Damaged { offset: 0, .. })));
}

#[test]
fn an_unknown_version_is_named() {
    let (disk, _) = closed();
    for name in segments(&disk) {
        let disk = disk.copy();
        let mut content = disk.content(&name);
        content[8] = 2;
        disk.put(&name, content);
        let error = open(&disk).unwrap_err();
        assert!(matches!(error, OpenError::UnknownVersion { version: 2, .. }), "{error}");
        assert!(error.to_string().contains(&name), "{error}");
    }
}

#[test]
fn refused_opening_changes_nothing() {
    let (disk, _) = closed();
    disk.take_away(&segments(&disk)[1]);
    disk.put("0000000077.spare", vec![1]);
    let before: Vec<_> = disk.names().into_iter().map(|name| (disk.content(&name), name)).collect();
    assert!(open(&disk).is_err());
    let after: Vec<_> = disk.names().into_iter().map(|name| (disk.content(&name), name)).collect();
    assert_eq!(before, after);
}

#[test]
fn record_of_unknown_kind_is_not_a_torn_write() {
    let (disk, model) = closed();
    assert_eq!(open(&disk.copy()).unwrap().0, model);
    let name = newest(&disk);
    let content = disk.content(&name);
    // Gives the last record an unknown kind and a valid checksum.
    let header = crate::spool::segment::Header::decode(content[..64].first_chunk().unwrap()).unwrap();
    let mut offset = 64;
    let mut last = offset;
    while let Some(length) = crate::spool::record::length_at(&content[offset..]) {
        last = offset;
        offset += length.next_multiple_of(8);
    }
    let mut content = content;
    content[last + 8] = 99;
    let length = u32::from_le_bytes(*content[last..].first_chunk().unwrap());
    let seed = header.seed() ^ length ^ (last as u32).rotate_left(13);
    let crc = crc32c::crc32c_append(seed, &content[last + 8..last + length as usize]);
    content[last + 4..last + 8].copy_from_slice(&crc.to_le_bytes());
    disk.put(&name, content);
    let error = open(&disk).unwrap_err();
    assert!(error.to_string().contains("does not know"), "{error}");
}

proptest! {
    #![proptest_config(fixed(400))]

    #[test]
    fn flipped_bit_in_confirmed_data_is_named_or_harmless(segment in 0..100_usize, bit in any::<usize>()) {
        let (disk, model) = WHOLE.with(|(disk, model)| (disk.copy(), model.clone()));
        let all = segments(&disk);
        let name = &all[segment % all.len()];
        let mut content = disk.content(name);
        let bit = bit % (content.len() * 8);
        content[bit / 8] ^= 1 << (bit % 8);
        disk.put(name, content);
        match open(&disk) {
            Ok((found, _)) => prop_assert_eq!(found, model),
            Err(error) => prop_assert!(error.to_string().contains(name.as_str()), "{}", error),
        }
    }

    #[test]
    fn truncated_file_is_named_or_lost_no_record(segment in 0..100_usize, length in any::<usize>()) {
        let (disk, model) = WHOLE.with(|(disk, model)| (disk.copy(), model.clone()));
        let all = segments(&disk);
        let name = &all[segment % all.len()];
        let mut content = disk.content(name);
        content.truncate(length % content.len());
        disk.put(name, content);
        match open(&disk) {
            Ok((found, _)) => prop_assert_eq!(found, model),
            Err(error) => prop_assert!(error.to_string().contains(name.as_str()), "{}", error),
        }
    }
}

thread_local! {
    static WHOLE: (MemoryDisk, Model) = closed();
}

proptest! {
    #![proptest_config(fixed(100))]

    /// After a kill, damage to the last write goes unnoticed: it looks like a write that was never confirmed. Damage to
    /// confirmed data does not.
    #[test]
    fn flipped_bit_after_kill_loses_at_most_last_write(
        before in prop::collection::vec(wish(), 1..60),
        after in prop::collection::vec(wish(), 1..10),
        bit in any::<usize>(),
    ) {
        let (mut rig, mut caller) = (Rig::new(SMALL), Caller::default());
        let call = |rig: &mut Rig, caller: &mut Caller, wishes: &[_]| {
            for wish in wishes {
                caller.calls(wish, rig.model()).iter().for_each(|call| rig.call(call));
            }
        };
        call(&mut rig, &mut caller, &before);
        prop_assert!(rig.commit());
        call(&mut rig, &mut caller, &after);
        rig.call(&Call::Message { places: vec![untagged(place(99, 1))], origin: None, body: vec![1; 10] });
        let disk = rig.disk.clone();
        // Written but not known to be confirmed: all states since the commit are allowed.
        let unknown = rig.keep_history(|rig| rig.work(1_000));
        prop_assert_eq!(unknown, crate::spool::committer::CommitStep::Idle);
        let newest = newest(&disk);
        let left = rig.leave(End::Doubted);
        let confirmed = examine(&left.disk).unwrap().confirmed;
        let mut content = left.disk.content(&newest);
        let bit = bit % (content.len() * 8);
        content[bit / 8] ^= 1 << (bit % 8);
        left.disk.put(&newest, content);
        // If the start of the last segment is lost, segments that only it declares unneeded count as needed again.
        let is_beginning = bit / 8 < (FIRST_RECORD + BEGIN_BYTES) as usize;
        let is_confirmed = newest == log_name(confirmed.segment()) && bit / 8 < confirmed.offset() as usize;
        match left.open() {
            // `open` compares the content with the allowed states.
            Ok(rig) => rig.assert_as_model(),
            Err(error) => {
                prop_assert!(is_beginning || is_confirmed, "offset {}, confirmed {}: {}", bit / 8, confirmed, error);
                prop_assert!(error.to_string().contains(".log: "), "{}", error);
            }
        }
    }
}
