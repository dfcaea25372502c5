//! Expiry of stored messages.
//!
//! The wall clock may be set at any time. So the run that stored a message judges its expiry by its own monotonic
//! clock. Other runs have only the wall clock, and the seconds that were left.

use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, Instant};

use super::bytes::{Fields, RecordError};
use super::wall_clock::{StoredExpiry, WallClock, WallTime, millis};

/// The monotonic clock of one run, which begins when the run opens the store.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunClock {
    /// Random, so that no other run has it.
    number: u64,
    began: Instant,
}

/// One moment, on the run's clock and on the wall clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct MessageClock {
    run: RunClock,
    wall: WallClock,
}

/// When a message expires, as its record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MessageExpiry {
    pub(super) stored: StoredExpiry,
    /// `None`: an older version wrote the record.
    run: Option<RunTime>,
}

/// A time on the clock of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RunTime {
    number: u64,
    /// Milliseconds since the run began.
    ms: u64,
}

/// Latest time from now at which a message can be due: the wall clock may have been set back.
pub(crate) const DUE_MOST: Duration = Duration::from_secs(24 * 60 * 60);

impl RunClock {
    /// The clock of a run that begins now.
    pub(super) fn begin() -> Self {
        // The hasher's keys are random, and differ from call to call.
        Self { number: RandomState::new().hash_one(std::process::id()), began: Instant::now() }
    }

    pub(super) fn now(self) -> MessageClock {
        MessageClock { run: self, wall: WallClock::now() }
    }
}

impl MessageClock {
    /// Converts a time to a wall time to store; `None` is 0.
    pub(super) fn to_wall(self, at: Option<Instant>) -> WallTime {
        self.wall.to_wall(at)
    }

    /// Converts a stored wall time; `None` for 0.
    pub(super) fn to_instant(self, wall: WallTime) -> Option<Instant> {
        self.wall.to_instant_within(DUE_MOST, wall)
    }

    /// The expiry to store for a message that is stored now.
    pub(super) fn to_stored(self, expires_at: Instant) -> MessageExpiry {
        let RunClock { number, began } = self.run;
        let ms = millis(expires_at.saturating_duration_since(began));
        MessageExpiry { stored: self.wall.to_stored_expiry(Some(expires_at)), run: Some(RunTime { number, ms }) }
    }

    /// When a message expires that was read back now. `None`: beyond the range of the clock.
    pub(super) fn expires_at(self, MessageExpiry { stored, run }: MessageExpiry) -> Option<Instant> {
        let RunClock { number, began } = self.run;
        match run.filter(|time| time.number == number) {
            Some(time) => began.checked_add(Duration::from_millis(time.ms)),
            None => {
                // Another run stored it, so that its interval had begun when this run began.
                let at = self.wall.expires_at(stored)?;
                let latest = began.checked_add(Duration::from_secs(stored.interval.into()));
                Some(latest.map_or(at, |latest| at.min(latest)))
            }
        }
    }

    pub(super) fn has_come(self, at: Instant) -> bool {
        at <= self.wall.at()
    }
}

impl MessageExpiry {
    pub(super) const BYTES: usize = StoredExpiry::BYTES + 16;

    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let RunTime { number, ms } = self.run.unwrap_or(RunTime { number: 0, ms: 0 });
        let mut bytes = [0; Self::BYTES];
        bytes[..StoredExpiry::BYTES].copy_from_slice(&self.stored.to_bytes());
        bytes[StoredExpiry::BYTES..][..8].copy_from_slice(&number.to_le_bytes());
        bytes[StoredExpiry::BYTES + 8..].copy_from_slice(&ms.to_le_bytes());
        bytes
    }

    pub(super) fn take(fields: &mut Fields<'_>) -> Result<Self, RecordError> {
        let stored = StoredExpiry::take(fields, true)?;
        Ok(Self { stored, run: Some(RunTime { number: fields.u64()?, ms: fields.u64()? }) })
    }

    /// Decodes the layout of an older version; `None`: the message does not expire.
    pub(super) fn take_older(fields: &mut Fields<'_>, has_interval: bool) -> Result<Option<Self>, RecordError> {
        let stored = StoredExpiry::take(fields, has_interval)?;
        Ok((stored.time != 0).then_some(Self { stored, run: None }))
    }
}

#[cfg(test)]
impl MessageClock {
    /// The clock after this time.
    pub(super) fn later(self, by: Duration) -> Self {
        Self { wall: self.wall.later(by), ..self }
    }

    /// The clock after it was set back.
    pub(super) fn set_back(self, by: Duration) -> Self {
        Self { wall: self.wall.set_back(by), ..self }
    }

    /// The clock after it was set forward.
    pub(super) fn set_forward(self, by: Duration) -> Self {
        Self { wall: self.wall.set_forward(by), ..self }
    }

    /// The clock in another run, which begins now.
    pub(super) fn restarted(self) -> Self {
        let number = self.run.number.wrapping_add(1);
        Self { run: RunClock { number, began: self.wall.at() }, ..self }
    }

    pub(super) fn at(self) -> Instant {
        self.wall.at()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const DAY: Duration = Duration::from_secs(86_400);

    fn left(clock: MessageClock, expiry: MessageExpiry) -> Duration {
        clock.expires_at(expiry).expect("it expires").saturating_duration_since(clock.at())
    }

    #[test]
    fn setting_the_clock_changes_no_expiry_within_a_run() {
        let clock = RunClock::begin().now();
        let passed = Duration::from_secs(600);
        let expiry = clock.to_stored(clock.at() + HOUR);
        let right = clock.later(passed);
        for clock in [right, right.set_back(DAY), right.set_forward(DAY), right.set_forward(DAY).set_back(DAY)] {
            let left = left(clock, expiry);
            assert!(left <= HOUR - passed && left > HOUR - passed - Duration::from_millis(2), "{left:?}");
        }
        let set = [clock.set_back(HOUR), clock.set_forward(DAY)];
        for expiry in set.map(|clock| clock.to_stored(clock.at() + HOUR)) {
            assert!(left(right, expiry) <= HOUR - passed, "stored with a clock that was wrong");
        }
    }

    #[test]
    fn setting_the_clock_never_raises_an_expiry_across_runs() {
        let clock = RunClock::begin().now();
        let passed = Duration::from_secs(600);
        let stored = clock.to_stored(clock.at() + HOUR);
        let stored_ahead = clock.set_forward(DAY).to_stored(clock.at() + HOUR);
        let restarted = clock.later(passed).restarted();
        assert_eq!(left(restarted, stored), HOUR - passed);
        let set = [restarted.set_back(DAY), restarted.set_forward(DAY).set_back(2 * DAY)];
        for (clock, expiry) in set.into_iter().map(|clock| (clock, stored)).chain([(restarted, stored_ahead)]) {
            assert_eq!(left(clock, expiry), HOUR);
            assert_eq!(left(clock.later(passed), expiry), HOUR - passed, "its seconds go on in this run");
            assert_eq!(left(clock.later(passed).set_back(HOUR), expiry), HOUR - passed);
        }
    }

    #[test]
    fn clock_wrong_for_a_while_shortens_no_expiry_in_the_next_run() {
        let clock = RunClock::begin().now();
        let stored = clock.to_stored(clock.at() + HOUR);
        // Read once the clock is right again; stored while it was wrong.
        let restarted = clock.restarted();
        assert_eq!(left(restarted.set_forward(DAY).set_back(DAY), stored), HOUR);
        assert_eq!(left(restarted, clock.set_back(DAY).to_stored(clock.at() + HOUR)), HOUR);
        assert_eq!(left(restarted.later(HOUR), stored), Duration::ZERO);
    }
}
