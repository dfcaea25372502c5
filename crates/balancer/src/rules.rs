//! Dispatch rules of a group.

use crate::policy::Policy;

/// Dispatch rules of a group. [`Group::set_rules`](crate::Group::set_rules) replaces them at run time, as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Whether messages that need an acknowledgement wait with the group until a member can begin with them
    /// ([`Members::pick_late`](crate::Members::pick_late)). Only with [`Adaptive`](Policy::Adaptive). Default: yes.
    pub late_binding: bool,
}

impl Default for Rules {
    fn default() -> Self {
        let policy = Policy::default();
        Self { policy, is_ordered: false, may_break_order: false, shadow: None, late_binding: true }
    }
}

impl From<Policy> for Rules {
    /// The policy with the defaults of everything else.
    fn from(policy: Policy) -> Self {
        Self { policy, ..Self::default() }
    }
}
