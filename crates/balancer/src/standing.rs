//! What a member brings along beside its load.

use crate::members::MemberId;

/// What some policies go by beside the loads; given at joining.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Standing {
    /// The member's share by the policies that go by fixed weights; 0 counts as 1. Default: 1.
    pub weight: u32,
    /// Names the client itself, for the policies that hash: the same whenever it joins. A hash of the client's
    /// identifier, say, and not the number of a session.
    pub identity: u64,
}

impl Standing {
    /// Of a member that is known by nothing but its id, which then has to be its identity too.
    pub(crate) fn of(id: MemberId, weight: u32) -> Self {
        Self { weight, identity: id.0 }
    }
}
