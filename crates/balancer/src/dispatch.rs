//! What a pick knows of the message.

use crate::{key_pins::KeySlot, nanos::Nanos};

/// One message to be given to a member, as far as a choice may depend on it.
///
/// The hashes are the caller's business; all that counts is that equal things have equal hashes, within one
/// process, and that hashes are spread evenly over all of `u64`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dispatch {
    /// Now.
    pub at: Nanos,
    /// Size of the packet in bytes, about. Whoever reports the message written, acknowledged or taken back gives
    /// the same number again.
    pub bytes: u32,
    /// Whether the member will acknowledge the message (QoS above 0), so that
    /// [`acknowledged`](crate::MemberLoad::acknowledged) ends it; otherwise
    /// [`written`](crate::MemberLoad::written) does.
    pub is_acknowledged: bool,
    /// Hash of the publishing client's identifier.
    pub publisher: u64,
    /// Hash of the topic name.
    pub topic: u64,
    /// Hash of the ordering key, if the group's rules have one and the message too.
    pub key: Option<u64>,
}

impl Dispatch {
    /// Where the key is in the group's table.
    pub(crate) fn key_slot(&self) -> Option<KeySlot> {
        self.key.map(KeySlot::of)
    }
}
