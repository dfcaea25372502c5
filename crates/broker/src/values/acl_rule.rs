use serde::{Deserialize, Deserializer};

use super::TopicPattern;

/// A rule of the ACL: the clients, the actions and the topics that it allows or denies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AclRule {
    /// User that it applies to; `Some("")` = clients without one; `None` = all.
    pub user: Option<String>,
    /// Client Identifier that it applies to; `None` = all. Clients choose it freely, so it proves nothing.
    pub client_id: Option<String>,
    /// Name of the listener that it applies to; `None` = all.
    pub listener: Option<String>,
    /// Whether the rule allows or denies.
    pub effect: Effect,
    /// Actions that the rule covers.
    pub action: AclAction,
    /// Topics that the rule covers.
    pub topic: TopicPattern,
}

/// Effect of a matching rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Allows the action.
    Allow,
    /// Denies the action.
    Deny,
}

/// Actions that a rule covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AclAction {
    /// Publishing, including Wills.
    Publish,
    /// Subscribing, and receiving the messages of these subscriptions.
    Subscribe,
    /// Publishing and subscribing.
    All,
}

/// A rule as the configuration spells it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    user: Option<String>,
    client_id: Option<String>,
    listener: Option<String>,
    allow: Option<AclAction>,
    deny: Option<AclAction>,
    topic: TopicPattern,
}

impl RawRule {
    /// Converts the rule; `None` unless it has exactly one of `allow` and `deny`.
    fn check(self) -> Option<AclRule> {
        let (effect, action) = match (self.allow, self.deny) {
            (Some(action), None) => (Effect::Allow, action),
            (None, Some(action)) => (Effect::Deny, action),
            _ => return None,
        };
        let Self { user, client_id, listener, topic, .. } = self;
        Some(AclRule { user, client_id, listener, effect, action, topic })
    }
}

/// Deserializes the rules. The error names a rule without exactly one of `allow` and `deny` by its number.
pub(crate) fn acl_rules<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<AclRule>, D::Error> {
    let raw = Vec::<RawRule>::deserialize(deserializer)?;
    let wrong =
        |number| serde::de::Error::custom(format!("rule {number} of the acl needs exactly one of allow and deny"));
    raw.into_iter().zip(1..).map(|(rule, number)| rule.check().ok_or_else(|| wrong(number))).collect()
}
