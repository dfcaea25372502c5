use super::*;

pub(in super::super) fn entries(sequences: &[u64]) -> Entries {
    let mut entries = Entries::default();
    sequences.iter().for_each(|&sequence| entries.add(Sequence(sequence), 10));
    entries
}

fn range(first: u64, last: u64) -> RangeInclusive<Sequence> {
    Sequence(first)..=Sequence(last)
}

#[test]
fn small_messages_count_their_records_and_entries() {
    let account = crate::memory::Memory::unlimited().account(crate::memory::Owner::Restored);
    let mut entries = Entries::default();
    (1..=10_000).for_each(|sequence| entries.add(Sequence(sequence), 1));
    assert_eq!((entries.bytes(), entries.disk_bytes()), (10_000, 650_000));
    entries.charge_to(|| Some(Arc::clone(&account)));
    assert_eq!(account.bytes(), 9 * 1024 * 8);
    assert!((1..=5_000).all(|half| entries.take(Sequence(2 * half), 1)));
    entries.charge_to(|| None);
    assert_eq!(account.bytes(), 14 * 1024 * 8, "each range takes memory");
    entries.clear();
    entries.charge_to(|| None);
    assert_eq!((entries.disk_bytes(), account.bytes()), (0, 0));
}

#[test]
fn entries_are_kept_as_ranges_of_offsets() {
    let mut entries = entries(&[5, 6, 7, 10, 9, 20, 12, 11, 6]);
    assert_eq!(entries.ranges, [(5, 7), (9, 12), (20, 20)]);
    assert_eq!((entries.messages(), entries.bytes()), (8, 80));
    let taken = [4, 5, 6, 8, 10, 10, 20].map(|sequence| entries.take(Sequence(sequence), 10));
    assert_eq!(taken, [false, true, true, false, true, false, true]);
    assert_eq!(entries.ranges, [(7, 7), (9, 9), (11, 12)]);
    assert_eq!((entries.messages(), entries.bytes()), (4, 40));
    assert!([12, 7, 9, 11].into_iter().all(|sequence| entries.take(Sequence(sequence), 10)));
    assert_eq!((entries.messages(), entries.bytes(), entries.is_empty()), (0, 0, true));
}

#[test]
fn only_the_given_ranges_are_removed() {
    let ranges = [range(3, 4), range(6, 8), range(11, 30)];
    for (last, left) in [
        (None, &[(1, 2), (5, 5), (9, 10), (31, 40)][..]),
        (Some(7), &[(1, 2), (5, 5), (8, 40)]),
        (Some(5), &[(1, 2), (5, 40)]),
        (Some(2), &[(1, 40)]),
    ] {
        let mut entries = entries(&(1..=40).collect::<Vec<_>>());
        entries.remove(&ranges, last.map(Sequence));
        assert_eq!(entries.ranges, left, "{last:?}");
    }
    let mut entries = entries(&[3, 7, 11]);
    entries.remove(&ranges, None);
    assert_eq!((entries.is_empty(), entries.messages()), (true, 0));
}

#[test]
fn page_is_asked_for_by_ranges() {
    let mut entries = entries(&[]);
    (0..1000).filter(|sequence| sequence % 100 != 99).for_each(|sequence| entries.add(Sequence(sequence), 1));
    assert_eq!(entries.first_page()[..], [range(0, 98), range(100, 198), range(200, 298)]);
    entries.remove(&[range(1, 900)], None);
    assert_eq!(entries.first_page()[..], [range(0, 0), range(901, 998)]);
}

#[test]
fn head_written_below_other_entries_joins_their_range() {
    let mut entries = entries(&[1000]);
    (0..1000).for_each(|sequence| entries.add(Sequence(sequence), 1));
    assert_eq!((entries.ranges.len(), entries.messages()), (1, 1001));
}
