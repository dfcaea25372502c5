use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// One of the two brokers of a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The broker on whose side the bridge is.
    Local,
    /// The other broker.
    Remote,
}

/// Why a bridge has not passed a message on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dropped {
    /// It has passed this bridge before.
    Loop,
    /// No rule is about its topic, as after the removal of a rule.
    Unmatched,
    /// It is larger than the other broker's Maximum Packet Size, or its new topic is too long.
    TooLarge,
    /// A QoS 0 message, for which the other broker read too slowly, or that came while another message went alone.
    Slow,
    /// The other broker has refused it.
    Refused,
}

/// State and counters of a bridge.
#[derive(Debug, Default)]
pub struct Status {
    connected: [AtomicBool; 2],
    messages: [AtomicU64; 2],
    in_flight: [AtomicU64; 2],
    dropped: [AtomicU64; Dropped::ALL.len()],
    /// When the log last told of each reason.
    told: Mutex<[Option<Instant>; Dropped::ALL.len()]>,
    error: Mutex<Option<String>>,
}

/// Least time between two lines of the log about one reason.
const TOLD_EVERY: Duration = Duration::from_secs(60);

impl Side {
    /// Both sides.
    pub const BOTH: [Self; 2] = [Self::Local, Self::Remote];

    /// The other side.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Local => Self::Remote,
            Self::Remote => Self::Local,
        }
    }

    /// Name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Remote => "remote",
        }
    }
}

impl Dropped {
    /// All reasons.
    pub const ALL: [Self; 5] = [Self::Loop, Self::Unmatched, Self::TooLarge, Self::Slow, Self::Refused];

    /// Name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loop => "loop",
            Self::Unmatched => "unmatched",
            Self::TooLarge => "too_large",
            Self::Slow => "slow",
            Self::Refused => "refused",
        }
    }
}

impl Status {
    /// Whether there is an accepted connection to this side.
    pub fn is_connected(&self, side: Side) -> bool {
        self.connected[side as usize].load(Ordering::Relaxed)
    }

    /// Messages of this side that were passed on.
    pub fn messages(&self, from: Side) -> u64 {
        self.messages[from as usize].load(Ordering::Relaxed)
    }

    /// QoS 1 and 2 messages of this side that the bridge holds, or that the other side has not acknowledged.
    pub fn in_flight(&self, from: Side) -> u64 {
        self.in_flight[from as usize].load(Ordering::Relaxed)
    }

    /// Messages that were not passed on for this reason.
    pub fn dropped(&self, reason: Dropped) -> u64 {
        self.dropped[reason as usize].load(Ordering::Relaxed)
    }

    /// Why there is no connection, or which subscriptions a broker has refused.
    pub fn error(&self) -> Option<String> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_connected(&self, side: Side, is_connected: bool) {
        self.connected[side as usize].store(is_connected, Ordering::Relaxed);
    }

    pub(crate) fn count_message(&self, from: Side) {
        self.messages[from as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a dropped message. True if the log is to tell it: once a minute for each reason.
    pub(crate) fn count_dropped(&self, reason: Dropped) -> bool {
        self.dropped[reason as usize].fetch_add(1, Ordering::Relaxed);
        let told = &mut self.told.lock().unwrap_or_else(PoisonError::into_inner)[reason as usize];
        let is_due = told.is_none_or(|at| at.elapsed() >= TOLD_EVERY);
        if is_due {
            *told = Some(Instant::now());
        }
        is_due
    }

    pub(crate) fn set_in_flight(&self, from: Side, messages: usize) {
        self.in_flight[from as usize].store(messages as u64, Ordering::Relaxed);
    }

    pub(crate) fn set_error(&self, error: Option<String>) {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }
}
