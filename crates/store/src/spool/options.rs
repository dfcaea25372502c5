//! What an operator can choose.

use std::time::Duration;

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
}

impl Default for Options {
    fn default() -> Self {
        Self { sync: Sync::Always, segment_bytes: 32 << 20, write_bytes: 1 << 20, congested_bytes: 16 << 20 }
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

/// When what was appended is on the disk, and so what can be lost.
///
/// | policy | killed (`kill -9`) | power cut |
/// |---|---|---|
/// | `Always` | nothing that was durable | nothing that was durable |
/// | `Interval` | nothing that was durable | what was appended in the last interval |
/// | `Never` | nothing that was durable | what the system had not written yet, at most a segment |
///
/// What is lost is always the end of the log: what remains has no gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// Durable is what `fdatasync` has confirmed. All that came while one was running is confirmed by the next.
    Always,
    /// Durable is what was written. It is confirmed this often, at least daily, and whenever 8 MiB are not.
    Interval(Duration),
    /// Durable is what was written. It is confirmed when a segment is full; before, the system decides.
    Never,
}
