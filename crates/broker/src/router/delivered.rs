//! The result of routing one message.

use std::time::Instant;

use tenbin_codec::ReasonCode;
use tenbin_session::PendingAck;

use super::published::Published;
use super::share_group::SharedGroup;
use crate::durable::CommitPoint;

/// Running result of routing one message.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Delivered {
    /// A subscription matches the message, or the message is to be retained for later ones.
    pub(super) is_wanted: bool,
    /// Sessions, share groups, and the store of retained messages if that refuses the message.
    pub(super) receivers: u32,
    /// Number of these receivers that have no room.
    pub(super) refusals: u32,
}

/// Identity of a message in its batch.
pub(super) struct Numbered {
    pub(super) ack: Option<PendingAck>,
    /// [`Published::message`].
    pub(super) number: u32,
    pub(super) now: Instant,
}

impl Delivered {
    /// The result for the publisher.
    #[inline]
    pub(super) fn published(self, message: u32, commit_point: CommitPoint, is_unseen: bool) -> Published {
        let Self { receivers, refusals, .. } = self;
        Published { reason: self.reason(), commit_point, message, receivers, refusals, is_unseen }
    }

    /// Counts a share group; `is_taken`: it has the message, else it has ended.
    #[inline]
    pub(super) fn taken_by_group(&mut self, is_taken: bool) {
        self.is_wanted |= is_taken;
        self.receivers += u32::from(is_taken);
    }

    /// Counts a share group that has no room.
    pub(super) fn refused_by(&mut self, group: &SharedGroup) {
        group.refuse();
        self.taken_by_group(true);
        self.refusals += 1;
    }

    /// The Reason Code for the publisher.
    pub(super) fn reason(self) -> ReasonCode {
        match self {
            Self { refusals: 1.., .. } => ReasonCode::QuotaExceeded,
            Self { is_wanted: true, .. } => ReasonCode::Success,
            Self { is_wanted: false, .. } => ReasonCode::NoMatchingSubscribers,
        }
    }
}
