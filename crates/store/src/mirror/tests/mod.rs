//! Tests of the mirror.

mod backup;
mod check;
mod intact;
mod log;

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use super::copy::{Stopped, follow, follow_log};
use super::log_copy::LogCopy;
use super::state_copy::StateCopy;
use super::*;
use crate::spool::tests::MemoryDisk;
use crate::spool::{Heads, Limit, Messages, NoPayload, Payload, Place, QueueId, Reference, Sequence, log_name};
use crate::state::memory_backend::MemoryDisk as MemoryState;
use crate::state::{Change, Table};

/// A leader's mirror, and the agreement about its copy.
pub(crate) struct Pair {
    pub(crate) mirror: Arc<Mirror>,
    agreed: Arc<Agreed>,
    /// Threads of the copy.
    threads: Mutex<Vec<JoinHandle<Result<(), Stopped>>>>,
    /// The leader's state, in which nothing changes.
    _state: Box<dyn Backend>,
}

/// What leader and copy have agreed on.
#[derive(Default)]
pub(crate) struct Agreed {
    role: Mutex<Role>,
    changed: Condvar,
    /// Damage of the leader's data.
    damage: Mutex<Vec<String>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Role {
    #[default]
    None,
    Joiner,
    /// The leader waits for it, and it may take over.
    Follower,
    /// The leader is dead.
    LeaderIsDead {
        had_follower: bool,
    },
}

impl Agreed {
    fn role(&self) -> MutexGuard<'_, Role> {
        self.role.lock().unwrap()
    }

    fn set(&self, role: Role) {
        let mut now = self.role();
        if !matches!(*now, Role::LeaderIsDead { .. }) {
            *now = role;
        }
        drop(now);
        self.changed.notify_all();
    }
}

impl Default for Pair {
    fn default() -> Self {
        let agreed = Arc::<Agreed>::default();
        let own = Arc::new(Mutex::new(Weak::<Mirror>::new()));
        let (of_events, mirror) = (Arc::clone(&agreed), Arc::clone(&own));
        let mirror = Mirror::new(move |event| {
            let Some(mirror) = mirror.lock().unwrap().upgrade() else { return };
            match event {
                Event::CaughtUp(join) => mirror.require(join).unwrap(),
                Event::Confirmed(_) => of_events.set(Role::Follower),
                Event::Lost(join, _) => {
                    // First: from the release on, the leader goes on alone.
                    of_events.set(Role::None);
                    mirror.release(join);
                }
                Event::Damaged(damage) => of_events.damage.lock().unwrap().push(damage),
            }
        });
        *own.lock().unwrap() = Arc::downgrade(&mirror);
        let state = mirror.backend(Box::new(MemoryState::default()), Sync::Always);
        Self { mirror, agreed, threads: Mutex::default(), _state: state }
    }
}

impl Pair {
    /// Lets a copy join, which has these files.
    pub(crate) fn join(&self, files: Arc<dyn Disk>) {
        let (log, state) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        self.seal();
        self.agreed.set(Role::Joiner);
        let of_log = thread::spawn(move || follow_log(&mut LogCopy::new(files, None), Box::new(log.1), &|| false));
        let of_state = thread::spawn(move || follow_state(MemoryState::default(), state.1));
        self.threads.lock().unwrap().extend([of_log, of_state]);
        self.mirror.join(next_join(), Box::new(log.0), Box::new(state.0), u64::MAX).unwrap();
    }

    /// Waits until the copy does nothing any more; its connections have ended.
    fn seal(&self) {
        self.threads.lock().unwrap().drain(..).for_each(|thread| drop(thread.join().unwrap()));
    }

    pub(crate) fn is_alone(&self) -> bool {
        *self.agreed.role() == Role::None
    }

    /// Waits until the copy is follower, or lost.
    pub(crate) fn wait(&self) {
        let role = self.agreed.role();
        drop(self.agreed.changed.wait_while(role, |role| *role == Role::Joiner).unwrap());
    }

    /// Ends the leader. True if the copy may take over.
    pub(crate) fn kill_leader(&self) -> bool {
        let had_follower = {
            let mut role = self.agreed.role();
            let had_follower = *role == Role::Follower;
            *role = Role::LeaderIsDead { had_follower };
            had_follower
        };
        self.mirror.end();
        self.seal();
        had_follower
    }
}

fn next_join() -> JoinId {
    static LAST: AtomicU64 = AtomicU64::new(1);
    JoinId(LAST.fetch_add(1, Ordering::Relaxed))
}

fn follow_state(disk: MemoryState, stream: UnixStream) -> Result<(), Stopped> {
    let create = move || -> io::Result<Box<dyn Backend>> {
        disk.clear();
        Ok(Box::new(disk.clone()))
    };
    let mut copy = StateCopy::with(Box::new(create));
    follow(Box::new(stream), |operation| copy.perform(operation), || (0, 0))
}

/// A store in a directory, with a mirror.
struct Store {
    mirror: Arc<Mirror>,
    agreed: Arc<Agreed>,
    spool: Spool,
    state: State,
    _directory: LockedDirectory,
}

impl Store {
    fn open(directory: &Path, sync: Sync) -> Self {
        let Pair { mirror, agreed, .. } = Pair::default();
        let locked = LockedDirectory::open(directory).unwrap();
        let options = state::Options { sync, ..Default::default() };
        let state = mirror.open_state(&locked, options, |_| {}).unwrap();
        let messages = crate::MessageFiles::of(directory).unwrap();
        messages.name(directory, state.id()).unwrap();
        let options = spool::Options { sync, segment_bytes: 1 << 20, ..Default::default() };
        let (spool, _) = mirror.open_spool(&directory.join("spool"), options).unwrap();
        Self { mirror, agreed, spool, state, _directory: locked }
    }

    fn append(&self, sequence: u64, bytes: usize) -> spool::Position {
        let room = self.spool.take_room(bytes as u64, false).unwrap();
        let mut batch = self.spool.begin();
        let place = Place { queue: QueueId(1), sequence: Sequence(sequence) };
        batch.message(&room, &[(place, b"")], None, &[&vec![sequence as u8; bytes]]).unwrap();
        let end = batch.end();
        drop(batch);
        self.spool.give_room(room);
        end
    }

    fn set(&self, key: u64) -> state::Ticket {
        let bytes = key.to_be_bytes();
        self.state.change([Change { table: Table::Retained, key: &bytes, value: Some(&bytes) }])
    }

    fn begin_copy(&self, directory: &Path, sync: Sync) -> Copy {
        self.begin_copy_with(directory, sync, u64::MAX, |_| {})
    }

    fn begin_copy_with(
        &self,
        directory: &Path,
        sync: Sync,
        bytes_per_second: u64,
        on_event: impl Fn(CopyEvent) + Send + std::marker::Sync + 'static,
    ) -> Copy {
        let (log, state) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        self.agreed.set(Role::Joiner);
        let copy = Copy::begin(directory, sync, Box::new(log.1), Box::new(state.1), on_event).unwrap();
        self.mirror.join(next_join(), Box::new(log.0), Box::new(state.0), bytes_per_second).unwrap();
        copy
    }

    fn wait_for_follower(&self) {
        let role = self.agreed.role();
        let (role, waited) = self
            .agreed
            .changed
            .wait_timeout_while(role, Duration::from_secs(60), |role| *role != Role::Follower)
            .unwrap();
        assert!(!waited.timed_out(), "{role:?} {:?}", self.mirror);
    }
}

/// Sequences of the messages, and keys of the table, in a directory that no process uses.
fn content(directory: &Path) -> (Vec<u64>, Vec<u64>) {
    let locked = LockedDirectory::open(directory).unwrap();
    let state = State::open(&locked, Default::default(), |_| {}).unwrap();
    let mut keys = Vec::new();
    state.scan(Table::Retained, &mut |key, _| keys.push(u64::from_be_bytes(key.try_into().unwrap()))).unwrap();
    let (spool, _) = Spool::open(&directory.join("spool"), Default::default()).unwrap();
    let mut messages = Messages::default();
    spool.read(QueueId(1), Sequence(0), Limit { messages: usize::MAX, bytes: usize::MAX }, &mut messages).unwrap();
    let sequences = messages.iter().map(|message| message.sequence.0).collect();
    (sequences, keys)
}

#[test]
fn copy_that_joined_under_load_has_everything_confirmed() {
    for sync in [Sync::Always, Sync::Interval(Duration::from_secs(3600)), Sync::Never] {
        let directory = tempfile::tempdir().unwrap();
        let (first, second) = (directory.path().join("a"), directory.path().join("b"));
        let leader = Store::open(&first, sync);
        let mut last = 0;
        let mut work = |leader: &Store, count: u64| {
            for sequence in last + 1..=last + count {
                let end = leader.append(sequence, 10_000);
                let ticket = leader.set(sequence);
                leader.spool.wait(end).unwrap();
                assert!(leader.state.wait(ticket, Duration::from_secs(60)));
            }
            last += count;
        };
        work(&leader, 300);
        let copy = leader.begin_copy(&second, sync);
        work(&leader, 300);
        leader.wait_for_follower();
        let before = leader.mirror.stats();
        assert!(before.log_bytes >= 3_000_000 && before.copied_bytes >= before.log_bytes, "{before:?}");
        work(&leader, 100);
        let after = leader.mirror.stats();
        for (before, after, bytes) in [(before.log, after.log, 1_000_000), (before.state, after.state, 1600)] {
            assert!(after.operations > before.operations && after.bytes >= before.bytes + bytes, "{after:?}");
            assert!(after.waits.iter().sum::<u64>() > before.waits.iter().sum::<u64>(), "{after:?}");
        }
        leader.mirror.end();
        copy.seal();
        let all: Vec<u64> = (1..=700).collect();
        assert_eq!(content(&second), (all.clone(), all), "{sync:?}");
    }
}

#[test]
fn former_leader_joins_by_comparison() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (directory.path().join("a"), directory.path().join("b"));
    let leader = Store::open(&first, Sync::Always);
    let copy = leader.begin_copy(&second, Sync::Always);
    leader.wait_for_follower();
    for sequence in 1..=500 {
        let end = leader.append(sequence, 10_000);
        leader.spool.wait(end).unwrap();
    }
    leader.mirror.end();
    copy.seal();
    // It confirms nothing of this.
    leader.append(9_999, 10_000);
    drop(leader);
    let leader = Store::open(&second, Sync::Always);
    let copy = leader.begin_copy(&first, Sync::Always);
    let end = leader.append(501, 10_000);
    leader.spool.wait(end).unwrap();
    leader.wait_for_follower();
    leader.mirror.end();
    copy.seal();
    drop(leader);
    let all: Vec<u64> = (1..=501).collect();
    assert_eq!(content(&first).0, all);
    assert_eq!(content(&second).0, all);
}

#[test]
fn commit_waits_for_lost_follower_until_it_is_released() {
    let directory = tempfile::tempdir().unwrap();
    let mirror = Mirror::new(|_| {});
    let spool = directory.path().join("spool");
    let (spool, _) = mirror.open_spool(&spool, Default::default()).unwrap();
    mirror.set_required(true);
    let place = Place { queue: QueueId(1), sequence: Sequence(1) };
    let room = spool.take_room(10, false).unwrap();
    let mut batch = spool.begin();
    batch.message(&room, &[(place, b"")], None, &[b"bytes"]).unwrap();
    let end = batch.end();
    drop(batch);
    spool.give_room(room);
    thread::scope(|scope| {
        let waits = scope.spawn(|| spool.wait(end));
        while mirror.log.numbers().0 == 0 {
            thread::yield_now();
        }
        // Its own disk has the message first.
        for _ in 0..10 {
            thread::sleep(Duration::from_millis(20));
            while mirror.log.disk.longest().is_some() {
                thread::yield_now();
            }
        }
        assert!(!waits.is_finished() && spool.durable() < end);
        mirror.release(JoinId(1));
        waits.join().unwrap().unwrap();
    });
    assert_eq!(spool.queue(place.queue).unwrap().waiting, 1);
    let TrafficStats { waits, waited, .. } = mirror.stats().log;
    assert!(waits.iter().sum::<u64>() > 0 && waited > Duration::ZERO, "{waits:?} {waited:?}");
}

#[test]
fn deposed_leader_writes_nothing_and_ends() {
    let directory = tempfile::tempdir().unwrap();
    let leader = Store::open(directory.path(), Sync::Always);
    let end = leader.append(1, 100);
    leader.spool.wait(end).unwrap();
    leader.mirror.end();
    let end = leader.append(2, 100);
    let ticket = leader.set(2);
    let refused = leader.spool.wait(end).unwrap_err().to_string();
    assert!(refused.contains("does not lead"), "{refused}");
    assert!(!leader.state.wait(ticket, Duration::from_millis(50)));
    drop(leader);
    assert_eq!(content(directory.path()), (vec![1], vec![]));
}

#[test]
fn copy_whose_disk_fails_tells_the_leader() {
    let pair = Pair::default();
    let leader: Arc<dyn Disk> = Arc::new(MemoryDisk::default());
    let mirrored = pair.mirror.disk(Arc::clone(&leader));
    let file = mirrored.create("0000000001.log").unwrap();
    let copy = MemoryDisk::default();
    pair.join(Arc::new(copy.clone()));
    pair.wait();
    assert!(!pair.is_alone());
    copy.set_faults(|faults| faults.failing_syncs = 1);
    file.write_at(b"bytes", 0).unwrap();
    file.sync().unwrap();
    assert!(pair.is_alone(), "the commit went on without the copy");
}

#[test]
fn call_that_hangs_shows_in_the_mirror() {
    let mirror = Mirror::new(|_| {});
    let disk = MemoryDisk::default();
    let file = mirror.disk(Arc::new(disk.clone())).create("0000000001.log").unwrap();
    assert_eq!(mirror.disk_waits(), None);
    let calls: [fn(&dyn spool::DiskFile); 2] =
        [|file| file.sync().unwrap(), |file| assert_eq!(file.read_at(&mut [0], 0).unwrap(), 0)];
    for call in calls {
        thread::scope(|scope| {
            // The disk answers nothing in that time.
            disk.set_faults(|_| {
                scope.spawn(|| call(&*file));
                while mirror.disk_waits().is_none_or(|time| time < Duration::from_millis(20)) {
                    thread::yield_now();
                }
            });
        });
        assert_eq!(mirror.disk_waits(), None);
    }
}

#[test]
fn full_disks_are_compared() {
    let mirror = Mirror::new(|_| {});
    let disk = MemoryDisk::default();
    let inner: Arc<dyn Disk> = Arc::new(disk.clone());
    let mirrored = mirror.disk(Arc::clone(&inner));
    mirrored.create("0000000001.log").unwrap().allocate(1 << 20).unwrap();
    disk.set_faults(|faults| faults.is_full = true);
    assert!(!mirror.are_both_full(), "there is no copy");
    mirror.log.expect(JoinId(1), Box::new(UnixStream::pair().unwrap().0));
    for (free, full, are_both) in [(1 << 39, Some(Full::Leader), false), (0, None, true)] {
        mirror.log.confirm(JoinId(1), 0, Some((free, 1 << 40)));
        assert_eq!((mirror.full_disk(), mirror.are_both_full()), (full, are_both));
    }
}

/// References to the messages of the queue, of which the beginning was read.
fn references(spool: &Spool) -> Vec<Reference> {
    let mut read = Messages::default();
    let limit = Limit { messages: 100, bytes: 1 << 20 };
    let heads = Heads { from_bytes: 4096, messages: 100, bytes: usize::MAX };
    spool.read_heads(QueueId(1), &[Sequence(0)..=Sequence(u64::MAX)], limit, heads, &mut read).unwrap();
    let bytes = read.bytes();
    let behind = |message: &spool::Stored| {
        let body = &bytes[message.body.clone().unwrap()];
        assert!(body.len() <= 1024, "{}", body.len());
        let reference = message.record.unwrap().behind(&body[..10]);
        Reference::from_bytes(&reference.to_bytes())
    };
    read.iter().map(behind).collect()
}

fn bytes_of(payload: &mut Payload) -> Result<Vec<u8>, NoPayload> {
    let pieces = (0..payload.pieces()).map(|number| payload.piece(number));
    Ok(pieces.collect::<Result<Vec<_>, _>>()?.concat())
}

#[test]
fn payloads_are_found_in_the_copy_and_damage_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (directory.path().join("a"), directory.path().join("b"));
    let leader = Store::open(&first, Sync::Always);
    let copy = leader.begin_copy(&second, Sync::Always);
    leader.wait_for_follower();
    let sizes = [5_000, 64 << 10, 64 << 10 | 11, 200_000];
    for (sequence, size) in (1..).zip(sizes) {
        let end = leader.append(sequence, size);
        leader.spool.wait(end).unwrap();
    }
    let references = references(&leader.spool);
    assert_eq!(references.len(), sizes.len());
    let reader = copy.reader();
    for ((sequence, size), reference) in (1_u8..).zip(sizes).zip(&references) {
        let mut payload = reader.find(*reference).unwrap();
        assert_eq!(
            (reference.payload_len() as usize, bytes_of(&mut payload).unwrap()),
            (size - 10, vec![sequence; size - 10])
        );
    }
    let segment = second.join("spool").join(log_name(references[3].segment()));
    let mut file = std::fs::read(&segment).unwrap();
    let damaged = file.iter().rposition(|&byte| byte == 4).unwrap();
    let mut open = reader.find(references[3]).unwrap();
    file[damaged] ^= 1;
    std::fs::write(&segment, &file).unwrap();
    assert!(matches!(bytes_of(&mut open), Err(NoPayload::Differs(..))), "it changes while it is sent");
    assert!(matches!(reader.find(references[3]), Err(NoPayload::Differs(..))));
    assert_eq!(bytes_of(&mut reader.find(references[0]).unwrap()).unwrap().len(), 4_990);
    // Each field of a reference is verified, except the last one, which tells the oldest segment.
    for field in 0..Reference::BYTES / 4 - 1 {
        let mut bytes = references[0].to_bytes();
        bytes[field * 4 + 3] ^= 8;
        assert!(reader.find(Reference::from_bytes(&bytes)).is_err(), "field {field}");
    }
    leader.mirror.end();
}

#[test]
fn segment_that_leaves_the_log_is_read_for_a_while() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (directory.path().join("a"), directory.path().join("b"));
    let leader = Store::open(&first, Sync::Always);
    let copy = leader.begin_copy(&second, Sync::Always);
    leader.wait_for_follower();
    let fill = |sequences: std::ops::RangeInclusive<u64>| {
        for sequence in sequences {
            let end = leader.append(sequence, 100_000);
            leader.spool.wait(end).unwrap();
        }
    };
    fill(1..=40);
    let old = references(&leader.spool);
    let reader = copy.reader();
    let mut open = reader.find(old[0]).unwrap();
    leader.spool.begin().acknowledge(QueueId(1), Sequence(1)..=Sequence(40));
    // Files of the oldest segments are removed or used again.
    let name = |reference: &Reference| second.join("spool").join(log_name(reference.segment()));
    let mut sequence = 41;
    while name(&old[0]).exists() || name(&old[20]).exists() {
        assert!(sequence < 1_000, "nothing is reclaimed");
        fill(sequence..=sequence);
        sequence += 1;
    }
    fill(sequence..=sequence + 40);
    assert_eq!(bytes_of(&mut open).unwrap(), vec![1; 99_990]);
    assert_eq!(bytes_of(&mut reader.find(old[1]).unwrap()).unwrap(), vec![2; 99_990]);
    leader.mirror.end();
}
