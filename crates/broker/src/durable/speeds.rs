use std::time::Instant;

use tenbin_store::state::Table;

use super::record::SpeedRecord;
use super::wall_clock::WallClock;
use super::{Changes, Durable};
use crate::values::{KnownSpeed, SpeedChanges};

impl Durable {
    /// Stores changed speeds.
    pub(crate) fn store_speeds(&self, SpeedChanges { kept, gone }: SpeedChanges) {
        let clock = WallClock::now();
        let mut changes = Changes::default();
        for KnownSpeed { name, processing_time, kept_at } in kept {
            let record = SpeedRecord { processing_time, kept: clock.to_wall(Some(kept_at)) };
            changes.put(Table::Speeds, name.to_le_bytes().to_vec(), record.encode());
        }
        gone.iter().for_each(|name| changes.remove(Table::Speeds, name.to_le_bytes().to_vec()));
        self.make(&changes);
    }
}

/// The speeds of the last run, the oldest first.
pub(super) fn known(records: Vec<(u64, SpeedRecord)>, clock: WallClock, now: Instant) -> Vec<KnownSpeed> {
    let speed = |(name, SpeedRecord { processing_time, kept }): (u64, SpeedRecord)| {
        // An `Instant` cannot lie before the start of the machine.
        let kept_at = now.checked_sub(clock.since(kept)).unwrap_or(now);
        KnownSpeed { name, processing_time, kept_at }
    };
    let mut known = records.into_iter().map(speed).collect::<Vec<_>>();
    known.sort_by_key(|speed| speed.kept_at);
    known
}
