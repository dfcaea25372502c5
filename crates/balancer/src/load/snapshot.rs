use std::time::Duration;

use crate::nanos::Nanos;

/// A copy of the fields of a [`MemberLoad`](crate::MemberLoad), for dashboards and tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadSnapshot {
    /// m_q: messages waiting at the client by its last report.
    pub messages_in_queue: u64,
    /// m_s: messages sent to the client since its last report.
    pub sent_since_report: u64,
    /// t_p: mean of the last five reported processing times; zero = unknown.
    pub processing_time: Duration,
    /// t_r: when the last report came, or the session was established.
    pub reported_at: Nanos,
    /// t_s: when the client was last chosen, or the session was established.
    pub sent_at: Nanos,
    /// Messages sent to the client since the session was established.
    pub sent: u64,
    /// Messages handed to the client that are neither written (QoS 0) nor acknowledged (QoS above 0).
    pub outstanding_messages: u64,
    /// Their bytes.
    pub outstanding_bytes: u64,
    /// The processing time learned from all evidence; zero = unknown.
    pub effective_processing_time: Duration,
    /// Reports since the session was established that came after they were due.
    pub late_reports: u64,
    /// Messages since the session was established that it was chosen for and did not get.
    pub taken_back: u64,
    /// Whether the client's last report asked for no further messages.
    pub is_draining: bool,
    /// How long a packet takes to the client and back; zero = unknown.
    pub round_trip: Duration,
}
