//! Settings of a spool.

use std::time::Duration;

use crate::Sync;

/// Settings of a spool. [`Default`] gives the broker's defaults.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// When a record counts as durable. Default: [`Sync::Always`].
    pub sync: Sync,
    /// Size of a segment file, in bytes. Default 32 MiB, clamped to 4 KiB to 1 GiB.
    ///
    /// The log grows and shrinks in this unit. A larger record gets a segment of its own size.
    pub segment_bytes: u32,
    /// Most bytes of one write. Default 1 MiB. A larger record is one write.
    pub write_bytes: usize,
    /// Unwritten bytes above which [`Spool::is_congested`](super::Spool::is_congested) is true. Default 16 MiB.
    ///
    /// They stay in memory, and only the caller limits their growth.
    pub congested_bytes: usize,
    /// Most bytes of all files of the log and [`Spool::set_bytes_elsewhere`](super::Spool::set_bytes_elsewhere)
    /// together.
    ///
    /// Default 0: only the disk is the limit. [`Spool::take_room`](super::Spool::take_room) refuses when the bound is
    /// near.
    pub bytes_maximum: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            sync: Sync::Always,
            segment_bytes: 32 << 20,
            write_bytes: 1 << 20,
            congested_bytes: 16 << 20,
            bytes_maximum: 0,
        }
    }
}

/// Longest interval: a clock may not represent later times.
const INTERVAL_MAX: Duration = Duration::from_secs(24 * 60 * 60);

impl Options {
    /// Returns the options with each value clamped to its range.
    pub(super) fn clamped(self) -> Self {
        Self {
            segment_bytes: self.segment_bytes.clamp(4 << 10, 1 << 30).next_multiple_of(8),
            write_bytes: self.write_bytes.max(1 << 10),
            sync: match self.sync {
                Sync::Interval(interval) => Sync::Interval(interval.min(INTERVAL_MAX)),
                sync => sync,
            },
            ..self
        }
    }
}
