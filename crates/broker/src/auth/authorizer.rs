use tenbin_codec::{TopicFilter, TopicName};

use super::Principal;

/// Decides who may do what.
///
/// Asked in the middle of the broker's work, for every PUBLISH among others: an answer must not wait for anything.
/// What is said of [`Action::Receive`] is remembered until subscriptions change or [`crate::Broker::reauthorize`]
/// is called.
pub trait Authorizer: Send + Sync + 'static {
    /// Whether `who` may do `action`.
    fn authorize(&self, who: &Principal, action: Action<'_>) -> Decision;
}

/// What somebody wants to do. Topic Aliases are resolved, `$share/name/` is taken off.
#[derive(Debug, Clone, Copy)]
pub enum Action<'a> {
    /// PUBLISH to a topic, retained or not.
    Publish(&'a TopicName),
    /// Leave a Will for a topic; asked at CONNECT, and again when the Will is published.
    Will(&'a TopicName),
    /// Subscribe to a filter. Where it matches topics that may not be received, [`Action::Receive`] is asked
    /// for each.
    Subscribe(&'a TopicFilter),
    /// Share a subscription. To allow it is to allow every topic that the filter matches: members are not asked
    /// about messages one by one.
    SubscribeShared(&'a TopicFilter),
    /// Get a message, retained or not, through a subscription that is not shared.
    Receive(&'a TopicName),
}

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Yes.
    Allow,
    /// No: Not authorized (0x87) where the protocol has a place to say so.
    Deny,
}

impl Decision {
    /// Whether the answer is yes.
    pub fn is_allow(self) -> bool {
        self == Self::Allow
    }
}

impl From<bool> for Decision {
    fn from(allow: bool) -> Self {
        if allow { Self::Allow } else { Self::Deny }
    }
}
