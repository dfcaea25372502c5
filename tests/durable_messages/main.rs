//! Messages that wait or are under way when the broker dies: there when it is back, as they were acknowledged.
//!
//! [`crash`] kills the broker under load again and again, `TENBIN_CRASH_ROUNDS` times; [`power_cut`] takes what its disk had
//! not confirmed as well, `TENBIN_POWER_CUTS` times. Both print the seed of their random choices; `TENBIN_CRASH_SEED` repeats
//! these, though not what threads and sockets make of them.

#[path = "../support/mod.rs"]
mod support;

mod aliases;
mod answers;
mod crash;
mod drained_disk;
mod full_disk;
mod half_way;
mod judge;
mod ledger;
mod over;
mod parted;
mod power_cut;
mod publisher;
mod receiver;
mod rights;
mod shared;
mod unreadable;
mod waiting;
mod world;

use std::io::Write as _;

use support::{ConfigFile, seed};

/// A broker with room for everything that may wait.
fn roomy(store: &str) -> ConfigFile {
    ConfigFile::new(&format!("[queue]\nmessages_maximum = 1000000\nbytes_maximum = 1073741824\n[store]\n{store}\n"))
}

fn announced_seed() -> u64 {
    let seed = seed("TENBIN_CRASH_SEED");
    let _ = writeln!(std::io::stderr(), "TENBIN_CRASH_SEED={seed}");
    seed
}
