//! The properties of a message that a pick uses.

use crate::{key_pins::KeySlot, nanos::Nanos};

/// One message to dispatch, as far as the choice may depend on it.
///
/// The caller computes the hashes. Within one process equal things must have equal hashes, which should be spread
/// evenly over all of `u64`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dispatch {
    /// The present time.
    pub at: Nanos,
    /// Approximate size of the packet. Reports of the message as written, acknowledged or taken back must use the same
    /// number.
    pub bytes: u32,
    /// Whether the member will acknowledge the message (QoS above 0).
    ///
    /// Then [`acknowledged`](crate::MemberLoad::acknowledged) ends it; otherwise
    /// [`written`](crate::MemberLoad::written) does.
    pub is_acknowledged: bool,
    /// Hash of the publishing client's identifier.
    pub publisher: u64,
    /// Hash of the topic name.
    pub topic: u64,
    /// Hash of the ordering key, if the group's rules define one and the message has it.
    pub key: Option<u64>,
}

impl Dispatch {
    /// The key's slot in the group's table.
    pub(crate) fn key_slot(&self) -> Option<KeySlot> {
        self.key.map(KeySlot::of)
    }
}
