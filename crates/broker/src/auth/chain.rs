use std::sync::Arc;

use super::{Answer, AuthFuture, AuthRequest, Authenticator, Configured, Principal, Standing};

/// A custom authenticator, and behind it the sources of the configuration.
pub(super) struct Chain {
    pub(super) first: Arc<dyn Authenticator>,
    pub(super) rest: Arc<Configured>,
}

impl Authenticator for Chain {
    fn authenticate(&self, request: AuthRequest) -> AuthFuture<'_> {
        Box::pin(async move {
            match self.first.authenticate(request.clone()).await {
                Answer::NotMine => self.rest.authenticate(request).await,
                answer => answer,
            }
        })
    }

    /// Realms separate the users of the configuration from the custom authenticator's users.
    fn standing(&self, principal: &Principal) -> Standing {
        if self.rest.has_realm(principal) { self.rest.standing(principal) } else { self.first.standing(principal) }
    }
}
