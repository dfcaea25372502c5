//! Tests of the on-disk backlog of a group.

use std::num::NonZeroU64;
use std::sync::mpsc::{self, SyncSender};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tenbin_codec::QoS;
use tenbin_store::Sync;

use super::super::share_group::tests::{Stage, payloads};
use super::pages::PAGE_BYTES;
use super::*;
use crate::durable::{EntryRanges, Location, Page, PageOf, QueueKind};
use crate::outbox::Outbox;
use crate::values::Clock;

/// A group whose backlog exceeds memory, and one connected member without messages.
struct Backlog {
    stage: Stage,
    durable: Arc<Durable>,
    member: Arc<Outbox>,
    _directory: TempDir,
}

impl Backlog {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let durable = Arc::new(Durable::open(directory.path(), Sync::Never, 0).unwrap());
        let mut stage = Stage::with(Some(Arc::clone(&durable)));
        let member = stage.member(1, QoS::AtLeastOnce, false);
        (0..MESSAGES).for_each(|number| stage.waits(message(&stage, number)));
        // Clear the record that no member took the front.
        stage.now = Clock::new().moment(stage.now.at + Duration::from_secs(60));
        let backlog = Self { stage, durable, member, _directory: directory };
        let queued = backlog.queued();
        assert!(
            !queued.queue.is_empty() && queued.spill.entries.bytes() > 2 * PAGE_BYTES as u64,
            "{} in memory",
            queued.queue.len()
        );
        drop(queued);
        backlog.member.attach(u32::MAX, None);
        backlog
    }

    fn queued(&self) -> MutexGuard<'_, Queued> {
        self.stage.group.backlog.lock()
    }

    /// The entries that are being read.
    fn reading(&self) -> EntryRanges {
        self.queued().spill.refill.reading().expect("a page is being read")
    }

    fn message(&self, number: usize) -> Delivery {
        message(&self.stage, number)
    }

    fn publish(&self, number: usize) {
        self.stage.waits(self.message(number));
    }

    fn dispatch(&self) {
        self.stage.group.dispatch_waiting(self.stage.now, &mut Rng::new(1));
    }

    /// Returns the messages that the member got since the last call.
    fn taken(&self) -> Vec<usize> {
        let number = |payload: String| payload.split(' ').next().and_then(|number| number.parse().ok()).unwrap();
        let some = || Some(payloads(&self.member)).filter(|some| !some.is_empty());
        std::iter::from_fn(some).flatten().map(number).collect()
    }

    /// Waits until the member has got `count` messages, and returns them.
    fn take(&self, count: usize) -> Vec<usize> {
        let until = Instant::now() + PATIENCE;
        let mut taken = Vec::new();
        while taken.len() < count {
            assert!(Instant::now() < until, "{taken:?}");
            taken.extend(self.taken());
        }
        taken
    }

    /// Blocks all reads until the returned sender is dropped.
    fn hold_up_reading(&self) -> SyncSender<()> {
        let (here, there) = mpsc::sync_channel(0);
        self.durable.reader.page_for(nothing(), move |_| {
            let _ = there.recv();
        });
        here
    }

    /// Waits until all requested reads are done.
    fn settle(&self) {
        let (there, here) = mpsc::sync_channel(1);
        self.durable.reader.page_for(nothing(), move |_| {
            let _ = there.send(());
        });
        here.recv_timeout(PATIENCE).unwrap();
    }
}

fn message(stage: &Stage, number: usize) -> Delivery {
    stage.published_as(format!("{number} {}", "x".repeat(8000)), QoS::AtLeastOnce)
}

#[test]
fn page_read_blocks_no_caller_and_keeps_order() {
    let backlog = Backlog::new();
    let reading = backlog.hold_up_reading();
    backlog.dispatch();
    let head = backlog.taken();
    assert!(!head.is_empty() && head.iter().copied().eq(0..head.len()), "{head:?}");
    backlog.dispatch();
    backlog.publish(MESSAGES);
    assert_eq!(backlog.taken(), [0; 0], "though there is room");
    drop(reading);
    assert_eq!(backlog.take(MESSAGES + 1 - head.len()), (head.len()..=MESSAGES).collect::<Vec<_>>());
    assert_eq!((backlog.stage.group.waiting(), backlog.stage.group.backlog.has_backlog()), (0, false));
}

#[test]
fn publisher_that_finds_room_reads_on_disk_backlog() {
    let backlog = Backlog::new();
    backlog.publish(MESSAGES);
    assert_eq!(backlog.take(MESSAGES + 1), (0..=MESSAGES).collect::<Vec<_>>());
}

#[test]
fn messages_returned_during_page_read_go_before_it() {
    let backlog = Backlog::new();
    let reading = backlog.hold_up_reading();
    let group = &backlog.stage.group;
    backlog.dispatch();
    let head = backlog.taken();
    group.begin_redelivery();
    drop(reading);
    backlog.settle();
    assert_eq!(backlog.taken(), [0; 0], "its messages are older");
    let now = backlog.stage.now;
    group.give_to_others([backlog.message(0)].into_iter(), now, &mut Rng::new(1));
    group.end_redelivery(now, &mut Rng::new(1));
    let expected: Vec<_> = std::iter::once(0).chain(head.len()..MESSAGES).collect();
    assert_eq!(backlog.take(expected.len()), expected);
}

#[test]
fn group_backlog_is_delivered_up_to_unreadable_entry() {
    let mut backlog = Backlog::new();
    let begun = Instant::now();
    let reading = backlog.hold_up_reading();
    backlog.dispatch();
    let next = backlog.taken().len();
    let ranges = backlog.reading();
    let Sequence(first) = *ranges[0].start();
    let message = |number: usize| {
        let sequence = Sequence(first + (number - next) as u64);
        let stored = Some(Location::Group(sequence.0).to_stored());
        (sequence, Some(Delivery { stored, ..backlog.message(number) }))
    };
    backlog.stage.group.take_page(Page { ranges, messages: [next, next + 1].map(message).into(), is_broken: true });
    assert_eq!(backlog.taken(), [next, next + 1]);
    assert!(!backlog.queued().spill.refill.is_reading(), "it would be broken again");
    // No reader waits for this page any more.
    drop(reading);
    backlog.settle();
    assert_eq!(backlog.taken(), [0; 0]);
    let later = backlog.stage.now;
    backlog.stage.now.at = begun;
    backlog.publish(MESSAGES);
    backlog.dispatch();
    backlog.settle();
    assert_eq!(backlog.taken(), [0; 0], "it is too early");
    backlog.stage.now = later;
    backlog.publish(MESSAGES + 1);
    assert_eq!(backlog.take(MESSAGES - next), (next + 2..MESSAGES + 2).collect::<Vec<_>>());
}

#[test]
fn failed_backlog_read_is_repeated_without_clients() {
    let backlog = Backlog::new();
    let reading = backlog.hold_up_reading();
    backlog.dispatch();
    let next = backlog.taken().len();
    let unread = &backlog.stage.group.queues.due;
    assert_eq!(unread.next(), None);
    backlog.stage.group.take_page(Page { ranges: backlog.reading(), is_broken: true, ..Page::default() });
    drop(reading);
    backlog.settle();
    let at = unread.next().expect("a time");
    unread.look(at - Duration::from_millis(1));
    backlog.settle();
    assert_eq!((backlog.taken().len(), unread.next()), (0, Some(at)), "it is too early");
    unread.look(at);
    assert_eq!(backlog.take(MESSAGES - next), (next..MESSAGES).collect::<Vec<_>>());
    assert_eq!(unread.next(), None);
}

#[test]
fn message_stored_late_stays_before_later_ones_of_its_batch() {
    let backlog = Backlog::new();
    let reading = backlog.hold_up_reading();
    backlog.dispatch();
    let next = backlog.taken().len();
    // The first one was chosen for a member at QoS 0, and has no entry. The others were appended with their batch.
    let group = &backlog.stage.group;
    let late = backlog.message(MESSAGES);
    let [second, third] = [1, 2].map(|number| group.kept(backlog.message(MESSAGES + number)));
    let mut refused = Refused::default();
    for delivery in [late, second, third] {
        group.wait(std::iter::once(delivery), backlog.stage.now, &mut refused, &mut Rng::new(1));
    }
    drop(reading);
    assert_eq!(backlog.take(MESSAGES + 3 - next), (next..MESSAGES + 3).collect::<Vec<_>>());
    assert_eq!(backlog.durable.spool_stats().waiting, MESSAGES as u64 + 3, "one entry for each");
}

#[test]
fn page_read_after_end_of_group_is_discarded() {
    let backlog = Backlog::new();
    let reading = backlog.hold_up_reading();
    backlog.dispatch();
    backlog.taken();
    backlog.stage.group.end();
    drop(reading);
    backlog.settle();
    assert_eq!((backlog.taken().len(), backlog.stage.group.waiting()), (0, 0));
}

#[test]
fn group_is_stored_once_for_all_members() {
    let backlog = Backlog::new();
    let made = || backlog.durable.stats().changes;
    let before = made();
    (2..10).for_each(|number| drop(backlog.stage.member(number, QoS::AtLeastOnce, false)));
    assert_eq!(made() - before, 0);
    let other = Stage::with(Some(Arc::clone(&backlog.durable)));
    (1..10).for_each(|number| drop(other.member(number, QoS::AtLeastOnce, false)));
    assert_eq!(made() - before, 1);
}

#[test]
fn message_that_expires_with_the_group_reaches_no_member() {
    for is_stored in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let open = || Arc::new(Durable::open(directory.path(), Sync::Never, 0).unwrap());
        let durable = is_stored.then(open);
        let mut stage = Stage::with(durable.clone());
        let member = stage.member(1, QoS::AtLeastOnce, false);
        let soon = stage.now.at + Duration::from_secs(1);
        for (payload, expires_at) in [("a", Some(soon)), ("b", None), ("c", Some(soon)), ("d", Some(soon + PATIENCE))] {
            stage.waits(Delivery { expires_at, ..stage.published_as(payload, QoS::AtLeastOnce) });
        }
        assert_eq!(stage.group.waiting(), 4);
        stage.now = Clock::new().moment(soon);
        member.attach(u32::MAX, None);
        stage.group.dispatch_waiting(stage.now, &mut Rng::new(1));
        assert_eq!(payloads(&member), ["b", "d"]);
        let queues = &stage.group.queues;
        assert_eq!((stage.group.waiting(), queues.metrics.dropped_expired.get(), queues.budget.messages()), (0, 2, 0));
        let entries = durable.map_or(2, |durable| durable.spool_stats().waiting);
        assert_eq!(entries, 2, "stored: {is_stored}");
    }
}

const MESSAGES: usize = 40;
const PATIENCE: Duration = Duration::from_secs(60);

/// A page of no messages.
fn nothing() -> PageOf {
    PageOf {
        queue: QueueId(u64::MAX),
        kind: QueueKind::Group,
        ranges: Arc::default(),
        bytes: 1,
        by_reference: None,
        with_expired: false,
    }
}

#[test]
fn refused_message_holds_up_later_ones_of_its_key_and_no_others() {
    let stage = Stage::with(None);
    let sizes = [(1, 400_000), (1, 400_000), (1, 10), (2, 10), (1, 10), (2, 400_000), (3, 10), (2, 10)];
    let deliveries = sizes.into_iter().zip(1..).map(|((key, size), message)| Delivery {
        share_key: NonZeroU64::new(key << 1 | 1),
        message,
        ..stage.published_as("x".repeat(size), QoS::AtLeastOnce)
    });
    let mut refused = Refused::default();
    for delivery in deliveries {
        stage.group.wait(std::iter::once(delivery), stage.now, &mut refused, &mut Rng::new(1));
    }
    assert_eq!(refused.messages, [2, 3, 5, 6, 8]);
    assert_eq!(stage.group.waiting(), 3);
}
