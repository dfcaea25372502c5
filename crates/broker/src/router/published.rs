use tenbin_codec::ReasonCode;

use super::group_backlog::HoldingGroup;
use crate::durable::CommitPoint;

/// The outcome of publishing one message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Published {
    /// Reason Code for the acknowledgement: success, no matching subscribers, or the reason for a refusal.
    pub(crate) reason: ReasonCode,
    /// Commit point before which the message must not be acknowledged. [`Flushed`] may have a later one.
    pub(crate) commit_point: CommitPoint,
    /// Number of the message in its batch, by which [`Flushed::refused`] names it; 0 at QoS 0.
    pub(crate) message: u32,
    /// Number of receivers, including those known to refuse the message.
    pub(crate) receivers: u32,
    /// Number of receivers known to refuse the message.
    pub(crate) refusals: u32,
    /// The message is not retained, which `reason` does not say: its publisher cannot be informed.
    pub(crate) is_unseen: bool,
}

impl Published {
    /// Number of receivers that have the message, of a batch with these [`Flushed::refused`] messages, in order.
    pub(crate) fn reached(&self, refused: &[u32]) -> usize {
        let refusals = match self.message {
            0 => self.refusals as usize,
            message => {
                let rest = &refused[refused.partition_point(|&other| other < message)..];
                rest.partition_point(|&other| other == message)
            }
        };
        (self.receivers as usize).saturating_sub(refusals)
    }
}

/// The outcome of publishing a batch.
#[derive(Debug)]
pub(crate) struct Flushed {
    /// A receiver needs processor time.
    pub(crate) pressure: bool,
    /// Commit point after which the batch's messages may be acknowledged.
    pub(crate) commit_point: CommitPoint,
    /// QoS 1 and 2 messages that a receiver had no room for, by [`Published::message`]: one entry for each such
    /// receiver.
    pub(crate) refused: Vec<u32>,
    /// Groups whose backlogs are too long to acknowledge the batch's messages, if there are any.
    pub(crate) holding: Option<Box<[HoldingGroup]>>,
}

impl Flushed {
    /// The outcome of a batch without messages.
    pub(super) const NOTHING: Self =
        Self { pressure: false, commit_point: CommitPoint::NOW, refused: Vec::new(), holding: None };

    /// Includes another commit point.
    pub(crate) fn append_until(&mut self, commit_point: CommitPoint) {
        self.commit_point = self.commit_point.and(commit_point);
    }
}
