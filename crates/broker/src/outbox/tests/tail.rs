//! The on-disk backlog of a queue.

use super::*;
use crate::backlog::{DiskWork, NextPage};
use crate::durable::{EntryRanges, Location, Page, Sequence};
use crate::values::Bound;

fn outbox(messages: usize) -> Outbox {
    outbox_with(messages, 1000)
}

fn outbox_with(messages: usize, stored_bytes: u64) -> Outbox {
    let limits = Limits { stored_bytes, has_store: true, ..Limits::for_tests(messages, WhenFull::DropOldest) };
    let outbox = with_limits(limits, &Arc::new(Budget::new(1 << 20)));
    outbox.store_in(Some(StoredQueue::numbered(1)));
    outbox
}

fn delivery(number: u32) -> Delivery {
    let stored = Some(Location::Own(number.into()).to_stored());
    Delivery { stored, ..super::delivery(QoS::AtLeastOnce, number) }
}

fn push(outbox: &Outbox, numbers: impl IntoIterator<Item = u32>) {
    assert_eq!(super::push(outbox, numbers.into_iter().map(delivery)).len(), 0);
}

fn page(ranges: &EntryRanges, numbers: impl IntoIterator<Item = u32>) -> Page {
    let messages = numbers.into_iter().map(|number| (Sequence(number.into()), Some(delivery(number)))).collect();
    Page { ranges: Arc::clone(ranges), messages, is_broken: false }
}

fn next(outbox: &Outbox) -> Option<EntryRanges> {
    match outbox.next_page(Instant::now()) {
        NextPage::Read(page) => Some(page.ranges),
        NextPage::None | NextPage::At(_) => None,
    }
}

/// Begins to read a page whose first entry is `first`.
fn read_from(outbox: &Outbox, first: u64) -> EntryRanges {
    let ranges = next(outbox).expect("a page");
    assert_eq!(*ranges[0].start(), Sequence(first));
    ranges
}

fn refill(outbox: &Outbox, page: Page) -> Vec<Sequence> {
    outbox.refill(page, Instant::now(), |_| false).done
}

#[test]
fn stored_messages_of_absent_client_are_read_back_in_order() {
    let outbox = outbox(100);
    push(&outbox, 1..=4);
    assert!(outbox.has_tail() && taken(&outbox, usize::MAX).is_empty());
    outbox.attach(u32::MAX, None);
    let ranges = read_from(&outbox, 1);
    assert!(next(&outbox).is_none(), "one page at a time");
    push(&outbox, [5]);
    refill(&outbox, page(&ranges, [1, 2]));
    push(&outbox, [6]);
    assert_eq!(taken(&outbox, usize::MAX), [1, 2]);
    refill(&outbox, page(&read_from(&outbox, 3), [3, 4, 5, 6]));
    assert!(!outbox.has_tail());
    push(&outbox, [7]);
    assert_eq!(taken(&outbox, usize::MAX), [3, 4, 5, 6, 7]);
    assert!(next(&outbox).is_none());
}

#[test]
fn messages_without_room_stay_on_disk_in_order() {
    let outbox = outbox(2);
    outbox.attach(u32::MAX, None);
    push(&outbox, 1..=3);
    assert_eq!(taken(&outbox, usize::MAX), [1, 2]);
    push(&outbox, [4]);
    assert!(taken(&outbox, usize::MAX).is_empty());
    refill(&outbox, page(&read_from(&outbox, 3), [3, 4]));
    assert_eq!(taken(&outbox, usize::MAX), [3, 4]);
}

#[test]
fn detach_moves_head_to_backlog_and_voids_pending_page() {
    let outbox = outbox(100);
    outbox.attach(u32::MAX, None);
    push(&outbox, 1..=2);
    assert_eq!(taken(&outbox, usize::MAX), [1, 2], "under way");
    push(&outbox, 3..=4);
    assert_eq!(outbox.detach_all().len(), 0);
    push(&outbox, [5]);
    outbox.attach(u32::MAX, None);
    let ranges = read_from(&outbox, 3);
    outbox.detach_all();
    refill(&outbox, page(&ranges, [3, 4, 5]));
    outbox.attach(u32::MAX, None);
    let next = read_from(&outbox, 3);
    refill(&outbox, page(&ranges, [3, 4, 5]));
    assert!(taken(&outbox, usize::MAX).is_empty());
    // In-flight messages are not queued again.
    refill(&outbox, page(&next, [1, 2, 3, 4, 5]));
    assert_eq!(taken(&outbox, usize::MAX), [3, 4, 5]);
}

#[test]
fn expired_or_missing_entries_do_not_block_the_backlog() {
    let outbox = outbox(100);
    push(&outbox, 1..=3);
    outbox.attach(u32::MAX, None);
    let ranges = read_from(&outbox, 1);
    let over = refill(&outbox, Page { ranges, messages: vec![(Sequence(2), None)], is_broken: false });
    assert_eq!(over, [Sequence(2)]);
    let ranges = read_from(&outbox, 3);
    let broken = outbox.refill(Page { ranges, is_broken: true, ..Page::default() }, Instant::now(), |_| false);
    assert!(next(&outbox).is_none(), "it rests");
    let NextPage::Read(of) = outbox.next_page(broken.failed.unwrap().retry_at) else { panic!("nobody knows") };
    refill(&outbox, Page { ranges: of.ranges, ..Page::default() });
    assert!(next(&outbox).is_none() && !outbox.has_tail());
}

#[test]
fn empty_backlog_is_never_over_quota() {
    let outbox = outbox_with(100, 0);
    // A message is being written.
    let change = |change: fn(&mut Spill)| {
        let mut state = outbox.state();
        change(state.spill.get_or_insert_default());
        outbox.publish(&mut state);
    };
    change(|spill| {
        spill.place(Sequence(1), &mut delivery(1), &mut DiskWork::default());
        spill.entries.take(Sequence(1), 0);
    });
    assert!(!outbox.is_over_quota(Instant::now()));
    change(|spill| spill.entries.add(Sequence(1), 1));
    assert!(outbox.is_over_quota(Instant::now()));
}

#[test]
fn session_disk_quota_is_enforced_and_freed() {
    let outbox = outbox_with(100, 20_000); // about 73 for each message
    push(&outbox, 1..=100);
    assert!(!outbox.is_over_quota(Instant::now()));
    push(&outbox, 101..=400);
    assert!(outbox.is_over_quota(Instant::now()));
    outbox.clear();
    assert!(!outbox.is_over_quota(Instant::now()) && !outbox.has_tail());
}

#[test]
fn messages_without_room_on_disk_are_dropped_without_the_lock() {
    let outbox = outbox(1);
    let topic = TopicName::try_from("t").unwrap();
    let locked = outbox.state();
    assert_eq!(outbox.over_quota(Instant::now()), None);
    outbox.drop_newest(&topic, Bound::StoreBytes, Instant::now());
    drop(locked);
    assert_eq!(outbox.common.concerns.take_dropped(), Some((1, Bound::StoreBytes)));
    let outbox = outbox_with(100, 1);
    push(&outbox, 1..=2);
    assert_eq!(outbox.over_quota(Instant::now()), Some(Bound::StoredQueueBytes));
}
