use proptest::prelude::*;

use super::*;

const SPOT: Spot = Spot { seed: 77, offset: 4096 };

#[test]
fn every_plain_record_round_trips() {
    let (a, b) = (place(1, u64::MAX), place(2, 0));
    let origin = Origin { queue: QueueId(9), identifier: 65_535 };
    for record in [
        Record::Begin { oldest: u32::MAX, previous_end: 64 },
        Record::Synced(Position::new(3, 8)),
        Record::Acknowledge { queue: QueueId(1), from: Sequence(2), to: Sequence(3) },
        Record::Mark(MarkRun::one(a, 7, Body::Kept)),
        Record::Mark(MarkRun { to: Sequence(1_023), ..MarkRun::one(b, u32::MAX - 1_023, Body::Done) }),
        Record::Hold(origin),
        Record::Release(origin),
        Record::Move { from: a, to: b, tag: None },
        Record::Move { from: a, to: b, tag: Some(b"") },
        Record::Move { from: a, to: b, tag: Some(&[7; TAG_BYTES_MAX]) },
        Record::DropQueue(QueueId(5)),
        Record::Reclaimed { oldest: 12 },
        Record::Closed,
    ] {
        let mut bytes = Vec::new();
        write_plain(&mut bytes, SPOT, &record);
        assert_eq!(length_at(&bytes), Some(plain_bytes(&record)));
        assert_eq!(parse(&bytes[..plain_bytes(&record)], SPOT), Ok(record));
    }
}

#[test]
fn record_of_other_offset_or_segment_is_invalid() {
    let mut bytes = Vec::new();
    write_plain(&mut bytes, SPOT, &Record::DropQueue(QueueId(5)));
    assert_eq!(parse(&bytes, Spot { offset: 4104, ..SPOT }), Err(Bad::Checksum));
    assert_eq!(parse(&bytes, Spot { seed: seed_of(2, 1), ..SPOT }), Err(Bad::Checksum));
}

proptest! {
    #[test]
    fn message_record_round_trips(
        places in prop::collection::vec((any::<u64>(), any::<u64>()), 0..20),
        tags in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..=TAG_BYTES_MAX), 0..5),
        marks in prop::collection::vec(any::<u32>(), 0..20),
        origin in prop::option::of((any::<u64>(), any::<u16>())),
        body in prop::collection::vec(any::<u8>(), 0..100),
        cut in 0..100_usize,
    ) {
        let places: Vec<Place> = places.into_iter().map(|(queue, sequence)| place(queue, sequence)).collect();
        let tag = |index: usize| -> &[u8] { tags.get(index).map_or(&[], Vec::as_slice) };
        let mark = |index: usize| marks.get(index).copied().unwrap_or(0);
        let entries = places.iter().enumerate();
        let entries = entries.map(|(index, &place)| Entry { place, tag: tag(index), mark: mark(index) });
        let origin = origin.map(|(queue, identifier)| Origin { queue: QueueId(queue), identifier });
        let (one, other) = body.split_at(cut.min(body.len()));
        let mut bytes = Vec::new();
        let shape = Shape::new(entries.clone(), origin.is_some(), body.len());
        write_message(&mut bytes, SPOT, shape, entries.clone(), origin, &[one, other]);
        let length = shape.bytes();
        prop_assert_eq!(bytes.len(), padded(length));
        let Ok(Record::Message(message)) = parse(&bytes[..length], SPOT) else { panic!("no message") };
        prop_assert_eq!(message.origin, origin);
        prop_assert!(message.entries().eq(entries.clone()));
        for entry in entries {
            prop_assert_eq!(message.tag(entry.place), Some(entry.tag));
        }
        prop_assert_eq!(message.tag(place(1, 1)), None);
        prop_assert_eq!(message.body, body);
    }

    #[test]
    fn arbitrary_bytes_never_panic_the_parser(
        bytes in prop::collection::vec(any::<u8>(), 0..80),
        kind in 0..13_u8,
        flags in 0..9_u8,
        places in 0..5_u8,
    ) {
        // First as they are, then with a valid checksum.
        let mut bytes = bytes;
        let _ = parse(&bytes, SPOT);
        if bytes.len() >= HEADER {
            bytes[8] = kind;
            bytes[9] = flags;
            bytes[12..16].copy_from_slice(&[places, 0, 0, 0]);
            let crc = checksum(SPOT, bytes.len() as u32, &bytes[8..]);
            bytes[4..8].copy_from_slice(&crc.to_le_bytes());
            if let Ok(Record::Message(message)) = parse(&bytes, SPOT) {
                prop_assert!(message.entries().all(|entry| message.tag(entry.place).is_some()));
            }
        }
    }
}
