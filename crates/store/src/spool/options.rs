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
    /// The log grows and shrinks in this unit. A larger record gets a segment of the record's size. A log begins with segments
    /// of 1/32 of it, and has them until half of the first is full.
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

/// Smallest segment, in bytes.
const SEGMENT_BYTES_MIN: u32 = 4 << 10;
/// A log with few bytes has segments of this part of the usual size, so that an empty log takes little of the disk.
const FIRST_PART: u32 = 32;
/// Segments of the usual size that a disk has room for, if it is not short.
const PLENTY: u64 = 16;

/// Longest interval: a clock may not represent later times.
const INTERVAL_MAX: Duration = Duration::from_secs(24 * 60 * 60);

impl Options {
    /// Returns the options with each value clamped to its range.
    pub(super) fn clamped(self) -> Self {
        Self {
            segment_bytes: self.segment_bytes.clamp(SEGMENT_BYTES_MIN, 1 << 30).next_multiple_of(8),
            write_bytes: self.write_bytes.max(1 << 10),
            sync: match self.sync {
                Sync::Interval(interval) => Sync::Interval(interval.min(INTERVAL_MAX)),
                sync => sync,
            },
            ..self
        }
    }

    /// Size of the first segments of a log.
    pub(super) fn first_segment_bytes(self) -> u32 {
        (self.segment_bytes / FIRST_PART).next_multiple_of(8).max(SEGMENT_BYTES_MIN)
    }

    /// Whether a log that has `bytes` begins with small segments, on a disk with `available` bytes.
    ///
    /// A disk that is short gets segments of the size of its spare segments: they are the room of acknowledgements.
    pub(super) fn begins_small(self, bytes: u64, available: u64, has_small_spares: bool) -> bool {
        let first = self.first_segment_bytes();
        let is_short = available < PLENTY * u64::from(self.segment_bytes);
        first < self.segment_bytes && if is_short { has_small_spares } else { bytes <= u64::from(first / 2) }
    }
}
