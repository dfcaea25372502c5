//! Backups of an open store, and stores from them.

use std::fs;
use std::io::Write;
use std::time::Instant;

use super::*;
use crate::mirror::backup::require_descriptors;
use crate::mirror::{backup_closed, check_backup, restore};

/// A reader of a backup: each few writes it lets the leader work.
struct Slow<'a> {
    bytes: Vec<u8>,
    work: Box<dyn FnMut() + 'a>,
}

impl Write for Slow<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (self.work)();
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn acknowledge(leader: &Store, sequences: std::ops::RangeInclusive<u64>) {
    let all = Sequence(*sequences.start())..=Sequence(*sequences.end());
    let mut batch = leader.spool.begin();
    batch.acknowledge(QueueId(1), all);
    let end = batch.end();
    drop(batch);
    leader.spool.wait(end).unwrap();
}

/// A backup during which messages come and go, so that segments are written, removed and reused. Each message has a key in
/// the table. With `copy`, the backup is of a copy in that directory. Returns the content before the backup.
fn backup_under_load(directory: &Path, copy: Option<&Path>) -> (Vec<u8>, Vec<u64>) {
    let leader = Store::open(directory, Sync::Never);
    let copy = copy.map(|directory| {
        let copy = leader.begin_copy(directory, Sync::Never);
        leader.wait_for_follower();
        copy
    });
    let mut last = 0;
    let mut publish = |count: u64| {
        for sequence in last + 1..=last + count {
            leader.append(sequence, 10_000);
            leader.set(sequence);
        }
        last += count;
        let ticket = leader.state.last();
        let end = leader.append(last + 1, 10);
        last += 1;
        leader.set(last);
        leader.spool.wait(end).unwrap();
        assert!(leader.state.wait(leader.state.last().max(ticket), Duration::from_secs(60)));
        last
    };
    let before = publish(800);
    acknowledge(&leader, 1..=200);
    let (mut writes, mut gone) = (0, 200);
    let work = || {
        // The backup's moment is before the second operation.
        writes += 1;
        if writes > 3 && writes % 4 == 0 && gone < before {
            acknowledge(&leader, gone + 1..=gone + 60);
            gone += 60;
            publish(60);
        }
    };
    let mut slow = Slow { bytes: Vec::new(), work: Box::new(work) };
    match &copy {
        Some(copy) => {
            let backup = copy.backup().unwrap();
            assert!(copy.backup().is_err(), "one at a time");
            leader.mirror.mark(backup.number()).unwrap();
            backup.write("about", u64::MAX, &mut slow).unwrap();
        }
        None => leader.mirror.backup("about", u64::MAX, &mut slow).unwrap(),
    }
    let bytes = std::mem::take(&mut slow.bytes);
    drop(slow);
    assert!(gone > 500, "the leader has worked: {writes} writes");
    leader.mirror.end();
    drop(copy);
    (bytes, (201..=before).collect())
}

#[test]
fn backup_of_a_copy_under_load_is_the_store_of_one_moment() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let (bytes, sequences) = backup_under_load(&path("leader"), Some(&path("copy")));
    fs::write(path("file"), &bytes).unwrap();
    restore(&path("file"), &path("new"), false).unwrap();
    let (found, keys) = content(&path("new"));
    assert_eq!(found, sequences);
    assert_eq!(keys, (1..=*sequences.last().unwrap()).collect::<Vec<_>>());
    // The copy has gone on, and opens as the leader's directory does.
    assert_eq!(content(&path("copy")), content(&path("leader")));
}

#[test]
fn backup_of_a_sealed_copy_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let leader = Store::open(&path("leader"), Sync::Never);
    let copy = leader.begin_copy(&path("copy"), Sync::Never);
    leader.wait_for_follower();
    let backup = copy.backup().unwrap();
    copy.seal();
    let mut bytes = Vec::new();
    assert_eq!(backup.write("", u64::MAX, &mut bytes).unwrap_err().to_string(), "the copy has ended");
    fs::write(path("file"), &bytes).unwrap();
    let refused = check_backup(&path("file")).unwrap_err().to_string();
    assert!(refused.contains("its writer has broken it off: the copy has ended"), "{refused}");
}

#[test]
fn backup_of_a_closed_directory_is_restored() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let store = Store::open(&path("closed"), Sync::Never);
    for sequence in 1..=200 {
        store.append(sequence, 10_000);
        store.set(sequence);
    }
    drop(store);
    let mut bytes = Vec::new();
    backup_closed(&LockedDirectory::open_to_read(&path("closed")).unwrap(), "about", &mut bytes).unwrap();
    fs::write(path("file"), &bytes).unwrap();
    let contents = restore(&path("file"), &path("new"), false).unwrap();
    assert!(contents.about == "about" && contents.segments > 1, "{contents:?}");
    assert_eq!(content(&path("new")), ((1..=200).collect(), (1..=200).collect()));
}

#[test]
fn backup_under_load_is_the_store_of_one_moment() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let (bytes, sequences) = backup_under_load(&path("leader"), None);
    fs::write(path("file"), &bytes).unwrap();
    let contents = check_backup(&path("file")).unwrap();
    assert_eq!((&contents.about[..], contents.bytes), ("about", bytes.len() as u64));
    assert!(contents.segments > 4, "{contents:?}");
    assert_eq!(restore(&path("file"), &path("new"), false).unwrap(), contents);
    let (found, keys) = content(&path("new"));
    assert_eq!(found, sequences);
    assert_eq!(keys, (1..=*sequences.last().unwrap()).collect::<Vec<_>>());
    // Another store, so that neither takes the other one's files for its own.
    let ids = ["leader", "new"].map(|name| crate::MessageFiles::of(&path(name)).unwrap().id);
    assert!(ids[0].is_some() && ids[1].is_some() && ids[0] != ids[1], "{ids:?}");
    let refused = restore(&path("file"), &path("new"), false).unwrap_err().to_string();
    assert!(refused.contains("new: the directory is not empty"), "{refused}");
}

#[test]
fn damaged_and_cut_backups_are_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let leader = Store::open(&path("leader"), Sync::Never);
    let end = leader.append(1, 1_000);
    leader.spool.wait(end).unwrap();
    fs::create_dir_all(path("leader/sn/field")).unwrap();
    fs::write(path("leader/sn/field/topic-ids"), "ids").unwrap();
    fs::write(path("leader/bans.json"), "bans").unwrap();
    fs::write(path("leader/cluster.json"), "mark").unwrap();
    let mut bytes = Vec::new();
    leader.mirror.backup("a\nb", u64::MAX, &mut bytes).unwrap();
    fs::write(path("file"), &bytes).unwrap();
    restore(&path("file"), &path("whole"), false).unwrap();
    assert_eq!(fs::read(path("whole/sn/field/topic-ids")).unwrap(), b"ids");
    assert_eq!(fs::read(path("whole/bans.json")).unwrap(), b"bans");
    assert!(!path("whole/cluster.json").exists());
    let mut wrong: Vec<Vec<u8>> = Vec::new();
    for cut in [0, 5, 20, 100, bytes.len() / 2, bytes.len() - 1] {
        wrong.push(bytes[..cut].to_vec());
    }
    for at in [0, 15, 40, bytes.len() / 3, bytes.len() - 20, bytes.len() - 1] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        wrong.push(damaged);
    }
    wrong.push([&bytes[..], b"more"].concat());
    for bytes in wrong {
        fs::write(path("wrong"), &bytes).unwrap();
        let refused = restore(&path("wrong"), &path("none"), false).unwrap_err().to_string();
        assert!(refused.contains("wrong: ") && refused.lines().count() == 1, "{refused}");
        assert!(!path("none").exists());
    }
}

#[test]
fn backup_of_a_deposed_leader_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let leader = Store::open(&path("leader"), Sync::Never);
    for sequence in 1..=100 {
        leader.append(sequence, 10_000);
    }
    let mut writes = 0;
    let work = || {
        writes += 1;
        if writes == 5 {
            leader.mirror.end();
        }
    };
    let mut slow = Slow { bytes: Vec::new(), work: Box::new(work) };
    leader.mirror.backup("", u64::MAX, &mut slow).unwrap_err();
    fs::write(path("file"), &slow.bytes).unwrap();
    drop(slow);
    let refused = check_backup(&path("file")).unwrap_err().to_string();
    assert!(refused.contains("its writer has broken it off: this node does not lead any more"), "{refused}");
    let mut closed = Vec::new();
    Mirror::new(|_| {}).backup("", u64::MAX, &mut closed).unwrap_err();
    fs::write(path("file"), &closed).unwrap();
    let refused = check_backup(&path("file")).unwrap_err().to_string();
    assert!(refused.contains("the store is not open"), "{refused}");
}

#[test]
fn slow_backup_and_slow_join_end_with_their_store() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    for is_join in [false, true] {
        let leader = Store::open(&path(if is_join { "one" } else { "two" }), Sync::Never);
        // Each piece takes several seconds at this rate.
        leader.spool.wait(leader.append(1, 500_000)).unwrap();
        let (mirror, slow) = (Arc::clone(&leader.mirror), 48 << 10);
        let copy = is_join.then(|| leader.begin_copy_with(&path("copy"), Sync::Never, slow, |_| {}));
        let backup = thread::spawn(move || if is_join { Ok(()) } else { mirror.backup("", slow, &mut io::sink()) });
        let until = Instant::now() + Duration::from_secs(60);
        while leader.mirror.log.sender().backup.is_none() && leader.mirror.stats().copied_bytes == 0 {
            assert!(Instant::now() < until, "nothing begins");
            thread::sleep(Duration::from_millis(1));
        }
        let began = Instant::now();
        leader.mirror.end();
        drop(leader);
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        assert_eq!(backup.join().unwrap().is_ok(), is_join);
        copy.into_iter().for_each(Copy::seal);
    }
}

#[test]
fn backup_of_too_many_files_is_refused_by_the_limit() {
    require_descriptors(100_000, None).unwrap();
    require_descriptors(100_000, Some(1_000_000)).unwrap();
    require_descriptors(2_000, Some(10_000)).unwrap();
    let refused = require_descriptors(2_000, Some(2_100)).unwrap_err().to_string();
    assert!(refused.contains("2000 files") && refused.contains("limit of 2100"), "{refused}");
}

#[test]
fn small_files_reach_the_copy_in_a_join_and_later() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (directory.path().join("a"), directory.path().join("b"));
    let leader = Store::open(&first, Sync::Never);
    let ids = |text: &str| {
        fs::create_dir_all(first.join("sn/field")).unwrap();
        fs::write(first.join("sn/field/topic-ids"), text).unwrap();
    };
    ids("one ");
    fs::create_dir_all(second.join("sn/gone")).unwrap();
    fs::write(second.join("sn/gone/topic-ids"), "of an earlier time").unwrap();
    fs::write(second.join("bans.json"), "of an earlier time").unwrap();
    let copy = leader.begin_copy(&second, Sync::Never);
    leader.wait_for_follower();
    assert_eq!(fs::read(second.join("sn/field/topic-ids")).unwrap(), b"one ");
    assert!(!second.join("sn/gone/topic-ids").exists() && !second.join("bans.json").exists());
    leader.mirror.wrote("sn/field/topic-ids", 4, b"two ");
    let number = leader.mirror.replaced("bans.json", b"a ban").unwrap();
    assert!(leader.mirror.is_copied(number, Duration::from_secs(20)).unwrap());
    assert_eq!(fs::read(second.join("bans.json")).unwrap(), b"a ban");
    assert_eq!(fs::read(second.join("sn/field/topic-ids")).unwrap(), b"one two ");
    leader.mirror.end();
    assert!(leader.mirror.replaced("bans.json", b"no ban").is_err());
    copy.seal();
}

/// A reader that takes the beginning, and then nothing more.
struct Stuck(usize);

impl Write for Stuck {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0 == 0 {
            thread::sleep(Duration::from_millis(1));
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let taken = bytes.len().min(self.0);
        self.0 -= taken;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn store_closes_although_a_reader_of_its_backup_takes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let leader = Store::open(&directory.path().join("leader"), Sync::Never);
    leader.spool.wait(leader.append(1, 100_000)).unwrap();
    let mirror = Arc::clone(&leader.mirror);
    let (begun, is_begun) = std::sync::mpsc::sync_channel(1);
    let backup = thread::spawn(move || {
        begun.send(()).unwrap();
        mirror.backup("", u64::MAX, &mut Stuck(1_000))
    });
    is_begun.recv().unwrap();
    while leader.mirror.log.sender().backup.is_none() {
        thread::yield_now();
    }
    drop(leader);
    let error = backup.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("the store closes"), "{error}");
}
