//! Sources of the authentication chain: the ways in of a listener.

use std::borrow::Cow;
use std::sync::Arc;

use tenbin_codec::{ReasonCode, Text};

use super::{Answer, LoginRefusal, PasswordFile};

/// A source with its name and realm.
#[derive(Debug, Clone)]
pub(super) struct Source {
    /// Name in the log.
    pub(super) name: Arc<str>,
    /// Separates users of one name: see [`super::realms`].
    pub(super) realm: Arc<str>,
    /// Index of its realm among those of the configuration.
    pub(super) place: usize,
    pub(super) kind: Kind,
}

#[derive(Debug, Clone)]
pub(super) enum Kind {
    Passwords(Arc<PasswordFile>),
    Scram(Arc<PasswordFile>),
}

impl Source {
    /// Users and hashes, of sources with a password file.
    pub(super) fn password_file(&self) -> Option<&Arc<PasswordFile>> {
        match &self.kind {
            Kind::Passwords(file) | Kind::Scram(file) => Some(file),
        }
    }

    /// Takes the users that its password file has now; keeps them as they are if it cannot be read.
    pub(super) fn read_again(&mut self) {
        let (Kind::Passwords(file) | Kind::Scram(file)) = &mut self.kind;
        if let Ok(now) = file.read_again() {
            *file = Arc::new(now);
        }
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
