//! Properties of a member that are independent of its load.

/// Identifies a member within its groups. The caller assigns it, one per client session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

/// Weight and identity of a member, given when it joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Standing {
    /// Share of the messages under weighted policies; 0 counts as 1. Default: 1.
    pub weight: u32,
    /// Identity of the client for the hashing policies, equal each time it joins.
    ///
    /// A hash of the Client Identifier, for example, not a session number.
    pub identity: u64,
}

impl Standing {
    /// Creates the standing of a member whose id is also its identity.
    pub(crate) fn of(id: MemberId, weight: u32) -> Self {
        Self { weight, identity: id.0 }
    }
}
