//! How a group chooses.

use crate::policy::Policy;

/// What a group chooses by; replaced as a whole, while messages flow, by [`Group::set_rules`](crate::Group::set_rules).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The policy that chooses.
    pub policy: Policy,
    /// Whether messages with a [`key`](crate::Dispatch::key) stay with their member while earlier ones of that
    /// key are outstanding, unless that member is offline and another is not; it may drain.
    /// [`Sticky`](Policy::Sticky) stays what it is. Costs the group 32 KiB, and a message with a key a compare and
    /// exchange.
    /// Default: no.
    pub is_ordered: bool,
    /// Whether a key of an ordered group also leaves a member that is full where another is more available, or that would
    /// not begin with the message within a second. That breaks its order. Default: no.
    pub may_break_order: bool,
    /// A policy to evaluate beside the one that chooses, without acting on it
    /// ([`Members::shadow`](crate::Members::shadow) tells how it compares). It keeps no order. Default: none.
    pub shadow: Option<Policy>,
}

impl From<Policy> for Rules {
    /// The policy alone: not ordered, no shadow.
    fn from(policy: Policy) -> Self {
        Self { policy, ..Self::default() }
    }
}
