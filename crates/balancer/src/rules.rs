//! Dispatch rules of a group.

use crate::policy::Policy;

/// Dispatch rules of a group. [`Group::set_rules`](crate::Group::set_rules) replaces them at run time, as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The policy that chooses.
    pub policy: Policy,
    /// Whether messages with a [`key`](crate::Dispatch::key) stay with their member while earlier ones of that key are
    /// outstanding.
    ///
    /// They leave it only if it is offline and another member is not; a draining member keeps them. No effect with
    /// [`Sticky`](Policy::Sticky). Costs 32 KiB per group, and a compare-and-exchange per message with a key. Default:
    /// no.
    pub is_ordered: bool,
    /// Whether a key also leaves a full member for a more available one, or a member that would not begin with the
    /// message within a second. That breaks its order. Default: no.
    pub may_break_order: bool,
    /// A policy to evaluate beside the active one, without effect on dispatch
    /// ([`Members::shadow`](crate::Members::shadow) compares them). It keeps no order. Default: none.
    pub shadow: Option<Policy>,
}

impl From<Policy> for Rules {
    /// The policy alone: not ordered, no shadow.
    fn from(policy: Policy) -> Self {
        Self { policy, ..Self::default() }
    }
}
