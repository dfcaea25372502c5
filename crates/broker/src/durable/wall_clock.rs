use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime};

use super::bytes::{Fields, RecordError};

/// One moment on two clocks: the process's, unknown to other runs, and the wall clock, which may be set. They are read
/// together, so that times on one convert to times on the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WallClock {
    at: Instant,
    /// Milliseconds since 1970, as the system says now. Stored times are compared with it.
    wall_ms: u64,
    /// As `wall_ms`, but never behind the start of the process plus the time since then. Times to store count from
    /// here: a clock that is set back for a while does not end them early in the next run.
    storing_ms: u64,
}

/// Milliseconds since 1970; 0 stands for no time.
pub(super) type WallTime = u64;

/// When a stored message expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoredExpiry {
    pub(super) time: WallTime,
    /// Seconds that were left at storing, rounded up. The message gets no more, even if the clock is set later.
    pub(super) interval: u32,
}

/// Both clocks at the start of the process.
#[derive(Debug)]
struct Start {
    at: Instant,
    wall_ms: u64,
}

static START: LazyLock<Start> = LazyLock::new(|| Start { wall_ms: system_ms(), at: Instant::now() });

impl Start {
    /// `at`: read after `wall_ms`, so that a pause between the two readings never adds time.
    fn clock(&self, wall_ms: u64, at: Instant) -> WallClock {
        let since_start = self.wall_ms.saturating_add(millis(at.saturating_duration_since(self.at)));
        WallClock { at, wall_ms, storing_ms: wall_ms.max(since_start) }
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

    /// `has_interval`: false for older records, which have the time alone.
    pub(super) fn take(fields: &mut Fields<'_>, has_interval: bool) -> Result<Self, RecordError> {
        let time = fields.u64()?;
        Ok(Self { time, interval: if has_interval { fields.u32()? } else { u32::MAX } })
    }
}

impl WallClock {
    pub(crate) fn now() -> Self {
        let start = &*START;
        let wall_ms = system_ms();
        start.clock(wall_ms, Instant::now())
    }

    /// This moment on the process's clock.
    pub(super) fn at(self) -> Instant {
        self.at
    }

    /// Converts a time of this process to a wall time to store, which is never 0; `None` is 0.
    pub(super) fn to_wall(self, at: Option<Instant>) -> WallTime {
        let Some(at) = at else { return 0 };
        let ms = match at.checked_duration_since(self.at) {
            Some(ahead) => self.storing_ms.saturating_add(millis(ahead)),
            None => self.storing_ms.saturating_sub(millis(self.at - at)),
        };
        ms.max(1)
    }

    /// The expiry to store for a message that is stored now.
    pub(super) fn to_stored_expiry(self, expires_at: Option<Instant>) -> StoredExpiry {
        let Some(at) = expires_at else { return StoredExpiry { time: 0, interval: 0 } };
        let seconds = millis(at.saturating_duration_since(self.at)).div_ceil(1000);
        StoredExpiry { time: self.to_wall(expires_at), interval: u32::try_from(seconds).unwrap_or(u32::MAX) }
    }

    /// When a message expires that another run stored: at the stored time, but within the stored interval.
    pub(super) fn expires_at(self, StoredExpiry { time, interval }: StoredExpiry) -> Option<Instant> {
        self.to_instant_within(Duration::from_secs(interval.into()), time)
    }

    /// Converts a wall time, to this moment or later; `None` for 0, and beyond the range of the clock.
    pub(super) fn to_instant(self, wall: WallTime) -> Option<Instant> {
        (wall != 0).then(|| self.at.checked_add(Duration::from_millis(wall.saturating_sub(self.wall_ms))))?
    }

    /// The clock after this time.
    #[cfg(test)]
    pub(super) fn later(self, by: Duration) -> Self {
        let [wall_ms, storing_ms] = [self.wall_ms, self.storing_ms].map(|ms| ms + millis(by));
        Self { at: self.at + by, wall_ms, storing_ms }
    }

    /// The clock after it was set back.
    #[cfg(test)]
    pub(super) fn set_back(self, by: Duration) -> Self {
        Self { wall_ms: self.wall_ms - millis(by), ..self }
    }

    /// The clock after it was set forward.
    #[cfg(test)]
    pub(super) fn set_forward(self, by: Duration) -> Self {
        let wall_ms = self.wall_ms + millis(by);
        Self { wall_ms, storing_ms: wall_ms.max(self.storing_ms), ..self }
    }

    /// As [`Self::to_instant`], but at most `rest_maximum` from now: the wall clock may have been set back.
    pub(super) fn to_instant_within(self, rest_maximum: Duration, wall: WallTime) -> Option<Instant> {
        let at = self.to_instant(wall)?;
        Some(self.at.checked_add(rest_maximum).map_or(at, |latest| at.min(latest)))
    }

    /// How long ago a wall time was.
    pub(super) fn since(self, wall: WallTime) -> Duration {
        Duration::from_millis(self.wall_ms.saturating_sub(wall))
    }

    /// Whether a wall time is reached; 0 never is.
    pub(super) fn has_come(self, wall: WallTime) -> bool {
        wall != 0 && wall <= self.wall_ms
    }
}

fn system_ms() -> u64 {
    millis(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(at: Instant, wall_ms: u64) -> WallClock {
        WallClock { at, wall_ms, storing_ms: wall_ms }
    }

    #[test]
    fn stored_time_comes_after_its_remainder_in_another_run() {
        let first = clock(Instant::now(), 1_000_000);
        let due = first.to_wall(Some(first.at + Duration::from_secs(60)));
        assert_eq!(due, 1_060_000);
        // Another run, with unrelated clocks.
        let later = clock(first.at + Duration::from_secs(5000), 1_045_000);
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
    fn clock_set_back_does_not_end_stored_times_early() {
        let start = Start { at: Instant::now(), wall_ms: 1_000_000 };
        let at = |seconds| start.at + Duration::from_secs(seconds);
        let times = |wall_ms, seconds| {
            let clock = start.clock(wall_ms, at(seconds));
            (clock.wall_ms, clock.to_wall(Some(at(seconds))))
        };
        assert_eq!(times(1_010_000, 10), (1_010_000, 1_010_000));
        assert_eq!(times(400_000, 11), (400_000, 1_011_000), "the clock was set back");
        assert_eq!(times(2_000_000, 12), (2_000_000, 2_000_000), "the clock was set forward");
        assert_eq!(times(1_013_000, 13), (1_013_000, 1_013_000), "the clock was set right again");
    }

    #[test]
    fn stored_expiry_is_the_time_but_never_above_the_interval() {
        let clock = clock(Instant::now(), 1_000_000);
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
