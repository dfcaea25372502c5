//! Tests of reclaiming space and copying living records.

use super::{
    SMALL, message,
    model::Call,
    place,
    rig::{End, Rig},
    untagged,
};
use crate::spool::{Body, Health, Origin, QueueId};

/// Appends and acknowledges messages, like a receiver that keeps up.
fn flow(rig: &mut Rig, queue: u64, sequences: std::ops::Range<u64>) {
    for sequence in sequences {
        rig.call(&message(queue, sequence));
        rig.call(&Call::Acknowledge { queue, from: sequence, to: sequence });
        if sequence % 5 == 0 {
            assert!(rig.commit());
        }
    }
    assert!(rig.commit());
}

#[test]
fn fast_receiver_needs_few_segments_and_no_copying() {
    let mut rig = Rig::new(SMALL);
    flow(&mut rig, 1, 1..2_000);
    let stats = rig.spool.stats();
    assert!(stats.segments <= 3 && stats.copied_bytes == 0, "{stats:?}");
    assert!(stats.written_bytes > 400_000, "{stats:?}");
    // One being written, one made ahead, two spares, and those about to be removed.
    assert!(rig.disk.names().len() <= 7, "{:?}", rig.disk.names());
    rig.assert_as_model();
    rig.end(End::Killed).assert_as_model();
}

#[test]
fn old_backlog_is_copied_and_log_size_stays_bounded() {
    let mut rig = Rig::new(SMALL);
    // Everything that can live long: a message in two queues, a moved one, a mark, an identifier with and without its
    // message.
    let origin = |identifier| Some(Origin { queue: QueueId(9), identifier });
    rig.call(&Call::Message {
        places: vec![untagged(place(2, 1)), untagged(place(3, 1))],
        origin: origin(1),
        body: vec![1; 300],
    });
    rig.call(&Call::Message {
        places: vec![untagged(place(2, 2)), untagged(place(3, 2))],
        origin: origin(2),
        body: vec![2; 300],
    });
    rig.call(&Call::Message { places: vec![], origin: origin(3), body: vec![] });
    rig.call(&message(2, 3));
    rig.call(&Call::Mark { place: place(2, 1), mark: 5, body: Body::Done });
    rig.call(&Call::Mark { place: place(2, 3), mark: 6, body: Body::Kept });
    rig.call(&Call::Move { from: place(3, 2), to: place(4, 1), tag: None });
    rig.call(&Call::Acknowledge { queue: 2, from: 2, to: 2 });
    (4..40).for_each(|sequence| rig.call(&message(2, sequence)));
    flow(&mut rig, 1, 1..2_000);
    let stats = rig.spool.stats();
    assert!(stats.copied_bytes > 0 && stats.copied_bytes < stats.written_bytes / 2 + 20_000, "{stats:?}");
    assert!(stats.log_bytes < 3 * stats.live_bytes + 6 * 4096, "{stats:?}");
    assert_eq!(rig.spool.health(), Health::Writing);
    rig.assert_as_model();
    let rig = rig.end(End::Killed);
    rig.assert_as_model();
    rig.end(End::Closed).assert_as_model();
}

#[test]
fn tags_of_messages_and_moves_are_copied_with_messages() {
    let mut rig = Rig::new(SMALL);
    let tagged = |queue, sequence, tag: &[u8]| (place(queue, sequence), tag.to_vec());
    for sequence in 1..20 {
        let places =
            vec![tagged(2, sequence, b"two"), tagged(3, sequence, &[sequence as u8; 255]), tagged(4, sequence, b"")];
        rig.call(&Call::Message { places, origin: None, body: vec![sequence as u8; 50] });
    }
    // The moves' records are in other segments than the messages.
    flow(&mut rig, 1, 1..20);
    for sequence in 1..20 {
        let tag = [None, Some(b"new".to_vec()), Some(vec![])][sequence as usize % 3].clone();
        rig.call(&Call::Move { from: place(2, sequence), to: place(5, sequence), tag });
        rig.call(&Call::Move { from: place(3, sequence), to: place(6, sequence), tag: Some(vec![9; 9]) });
        rig.call(&Call::Move { from: place(6, sequence), to: place(7, sequence), tag: None });
    }
    flow(&mut rig, 1, 20..100);
    rig.assert_as_model();
    let oldest = rig.spool.shared.log().index.segments.oldest();
    flow(&mut rig, 1, 100..2_000);
    assert!(rig.spool.shared.log().index.segments.oldest() > oldest + 50);
    assert_eq!(rig.spool.health(), Health::Writing);
    rig.assert_as_model();
    rig.end(End::Killed).assert_as_model();
}

#[test]
fn marks_are_copied_with_their_messages() {
    let mut rig = Rig::new(SMALL);
    (1..30).for_each(|sequence| rig.call(&message(2, sequence)));
    // The marks are in other segments than the messages; some are set more than once.
    flow(&mut rig, 1, 1..20);
    let mark = |rig: &mut Rig, from, count, mark, body| {
        for (sequence, mark) in (from..from + count).zip(mark..) {
            rig.call(&Call::Mark { place: place(2, sequence), mark, body });
        }
    };
    mark(&mut rig, 1, 20, 100, Body::Kept);
    flow(&mut rig, 1, 20..40);
    mark(&mut rig, 3, 6, 202, Body::Done);
    mark(&mut rig, 15, 5, 7, Body::Kept);
    flow(&mut rig, 1, 40..60);
    mark(&mut rig, 4, 2, 9, Body::Kept);
    rig.call(&Call::Move { from: place(2, 12), to: place(3, 1), tag: None });
    rig.call(&Call::Mark { place: place(3, 1), mark: 77, body: Body::Kept });
    for sequences in [60..300, 300..2_000] {
        let oldest = rig.spool.shared.log().index.segments.oldest();
        flow(&mut rig, 1, sequences);
        assert!(rig.spool.shared.log().index.segments.oldest() > oldest + 8);
        rig.assert_as_model();
        rig = rig.end(End::Killed);
        rig.assert_as_model();
        assert_eq!(rig.spool.marks(QueueId(2)).len(), 19);
    }
    rig.call(&Call::Acknowledge { queue: 2, from: 0, to: 100 });
    assert!(rig.spool.marks(QueueId(2)).is_empty());
}

#[test]
fn leftovers_of_interrupted_reclaim_are_removed() {
    let mut rig = Rig::new(SMALL);
    flow(&mut rig, 1, 1..60);
    let before = rig.disk.copy();
    flow(&mut rig, 1, 60..200);
    rig.call(&message(1, 200));
    let change = |disk: &super::memory_disk::MemoryDisk| {
        for name in before.names() {
            if !disk.names().contains(&name) {
                disk.put(&name, before.content(&name));
            }
        }
        disk.put("0000000001.spare", vec![7; 100]);
        disk.put("0000000002.log", vec![7; 100]);
    };
    let mut rig = rig.try_end(End::Closed, change).unwrap();
    let left = rig.disk.names();
    assert!(!left.contains(&"0000000001.spare".to_owned()) && !left.contains(&"0000000002.log".to_owned()), "{left:?}");
    assert!(rig.commit());
    rig.assert_as_model();
}
