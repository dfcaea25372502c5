//! Queued and in-flight messages across a crash of the broker: after the restart they are as acknowledged.
//!
//! [`crash`] kills the broker under load, `TENBIN_CRASH_ROUNDS` times. [`power_cut`] also discards unconfirmed disk
//! writes, `TENBIN_POWER_CUTS` times. Both print the seed of their random choices. `TENBIN_CRASH_SEED` repeats these
//! choices, but not the timing of threads and sockets.

use crate::ledger::faults;
use crate::load;

mod aliases;
mod clock;
mod crash;
mod damage;
mod drained_disk;
mod full_disk;
mod half_way;
mod legal_part;
mod mistakes;
mod over;
mod parted;
mod power_cut;
mod rights;
mod shared;
mod unreadable;
mod waiting;

use std::io::Write as _;

use crate::support::{ConfigFile, seed};
use load::{Cast, Habit, Trait, World};
use tenbin_codec::ProtocolVersion::{V5, V311};
use tenbin_codec::QoS::{AtLeastOnce, ExactlyOnce};

/// A configuration with room for all queued messages.
fn roomy(store: &str) -> ConfigFile {
    ConfigFile::new(&format!("[queue]\nmessages_maximum = 1000000\nbytes_maximum = 1073741824\n[store]\n{store}\n"))
}

fn announced_seed() -> u64 {
    let seed = seed("TENBIN_CRASH_SEED");
    let _ = writeln!(std::io::stderr(), "TENBIN_CRASH_SEED={seed}");
    seed
}

/// Clients of all kinds, with persistent sessions for all receivers.
fn world(seed: u64) -> World {
    let publishers = vec![
        Trait::new(V5, true, &[AtLeastOnce]),
        Trait::new(V5, true, &[ExactlyOnce]),
        Trait::new(V311, true, &[ExactlyOnce]),
        Trait::new(V311, true, &[AtLeastOnce, ExactlyOnce]),
        Trait::new(V5, false, &[AtLeastOnce]),
        Trait::new(V5, false, &[ExactlyOnce]),
    ];
    let receivers = vec![
        Habit::new(V5, ExactlyOnce),
        Habit::new(V311, AtLeastOnce),
        Habit { hesitates_percent: 60, receive_maximum: Some(10), ..Habit::new(V5, ExactlyOnce) },
        Habit { hesitates_percent: 60, ..Habit::new(V311, ExactlyOnce) },
        Habit { wanders: true, ..Habit::new(V5, ExactlyOnce) },
        Habit { wanders: true, ..Habit::new(V311, ExactlyOnce) },
        Habit { wanders: true, ..Habit::new(V5, AtLeastOnce) },
        Habit { filter: SHARED, ..Habit::new(V5, ExactlyOnce) },
        Habit { filter: SHARED, wanders: true, ..Habit::new(V5, ExactlyOnce) },
        Habit {
            filter: SHARED,
            wanders: true,
            receive_maximum: Some(20),
            concurrency: Some(2),
            ..Habit::new(V5, ExactlyOnce)
        },
    ];
    World::new("TENBIN_CRASH_SEED", seed, Cast { publishers, receivers, mortals: 0, returns: false })
}

const SHARED: &str = "$share/crew/group/#";
