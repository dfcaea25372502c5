//! All sessions by Client Identifier, and who owns each.

mod client;
mod remembered_speeds;
mod subscriptions;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use tenbin_codec::Text;

use crate::auth::Principal;
pub(crate) use client::{Client, Lease, PendingWill};
pub(crate) use remembered_speeds::{RememberedSpeeds, SpeedLimits};

/// The sessions of a broker, connected or not.
///
/// A session belongs to one connection at a time: who has its [`Lease`]. A second connection with the same
/// Client Identifier asks the first one to leave and waits for the lease, so that the state is never in two
/// places.
#[derive(Debug, Default)]
pub(crate) struct ClientRegistry {
    clients: DashMap<Text, Arc<Client>>,
    /// The last number given; 0 is the broker's own.
    last_number: AtomicU64,
}

/// Why a session is not to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoClaim {
    /// A third connection of the same client id came while this one waited for the second to leave.
    Superseded,
    /// It is another user's.
    NotOurs,
}

impl ClientRegistry {
    /// Waits until the session of `newcomer`'s Client Identifier is ours, asking its present owner to leave
    /// `[MQTT-3.1.4-3]`. One that does not exist yet is made with `new`, which gets its number. Another user's is not
    /// touched.
    pub(crate) async fn claim(&self, newcomer: &Principal, new: impl Fn(u64) -> Client) -> Result<Lease, NoClaim> {
        loop {
            let client = self.find_or_insert(&newcomer.client_id, &new);
            if !client.rights.belong_to(newcomer) {
                return Err(NoClaim::NotOurs);
            }
            let lease = client.claim().await?;
            // Between finding it and having it, its last owner may have ended the session.
            if !lease.state.ended {
                return Ok(lease);
            }
        }
    }

    /// Whether a session of this name exists.
    pub(crate) fn contains(&self, id: &Text) -> bool {
        self.clients.contains_key(id)
    }

    /// Forgets an ended session; a new one of the same name may be there already.
    pub(crate) fn remove(&self, client: &Client) {
        self.clients.remove_if(&client.id, |_, other| other.number == client.number);
    }

    /// Sessions, connected or not.
    pub(crate) fn len(&self) -> usize {
        self.clients.len()
    }

    pub(crate) fn for_each(&self, mut visit: impl FnMut(&Arc<Client>)) {
        self.clients.iter().for_each(|client| visit(&client));
    }

    fn find_or_insert(&self, id: &Text, new: impl Fn(u64) -> Client) -> Arc<Client> {
        if let Some(client) = self.clients.get(id) {
            return Arc::clone(&client);
        }
        let make = || Arc::new(new(self.last_number.fetch_add(1, Ordering::Relaxed) + 1));
        Arc::clone(&self.clients.entry(id.detach()).or_insert_with(make))
    }
}
