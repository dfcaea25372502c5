//! State of one batch of input.

use tenbin_balancer::{Acknowledged, MemberLoad};

use crate::durable::CommitPoint;
use crate::metrics::PerQoS;
use crate::router::Collector;
use crate::values::Moment;

/// A batch: all whole packets received, while they are applied. No await: see [`Collector`].
pub(super) struct InputBatch {
    pub(super) now: Moment,
    /// Messages so far, by QoS.
    pub(super) received: PerQoS,
    /// Stop decoding: the publisher has to pause, other tasks go first, or the connection ends.
    pub(super) is_over: bool,
    /// When the last acknowledged message was sent. Mostly the next one was sent with it.
    pub(super) sent: Moment,
    /// Acknowledged messages of share groups that the balancer does not know of yet.
    pub(super) acknowledged: Option<Acknowledged>,
    /// The client may begin with another message of a share group.
    pub(super) may_begin: bool,
    /// The round trip to this member of share groups may have changed, or is not measured yet.
    pub(super) asks_round_trip: bool,
    /// Commit point before which the batch's messages must not be acknowledged.
    commit_point: CommitPoint,
    /// Deliveries of the batch's messages.
    pub(super) collector: Collector,
    /// Total bytes of the messages to acknowledge.
    bytes: u32,
}

impl InputBatch {
    pub(super) fn new(now: Moment) -> Self {
        Self {
            now,
            received: [0; 3],
            is_over: false,
            sent: now,
            acknowledged: None,
            may_begin: false,
            asks_round_trip: false,
            commit_point: CommitPoint::NOW,
            collector: Collector::new(),
            bytes: 0,
        }
    }

    /// Defers acknowledgements of the batch until `commit_point`.
    #[inline]
    pub(super) fn hold_until(&mut self, commit_point: CommitPoint) {
        if commit_point != CommitPoint::NOW {
            self.commit_point = self.commit_point.and(commit_point);
        }
    }

    pub(super) fn commit_point(&self) -> CommitPoint {
        self.commit_point
    }

    /// Counts the bytes of a message to acknowledge.
    #[inline]
    pub(super) fn count_bytes(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes as u32); // packet sizes fit in `u32`
    }

    pub(super) fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Reports acknowledged messages to the balancer.
    #[inline]
    pub(super) fn tell_acknowledged(&mut self, load: &MemberLoad) {
        if let Some(acknowledged) = self.acknowledged.take() {
            self.may_begin = true;
            load.acknowledged(&acknowledged);
        }
    }
}
