use std::time::Duration;

use super::Rate;

/// Limits of connections and CONNECTs, by network address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AdmissionLimits {
    /// Maximum number of open connections of one address; 0 = no bound.
    pub(crate) per_address: u32,
    /// The same for each loopback address.
    pub(crate) per_loopback_address: u32,
    pub(crate) connects_per_address: Option<Rate>,
    pub(crate) connects: Option<Rate>,
    /// Failed logins of one address, per minute.
    pub(crate) failures_per_address: Option<Rate>,
}

/// Bounds of the sessions of one address; 0 = no bound.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SessionLimits {
    pub(crate) per_address: u32,
    pub(crate) per_loopback_address: u32,
}

/// Bounds of the subscriptions of one session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SubscriptionLimits {
    pub(crate) count: usize,
    pub(crate) bytes: usize,
    /// Different wildcard patterns.
    pub(crate) patterns: usize,
}

/// Limits of memory, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemoryLimits {
    /// All accounts together.
    pub(crate) all: usize,
    /// One authenticated user; 0 = no bound but `all`.
    pub(crate) user: usize,
    /// All anonymous clients of one network address; 0 = no bound but `all`.
    pub(crate) address: usize,
    /// The same for each loopback address.
    pub(crate) loopback_address: usize,
}

/// Packets up to this size are free: the number of connections bounds their memory.
pub(crate) const UNCHARGED_PACKET: usize = 16 * 1024;

/// Smallest bound with room for a packet of `bytes`; 0 if such packets are not charged.
pub(crate) fn room_for_packet(bytes: u64) -> u64 {
    if bytes > UNCHARGED_PACKET as u64 { bytes.div_ceil(4).saturating_mul(16) } else { 0 }
}

/// Limits on recorded decisions of share groups.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DecisionLimits {
    /// Maximum per group; 0 = none.
    pub(crate) maximum: usize,
    /// Minimum time between two recorded decisions of a group, plus a microsecond per member.
    pub(crate) pause: Duration,
}

/// How long and how many speeds are remembered; none if either is 0.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpeedLimits {
    pub(crate) time: Duration,
    pub(crate) maximum: usize,
}
