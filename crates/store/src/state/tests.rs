//! Tests of the committer on a database with faults, and of the real database in a directory.

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

mod creation;
mod damage;

/// Only failing tests wait this long.
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
fn durable_change_is_on_disk() {
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
fn batch_writes_only_last_change_of_each_key() {
    let stage = Stage::new(Sync::Always);
    stage.wait(stage.put("first", "")); // the version's batch is over
    let stall = stage.disk.stall();
    let before = stage.put("a", "0");
    // The committer takes this change or more; all later ones go into at most two batches.
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
fn task_is_woken_once_its_change_is_durable() {
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
fn changes_are_written_again_after_failure() {
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
fn state_is_congested_until_pending_changes_are_written() {
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
fn interval_change_is_done_at_once_and_synced_in_time() {
    let stage = Stage::new(Sync::Interval(Duration::from_millis(50)));
    stage.wait(stage.put("a", "1"));
    while stage.synced().is_empty() {
        std::thread::yield_now();
    }
    // A failed sync loses no change that was reported as done.
    stage.disk.set_fault(Some(Fault::Sync));
    let ticket = stage.put("b", "1");
    assert!(matches!(stage.health.recv_timeout(PATIENCE), Ok(Health::Failed { .. })));
    stage.disk.set_fault(None);
    stage.wait(ticket);
    assert_eq!(stage.health.recv_timeout(PATIENCE), Ok(Health::Writing));
    assert_eq!(stage.synced(), [row("a", "1"), row("b", "1")]);
}

#[test]
fn pending_changes_are_written_at_closing() {
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
fn tables_survive_reopening() {
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
fn unknown_state_format_is_refused_by_number() {
    let directory = tempfile::tempdir().unwrap();
    let state = open(directory.path()).unwrap();
    let change = Change { table: Table::Meta, key: VERSION_KEY, value: Some(&7_u32.to_le_bytes()) };
    assert!(state.wait(state.change([change]), PATIENCE));
    drop(state);
    let refused = open(directory.path()).unwrap_err();
    assert!(refused.contains("state: format version 7 is unknown, this program writes 1"), "{refused}");
}

#[test]
fn unreadable_database_is_named() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("state"), "no directory").unwrap();
    let refused = open(directory.path()).unwrap_err();
    assert!(refused.contains("/state: ") && refused.lines().count() == 1, "{refused}");
}

#[test]
fn forgotten_waker_is_dropped() {
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
fn long_interval_causes_no_congestion() {
    let stage = Stage::new(Sync::Interval(Duration::from_secs(3600)));
    for number in 0..100 {
        stage.wait(put(&stage.state, &number.to_string(), Some(&"x".repeat(100))));
        assert!(!stage.state.is_congested(), "{number}: {:?}", stage.state.stats());
    }
    assert!(!stage.synced().is_empty(), "confirmed before so much was kept");
}
