//! Why a pick would choose whom: its candidates with all that speaks for and against them.

use std::time::Duration;

use crate::{load::Availability, members::MemberId, nanos::Nanos};

/// A member as a pick would weigh it; see [`Members::explain`](crate::Members::explain).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// Who.
    pub member: MemberId,
    /// Whether it can take messages. A member of a worse kind is chosen only if there is none of a better one.
    pub availability: Availability,
    /// Whether it asked for no further messages: it then ranks after those that are full.
    pub is_draining: bool,
    /// m_q + m_s: messages at the client by its last report, and those sent since.
    pub pending: u64,
    /// Messages handed to it that are neither written (QoS 0) nor acknowledged (QoS above 0).
    pub in_flight: u64,
    /// t_p, the mean of its last five reported processing times; zero = unknown. What `thesis_score` takes.
    pub reported_processing_time: Duration,
    /// When it was last chosen, in any of its groups, or its session was established.
    pub sent_at: Nanos,
}
