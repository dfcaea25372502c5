//! Stores remembered speeds at intervals: losing one costs little.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenbin_store::state::Table;

use super::Changes;
use super::record::SpeedRecord;
use super::wall_clock::WallClock;
use crate::broker_state::BrokerState;
use crate::values::{KnownSpeed, SpeedChanges};

/// Stores changed speeds each minute, for as long as the broker runs.
pub(crate) async fn keep_speeds(shared: Arc<BrokerState>) {
    loop {
        tokio::time::sleep(PAUSE).await;
        keep_speeds_now(&shared);
    }
}

/// Stores changed speeds now; also called at the end.
pub(crate) fn keep_speeds_now(shared: &BrokerState) {
    let Some(durable) = &shared.durable else { return };
    let SpeedChanges { kept, gone } = shared.speeds.take_changes();
    let clock = WallClock::now();
    let mut changes = Changes::default();
    for KnownSpeed { name, processing_time, kept_at } in kept {
        let record = SpeedRecord { processing_time, kept: clock.to_wall(Some(kept_at)) };
        changes.put(Table::Speeds, name.to_le_bytes().to_vec(), record.encode());
    }
    gone.iter().for_each(|name| changes.remove(Table::Speeds, name.to_le_bytes().to_vec()));
    durable.make(&changes);
}

const PAUSE: Duration = Duration::from_secs(60);

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
