use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use tenbin_codec::Text;
use tenbin_sn::Login;

use crate::config::{Config, IDENTITY};
use crate::dtls::Identity;
use crate::limits::Limits;
use crate::owners::Owners;
use crate::peers::Inbox;
use crate::relay::Relays;
use crate::state::States;
use crate::upstream::Upstream;

/// Data that all threads of a gateway share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    /// Form of the clients' logins, if each has its own.
    pub(crate) login: Option<Login>,
    pub(crate) gateway: Arc<tenbin_sn::Gateway>,
    pub(crate) upstream: Upstream,
    pub(crate) limits: Limits,
    pub(crate) states: States,
    /// Changes with each call to read keys and certificates again.
    pub(crate) keys_version: AtomicUsize,
    /// Clients of all threads.
    pub(crate) clients: AtomicUsize,
    pub(crate) owners: Owners,
    /// Inboxes by number of the thread.
    pub(crate) inboxes: Box<[Arc<Inbox>]>,
    pub(crate) relays: Arc<Relays>,
    pub(crate) health: Health,
}

/// Whether the broker could be reached last time: a change is logged once.
#[derive(Default)]
pub(crate) struct Health {
    is_down: AtomicBool,
}

/// Stands behind the length of an identity's key.
const NAME_END: char = '\u{1F}';

/// A client without the identity that its User Name needs.
#[derive(Debug)]
pub(crate) struct NoIdentity;

impl Shared {
    /// Name of a client's stored state, which contains the identity, so that other identities do not get the state. With
    /// credentials there is none, because the user is unknown at CONNECT.
    pub(crate) fn state_name(&self, client_id: &Text, identity: Option<&Identity>) -> Option<Text> {
        if self.config.listener.credentials {
            return None;
        }
        if self.config.listener.dtls.is_none() {
            return Some(client_id.clone());
        }
        let owner = identity.map(Identity::key).unwrap_or_default();
        // With its length, so that no other owner and client id together are equal.
        Text::try_from(format!("{}{NAME_END}{owner}{client_id}", owner.len())).ok()
    }

    /// Login of a client with this identity, if each client has its own.
    ///
    /// # Errors
    /// The client has no identity, or one that is no User Name.
    pub(crate) fn login_of(&self, identity: Option<&Identity>) -> Result<Option<Login>, NoIdentity> {
        let Some(form) = &self.login else { return Ok(None) };
        let name = identity.and_then(Identity::name).ok_or(NoIdentity)?;
        let user = Text::try_from(form.user.as_str().replace(IDENTITY, &name)).map_err(|_| NoIdentity)?;
        Ok(Some(Login { user, password: form.password.clone() }))
    }
}

impl Health {
    pub(crate) fn reached(&self, broker: &str) {
        if self.is_down.load(Relaxed) && self.is_down.swap(false, Relaxed) {
            tracing::info!(broker, "broker is back: clients can connect again");
        }
    }

    pub(crate) fn unreachable(&self, broker: &str, error: &io::Error) {
        if !self.is_down.swap(true, Relaxed) {
            tracing::warn!(broker, %error, "broker cannot be reached: CONNECT is answered \"congestion\" until it is back");
        }
    }

    pub(crate) fn lost(&self, broker: &str, client_id: &str, peer: SocketAddr) {
        tracing::debug!(broker, client_id, %peer, "broker ended the connection of a client");
    }
}
