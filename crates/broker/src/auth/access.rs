use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use super::chain::Chain;
use super::{
    Action, Authenticator, Authorizer, Configured, Identity, KnownRealm, Principal, Settings, Standing, Suspect, Terms,
};
use crate::config::Bridge;

/// The authenticator and the authorizer of a broker, with an epoch that counts rule changes.
pub(crate) struct Access {
    configured: Arc<Configured>,
    authenticator: Arc<dyn Authenticator>,
    authorizer: Arc<dyn Authorizer>,
    /// True if the configured ACL decides.
    is_acl: bool,
    /// Reasons for checks: [`BY_ACL`], [`BY_TERMS`]; 0 = no rule denies anything, and no check is necessary. Written after
    /// the rules. Relaxed: a reader of an old value checks again when it sees the new epoch, and a reader that sees a
    /// subscription of a client with terms sees their bit too.
    checks: AtomicU8,
    /// Number of rule changes. Raised (release) after the rules have changed, read (acquire) before a check.
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
            authenticator: match authenticator {
                Some(first) => Arc::new(Chain { first, rest: Arc::clone(&configured) }),
                None => Arc::clone(&configured) as Arc<dyn Authenticator>,
            },
            authorizer: authorizer.unwrap_or_else(|| Arc::clone(&configured) as Arc<dyn Authorizer>),
            checks: AtomicU8::new(if is_acl && configured.is_open() { 0 } else { BY_ACL }),
            is_acl,
            epoch: AtomicU64::new(1),
            configured,
        }
    }

    /// Allows the embedding program everything.
    pub(crate) fn of_program(&self) -> Self {
        Self {
            configured: Arc::clone(&self.configured),
            authenticator: Arc::clone(&self.authenticator),
            authorizer: Arc::clone(&self.authorizer),
            is_acl: self.is_acl,
            checks: AtomicU8::new(0),
            epoch: AtomicU64::new(0),
        }
    }

    /// Allows every client everything.
    #[cfg(test)]
    pub(crate) fn unlimited() -> Self {
        Self::new(Settings::load(&crate::Config::default(), true).unwrap(), [0; 32], None, None)
    }

    pub(crate) fn authenticator(&self) -> &Arc<dyn Authenticator> {
        &self.authenticator
    }

    /// Name of the source that has accepted a client of this listener, for metrics: `anonymous` without a user, and
    /// `custom` for a custom authenticator.
    pub(crate) fn source_of(&self, listener: &str, identity: &Identity) -> Arc<str> {
        self.configured.source_of(listener, identity)
    }

    pub(crate) fn standing(&self, principal: &Principal) -> Standing {
        let is_reserved = self.is_reserved(principal.client_id.as_str(), &principal.listener);
        if is_reserved || self.configured.is_banned(&principal.into()) {
            return Standing::Revoked;
        }
        self.authenticator.standing(principal)
    }

    /// Whether a client may not connect.
    pub(crate) fn is_banned(&self, suspect: &Suspect<'_>) -> bool {
        self.configured.is_banned(suspect)
    }

    /// Whether the Client Identifier is for a bridge of the broker, and the listener is for others. A stranger would take the
    /// bridge's session, with the messages in it.
    pub(crate) fn is_reserved(&self, client_id: &str, listener: &str) -> bool {
        self.configured.is_reserved(client_id, listener)
    }

    /// The bans of the configuration.
    pub(crate) fn bans(&self) -> Vec<crate::config::Ban> {
        self.configured.bans()
    }

    /// Replaces the bans that are not in the configuration. The caller tells the clients.
    pub(crate) fn set_further_bans(&self, bans: Vec<crate::config::Ban>) {
        self.configured.set_further_bans(bans);
    }

    /// Whether the session of `owner` also belongs to `socket` with the same Client Identifier.
    ///
    /// With the configured ACL, two anonymous clients are one user only if it treats their listeners alike. Otherwise a
    /// client of a less trusted listener could disconnect a more trusted one or take its session.
    ///
    /// A session of the broker's own bridge belongs to it alone, also while the bridge is not configured.
    pub(crate) fn is_same_user(&self, owner: &Principal, socket: &Principal) -> bool {
        Bridge::is_listener(&owner.listener) == Bridge::is_listener(&socket.listener)
            && owner.identity.is_same_user(&socket.identity)
            && (owner.identity.user.is_some() || !self.is_acl || self.configured.is_alike_for(owner, socket))
    }

    /// The present owner of a session.
    ///
    /// If its listener is not configured any more, another one takes its place: a listener that accepts the owner. This
    /// holds only if all such listeners agree on the user.
    pub(crate) fn owner_now(&self, listeners: &[Arc<str>], before: Principal) -> Principal {
        if listeners.contains(&before.listener) {
            return before;
        }
        let others = listeners.iter().filter(|listener| !Bridge::is_listener(listener));
        let elsewhere = others.map(|listener| Principal { listener: Arc::clone(listener), ..before.clone() });
        let mut candidates = elsewhere.filter(|principal| self.standing(principal) != Standing::Revoked);
        match candidates.next() {
            Some(first) if candidates.all(|other| self.is_same_user(&first, &other)) => first,
            _ => before,
        }
    }

    /// Whether `socket` takes over the Client Identifier of `owner`, whose session ends.
    ///
    /// An authenticated user displaces an anonymous client, which has proved nothing. Exception: a client of a listener
    /// without ACL is never displaced through a listener with ACL. The broker's own bridge displaces all others, and nobody
    /// displaces it.
    pub(crate) fn goes_before(&self, socket: &Principal, owner: &Principal) -> bool {
        if Bridge::is_listener(&socket.listener) || Bridge::is_listener(&owner.listener) {
            return !Bridge::is_listener(&owner.listener);
        }
        socket.identity.user.is_some()
            && owner.identity.user.is_none()
            && !(self.is_acl && self.configured.is_more_trusted(owner, socket))
    }

    pub(crate) fn allows(&self, who: &Principal, action: Action<'_>) -> bool {
        self.is_open() || self.authorizer.authorize(who, action).is_allow()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.checks.load(Ordering::Relaxed) == 0
    }

    /// Takes note of a client's rules, before anything is checked for it.
    pub(super) fn note_terms(&self, identity: &Identity) {
        if identity.terms.as_deref().is_some_and(Terms::has_rules) {
            self.checks.fetch_or(BY_TERMS, Ordering::Relaxed);
        }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Whether rights change only with the epoch. A custom authorizer may answer differently at any time.
    pub(crate) fn changes_with_epoch(&self) -> bool {
        self.is_acl
    }

    /// Like [`Access::epoch`], for a task that has just released a lease. The fence pairs with the one in `changed`:
    /// either this task sees the new epoch, or the rule change finds the lease free.
    pub(crate) fn epoch_after_release(&self) -> u64 {
        fence(Ordering::SeqCst);
        self.epoch()
    }

    /// Replaces the configured rules. Returns the realms to store, if they have changed.
    pub(crate) fn replace(&self, settings: Settings) -> Option<Vec<KnownRealm>> {
        let realms = self.configured.replace(settings);
        match self.is_acl && self.configured.is_open() {
            true => self.checks.fetch_and(!BY_ACL, Ordering::Relaxed),
            false => self.checks.fetch_or(BY_ACL, Ordering::Relaxed),
        };
        realms
    }

    /// Raises the epoch after the rules have changed.
    pub(crate) fn changed(&self) {
        self.epoch.fetch_add(1, Ordering::Release);
        // Before the leases are tried: see `epoch_after_release`.
        fence(Ordering::SeqCst);
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("epoch", &self.epoch()).finish_non_exhaustive()
    }
}

/// The ACL denies something, or a custom authorizer decides.
const BY_ACL: u8 = 1;
/// A client had individual rules.
const BY_TERMS: u8 = 2;
