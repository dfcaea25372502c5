use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use tenbin_codec::{ReasonCode, Text, TopicFilter, TopicName};

use super::{Access, Action, Identity, Principal, Standing};

/// What one session may: its user never changes, its listener and credentials are those of the last connection.
#[derive(Debug)]
pub(crate) struct Rights {
    access: Arc<Access>,
    principal: ArcSwap<Principal>,
}

impl Rights {
    pub(crate) fn new(access: Arc<Access>, principal: Principal) -> Self {
        Self { access, principal: ArcSwap::from_pointee(principal) }
    }

    /// Of an anonymous client where everything is allowed.
    #[cfg(test)]
    pub(crate) fn unlimited() -> Self {
        let identity = Identity::anonymous();
        let principal = Principal { client_id: Text::EMPTY, identity, listener: "test".into() };
        Self::new(Arc::new(Access::unlimited()), principal)
    }

    /// Whether the session is this newcomer's.
    pub(crate) fn belong_to(&self, newcomer: &Principal) -> bool {
        self.access.is_same_user(&self.principal.load(), newcomer)
    }

    /// Whether the session, an anonymous client's, ends when this newcomer wants its Client Identifier.
    pub(crate) fn yield_to(&self, newcomer: &Principal) -> bool {
        self.access.goes_before(newcomer, &self.principal.load())
    }

    /// Whether the session is this user's, on the same connection.
    pub(crate) fn is_same_user(&self, identity: &Identity) -> bool {
        self.principal.load().identity.is_same_user(identity)
    }

    /// The same user comes through a new connection, or with new credentials. Whether anything is different now.
    pub(crate) fn renew(&self, principal: Principal) -> bool {
        debug_assert!(self.is_same_user(&principal.identity), "a session stays with its user");
        let is_different = **self.principal.load() != principal;
        self.principal.store(Arc::new(principal));
        is_different
    }

    /// As [`Rights::renew`], on the same connection.
    pub(crate) fn renew_identity(&self, identity: Identity) {
        let principal = Principal::clone(&self.principal.load());
        self.renew(Principal { identity, ..principal });
    }

    pub(crate) fn principal(&self) -> Arc<Principal> {
        self.principal.load_full()
    }

    pub(crate) fn standing(&self) -> Standing {
        self.access.standing(&self.principal.load())
    }

    pub(crate) fn may_publish(&self, topic: &TopicName) -> bool {
        self.allow(Action::Publish(topic))
    }

    /// Asked at the time at which the Will is published: rights may have been taken away since CONNECT.
    ///
    /// # Errors
    /// Why it may not be published, for the log.
    pub(crate) fn check_will(&self, topic: &TopicName) -> Result<(), &'static str> {
        if self.standing() == Standing::Revoked {
            return Err("its user or listener is not configured");
        }
        if self.allow(Action::Will(topic)) { Ok(()) } else { Err("the ACL does not allow its topic") }
    }

    /// Judges a SUBSCRIBE by the filter behind `$share/name/`.
    pub(crate) fn check_subscription(&self, filter: &TopicFilter) -> Result<(), ReasonCode> {
        let allowed = match filter.shared() {
            Some(shared) => self.allow(Action::SubscribeShared(&shared.filter)),
            None => self.allow(Action::Subscribe(filter)),
        };
        if allowed { Ok(()) } else { Err(ReasonCode::NotAuthorized) }
    }

    pub(crate) fn may_receive(&self, topic: &TopicName) -> bool {
        self.allow(Action::Receive(topic))
    }

    /// As [`Rights::may_receive`], for the topic of a message that has been encoded already.
    pub(crate) fn may_receive_encoded(&self, topic: &[u8]) -> bool {
        if self.access.is_open() {
            return true;
        }
        let topic = Text::new(Bytes::copy_from_slice(topic)).ok().and_then(|text| TopicName::new(text).ok());
        topic.is_some_and(|topic| self.may_receive(&topic))
    }

    fn allow(&self, action: Action<'_>) -> bool {
        self.access.is_open() || self.access.allows(&self.principal.load(), action)
    }
}
