//! All sessions by Client Identifier, and their owners.

mod address_quota;
mod client;
#[cfg(test)]
mod for_tests;
mod partly_refused;
mod remembered_speeds;
mod roster;
mod slow_receivers;
mod subscriptions;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use tenbin_codec::Text;

use crate::auth::Principal;
pub(crate) use address_quota::{AddressQuota, Counted, OverQuota};
pub(crate) use client::{ChargedWill, Client, Lease, PendingWill, Place, session_bytes};
pub(crate) use partly_refused::PartlyRefused;
pub(crate) use remembered_speeds::RememberedSpeeds;
pub(crate) use roster::{ConnectionInfo, Roster, SessionFigures};
pub use slow_receivers::ClientAddresses;
pub(crate) use slow_receivers::SlowReceivers;
pub(crate) use subscriptions::Subscriptions;

/// The sessions of a broker, connected or not.
///
/// A session belongs to one connection at a time, the one that has its [`Lease`]. A second connection with the same
/// Client Identifier asks the first one to leave and waits for the lease. So the state is never in two places.
#[derive(Debug, Default)]
pub(crate) struct ClientRegistry {
    clients: DashMap<Text, Arc<Client>>,
    /// The last number given; 0 is the broker's own.
    last_number: AtomicU64,
    /// Set before the first session, by a broker with admin HTTP.
    roster: std::sync::OnceLock<Roster>,
}

/// Why a session cannot be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoClaim {
    /// A newer connection with the same Client Identifier came while this one waited for the lease.
    Superseded,
    /// The session is another user's, or a user waits for its end.
    NotOurs,
    /// The session exists, and the claimant may only begin one.
    Exists,
}

/// A claimed session.
#[derive(Debug)]
pub(crate) enum Claimed {
    /// The claimant's own.
    Ours(Lease),
    /// An anonymous client's, which has to end for a claimant that is a user. Claim the session again afterwards.
    ToEnd(Lease),
    /// Another user's, as the lease has shown. Give it back.
    Others(Lease),
}

impl ClientRegistry {
    /// Claims the session of a Client Identifier: asks its owner to leave, and waits `[MQTT-3.1.4-3]`.
    ///
    /// A session that does not exist yet is made with `new`, which gets its number. The registry keeps its Client
    /// Identifier, which should keep no other bytes alive: see [`Text::detach`]. Another user's session stays
    /// untouched, unless a user wants the Client Identifier of an anonymous client.
    pub(crate) async fn claim(&self, socket: &Principal, new: impl Fn(u64) -> Client) -> Result<Claimed, NoClaim> {
        loop {
            let (client, _) = self.find_or_insert(&socket.client_id, &new);
            if client.rights.yield_to(socket) {
                let lease = client.displace().await;
                // Its last owner may have ended it.
                if lease.state.ended {
                    continue;
                }
                // The rules that give precedence to the socket may have changed.
                let goes_first = client.rights.yield_to(socket);
                return Ok(if goes_first { Claimed::ToEnd(lease) } else { Claimed::Others(lease) });
            }
            if !client.rights.belong_to(socket) || client.is_displaced() {
                return Err(NoClaim::NotOurs);
            }
            let lease = client.claim().await?;
            // Before the lease was free, the last owner may have ended the session.
            if lease.state.ended {
                continue;
            }
            // Or another client had it in between, or the rule has changed that anonymous clients are one user. A user
            // that came before this claim waits behind it: nothing else would ask the new owner to leave.
            let is_ours = client.rights.belong_to(socket) && !client.is_displaced();
            return Ok(if is_ours { Claimed::Ours(lease) } else { Claimed::Others(lease) });
        }
    }

    /// Claims a session that does not exist yet, and is made with `new`.
    pub(crate) fn claim_new(&self, socket: &Principal, new: impl Fn(u64) -> Client) -> Result<Claimed, NoClaim> {
        let (client, is_new) = self.find_or_insert(&socket.client_id, new);
        let lease = if is_new { client.try_lease() } else { None };
        // Another user may have ended it already.
        let lease = lease.filter(|lease| !lease.state.ended);
        lease.map(Claimed::Ours).ok_or(NoClaim::Exists)
    }

    /// Makes a session of the last run with `new`, which gets its number.
    pub(crate) fn restore(&self, id: &Text, new: impl Fn(u64) -> Client) -> Arc<Client> {
        self.find_or_insert(id, new).0
    }

    /// The session of this Client Identifier.
    pub(crate) fn find(&self, id: &Text) -> Option<Arc<Client>> {
        self.clients.get(id).map(|client| Arc::clone(&client))
    }

    /// Whether a session of this Client Identifier exists.
    pub(crate) fn contains(&self, id: &Text) -> bool {
        self.clients.contains_key(id)
    }

    /// Removes an ended session, but not a newer one of the same Client Identifier.
    pub(crate) fn remove(&self, client: &Client) {
        self.clients.remove_if(&client.id, |_, other| other.number == client.number);
        if let Some(roster) = self.roster.get() {
            roster.remove(client.number);
        }
    }

    /// Sessions, connected or not.
    pub(crate) fn len(&self) -> usize {
        self.clients.len()
    }

    /// Keeps a roster from now on. Call it before the first session begins.
    pub(crate) fn keep_roster(&self) {
        self.roster.get_or_init(Roster::default);
    }

    /// The roster; `None` if sessions cannot be listed.
    pub(crate) fn roster(&self) -> Option<&Roster> {
        self.roster.get()
    }

    pub(crate) fn for_each(&self, mut visit: impl FnMut(&Arc<Client>)) {
        self.clients.iter().for_each(|client| visit(&client));
    }

    /// Number of a new session.
    pub(crate) fn next_number(&self) -> u64 {
        self.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The session of this Client Identifier, and whether it was made here.
    fn find_or_insert(&self, id: &Text, new: impl Fn(u64) -> Client) -> (Arc<Client>, bool) {
        if let Some(client) = self.clients.get(id) {
            return (Arc::clone(&client), false);
        }
        let mut is_new = false;
        let make = || {
            is_new = true;
            let client = Arc::new(new(self.next_number()));
            // Under the lock of the shard, so that the removal comes later.
            if let Some(roster) = self.roster.get() {
                roster.add(&client);
            }
            client
        };
        (Arc::clone(&self.clients.entry(id.clone()).or_insert_with(make)), is_new)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn anonymous(listener: &str) -> Principal {
        Principal::for_tests(listener)
    }

    fn client(principal: &Principal, number: u64) -> Client {
        Client::for_tests(principal, number)
    }

    #[tokio::test]
    async fn claim_checks_the_owner_after_the_last_one_has_left() {
        let registry = ClientRegistry::default();
        let (inside, outside) = (anonymous("inside"), anonymous("outside"));
        let new = |number| client(&inside, number);
        for is_another in [false, true] {
            let Ok(Claimed::Ours(owner)) = registry.claim(&inside, new).await else { panic!("it is ours") };
            let mut waits = std::pin::pin!(registry.claim(&inside, new));
            assert!(tokio::time::timeout(Duration::from_millis(1), &mut waits).await.is_err(), "it has an owner");
            if is_another {
                owner.client.rights.renew(outside.clone());
            }
            drop(owner);
            let claimed = waits.await.unwrap();
            assert!(matches!(claimed, Claimed::Others(_)) == is_another, "{claimed:?}");
        }
    }

    #[tokio::test]
    async fn claim_of_a_new_session_takes_none_that_exists() {
        let registry = ClientRegistry::default();
        let inside = anonymous("inside");
        let new = |number| client(&inside, number);
        let Ok(Claimed::Ours(owner)) = registry.claim_new(&inside, new) else { panic!("it is new") };
        assert!(matches!(registry.claim_new(&inside, new), Err(NoClaim::Exists)), "it has an owner");
        let session = Arc::clone(&owner.client);
        drop(owner);
        assert!(matches!(registry.claim_new(&inside, new), Err(NoClaim::Exists)), "its owner is away");
        assert!(session.try_lease().is_some(), "the claims have changed nothing");
    }

    #[tokio::test]
    async fn anonymous_claim_gives_way_to_a_user_before_it() {
        let registry = ClientRegistry::default();
        let inside = anonymous("inside");
        let new = |number| client(&inside, number);
        let Ok(Claimed::Ours(owner)) = registry.claim(&inside, new).await else { panic!("it is ours") };
        let mut waits = std::pin::pin!(registry.claim(&inside, new));
        assert!(tokio::time::timeout(Duration::from_millis(1), &mut waits).await.is_err(), "it has an owner");
        let session = Arc::clone(&owner.client);
        let displacing = client::Displacing::of(&session);
        drop(owner);
        assert!(matches!(waits.await, Ok(Claimed::Others(_))), "to be given back");
        drop(displacing);
        assert!(session.try_lease().is_some(), "the user gets it");
    }
}
