use std::num::NonZeroU16;

use tenbin_codec::SubscriptionOptions;

/// One subscription of a session, as granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) options: SubscriptionOptions,
    pub(crate) identifier: Option<u32>,
    /// Weight of the member in its share group, for weighted policies.
    pub(crate) weight: NonZeroU16,
}
