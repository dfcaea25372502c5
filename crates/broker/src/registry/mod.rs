//! All sessions by Client Identifier, and who owns each.

mod address_quota;
mod client;
mod partly_refused;
mod remembered_speeds;
mod subscriptions;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use tenbin_codec::Text;

use crate::auth::Principal;
pub(crate) use address_quota::{AddressQuota, CountedSession, OverQuota, SessionLimits};
pub(crate) use client::{ChargedWill, Client, Lease, PendingWill, session_bytes};
pub(crate) use partly_refused::PartlyRefused;
pub(crate) use remembered_speeds::{KnownSpeed, RememberedSpeeds, SpeedChanges, SpeedKey, SpeedLimits};
pub(crate) use subscriptions::SubscriptionLimits;

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

/// A session that was claimed.
#[derive(Debug)]
pub(crate) enum Claimed {
    /// The newcomer's own.
    Ours(Lease),
    /// An anonymous client's, which has to end: the newcomer is a user. Then it is to be claimed again.
    ToEnd(Lease),
    /// Another user's, as it turned out: to be given back.
    Others(Lease),
}

impl ClientRegistry {
    /// Waits until the session of `newcomer`'s Client Identifier is ours, asking its present owner to leave
    /// `[MQTT-3.1.4-3]`. One that does not exist yet is made with `new`, which gets its number. Another user's is not
    /// touched, unless a user wants the Client Identifier of an anonymous client. The new Client Identifier is kept, so it should keep nothing else alive: see [`Text::detach`].
    pub(crate) async fn claim(&self, newcomer: &Principal, new: impl Fn(u64) -> Client) -> Result<Claimed, NoClaim> {
        loop {
            let client = self.find_or_insert(&newcomer.client_id, &new);
            if client.rights.yield_to(newcomer) {
                let lease = client.displace().await;
                // Its last owner may have ended it.
                if lease.state.ended {
                    continue;
                }
                // The rules may have changed, by which the newcomer goes first.
                let goes_first = client.rights.yield_to(newcomer);
                return Ok(if goes_first { Claimed::ToEnd(lease) } else { Claimed::Others(lease) });
            }
            if !client.rights.belong_to(newcomer) || client.is_displaced() {
                return Err(NoClaim::NotOurs);
            }
            let lease = client.claim().await?;
            // Between finding it and having it, its last owner may have ended the session.
            if lease.state.ended {
                continue;
            }
            // Or another one has had it meanwhile, or the rules have changed, by which anonymous clients are one user.
            // A user who came before this claim waits behind it: nothing else would tell its owner to leave.
            let is_ours = client.rights.belong_to(newcomer) && !client.is_displaced();
            return Ok(if is_ours { Claimed::Ours(lease) } else { Claimed::Others(lease) });
        }
    }

    /// A session of the last run: made with `new`, which gets its number.
    pub(crate) fn restore(&self, id: &Text, new: impl Fn(u64) -> Client) -> Arc<Client> {
        self.find_or_insert(id, new)
    }

    /// The session of this name.
    pub(crate) fn find(&self, id: &Text) -> Option<Arc<Client>> {
        self.clients.get(id).map(|client| Arc::clone(&client))
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
        Arc::clone(&self.clients.entry(id.clone()).or_insert_with(make))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tenbin_balancer::{MemberLoad, Nanos};

    use super::*;
    use crate::Config;
    use crate::auth::{Access, Identity, Rights, Settings};
    use crate::outbox::{Budget, Outbox, OutboxCommon, OutboxLimits, WhenFull};

    /// An anonymous client that comes through `listener`.
    fn anonymous(listener: &str) -> Principal {
        Principal { client_id: Text::from_static("c"), identity: Identity::anonymous(), listener: listener.into() }
    }

    /// Its session, where the listeners "inside" and "outside" have different rules.
    fn client(principal: &Principal, number: u64) -> Client {
        let config = Config::parse(
            "[[listeners]]\nname = \"inside\"\naddress = \"127.0.0.1:0\"\nanonymous = true\nacl = false\n\
             [[listeners]]\nname = \"outside\"\naddress = \"127.0.0.1:0\"\nanonymous = true\n\
             [[acl]]\nallow = \"all\"\ntopic = \"a\"\n",
        );
        let settings = Settings::load(&config.unwrap(), true).unwrap();
        let rights = Arc::new(Rights::new(Arc::new(Access::new(settings, [0; 32], None, None)), principal.clone()));
        let load = Arc::new(MemberLoad::new(Nanos(0)));
        let limits = OutboxLimits { bytes: 1, ..OutboxLimits::for_tests(1, WhenFull::DropOldest) };
        let common = OutboxCommon::for_tests(limits, Arc::new(Budget::new(1)));
        let outbox = Arc::new(Outbox::new(Arc::new(common), Arc::clone(&load)));
        Client::new(principal.client_id.clone(), number, outbox, load, rights)
    }

    #[tokio::test]
    async fn whose_a_session_is_counts_when_its_last_owner_has_left() {
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
