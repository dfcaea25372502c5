use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Append { gap: u64, segment: u32 },
    Put { sequence: u64, segment: u32 },
    Take(u64),
    TakeRange(u64, u64),
}

fn step() -> impl Strategy<Value = Step> {
    // Entries of a chunk differ by at most 32 bits.
    const FAR: u64 = 1 << 32;
    let gap = prop_oneof![60 => 1..3_u64, 1 => FAR - 3..FAR + 3];
    let sequence = || prop_oneof![8 => 0..200_u64, 1 => FAR - 3..FAR + 200, 1 => 2 * FAR - 3..2 * FAR + 200];
    prop_oneof![
        4 => (gap, 1..4_u32).prop_map(|(gap, segment)| Step::Append { gap, segment }),
        1 => (sequence(), 1..4_u32).prop_map(|(sequence, segment)| Step::Put { sequence, segment }),
        1 => sequence().prop_map(Step::Take),
        1 => (sequence(), 0..20_u64).prop_map(|(from, count)| Step::TakeRange(from, from + count)),
    ]
}

proptest! {
    #[test]
    fn queue_matches_a_map_from_sequences(steps in prop::collection::vec(step(), 0..400)) {
        let (mut queue, mut model) = (Queue::default(), BTreeMap::new());
        let mut last = 0;
        for (index, step) in steps.into_iter().enumerate() {
            let put = |queue: &mut Queue, model: &mut BTreeMap<_, _>, sequence, segment| {
                let kind = [Kind::Message, Kind::Moved, Kind::Mark][index % 3];
                let position = Position::new(segment, index as u32 * 8);
                let reference = Reference { sequence, position, kind };
                assert_eq!(queue.put(reference, 70), model.insert(sequence, reference));
            };
            match step {
                Step::Append { gap, segment } => {
                    last += gap;
                    put(&mut queue, &mut model, last, segment);
                }
                Step::Put { sequence, segment } => {
                    last = last.max(sequence);
                    put(&mut queue, &mut model, sequence, segment);
                }
                Step::Take(sequence) => {
                    let expected = model.remove(&sequence).map(|reference| (reference, 70));
                    prop_assert_eq!(queue.take(sequence), expected);
                }
                Step::TakeRange(from, to) => {
                    let mut taken = Vec::new();
                    queue.take_range(from, to, |reference| taken.push(reference));
                    let expected: Vec<_> = model.range(from..=to).map(|(_, &reference)| reference).collect();
                    model.retain(|sequence, _| !(from..=to).contains(sequence));
                    prop_assert_eq!(taken, expected);
                }
            }
            prop_assert_eq!(queue.len(), model.len());
            prop_assert_eq!(queue.bytes(), 70 * model.len() as u64);
            prop_assert_eq!(queue.first(), model.keys().next().copied());
            prop_assert_eq!(queue.last(), model.keys().next_back().copied());
            let from = last / 2;
            let expected: Vec<_> = model.range(from..).map(|(_, &reference)| reference).collect();
            prop_assert_eq!(queue.from(from).collect::<Vec<_>>(), expected);
            prop_assert_eq!(queue.get(from), model.get(&from).copied());
        }
    }
}

#[test]
fn long_queue_takes_eight_bytes_a_message_and_frees_them() {
    let mut queue = Queue::default();
    for sequence in 0..100_000 {
        let position = Position::new(1 + sequence as u32 / 30_000, 8 * sequence as u32);
        queue.put(Reference { sequence, position, kind: Kind::Message }, sequence);
    }
    let entries = |queue: &Queue| queue.chunks.iter().map(|chunk| chunk.entries.capacity()).sum::<usize>();
    assert!(entries(&queue) <= 102_400 && queue.chunks.len() <= 104, "{} {}", entries(&queue), queue.chunks.len());
    assert_eq!(queue.bytes(), (0..100_000).sum());
    // Body sizes grow, so the average differs from the removed bytes only within a chunk.
    for sequence in 0..50_000 {
        queue.take_range(sequence, sequence, |_| {});
    }
    let bytes: u64 = (50_000..100_000).sum();
    assert!(queue.bytes().abs_diff(bytes) < bytes / 1_000, "{} {bytes}", queue.bytes());
    queue.take_range(0, 99_998, |_| {});
    assert!(entries(&queue) <= CHUNK_MAX && queue.chunks.capacity() <= KEPT_MAX);
    queue.take_range(0, u64::MAX, |_| {});
    assert!(queue.is_empty() && entries(&queue) <= KEPT_MAX);
}
