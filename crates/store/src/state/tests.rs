//! The committer against a disk that does as it is told, and the real one against a directory.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::task::Wake;
use std::time::{Duration, SystemTime};

use super::backend::Opening;
use super::fjall_backend::FjallBackend;
use super::memory_backend::{Fault, MemoryDisk};
use super::*;
use crate::Sync;

/// Only failing tests wait so long.
const PATIENCE: Duration = Duration::from_secs(60);

struct Stage {
    disk: MemoryDisk,
    health: Receiver<Health>,
    state: State,
}

impl Stage {
    fn new(sync: Sync) -> Self {
        let disk = MemoryDisk::default();
        let (told, health) = sync_channel(16);
        let on_health = Box::new(move |health: &Health| drop(told.send(health.clone())));
        let options = Options { sync, congested_bytes: 1000 };
        let state = State::open_with(disk.opener(), Path::new("dir"), options, on_health, |_| Ok(())).unwrap();
        Self { disk, health, state }
    }

    fn put(&self, key: &str, value: &str) -> Ticket {
        put(&self.state, key, Some(value))
    }

    fn wait(&self, ticket: Ticket) {
        assert!(self.state.wait(ticket, PATIENCE), "{ticket:?}: {:?}", self.state.health());
    }

    fn synced(&self) -> Vec<(String, String)> {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        self.disk.synced(Table::Retained).into_iter().map(|(key, value)| (text(key), text(value))).collect()
    }
}

fn put(state: &State, key: &str, value: Option<&str>) -> Ticket {
    let (key, value) = (key.as_bytes(), value.map(str::as_bytes));
    state.change([Change { table: Table::Retained, key, value }])
}

fn row(key: &str, value: &str) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn what_is_done_is_on_the_disk() {
    let stage = Stage::new(Sync::Always);
    assert!(stage.state.is_done(Ticket::NONE));
    assert_eq!(stage.state.change([]), Ticket::NONE);
    for number in 0..50 {
        let ticket = stage.put("k", &number.to_string());
        stage.wait(ticket);
        assert_eq!(stage.synced(), [row("k", &number.to_string())]);
    }
    stage.wait(put(&stage.state, "k", None));
    assert_eq!(stage.synced(), []);
}

#[test]
fn of_one_key_s_changes_within_a_batch_the_last_is_written() {
    let stage = Stage::new(Sync::Always);
    stage.wait(stage.put("first", "")); // the version's batch is over
    let stall = stage.disk.stall();
    let before = stage.put("a", "0");
    // It takes that one, or more: what comes from here on is in at most two batches.
    let tickets = (1..=100).map(|number| stage.put("a", &number.to_string())).collect::<Vec<_>>();
    put(&stage.state, "b", Some("x"));
    let last = put(&stage.state, "b", None);
    assert!(!stage.state.is_done(before) && tickets.is_sorted() && last > tickets[99]);
    drop(stall);
    stage.wait(last);
    assert_eq!(stage.synced(), [row("a", "100"), row("first", "")]);
    let written = stage.disk.batches().iter().sum::<usize>();
    assert!(written <= 2 + 1 + 1 + 2, "version and id, first, a, then a and b: {:?}", stage.disk.batches());
    let stats = stage.state.stats();
    assert_eq!((stats.changes, stats.failures, stats.pending_bytes), (104, 0, 0));
}

#[test]
fn those_who_wait_are_woken_when_it_is_done_and_at_once_if_it_is() {
    let stage = Stage::new(Sync::Always);
    stage.wait(stage.put("a", "1"));
    let woken = Arc::<Woken>::default();
    let waker = Waker::from(Arc::clone(&woken));
    let stall = stage.disk.stall();
    let ticket = stage.put("a", "2");
    stage.state.wake_at(ticket, &waker);
    assert_eq!(woken.0.load(Ordering::SeqCst), 0);
    drop(stall);
    stage.wait(ticket);
    while woken.0.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    stage.state.wake_at(ticket, &waker);
    assert_eq!(woken.0.load(Ordering::SeqCst), 2);
}

#[test]
fn after_a_failure_all_that_is_not_durable_is_written_again() {
    for fault in [Fault::Apply, Fault::Sync, Fault::Panic] {
        let stage = Stage::new(Sync::Always);
        stage.wait(stage.put("a", "1"));
        stage.disk.set_fault(Some(fault));
        let lost = stage.put("a", "2");
        let Ok(Health::Failed { error, since }) = stage.health.recv_timeout(PATIENCE) else { panic!("{fault:?}") };
        assert!(!error.contains('\n') && since <= SystemTime::now(), "{error}");
        assert_eq!(stage.state.health(), Health::Failed { error, since });
        let newer = [stage.put("a", "3"), stage.put("b", "1")];
        assert!(!stage.state.is_done(lost) && !stage.state.is_done(newer[1]));
        assert_eq!(stage.synced(), [row("a", "1")], "{fault:?}");
        stage.disk.set_fault(None);
        stage.wait(newer[1]);
        assert!(stage.state.is_done(lost));
        let again = if fault == Fault::Sync { Opening::AfterFailedSync } else { Opening::AfterFailedWrite };
        assert_eq!(stage.synced(), [row("a", "3"), row("b", "1")], "{fault:?}");
        assert_eq!(stage.health.recv_timeout(PATIENCE), Ok(Health::Writing), "one change, however often it failed");
        assert_eq!(stage.disk.openings()[..2], [Opening::First, again], "on a database opened anew");
        assert!(stage.state.stats().failures > 0);
    }
}

#[test]
fn a_database_that_cannot_be_opened_again_is_tried_again() {
    let stage = Stage::new(Sync::Always);
    stage.disk.set_fault(Some(Fault::Apply));
    let ticket = stage.put("a", "1");
    assert!(matches!(stage.health.recv_timeout(PATIENCE), Ok(Health::Failed { .. })));
    stage.disk.set_fault(Some(Fault::Open));
    while stage.disk.openings().len() < 2 {
        std::thread::yield_now();
    }
    stage.disk.set_fault(None);
    stage.wait(ticket);
    assert_eq!(stage.synced(), [row("a", "1")]);
}

#[test]
fn too_much_that_waits_is_told_until_it_is_written() {
    let stage = Stage::new(Sync::Always);
    stage.disk.set_fault(Some(Fault::Sync));
    let mut last = stage.put("0", "x");
    assert!(!stage.state.is_congested());
    for number in 1..20 {
        last = stage.put(&number.to_string(), "x");
    }
    assert!(stage.state.is_congested() && stage.state.stats().pending_bytes > 1000);
    assert!(matches!(stage.health.recv_timeout(PATIENCE), Ok(Health::Failed { .. })));
    assert!(stage.state.is_congested(), "what failed is kept");
    stage.disk.set_fault(None);
    stage.wait(last);
    assert!(!stage.state.is_congested());
    assert_eq!(stage.synced().len(), 20);
}

#[test]
fn with_an_interval_it_is_done_before_it_is_confirmed_and_confirmed_in_time() {
    let stage = Stage::new(Sync::Interval(Duration::from_millis(50)));
    stage.wait(stage.put("a", "1"));
    while stage.synced().is_empty() {
        std::thread::yield_now();
    }
    // A confirmation that fails takes nothing with it that was said to be done.
    stage.disk.set_fault(Some(Fault::Sync));
    let ticket = stage.put("b", "1");
    assert!(matches!(stage.health.recv_timeout(PATIENCE), Ok(Health::Failed { .. })));
    stage.disk.set_fault(None);
    stage.wait(ticket);
    assert_eq!(stage.health.recv_timeout(PATIENCE), Ok(Health::Writing));
    assert_eq!(stage.synced(), [row("a", "1"), row("b", "1")]);
}

#[test]
fn what_waits_at_the_end_is_written() {
    for sync in [Sync::Always, Sync::Interval(Duration::from_secs(3600)), Sync::Never] {
        let Stage { disk, state, .. } = Stage::new(sync);
        put(&state, "a", Some("1"));
        drop(state);
        assert_eq!(disk.synced(Table::Retained), [(b"a".to_vec(), b"1".to_vec())], "{sync:?}");
    }
}

fn open(directory: &Path) -> Result<State, String> {
    let locked = LockedDirectory::open(directory).map_err(|error| error.to_string())?;
    State::open(&locked, Options::default(), |_| {}).map_err(|error| error.to_string())
}

fn scan(state: &State, table: Table) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut rows = BTreeMap::new();
    state.scan(table, &mut |key, value| drop(rows.insert(key.to_vec(), value.to_vec()))).unwrap();
    rows
}

#[test]
fn tables_are_there_when_the_directory_is_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let state = open(directory.path()).unwrap();
    let long = vec![7; 3 << 20];
    let keys = Table::ALL.map(|table| (table, [table as u8; 3]));
    state.change(keys.iter().map(|(table, key)| Change { table: *table, key, value: Some(&long) }));
    state.change([Change { table: Table::Wills, key: &[4; 3], value: None }]);
    let ticket = state.change([Change { table: Table::Wills, key: b"", value: Some(b"") }]);
    assert!(state.wait(ticket, PATIENCE));
    drop(state);
    let state = open(directory.path()).unwrap();
    for table in [Table::Sessions, Table::Subscriptions, Table::Retained, Table::Speeds] {
        assert_eq!(scan(&state, table), BTreeMap::from([(vec![table as u8; 3], long.clone())]), "{}", table.name());
    }
    assert_eq!(scan(&state, Table::Wills), BTreeMap::from([(vec![], vec![])]));
    assert_eq!(scan(&state, Table::Meta).len(), 3, "the format version and the id too");
}

#[test]
fn another_format_is_refused_by_its_number() {
    let directory = tempfile::tempdir().unwrap();
    let state = open(directory.path()).unwrap();
    let change = Change { table: Table::Meta, key: VERSION_KEY, value: Some(&7_u32.to_le_bytes()) };
    assert!(state.wait(state.change([change]), PATIENCE));
    drop(state);
    let refused = open(directory.path()).unwrap_err();
    assert!(refused.contains("state: format version 7 is unknown, this program writes 1"), "{refused}");
}

#[test]
fn a_database_that_cannot_be_read_is_named() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("state"), "no directory").unwrap();
    let refused = open(directory.path()).unwrap_err();
    assert!(refused.contains("/state: ") && refused.lines().count() == 1, "{refused}");
}

/// What the system had not written yet when the power went may be there page by page, in any choice.
#[test]
fn a_torn_end_of_the_journal_takes_nothing_with_it_that_was_confirmed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let mut backend = FjallBackend::open(&path, Opening::First, Sync::Always).unwrap();
    let batch = |from: u32, to: u32| {
        let mut batch = Batch::default();
        let value = |key: u32| vec![key as u8 | 1; if key % 100 == 60 { 20_000 } else { 100 }];
        (from..to).for_each(|key| batch.set(Table::Retained, &key.to_be_bytes(), Some(&value(key))));
        batch
    };
    backend.apply(&batch(0, 50)).and_then(|()| backend.sync()).unwrap();
    let journal = journal_of(&path);
    let before = fs::read(&journal).unwrap();
    backend.apply(&batch(50, 500)).unwrap();
    drop(backend);
    let mut whole = fs::read(&journal).unwrap();
    let begin = before.iter().zip(&whole).position(|(before, after)| before != after).unwrap();
    let end = whole.iter().rposition(|&byte| byte != 0).unwrap() + 1;
    assert!(end - begin > 100_000);
    whole.truncate(end);
    for page in (begin / 4096)..end.div_ceil(4096) {
        for reach in [4096, usize::MAX] {
            let mut torn = whole.clone();
            let from = (page * 4096).max(begin);
            let to = (page * 4096).saturating_add(reach).min(torn.len());
            torn[from..to].fill(0);
            fs::write(&journal, &torn).unwrap();
            let backend = FjallBackend::open(&path, Opening::First, Sync::Always).unwrap();
            assert_eq!(rows(&backend), 50, "page {page}");
            let cut = backend.cut_off().unwrap_or_default();
            // Where nothing is left of it there is nothing to cut off.
            if from > begin || to < torn.len() {
                assert!(cut.contains("a change that was torn: ") && cut.contains(".torn"), "page {page}: {cut}");
                let kept = fs::read(torn_in(&path).pop().unwrap()).unwrap();
                let left = &torn[begin..];
                assert!(left.starts_with(&kept) && left[kept.len()..].iter().all(|&byte| byte == 0), "page {page}");
            }
        }
    }
}

fn one_by_one(backend: &mut FjallBackend, keys: std::ops::Range<u16>, value: &[u8], is_synced: bool) {
    for key in keys {
        let mut batch = Batch::default();
        batch.set(Table::Retained, &key.to_be_bytes(), Some(value));
        backend.apply(&batch).unwrap();
        if is_synced {
            backend.sync().unwrap();
        }
    }
}

#[test]
fn a_hole_among_confirmed_batches_is_refused_and_nothing_is_touched() {
    for value in [&[1; 20_000][..], &[7; 100]] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let mut backend = FjallBackend::open(&path, Opening::First, Sync::Always).unwrap();
        one_by_one(&mut backend, 0..300, value, true);
        drop(backend);
        let journal = journal_of(&path);
        let whole = fs::read(&journal).unwrap();
        for hole in [0..4096, 8192..12288, 8192..8193] {
            let mut damaged = whole.clone();
            // A zero may be there already.
            damaged[hole].iter_mut().for_each(|byte| *byte = byte.wrapping_add(1) & 0xF0);
            fs::write(&journal, &damaged).unwrap();
            for _ in 0..2 {
                let Err(refused) = FjallBackend::open(&path, Opening::First, Sync::Always) else { panic!("opened") };
                let refused = refused.to_string();
                assert!(
                    refused.contains(".jnl: confirmed changes are damaged") && refused.contains("byte "),
                    "{refused}"
                );
                assert!(fs::read(&journal).unwrap() == damaged, "it is as it was");
                assert!(torn_in(&path).is_empty());
            }
            // What it tells people to do helps.
            let refused = FjallBackend::open(&path, Opening::First, Sync::Always).err().unwrap().to_string();
            let at = refused.split("byte ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
            fs::write(&journal, &damaged[..at.parse().unwrap()]).unwrap();
            let confirmed = confirmed::path(&path);
            assert!(refused.contains(&format!("remove {}", confirmed.display())), "{refused}");
            fs::remove_file(confirmed).unwrap();
            let rows = rows(&FjallBackend::open(&path, Opening::First, Sync::Always).unwrap());
            assert!(rows < 300, "{rows}");
        }
        fs::write(&journal, &whole).unwrap();
        assert_eq!(rows(&FjallBackend::open(&path, Opening::First, Sync::Always).unwrap()), 300);
    }
}

#[test]
fn where_many_are_unconfirmed_all_before_the_first_torn_one_is_kept_and_the_rest_is_cut_off_at_once() {
    for sync in [Sync::Never, Sync::Interval(Duration::from_secs(1))] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let mut backend = FjallBackend::open(&path, Opening::First, sync).unwrap();
        one_by_one(&mut backend, 0..10, &[7; 100], true);
        let begin = end_of(&fs::read(journal_of(&path)).unwrap());
        one_by_one(&mut backend, 10..300, &[1; 20_000], false);
        drop(backend);
        let journal = journal_of(&path);
        let mut torn = fs::read(&journal).unwrap();
        let end = end_of(&torn);
        torn[begin + 100..begin + 4196].fill(0);
        fs::write(&journal, &torn).unwrap();
        // Whatever the policy is now.
        let backend = FjallBackend::open(&path, Opening::First, Sync::Always).unwrap();
        assert_eq!(rows(&backend), 10);
        let cut = backend.cut_off().unwrap();
        assert!(cut.contains("and those behind them") && cut.contains(&format!("{} bytes", end - begin)), "{cut}");
        drop(backend);
        let kept = torn_in(&path);
        assert!(kept.len() == 1 && fs::read(&kept[0]).unwrap() == torn[begin..end]);
        let mut backend = FjallBackend::open(&path, Opening::First, Sync::Always).unwrap();
        assert_eq!(backend.cut_off(), None);
        // From here on each is confirmed.
        one_by_one(&mut backend, 10..20, &[1; 20_000], true);
        drop(backend);
        let mut damaged = fs::read(&journal).unwrap();
        damaged[begin + 100..begin + 4196].fill(0);
        fs::write(&journal, &damaged).unwrap();
        assert!(FjallBackend::open(&path, Opening::First, sync).is_err());
    }
}

#[test]
fn damaged_last_change_that_was_confirmed_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    for first in [0, 10] {
        let mut backend = FjallBackend::open(&path, Opening::First, Sync::Always).unwrap();
        one_by_one(&mut backend, first..first + 3, &[7; 100], true);
        drop(backend);
        let journal = journal_of(&path);
        let whole = fs::read(&journal).unwrap();
        let end = end_of(&whole);
        for cut in [1, 50, 200, end] {
            fs::write(&journal, &whole[..end - cut]).unwrap();
            let refused = FjallBackend::open(&path, Opening::First, Sync::Always).err().unwrap().to_string();
            assert!(refused.contains("0.jnl: confirmed changes are damaged, or missing"), "{refused}");
            assert_eq!(fs::read(&journal).unwrap().len(), end - cut, "it is as it was");
        }
        fs::write(&journal, &whole).unwrap();
    }
}

#[test]
fn database_without_a_current_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    drop(FjallBackend::open(&path, Opening::First, Sync::Always).unwrap());
    let current = path.join("keyspaces/1/current");
    fs::remove_file(&current).unwrap();
    let refused = FjallBackend::open(&path, Opening::First, Sync::Always).err().unwrap().to_string();
    assert!(refused.contains("keyspaces/1/current is missing"), "{refused}");
    assert!(!current.exists());
}

/// The database panics where a version file is damaged in this way.
#[test]
fn every_flipped_byte_of_a_version_file_is_refused_with_its_name() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(directory.path()).unwrap());
    let folder = directory.path().join("state/keyspaces/1");
    let files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let version = files.into_iter().find(|path| path.file_name().unwrap().as_encoded_bytes()[0] == b'v').unwrap();
    let whole = fs::read(&version).unwrap();
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        fs::write(&version, &damaged).unwrap();
        match open(directory.path()) {
            Ok(state) => assert_eq!(scan(&state, Table::Meta).len(), 2, "{at}"),
            Err(refused) => {
                assert!(refused.contains(&version.display().to_string()) && !refused.contains('\n'), "{at}: {refused}");
            }
        }
        fs::write(&version, &whole).unwrap();
    }
}

#[test]
fn a_last_change_that_is_there_in_part_is_cut_off() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let mut backend = FjallBackend::open(&path, Opening::First, Sync::Always).unwrap();
    one_by_one(&mut backend, 0..3, &[7; 100], true);
    drop(backend);
    let journal = journal_of(&path);
    let whole = fs::read(&journal).unwrap();
    let end = end_of(&whole);
    for cut in 1..100 {
        fs::write(&journal, &whole[..end - cut]).unwrap();
        // As a power cut leaves it, before anything said that it was confirmed.
        fs::remove_file(confirmed::path(&path)).unwrap();
        let backend = FjallBackend::open(&path, Opening::First, Sync::Always).unwrap();
        assert_eq!(rows(&backend), 2, "{cut}");
        assert!(backend.cut_off().is_some_and(|cut| !cut.contains('\n')));
    }
}

#[test]
fn journal_swapped_with_the_confirmed_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let mut backend = FjallBackend::open(&path, Opening::First, Sync::Always).unwrap();
    one_by_one(&mut backend, 0..3, &[7; 100], true);
    drop(backend);
    let (journal, confirmed, aside) = (journal_of(&path), confirmed::path(&path), directory.path().join("aside"));
    for (from, to) in [(&journal, &aside), (&confirmed, &journal), (&aside, &confirmed)] {
        fs::rename(from, to).unwrap();
    }
    let refused = FjallBackend::open(&path, Opening::First, Sync::Always)
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    assert!(refused.contains("state.confirmed"), "{refused}");
}

/// Of the last batch.
fn end_of(journal: &[u8]) -> usize {
    journal.iter().rposition(|&byte| byte != 0).unwrap() + 1
}

fn torn_in(path: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|end| end == "torn")).collect()
}

#[test]
fn who_does_not_wait_any_more_is_forgotten() {
    let stage = Stage::new(Sync::Always);
    stage.wait(stage.put("a", "1"));
    let stall = stage.disk.stall();
    let ticket = stage.put("a", "2");
    let woken = Arc::<Woken>::default();
    let waker = Waker::from(Arc::clone(&woken));
    for _ in 0..1000 {
        let wake = stage.state.wake_at(ticket, &waker);
        stage.state.forget_wake(wake);
    }
    let stays = stage.state.wake_at(ticket, &waker);
    assert_eq!((stage.state.shared.wakers.len(), Arc::strong_count(&woken)), (1, 3));
    drop(stall);
    stage.wait(ticket);
    while woken.0.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    stage.state.forget_wake(stays);
    assert_eq!(stage.state.shared.wakers.len(), 0);
}

#[test]
fn an_interval_that_is_long_is_no_reason_to_take_nothing_more() {
    let stage = Stage::new(Sync::Interval(Duration::from_secs(3600)));
    for number in 0..100 {
        stage.wait(put(&stage.state, &number.to_string(), Some(&"x".repeat(100))));
        assert!(!stage.state.is_congested(), "{number}: {:?}", stage.state.stats());
    }
    assert!(!stage.synced().is_empty(), "confirmed before so much was kept");
}

#[test]
fn after_a_failed_confirmation_the_journal_begins_anew_and_nothing_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let put = |backend: &mut FjallBackend, keys: std::ops::Range<u8>| {
        let mut batch = Batch::default();
        keys.for_each(|key| batch.set(Table::Retained, &[key], Some(&[1; 20_000])));
        backend.apply(&batch).and_then(|()| backend.sync()).unwrap();
    };
    let mut backend = FjallBackend::open(&path, Opening::First, Sync::Always).unwrap();
    put(&mut backend, 0..30);
    drop(backend);
    let mut backend = FjallBackend::open(&path, Opening::AfterFailedSync, Sync::Always).unwrap();
    let journal = fs::read(journal_of(&path)).unwrap();
    assert!(journal.iter().all(|&byte| byte == 0), "{} bytes", journal.len());
    assert_eq!(rows(&backend), 30);
    put(&mut backend, 20..40);
    drop(backend);
    for opening in [Opening::AfterFailedWrite, Opening::First] {
        assert_eq!(rows(&FjallBackend::open(&path, opening, Sync::Always).unwrap()), 40);
    }
}

fn rows(backend: &FjallBackend) -> usize {
    let mut count = 0;
    backend.scan(Table::Retained, &mut |_, _| count += 1).unwrap();
    count
}

fn journal_of(path: &Path) -> PathBuf {
    let files = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    files.into_iter().find(|path| path.extension().is_some_and(|end| end == "jnl")).unwrap()
}

#[test]
fn removal_of_confirmed_length_is_safe_before_journal_is_cut() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let mut backend = FjallBackend::open(&path, Opening::First, Sync::Always).unwrap();
    let mut batch = Batch::default();
    batch.set(Table::Retained, b"key", Some(b"value"));
    backend.apply(&batch).and_then(|()| backend.sync()).unwrap();
    drop(backend);
    let (seen, state) = (Arc::new(AtomicUsize::new(0)), path.clone());
    let is_safe = Arc::clone(&seen);
    let look = move || {
        let is_there = confirmed::path(&state).exists();
        let journal = journal::newest_end(&state).unwrap().map_or(0, |(_, _, end)| end);
        is_safe.fetch_add(usize::from(!is_there && journal > 0), Ordering::Relaxed);
    };
    crate::directory::BEFORE_SYNC.set(Some(Box::new(look)));
    drop(FjallBackend::open(&path, Opening::AfterFailedSync, Sync::Always).unwrap());
    crate::directory::BEFORE_SYNC.take();
    assert!(seen.load(Ordering::Relaxed) > 0, "a power cut brings the length back, with a shorter journal");
}
