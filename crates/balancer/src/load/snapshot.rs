use std::time::Duration;

use crate::{limit::Lesson, nanos::Nanos};

/// A copy of the fields of a [`MemberLoad`](crate::MemberLoad), for dashboards and tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadSnapshot {
    /// m_q: messages waiting at the client by its last report.
    pub messages_in_queue: u64,
    /// m_s: messages sent to the client since its last report.
    pub sent_since_report: u64,
    /// t_p: mean of the last five reported processing times; zero = unknown.
    pub processing_time: Duration,
    /// t_r: time of the last report, or of the establishment of the session.
    pub reported_at: Nanos,
    /// t_s: time of the client's last choice, or of the establishment of the session.
    pub sent_at: Nanos,
    /// Messages sent to the client since the session was established.
    pub sent: u64,
    /// Messages handed to the client that are neither written (QoS 0) nor acknowledged (QoS above 0).
    pub outstanding_messages: u64,
    /// Bytes of the outstanding messages.
    pub outstanding_bytes: u64,
    /// Processing time learned from all evidence; zero = unknown.
    pub effective_processing_time: Duration,
    /// Overdue reports since the session was established.
    pub late_reports: u64,
    /// Messages since the session was established for which it was chosen and which it did not get.
    pub taken_back: u64,
    /// Whether the client's last report asked for no further messages.
    pub is_draining: bool,
    /// Round-trip time of a packet; zero = unknown.
    pub round_trip: Duration,
    /// Messages that the client told it works on at a time; 0 = unknown.
    pub concurrency: u16,
    /// Messages that the client may have outstanding before others wait with a group of the default rules; `None` = any number.
    pub outstanding_maximum: Option<u64>,
    /// How the client serves messages, as learnt.
    pub lesson: Lesson,
    /// Rejections among its last 20 acknowledgements.
    pub rejected_lately: u32,
    /// Whether these are more than half: it gets few messages.
    pub is_suspect: bool,
    /// Messages that it did not acknowledge in time, as last set.
    pub overdue: u32,
}
