use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use super::bytes::{Fields, RecordError};

/// One moment on both clocks: that of the process, which knows nothing of other runs, and that on the wall, which may be
/// set. Read together, so that a time on one is a time on the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WallClock {
    at: Instant,
    /// Milliseconds since 1970.
    wall_ms: u64,
}

/// Milliseconds since 1970; 0 stands for no time.
pub(super) type WallTime = u64;

/// When a stored message expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoredExpiry {
    pub(super) time: WallTime,
    /// Seconds that were left at storing, rounded up. The message gets no more, whatever the clock says later.
    pub(super) interval: u32,
}

/// Keeps the wall clock of this process from running back. It follows a clock that is set forward.
#[derive(Debug)]
struct NeverBack {
    origin: Instant,
    /// Wall time at `origin`, in milliseconds: the latest that any reading has shown.
    origin_ms: AtomicU64,
}

static WALL: LazyLock<NeverBack> = LazyLock::new(NeverBack::new);

impl NeverBack {
    fn new() -> Self {
        Self { origin: Instant::now(), origin_ms: AtomicU64::new(0) }
    }

    /// `at`: read after `wall_ms`, so that a pause between the two readings never adds time.
    fn clock(&self, wall_ms: u64, at: Instant) -> WallClock {
        let elapsed = millis(at.saturating_duration_since(self.origin));
        let seen = wall_ms.saturating_sub(elapsed);
        let latest = self.origin_ms.load(Ordering::Relaxed);
        // Mostly there is nothing to write that other threads would have to fetch.
        let origin_ms =
            if seen > latest { seen.max(self.origin_ms.fetch_max(seen, Ordering::Relaxed)) } else { latest };
        WallClock { at, wall_ms: origin_ms.saturating_add(elapsed) }
    }
}

impl StoredExpiry {
    pub(super) const BYTES: usize = 12;

    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.time.to_le_bytes());
        bytes[8..].copy_from_slice(&self.interval.to_le_bytes());
        bytes
    }

    /// `has_interval`: older records have the time alone.
    pub(super) fn take(fields: &mut Fields<'_>, has_interval: bool) -> Result<Self, RecordError> {
        let time = fields.u64()?;
        Ok(Self { time, interval: if has_interval { fields.u32()? } else { u32::MAX } })
    }
}

impl WallClock {
    pub(crate) fn now() -> Self {
        let never_back = &*WALL;
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        never_back.clock(millis(since), Instant::now())
    }

    /// That of a time of this process, never 0; `None` is 0.
    pub(super) fn to_wall(self, at: Option<Instant>) -> WallTime {
        let Some(at) = at else { return 0 };
        let ms = match at.checked_duration_since(self.at) {
            Some(ahead) => self.wall_ms.saturating_add(millis(ahead)),
            None => self.wall_ms.saturating_sub(millis(self.at - at)),
        };
        ms.max(1)
    }

    /// The expiry to store for a message that is stored now.
    pub(super) fn to_stored_expiry(self, expires_at: Option<Instant>) -> StoredExpiry {
        let Some(at) = expires_at else { return StoredExpiry { time: 0, interval: 0 } };
        let seconds = millis(at.saturating_duration_since(self.at)).div_ceil(1000);
        StoredExpiry { time: self.to_wall(expires_at), interval: u32::try_from(seconds).unwrap_or(u32::MAX) }
    }

    /// When a message expires that was read back now: at the stored time, and within the stored interval.
    pub(super) fn expires_at(self, StoredExpiry { time, interval }: StoredExpiry) -> Option<Instant> {
        self.to_instant_within(Duration::from_secs(interval.into()), time)
    }

    /// That of a time on the wall, not before this moment; `None` for 0, and for what no clock comes to.
    pub(super) fn to_instant(self, wall: WallTime) -> Option<Instant> {
        (wall != 0).then(|| self.at.checked_add(Duration::from_millis(wall.saturating_sub(self.wall_ms))))?
    }

    /// After so long.
    #[cfg(test)]
    pub(super) fn later(self, by: Duration) -> Self {
        Self { at: self.at + by, wall_ms: self.wall_ms + millis(by) }
    }

    /// As another run reads it after somebody has set the clock back.
    #[cfg(test)]
    pub(super) fn set_back(self, by: Duration) -> Self {
        Self { wall_ms: self.wall_ms - millis(by), ..self }
    }

    /// As [`Self::to_instant`], of a time of which so much is left at most: the clock on the wall may have been set back.
    pub(super) fn to_instant_within(self, rest_maximum: Duration, wall: WallTime) -> Option<Instant> {
        let at = self.to_instant(wall)?;
        Some(self.at.checked_add(rest_maximum).map_or(at, |latest| at.min(latest)))
    }

    /// How long a time on the wall is ago.
    pub(super) fn since(self, wall: WallTime) -> Duration {
        Duration::from_millis(self.wall_ms.saturating_sub(wall))
    }

    /// Whether a time on the wall has come; 0 never does.
    pub(super) fn has_come(self, wall: WallTime) -> bool {
        wall != 0 && wall <= self.wall_ms
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_comes_when_its_rest_is_over_whatever_run_counts() {
        let first = WallClock { at: Instant::now(), wall_ms: 1_000_000 };
        let due = first.to_wall(Some(first.at + Duration::from_secs(60)));
        assert_eq!(due, 1_060_000);
        // Another run, with clocks that have nothing to do with those before.
        let later = WallClock { at: first.at + Duration::from_secs(5000), wall_ms: 1_045_000 };
        assert_eq!(later.to_instant(due), Some(later.at + Duration::from_secs(15)));
        assert!(!later.has_come(due) && later.has_come(1_045_000));
        assert_eq!(later.to_instant(1), Some(later.at), "what is over is due now");
        assert_eq!(later.to_wall(Some(later.at - Duration::from_secs(4))), 1_041_000);
        assert_eq!((later.to_wall(None), later.to_instant(0), later.has_come(0)), (0, None, false));
        assert_eq!(later.since(1_040_000), Duration::from_secs(5));
        assert_eq!(later.since(1_050_000), Duration::ZERO, "the clock was set back");
        let minute = Duration::from_secs(60);
        assert_eq!(later.to_instant_within(minute, due), Some(later.at + Duration::from_secs(15)));
        assert_eq!(
            later.to_instant_within(minute, due + 100_000_000),
            Some(later.at + minute),
            "the clock was set back"
        );
        assert_eq!(later.to_instant_within(minute, 0), None);
        assert_eq!(later.to_instant(u64::MAX), later.at.checked_add(Duration::from_millis(u64::MAX - 1_045_000)));
    }

    #[test]
    fn wall_clock_of_a_process_never_runs_back() {
        let wall = NeverBack::new();
        let at = |seconds| wall.origin + Duration::from_secs(seconds);
        assert_eq!(wall.clock(1_000_000, at(0)).wall_ms, 1_000_000);
        assert_eq!(wall.clock(1_010_000, at(10)).wall_ms, 1_010_000);
        assert_eq!(wall.clock(400_000, at(11)).wall_ms, 1_011_000, "the clock was set back");
        assert_eq!(wall.clock(2_000_000, at(12)).wall_ms, 2_000_000, "the clock was set forward");
        assert_eq!(wall.clock(1_013_000, at(13)).wall_ms, 2_001_000, "the clock was set right again");
    }

    #[test]
    fn stored_expiry_is_the_time_but_never_above_the_interval() {
        let clock = WallClock { at: Instant::now(), wall_ms: 1_000_000 };
        let seconds = |seconds| clock.at + Duration::from_secs(seconds);
        let stored = clock.to_stored_expiry(Some(seconds(20)));
        assert_eq!(stored, StoredExpiry { time: 1_020_000, interval: 20 });
        assert_eq!(clock.expires_at(stored), Some(seconds(20)));
        assert_eq!(clock.set_back(Duration::from_secs(900)).expires_at(stored), Some(seconds(20)));
        let later = clock.later(Duration::from_secs(15));
        assert_eq!(later.expires_at(stored), Some(seconds(20)));
        assert_eq!(later.set_back(Duration::from_secs(10)).expires_at(stored), Some(seconds(30)));
        assert_eq!(clock.to_stored_expiry(Some(clock.at + Duration::from_millis(19_001))).interval, 20);
        let past = later.to_stored_expiry(Some(seconds(3)));
        assert_eq!(past, StoredExpiry { time: 1_003_000, interval: 0 });
        let never = clock.to_stored_expiry(None);
        assert_eq!((never.time, clock.expires_at(never)), (0, None));
    }
}
