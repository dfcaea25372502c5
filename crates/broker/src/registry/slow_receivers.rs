use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tenbin_codec::Text;
use tokio::sync::Notify;

use super::{Client, Place};
use crate::outbox::Concerns;

/// Receivers that the slow-consumer monitor samples.
#[derive(Debug, Default)]
pub(crate) struct SlowReceivers {
    newcomers: Mutex<Vec<Arc<Client>>>,
    /// The monitor sleeps, and the next receiver must wake it. Accessed under the lock of `newcomers`; relaxed.
    is_resting: AtomicBool,
    pub(crate) concerns: Arc<Concerns>,
    /// Receivers that the monitor found slow, at most [`LISTED_MAX`], made when it was asked for last.
    listed: Mutex<Vec<Arc<Client>>>,
    /// The list was asked for since it was made; relaxed.
    is_asked: AtomicBool,
    /// Signals that the number of slow receivers has changed.
    changed: Notify,
    /// Nodes of the cluster between which receivers are moved; `None`: none is.
    nodes: Mutex<Option<ClientAddresses>>,
}

/// Addresses for clients of the nodes between which slow receivers are moved, by the names of listeners.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientAddresses {
    /// Of this node.
    pub leader: BTreeMap<String, String>,
    /// Of the follower.
    pub follower: BTreeMap<String, String>,
}

impl SlowReceivers {
    /// Waits until the number of slow receivers changes.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Slow receivers by the last look of the monitor that followed a call of this.
    pub(crate) fn listed(&self) -> Vec<Arc<Client>> {
        self.is_asked.store(true, Ordering::Relaxed);
        self.listed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lists slow receivers, if the list was asked for.
    pub(crate) fn list<'a>(&self, slow: impl Iterator<Item = &'a Arc<Client>>) {
        if self.is_asked.swap(false, Ordering::Relaxed) {
            let slow = slow.take(LISTED_MAX).cloned().collect();
            *self.listed.lock().unwrap_or_else(PoisonError::into_inner) = slow;
        }
    }

    /// Sets the nodes between which receivers are moved.
    pub(crate) fn move_between(&self, nodes: Option<ClientAddresses>) {
        *self.nodes.lock().unwrap_or_else(PoisonError::into_inner) = nodes;
    }

    /// The server to which a receiver would be moved: the other one of leader and follower. `None`: it is not moved.
    pub(crate) fn server(&self, client: &Client) -> Option<Text> {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let ClientAddresses { leader, follower } = nodes.as_ref()?;
        let servers = match client.place() {
            Place::Stays => return None,
            Place::MayMove => follower,
            Place::AtFollower => leader,
        };
        let server = servers.get(&*client.rights.principal().listener)?;
        Text::try_from(server.as_str()).ok()
    }

    /// Monitors this client until it keeps up.
    pub(crate) fn watch(&self, client: &Arc<Client>) {
        let mut newcomers = self.newcomers.lock().unwrap_or_else(PoisonError::into_inner);
        newcomers.push(Arc::clone(client));
        if self.is_resting.swap(false, Ordering::Relaxed) {
            self.concerns.alarm();
        }
    }

    /// Whether the monitor may sleep: no receiver is registered. If so, the next one wakes it.
    pub(crate) fn may_rest(&self) -> bool {
        let newcomers = self.newcomers.lock().unwrap_or_else(PoisonError::into_inner);
        let may_rest = newcomers.is_empty() && !self.concerns.has_refused();
        self.is_resting.store(may_rest, Ordering::Relaxed);
        may_rest
    }

    /// Takes the receivers that registered since the last call.
    pub(crate) fn take_newcomers(&self) -> Vec<Arc<Client>> {
        mem::take(&mut self.newcomers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Tells [`SlowReceivers::changed`] that the number of slow receivers has changed.
    pub(crate) fn tell_changed(&self) {
        self.changed.notify_one();
    }
}

const LISTED_MAX: usize = 50;
