//! Tests of the whole spool, in memory and on a real disk.

mod calls;
mod damage;
mod directory;
mod full;
mod leaving;
mod memory_disk;
mod model;
mod opening;
mod properties;
mod reclaiming;
mod rig;
mod waking;

use proptest::test_runner::{Config as ProptestConfig, RngSeed};

pub(crate) use calls::{Caller, Wish, wish};
pub(crate) use memory_disk::MemoryDisk;
pub(crate) use model::Model;
pub(crate) use rig::{End, Rig};

use super::{Options, Place, QueueId, Room, Sequence};
use crate::Sync;

/// Segments so small that a few messages fill one.
pub(crate) const SMALL: Options =
    Options { sync: Sync::Always, segment_bytes: 4096, write_bytes: 1024, congested_bytes: 8192, bytes_maximum: 0 };

/// For test messages that need no booking.
static UNBOOKED: Room = Room::new(0);

/// Uses the same cases each time, unless `PROPTEST_RNG_SEED` or `PROPTEST_CASES` is set.
pub(crate) fn fixed(cases: u32) -> ProptestConfig {
    let asked = ProptestConfig::default();
    let is_set = |name| std::env::var_os(name).is_some();
    ProptestConfig {
        cases: if is_set("PROPTEST_CASES") { asked.cases } else { cases },
        rng_seed: if is_set("PROPTEST_RNG_SEED") { asked.rng_seed } else { RngSeed::Fixed(7) },
        failure_persistence: None,
        ..asked
    }
}

fn untagged(place: Place) -> (Place, Vec<u8>) {
    (place, Vec::new())
}

fn place(queue: u64, sequence: u64) -> Place {
    Place { queue: QueueId(queue), sequence: Sequence(sequence) }
}

/// A call that appends a message of 200 bytes.
pub(crate) fn message(queue: u64, sequence: u64) -> model::Call {
    model::Call::Message {
        places: vec![untagged(place(queue, sequence))],
        origin: None,
        body: vec![sequence as u8; 200],
    }
}
