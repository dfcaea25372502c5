//! Comparisons of a copy with its leader's data.

use std::fs;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Instant;

use super::super::check::{Compare, compare};
use super::super::copy::Passes;
use super::super::moment::Moments;
use super::super::operation::{Operation as O, encode_change};
use super::*;

/// Compares until an event comes that is wanted.
fn wait_for(leader: &Store, events: &Receiver<CopyEvent>, is_wanted: impl Fn(&CopyEvent) -> bool) -> CopyEvent {
    let until = Instant::now() + Duration::from_secs(60);
    while Instant::now() < until {
        // Does nothing while the last comparison is under way.
        leader.mirror.check(u64::MAX).unwrap();
        thread::sleep(Duration::from_millis(50));
        if let Some(event) = events.try_iter().find(&is_wanted) {
            return event;
        }
    }
    panic!("the copy does not tell it");
}

/// Changes a byte in the middle of the first segment.
fn damage(directory: &Path) {
    let path = directory.join("spool").join(log_name(1));
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    // In place: the file is open.
    std::os::unix::fs::FileExt::write_all_at(
        &fs::OpenOptions::new().write(true).open(&path).unwrap(),
        &bytes[middle..=middle],
        middle as u64,
    )
    .unwrap();
}

fn leader_with_messages(directory: &Path) -> Store {
    let leader = Store::open(directory, Sync::Always);
    for sequence in 1..=400 {
        leader.append(sequence, 10_000);
        leader.set(sequence);
    }
    leader.spool.wait(leader.append(401, 10_000)).unwrap();
    leader
}

/// A leader with messages, its complete copy, and what happens to the copy.
fn leader_and_copy(first: &Path, second: &Path) -> (Store, Copy, Receiver<CopyEvent>) {
    let leader = leader_with_messages(first);
    let (tell, events) = sync_channel(100);
    let copy = leader.begin_copy_with(second, Sync::Always, u64::MAX, move |event| drop(tell.send(event)));
    leader.wait_for_follower();
    (leader, copy, events)
}

#[test]
fn damage_of_the_copy_is_found_and_a_join_repairs_it() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (directory.path().join("a"), directory.path().join("b"));
    let (leader, copy, events) = leader_and_copy(&first, &second);
    wait_for(&leader, &events, |event| *event == CopyEvent::Checked);
    damage(&second);
    let found = wait_for(&leader, &events, |event| *event != CopyEvent::Checked);
    let CopyEvent::Damaged(found) = found else { panic!("{found:?}") };
    assert!(found.starts_with("0000000001.log: differs from the leader's from offset "), "{found}");
    copy.seal();
    while *leader.agreed.role() != Role::None {
        thread::yield_now();
    }
    // The leader drops the old copy at the same time.
    thread::sleep(Duration::from_millis(100));
    let copy = leader.begin_copy(&second, Sync::Always);
    leader.wait_for_follower();
    leader.mirror.end();
    copy.seal();
    let segment = |directory: &Path| fs::read(directory.join("spool").join(log_name(1))).unwrap();
    assert!(segment(&first) == segment(&second));
    let damage = leader.agreed.damage.lock().unwrap();
    assert!(damage.is_empty(), "{damage:?}");
}

#[test]
fn damage_of_the_leader_is_told_there_and_the_copy_stays() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (directory.path().join("a"), directory.path().join("b"));
    let (leader, copy, events) = leader_and_copy(&first, &second);
    damage(&first);
    let found = (0..600).find_map(|_| {
        leader.mirror.check(u64::MAX).unwrap();
        thread::sleep(Duration::from_millis(100));
        leader.agreed.damage.lock().unwrap().pop()
    });
    let found = found.expect("the leader tells it");
    assert!(found.starts_with("0000000001.log: no valid record at offset "), "{found}");
    assert!(events.try_iter().all(|event| event == CopyEvent::Checked));
    assert_eq!(*leader.agreed.role(), Role::Follower);
    leader.mirror.end();
    copy.seal();
}

#[test]
fn state_is_compared_at_the_marked_moment() {
    let disk = MemoryState::default();
    let moments = Arc::<Moments>::default();
    let (jobs, to_do) = sync_channel::<Compare>(8);
    let create = move || -> io::Result<Box<dyn Backend>> { Ok(Box::new(disk.clone())) };
    let mut copy = StateCopy::with(Box::new(create));
    copy.passes = Some(Passes { moments: Arc::clone(&moments), compare: jobs });
    let mut changes = Vec::new();
    encode_change(&mut changes, Table::Retained, b"key", Some(b"value"));
    let right = xxhash_rust::xxh3::xxh3_128(&changes).to_le_bytes();
    copy.perform(&O::Clear).unwrap();
    copy.perform(&O::Entries { changes: &changes }).unwrap();
    copy.perform(&O::EndOfEntries { number: 1 }).unwrap();
    for hash in [right, [0; 16]] {
        copy.perform(&O::Moment { number: 0 }).unwrap();
        let mut later = Vec::new();
        encode_change(&mut later, Table::Retained, b"later", Some(b"value"));
        copy.perform(&O::Apply { number: 2, changes: &later }).unwrap();
        copy.perform(&O::SameState { hash: &hash }).unwrap();
        later.clear();
        encode_change(&mut later, Table::Retained, b"later", None);
        copy.perform(&O::Apply { number: 3, changes: &later }).unwrap();
    }
    copy.passes = None;
    drop(copy);
    let events = Mutex::new(Vec::new());
    compare(&to_do, &MemoryDisk::default(), &moments, |event| events.lock().unwrap().push(event));
    let damaged = CopyEvent::Damaged("the state differs from the leader's".to_owned());
    assert_eq!(events.into_inner().unwrap(), [CopyEvent::Checked, damaged]);
}
