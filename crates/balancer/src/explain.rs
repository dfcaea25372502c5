//! Why a pick would choose whom: its candidates with all that speaks for and against them.

use std::time::Duration;

use crate::{
    group_view::View,
    load::{Availability, MemberLoad},
    members::MemberId,
    nanos::Nanos,
    policy::adaptive::{Weight, weigh},
};

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
    /// How long it would wait with a message before it begins: what it was sent and has not finished.
    pub predicted_wait: Duration,
    /// What `adaptive` adds to that because it is slow.
    pub penalty: Duration,
    /// What a message is taken to cost it, from all evidence; zero = nothing is known of anybody in the group.
    pub processing_time: Duration,
    /// Whether that is its own, and not a guess from the group's.
    pub is_speed_known: bool,
    /// How long evidence that it is at work (a report, an acknowledgement) has been overdue.
    pub late: Duration,
    /// t_p, the mean of its last five reported processing times; zero = unknown. What `thesis_score` takes.
    pub reported_processing_time: Duration,
    /// When it was last chosen, in any of its groups, or its session was established.
    pub sent_at: Nanos,
}

impl Candidate {
    pub(crate) fn of(member: MemberId, load: &MemberLoad, view: &View, now: Nanos) -> Self {
        let Weight { wait, penalty, late, service } = weigh(load.hot(), view, now.0);
        let snapshot = load.snapshot();
        Self {
            member,
            availability: load.availability(),
            is_draining: snapshot.is_draining,
            pending: snapshot.messages_in_queue + snapshot.sent_since_report,
            in_flight: snapshot.outstanding_messages,
            predicted_wait: Duration::from_nanos(wait),
            penalty: Duration::from_nanos(penalty),
            processing_time: Duration::from_nanos(service),
            is_speed_known: load.hot().speed().processing_ns() > 0,
            late: Duration::from_nanos(late),
            reported_processing_time: snapshot.processing_time,
            sent_at: snapshot.sent_at,
        }
    }
}
