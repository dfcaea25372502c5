use std::time::{Duration, Instant};

/// Key of the hash of names. Without it, no client can find two names of one hash.
pub(crate) type SpeedKey = [u8; 32];

/// One client's speed in one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KnownSpeed {
    /// The keyed hash.
    pub(crate) name: u64,
    pub(crate) processing_time: Duration,
    pub(crate) kept_at: Instant,
}

/// Changes since they were taken last.
#[derive(Debug, Default)]
pub(crate) struct SpeedChanges {
    pub(crate) kept: Vec<KnownSpeed>,
    /// Names of forgotten speeds.
    pub(crate) gone: Vec<u64>,
}
