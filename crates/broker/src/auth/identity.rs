use std::sync::Arc;

use tenbin_codec::Text;

/// Who a client has proved to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The user; `None` = anonymous, which is a user of its own: one for all listeners of which the ACL says the same.
    pub user: Option<Text>,
    /// Keeps two users of one name apart: the `realm` of the listener, or whatever a custom [`super::Authenticator`]
    /// says; empty where all users of one name are one user.
    pub realm: Arc<str>,
    /// The authenticator's own, to recognise credentials by that were changed since.
    pub stamp: u64,
}

/// Who wants to do something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// The Client Identifier. A client chooses it freely: it proves nothing.
    pub client_id: Text,
    /// Who the client has proved to be.
    pub identity: Identity,
    /// Name of the listener through which it came.
    pub listener: Arc<str>,
}

impl Identity {
    /// Somebody who has proved nothing.
    pub fn anonymous() -> Self {
        Self { user: None, realm: Arc::default(), stamp: 0 }
    }

    /// A user of the only realm.
    pub fn user(name: Text) -> Self {
        Self { user: Some(name), ..Self::anonymous() }
    }

    /// Whether both are one user, whatever their credentials.
    pub fn is_same_user(&self, other: &Self) -> bool {
        self.user == other.user && self.realm == other.realm
    }
}
