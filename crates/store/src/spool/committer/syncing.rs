//! When the committer confirms its writes.

use std::io;
use std::time::{Duration, Instant};

use super::{Committer, UNSYNCED_BYTES_MAX};
use crate::Sync;

impl Committer {
    pub(super) fn sync(&mut self) -> io::Result<()> {
        if let Some(open) = self.open.as_mut().filter(|open| open.unsynced_bytes > 0) {
            let start = Instant::now();
            let number = open.number;
            let result = open.file.sync();
            open.unsynced_bytes = 0;
            result.map_err(|error| self.named(number, &error))?;
            self.last_sync = Instant::now();
            let took = self.last_sync - start;
            self.sync_ns += took.as_nanos() as u64;
            self.pause.confirmed(took);
        }
        self.synced = self.written;
        Ok(())
    }

    /// Waits until written records survive the end of the process, also at a copy.
    pub(super) fn settle(&self) -> io::Result<()> {
        let Some(open) = self.open.as_ref().filter(|open| open.unsynced_bytes > 0) else { return Ok(()) };
        open.file.settle().map_err(|error| self.named(open.number, &error))
    }

    pub(super) fn is_sync_due(&self) -> bool {
        let unsynced_bytes = self.open.as_ref().map_or(0, |open| open.unsynced_bytes);
        if unsynced_bytes == 0 || self.is_closing {
            return unsynced_bytes > 0;
        }
        let Sync::Interval(interval) = self.options.sync else { return false };
        unsynced_bytes > UNSYNCED_BYTES_MAX || self.last_sync.elapsed() >= interval
    }

    /// Time until the next action that needs no new work, if there is one.
    pub(super) fn until_due(&self) -> Option<Duration> {
        let is_unsynced = self.open.as_ref().is_some_and(|open| open.unsynced_bytes > 0);
        let sync = match self.options.sync {
            Sync::Interval(interval) if is_unsynced => Some(interval.saturating_sub(self.last_sync.elapsed())),
            _ => None,
        };
        let tries = [self.prepare_after, self.reclaim.retry_at()].into_iter().flatten();
        let tries = tries.map(|time| time.saturating_duration_since(Instant::now()));
        sync.into_iter().chain(tries).min()
    }
}
