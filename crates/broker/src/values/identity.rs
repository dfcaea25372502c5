use std::sync::Arc;
use std::time::Instant;

use tenbin_codec::Text;

use super::{AclRule, Effect};

/// Verified identity of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// User name; `None` = anonymous. Anonymous clients are one user across all listeners that the ACL treats alike.
    pub user: Option<Text>,
    /// Separates users of one name: the `realm` of the listener, or a value of a custom [`Authenticator`](crate::Authenticator). Empty
    /// if all users of one name are one user.
    pub realm: Arc<str>,
    /// Private value of the authenticator by which it detects changed credentials.
    pub stamp: u64,
    /// Rights and end that came with the credentials; `None` = neither. The rights are stored with a session that outlives
    /// its connection, if they take at most 32 KiB. Larger ones deny everything after a restart, until the next CONNECT.
    pub terms: Option<Arc<Terms>>,
}

/// Rights and end of an identity that came with its credentials.
#[derive(Debug, Clone, Default)]
pub struct Terms {
    /// Rules that apply before the rules of the ACL.
    pub rules: Vec<AclRule>,
    /// Effect where none of `rules` matches; `None` = the ACL decides.
    pub default: Option<Effect>,
    /// When the connection ends, unless the client authenticates again; `None` = never.
    pub expires_at: Option<Instant>,
}

impl Terms {
    /// Whether they have rights.
    pub(crate) fn has_rules(&self) -> bool {
        self.default.is_some() || !self.rules.is_empty()
    }

    /// Memory, as an estimate.
    #[cfg(feature = "web")]
    pub(crate) fn bytes(&self) -> usize {
        let rules = self.rules.iter().map(|rule| size_of::<AclRule>() + rule.topic.heap_bytes());
        size_of::<Self>() + rules.sum::<usize>()
    }
}

/// Compares rights only: a renewal changes the end and no right.
impl PartialEq for Terms {
    fn eq(&self, other: &Self) -> bool {
        self.rules == other.rules && self.default == other.default
    }
}

impl Eq for Terms {}

/// A client that requests an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// Client Identifier. Clients choose it freely, so it proves nothing.
    pub client_id: Text,
    /// Verified identity.
    pub identity: Identity,
    /// Name of the client's listener.
    pub listener: Arc<str>,
}

impl Identity {
    /// Returns the identity of a client that has proved nothing.
    pub fn anonymous() -> Self {
        Self { user: None, realm: Arc::default(), stamp: 0, terms: None }
    }

    /// Returns the identity of a user, for authenticators with a single realm.
    pub fn user(name: Text) -> Self {
        Self { user: Some(name), ..Self::anonymous() }
    }

    /// Whether both are one user, regardless of their credentials.
    pub fn is_same_user(&self, other: &Self) -> bool {
        self.user == other.user && self.realm == other.realm
    }
}
