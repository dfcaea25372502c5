use std::sync::Arc;

use tenbin_balancer::{Group, Policy};
use tenbin_codec::ShareName;

use super::matches::Terms;
use crate::outbox::Outbox;

/// The sessions that share one subscription, named by share name and filter (MQTT 5.0 §4.8.2).
#[derive(Debug)]
pub(super) struct SharedGroup {
    pub(super) share_name: ShareName,
    pub(super) members: Group<GroupMember>,
}

/// What a delivery to a member needs.
#[derive(Debug)]
pub(super) struct GroupMember {
    pub(super) outbox: Arc<Outbox>,
    /// Each member has its own QoS `[MQTT-4.8.2-3]`.
    pub(super) terms: Terms,
}

impl SharedGroup {
    pub(super) fn new(share_name: ShareName, policy: Policy) -> Self {
        Self { share_name, members: Group::new(policy) }
    }
}
