//! Sources of the authentication chain: the ways in of a listener.

use std::borrow::Cow;
use std::sync::Arc;

use tenbin_codec::{ReasonCode, Text};

use super::certificates::Certificates;
#[cfg(feature = "web")]
use super::http::Http;
#[cfg(feature = "web")]
use super::jwt::Jwt;
use super::{Answer, AuthRequest, Identity, LoginRefusal, PasswordFile, Terms};

/// A source with its name and realm.
#[derive(Debug, Clone)]
pub(super) struct Source {
    /// Name in the log.
    pub(super) name: Arc<str>,
    /// Separates users of one name: see [`super::realms`].
    pub(super) realm: Arc<str>,
    /// Index of its realm among the configured realms.
    pub(super) place: usize,
    pub(super) kind: Kind,
}

#[derive(Debug, Clone)]
pub(super) enum Kind {
    /// User of clients that offer no credentials.
    Listener(Text),
    Certificate(Arc<Certificates>),
    Passwords(Arc<PasswordFile>),
    Scram(Arc<PasswordFile>),
    #[cfg(feature = "web")]
    Jwt(Arc<Jwt>),
    #[cfg(feature = "web")]
    Http(Arc<Http>),
}

impl Source {
    /// Users and hashes, of sources with a password file.
    pub(super) fn password_file(&self) -> Option<&Arc<PasswordFile>> {
        match &self.kind {
            Kind::Passwords(file) | Kind::Scram(file) => Some(file),
            _ => None,
        }
    }

    /// Takes the users that its password file has now; keeps them as they are if it cannot be read.
    pub(super) fn read_again(&mut self) {
        if let Kind::Passwords(file) | Kind::Scram(file) = &mut self.kind
            && let Ok(now) = file.read_again()
        {
            *file = Arc::new(now);
        }
    }

    /// Answers a client of a listener whose clients need no credentials to be `user`.
    pub(super) fn admit(&self, user: &Text, request: &AuthRequest) -> Answer {
        if request.user_name.is_some() || request.password.is_some() || request.method.is_some() {
            return Answer::NotMine;
        }
        let identity = Identity { realm: Arc::clone(&self.realm), ..Identity::user(user.clone()) };
        Answer::Accept { identity, data: None }
    }

    /// Identity of a user whose credentials are not in a password file.
    pub(super) fn identity(&self, user: Text, terms: Terms) -> Identity {
        Identity { user: Some(user), realm: Arc::clone(&self.realm), stamp: 0, terms: Some(Arc::new(terms)) }
    }

    pub(super) fn refuse(&self, reason: ReasonCode, cause: impl Into<Cow<'static, str>>) -> Answer {
        let (source, cause) = (Arc::clone(&self.name), cause.into());
        Answer::RefuseLogin(Box::new(LoginRefusal { reason, source, cause, user: None }))
    }

    /// Refuses a user whose name is not in CONNECT.
    pub(super) fn refuse_user(&self, user: Text, reason: ReasonCode, cause: &'static str) -> Answer {
        let (source, cause) = (Arc::clone(&self.name), cause.into());
        Answer::RefuseLogin(Box::new(LoginRefusal { reason, source, cause, user: Some(user) }))
    }
}
