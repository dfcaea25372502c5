//! The properties of a message that a pick uses.

use crate::nanos::Nanos;

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

/// The slot of an ordering key in its group's table. Keys that share a slot share their member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KeySlot(u16);

impl KeySlot {
    /// Returns the slot of a key with this hash.
    pub(crate) fn of(key: u64) -> Self {
        Self((key >> (u64::BITS - SLOT_BITS)) as u16)
    }

    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// 4096 slots; few in loom's models, which visit each.
pub(crate) const SLOT_BITS: u32 = if cfg!(loom) { 1 } else { 12 };
