use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use super::{Action, Authenticator, Authorizer, Configured, KnownRealm, Principal, Settings, Standing};

/// Who a broker asks.
pub(crate) struct Access {
    configured: Arc<Configured>,
    authenticator: Arc<dyn Authenticator>,
    authorizer: Arc<dyn Authorizer>,
    /// The configuration's ACL decides.
    is_acl: bool,
    /// Nobody is denied anything, so that nobody needs to be asked. Written after the rules, read by everybody;
    /// relaxed, since the epoch makes whoever acted on an old value look again.
    is_open: AtomicBool,
    /// Changes so far. Raised (release) after the rules have changed, read (acquire) before they are asked.
    epoch: AtomicU64,
}

impl Access {
    pub(crate) fn new(
        settings: Settings,
        decoy_key: [u8; 32],
        authenticator: Option<Arc<dyn Authenticator>>,
        authorizer: Option<Arc<dyn Authorizer>>,
    ) -> Self {
        let configured = Arc::new(Configured::new(settings, decoy_key));
        let is_acl = authorizer.is_none();
        Self {
            authenticator: authenticator.unwrap_or_else(|| Arc::clone(&configured) as Arc<dyn Authenticator>),
            authorizer: authorizer.unwrap_or_else(|| Arc::clone(&configured) as Arc<dyn Authorizer>),
            is_open: AtomicBool::new(is_acl && configured.is_open()),
            is_acl,
            epoch: AtomicU64::new(1),
            configured,
        }
    }

    /// Everybody may do everything.
    #[cfg(test)]
    pub(crate) fn unlimited() -> Self {
        Self::new(Settings::load(&crate::Config::default(), true).unwrap(), [0; 32], None, None)
    }

    pub(crate) fn authenticator(&self) -> &Arc<dyn Authenticator> {
        &self.authenticator
    }

    pub(crate) fn standing(&self, principal: &Principal) -> Standing {
        self.authenticator.standing(principal)
    }

    /// Whether `owner`'s session is `newcomer`'s too, who has the same Client Identifier. Strangers are one user where
    /// the ACL says the same of both: who came in where more is allowed is not to be driven out, or to lose its
    /// session, from where less is.
    pub(crate) fn is_same_user(&self, owner: &Principal, newcomer: &Principal) -> bool {
        owner.identity.is_same_user(&newcomer.identity)
            && (owner.identity.user.is_some() || !self.is_acl || self.configured.is_alike_for(owner, newcomer))
    }

    /// Whether `newcomer` gets the Client Identifier of `owner`'s session, which ends: a user gets that of an anonymous
    /// client, who has proved nothing. But who came in where no ACL applies is not driven out from where one does.
    pub(crate) fn goes_before(&self, newcomer: &Principal, owner: &Principal) -> bool {
        newcomer.identity.user.is_some()
            && owner.identity.user.is_none()
            && !(self.is_acl && self.configured.is_more_trusted(owner, newcomer))
    }

    pub(crate) fn allows(&self, who: &Principal, action: Action<'_>) -> bool {
        self.is_open() || self.authorizer.authorize(who, action).is_allow()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// As [`Access::epoch`], for a task that has just given a lease back: one of the two, this task or the change of rules, sees
    /// what the other has done.
    pub(crate) fn epoch_after_release(&self) -> u64 {
        fence(Ordering::SeqCst);
        self.epoch()
    }

    /// Goes over to what a new configuration says; the realms to remember, if they have changed.
    pub(super) fn replace(&self, settings: Settings) -> Option<Vec<KnownRealm>> {
        let realms = self.configured.replace(settings);
        self.is_open.store(self.is_acl && self.configured.is_open(), Ordering::Relaxed);
        realms
    }

    /// The answers are others from now on.
    pub(super) fn changed(&self) {
        self.epoch.fetch_add(1, Ordering::Release);
        // Before the leases are asked for: see `epoch_after_release`.
        fence(Ordering::SeqCst);
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("epoch", &self.epoch()).finish_non_exhaustive()
    }
}
