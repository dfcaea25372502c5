//! Dispatch rules of a group.

use std::str::FromStr;

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
    /// When messages that need an acknowledgement wait with the group until a member can begin with them
    /// ([`Members::pick_late`](crate::Members::pick_late)). Only with [`Adaptive`](Policy::Adaptive).
    pub late_binding: LateBinding,
    /// Messages that a member works on at a time, if it tells nothing itself; 0 = unknown.
    pub concurrency: u16,
}

/// When a member can begin with another message that needs an acknowledgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LateBinding {
    /// While it has fewer messages than the number that keeps it busy, learnt from its acknowledgements.
    #[default]
    Learn,
    /// While it has fewer messages than the concurrency that it told. A member that told none can always begin.
    Told,
    /// At all times.
    Off,
}

impl FromStr for LateBinding {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "learn" => Ok(Self::Learn),
            "told" => Ok(Self::Told),
            "off" => Ok(Self::Off),
            _ => Err(format!("{name:?} is none of learn, told, off")),
        }
    }
}

impl Default for Rules {
    fn default() -> Self {
        let policy = Policy::default();
        Self {
            policy,
            is_ordered: false,
            may_break_order: false,
            shadow: None,
            late_binding: LateBinding::Learn,
            concurrency: 0,
        }
    }
}

impl From<Policy> for Rules {
    /// The policy with the defaults of everything else.
    fn from(policy: Policy) -> Self {
        Self { policy, ..Self::default() }
    }
}
