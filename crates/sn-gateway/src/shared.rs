use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use crate::config::Config;
use crate::limits::Limits;
use crate::owners::Owners;
use crate::peers::Inbox;
use crate::state::States;
use crate::upstream::Upstream;

/// Data that all threads of a gateway share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) gateway: Arc<tenbin_sn::Gateway>,
    pub(crate) upstream: Upstream,
    pub(crate) limits: Limits,
    pub(crate) states: States,
    /// Clients of all threads.
    pub(crate) clients: AtomicUsize,
    pub(crate) owners: Owners,
    /// Inboxes by number of the thread.
    pub(crate) inboxes: Box<[Arc<Inbox>]>,
    pub(crate) health: Health,
}

/// Whether the broker could be reached last time: a change is logged once.
#[derive(Default)]
pub(crate) struct Health {
    is_down: AtomicBool,
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
