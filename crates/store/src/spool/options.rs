//! What an operator can choose.

use std::time::Duration;

use crate::Sync;

/// How a spool is run. [`Default`] is what the broker does when nobody says otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// When what was appended is on the disk. Default: [`Sync::Always`].
    pub sync: Sync,
    /// Size of a segment file, in bytes; default 32 MiB, kept between 4 KiB and 1 GiB. Space is taken up and given back
    /// in such pieces. A record that is larger gets a segment of its own size.
    pub segment_bytes: u32,
    /// Most that one write takes, in bytes; default 1 MiB. A record that is larger is one write.
    pub write_bytes: usize,
    /// From how many bytes that are not on the disk [`Spool::is_congested`](super::Spool::is_congested) says so; default
    /// 16 MiB. They are in memory until then, and nothing but the caller stops them from becoming more.
    pub congested_bytes: usize,
    /// Most that all files of the log and [`Spool::set_bytes_elsewhere`](super::Spool::set_bytes_elsewhere) may take, in
    /// bytes; default 0, no bound but the disk's. Close to it [`Spool::take_room`](super::Spool::take_room) refuses.
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

/// A time further away may be none that a clock has.
const INTERVAL_MAX: Duration = Duration::from_secs(24 * 60 * 60);

impl Options {
    /// These, with what is out of range brought into it.
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
