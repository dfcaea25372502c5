use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use bytes::Bytes;
use tenbin_codec::{ReasonCode, Text, TopicFilter, TopicName};

use super::{Access, Action, Identity, Principal, Standing};

/// Rights of one session. Its user never changes; listener and credentials belong to the last connection.
#[derive(Debug)]
pub(crate) struct Rights {
    access: Arc<Access>,
    principal: ArcSwap<Principal>,
}

impl Rights {
    pub(crate) fn new(access: Arc<Access>, principal: Principal) -> Self {
        access.note_terms(&principal.identity);
        Self { access, principal: ArcSwap::from_pointee(principal) }
    }

    /// Creates the rights of an anonymous client to which everything is allowed.
    #[cfg(test)]
    pub(crate) fn unlimited() -> Self {
        let identity = Identity::anonymous();
        let principal = Principal { client_id: Text::EMPTY, identity, listener: "test".into() };
        Self::new(Arc::new(Access::unlimited()), principal)
    }

    /// Whether the session belongs to this new client.
    pub(crate) fn belong_to(&self, socket: &Principal) -> bool {
        self.access.is_same_user(&self.principal.load(), socket)
    }

    /// Whether the session of an anonymous client ends because this new client wants its Client Identifier.
    pub(crate) fn yield_to(&self, socket: &Principal) -> bool {
        self.access.goes_before(socket, &self.principal.load())
    }

    /// Whether the session belongs to this user, on the same connection.
    pub(crate) fn is_same_user(&self, identity: &Identity) -> bool {
        self.principal.load().identity.is_same_user(identity)
    }

    /// Replaces the principal by the same user with a new connection or new credentials. Returns whether it differs.
    pub(crate) fn renew(&self, principal: Principal) -> bool {
        debug_assert!(self.is_same_user(&principal.identity), "a session stays with its user");
        self.access.note_terms(&principal.identity);
        let is_different = **self.principal.load() != principal;
        self.principal.store(Arc::new(principal));
        is_different
    }

    /// Replaces the identity on the same connection, like [`Rights::renew`].
    pub(crate) fn renew_identity(&self, identity: Identity) -> bool {
        let principal = Principal::clone(&self.principal.load());
        self.renew(Principal { identity, ..principal })
    }

    pub(crate) fn principal(&self) -> Arc<Principal> {
        self.principal.load_full()
    }

    /// When the connection ends, unless the client authenticates again.
    pub(crate) fn expires_at(&self) -> Option<Instant> {
        self.principal.load().identity.terms.as_ref()?.expires_at
    }

    pub(crate) fn standing(&self) -> Standing {
        self.access.standing(&self.principal.load())
    }

    pub(crate) fn may_publish(&self, topic: &TopicName) -> bool {
        self.allow(Action::Publish(topic))
    }

    /// Checks a Will when it is published: rights may have been removed since CONNECT.
    ///
    /// # Errors
    /// The reason for the log if it may not be published.
    pub(crate) fn check_will(&self, topic: &TopicName) -> Result<(), &'static str> {
        if self.standing() == Standing::Revoked {
            return Err("its user or listener is not configured");
        }
        if self.allow(Action::Will(topic)) { Ok(()) } else { Err("the ACL does not allow its topic") }
    }

    /// Checks a SUBSCRIBE by its filter, without `$share/name/`.
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

    /// Like [`Rights::may_receive`], for the topic of an encoded message.
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
