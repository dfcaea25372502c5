use tenbin_codec::{TopicFilter, TopicName};

use super::Principal;

/// Decides which actions a client may perform.
///
/// The broker calls it inline, for every PUBLISH among others: an implementation must not block. Decisions on
/// [`Action::Receive`] are cached until subscriptions change or [`crate::Broker::reauthorize`] is called.
pub trait Authorizer: Send + Sync + 'static {
    /// Decides whether the client `who` may perform `action`.
    fn authorize(&self, who: &Principal, action: Action<'_>) -> Decision;
}

/// An action to authorize. Topic Aliases are resolved and `$share/name/` is removed.
#[derive(Debug, Clone, Copy)]
pub enum Action<'a> {
    /// PUBLISH to a topic, retained or not.
    Publish(&'a TopicName),
    /// Set a Will with this topic; checked at CONNECT, and again when the Will is published.
    Will(&'a TopicName),
    /// Subscribe to a filter. If it also matches forbidden topics, [`Action::Receive`] decides on each message.
    Subscribe(&'a TopicFilter),
    /// Subscribe to a filter in a share group. Allowing it allows every topic that the filter matches: messages of
    /// share groups are not checked one by one.
    SubscribeShared(&'a TopicFilter),
    /// Receive a message, retained or not, through an ordinary subscription.
    Receive(&'a TopicName),
}

/// Result of an authorization.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The action is allowed.
    Allow,
    /// The action is denied: Not authorized (0x87) where the protocol can report it.
    Deny,
}

impl Decision {
    /// Whether the action is allowed.
    pub fn is_allow(self) -> bool {
        self == Self::Allow
    }
}

impl From<bool> for Decision {
    fn from(allow: bool) -> Self {
        if allow { Self::Allow } else { Self::Deny }
    }
}
