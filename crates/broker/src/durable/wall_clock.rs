use std::time::{Duration, Instant, SystemTime};

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

impl WallClock {
    pub(crate) fn now() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { at: Instant::now(), wall_ms: millis(since) }
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

    /// That of a time on the wall, not before this moment; `None` for 0, and for what no clock comes to.
    pub(super) fn to_instant(self, wall: WallTime) -> Option<Instant> {
        (wall != 0).then(|| self.at.checked_add(Duration::from_millis(wall.saturating_sub(self.wall_ms))))?
    }

    /// After so long.
    #[cfg(test)]
    pub(super) fn later(self, by: Duration) -> Self {
        Self { at: self.at + by, wall_ms: self.wall_ms + millis(by) }
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
}
