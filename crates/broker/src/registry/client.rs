use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use tenbin_balancer::MemberLoad;
use tenbin_codec::{Text, TopicFilter, Will};
use tenbin_session::Session;
use tokio::sync::{Mutex, Notify, OwnedMutexGuard};

use super::SessionFigures;
use super::partly_refused::PartlyRefused;
use super::subscriptions::Subscriptions;
use super::{Counted, NoClaim};
use crate::auth::Rights;
use crate::durable::{ClientOnDisk, CommitPoint, DurableSession};
use crate::memory::{Account, Charge, Kind, OverLimit};
use crate::outbox::{Control, Outbox};
use crate::router::{Receiver, RetainedPages};

/// One session: parts that all threads may use, and the state that only its owner may use.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: Text,
    pub(crate) number: u64,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) load: Arc<MemberLoad>,
    /// The session's rights and its owner's identity.
    pub(crate) rights: Arc<Rights>,
    /// Number of claims; the newest one gets the session. Each claimant raises it before it asks the owner to leave,
    /// and the owner reads it once it has the state.
    claims: AtomicU64,
    /// Where its connection is; see [`Place`]. Relaxed.
    place: AtomicU8,
    /// Number of users that wait for the end of this anonymous session.
    displacing: AtomicU32,
    /// Notifies waiting claimants of a newer claim.
    newer_claim: Notify,
    /// Held by the owning connection's task for the connection's whole life: a token of ownership, not a lock.
    /// It is fair. A task that waits for it waits for no other lock.
    state: Arc<Mutex<ClientState>>,
}

/// Where the connection of a slow receiver is in a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Place {
    /// It stays: the client knows no Server Reference, its session or its Will would end soon after the connection, or a relay
    /// cannot see packets.
    Stays,
    /// At the leader, or at a relay that has no copy.
    MayMove,
    /// At the follower, whose relay takes messages by reference.
    AtFollower,
}

/// Session State (MQTT 5.0 §4.1) without the queued messages, which are in the outbox.
#[derive(Debug, Default)]
pub(crate) struct ClientState {
    /// Messages in flight; `None` while a connection has them, and before the first one. Boxed, as all that a connected
    /// client does not need.
    pub(crate) session: Option<Box<Session>>,
    /// Messages in flight are on disk only; they are read when the client comes back.
    pub(crate) has_unread: bool,
    /// Boxed, as all that few clients need.
    pub(crate) partly_refused: Option<Box<PartlyRefused>>,
    pub(crate) subscriptions: Subscriptions,
    /// For the session itself, from its first lease to its end.
    pub(crate) charge: Option<Charge>,
    /// Retained messages for SUBSCRIBE that are not sent yet.
    pub(crate) retained_pages: RetainedPages,
    /// Subscriptions that are not in the router: shared ones that are not allowed, and others while the user is
    /// unknown.
    pub(crate) suspended: BTreeSet<TopicFilter>,
    /// The newest change of rights that was applied.
    pub(crate) rights_epoch: u64,
    /// A connection was accepted before, so that the session can go on.
    pub(crate) established: bool,
    /// The session is over and no longer in the registry.
    pub(crate) ended: bool,
    /// The session's record on disk; `None` = none.
    pub(crate) durable: Option<Box<DurableSession>>,
    /// Counts the session for the address that began it; `None` = that address has no bound.
    pub(crate) counted: Option<Box<Counted>>,
    /// Commit point of the last connection's delivery updates.
    pub(crate) settled_at: CommitPoint,
    /// Number of this client's Will on disk, above the numbers of its published Wills; `None` = no Will there.
    pub(crate) kept_will: Option<u16>,
    /// The Will of the last connection, during its delay.
    pub(crate) will: Option<Box<PendingWill>>,
    /// When the last connection ended; `None` = in the last run, or there was none.
    pub(crate) left_at: Option<Instant>,
    /// When the session ends unless the client comes back; `None` = never, or connected.
    pub(crate) expires_at: Option<Instant>,
    /// The earliest scheduled visit of the expiry queue.
    pub(crate) scheduled: Option<Instant>,
}

/// A Will, with the charge for its memory.
#[derive(Debug)]
pub(crate) struct ChargedWill {
    pub(crate) will: Will,
    _charge: Charge,
}

/// A Will whose connection has ended.
#[derive(Debug)]
pub(crate) struct PendingWill {
    pub(crate) will: ChargedWill,
    pub(crate) due: Instant,
}

/// Exclusive right to a session's state, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) client: Arc<Client>,
    pub(crate) state: OwnedMutexGuard<ClientState>,
    claim: u64,
}

impl ChargedWill {
    /// A copy of `will` that keeps no buffer of its CONNECT alive.
    ///
    /// # Errors
    /// The account has no room for it.
    pub(crate) fn new(will: &Will, account: &Arc<Account>) -> Result<Self, OverLimit> {
        let charge = account.charge(Kind::Wills, will_bytes(will))?;
        Ok(Self { will: will.detach(), _charge: charge })
    }

    /// A Will of the last run, charged even above the limits.
    pub(crate) fn restored(will: Will, account: &Arc<Account>) -> Self {
        let charge = account.charge_always(Kind::Wills, will_bytes(&will));
        Self { will, _charge: charge }
    }
}

/// Approximate bytes of memory of a Will.
fn will_bytes(will: &Will) -> usize {
    let bytes = WILL_BYTES + will.topic.as_bytes().len() + will.payload.len();
    let Some(properties) = will.properties.as_deref() else { return bytes };
    let texts = [&properties.content_type, &properties.response_topic].into_iter().flatten().map(Text::len);
    let correlation = properties.correlation_data.iter().map(Bytes::len);
    let user_properties =
        properties.user_properties.iter().map(|user| USER_PROPERTY_BYTES + user.name.len() + user.value.len());
    bytes + texts.chain(correlation).chain(user_properties).sum::<usize>()
}

/// Bytes of memory of a disconnected session with a Client Identifier of `id_bytes`; measured, rounded up.
///
/// With a store, its tables have the identifier in memory too, before and while they write it.
pub(crate) fn session_bytes(id_bytes: usize, has_store: bool) -> usize {
    SESSION_BYTES + if has_store { 4 * id_bytes } else { id_bytes }
}

const SESSION_BYTES: usize = 2048;
const WILL_BYTES: usize = 256;
const USER_PROPERTY_BYTES: usize = 64;

impl Client {
    pub(crate) fn new(id: Text, number: u64, outbox: Arc<Outbox>, load: Arc<MemberLoad>, rights: Arc<Rights>) -> Self {
        let (claims, displacing, newer_claim) = (AtomicU64::new(0), AtomicU32::new(0), Notify::new());
        let place = AtomicU8::new(Place::Stays as u8);
        Self { id, number, outbox, load, rights, claims, place, displacing, newer_claim, state: Arc::default() }
    }

    /// Where its last connection is, or was.
    pub(crate) fn place(&self) -> Place {
        match self.place.load(Ordering::Relaxed) {
            place if place == Place::MayMove as u8 => Place::MayMove,
            place if place == Place::AtFollower as u8 => Place::AtFollower,
            _ => Place::Stays,
        }
    }

    pub(crate) fn set_place(&self, place: Place) {
        self.place.store(place as u8, Ordering::Relaxed);
    }

    pub(crate) fn receiver(&self) -> Receiver {
        Receiver {
            number: self.number,
            outbox: Arc::clone(&self.outbox),
            load: Arc::clone(&self.load),
            rights: Arc::clone(&self.rights),
        }
    }

    /// Asks the owner to leave, and waits for the lease in order to end the session. Newer claims do not interrupt it:
    /// else the owner of a session that has to end could keep users waiting by connecting again and again.
    pub(super) async fn displace(self: &Arc<Self>) -> Lease {
        let _displacing = Displacing::of(self);
        let claim = self.claims.fetch_add(1, Ordering::AcqRel) + 1;
        self.newer_claim.notify_waiters();
        self.outbox.control(Control::TakenOver);
        let state = Arc::clone(&self.state).lock_owned().await;
        Lease { client: Arc::clone(self), state, claim }
    }

    /// Whether a user waits for the end of this anonymous session.
    pub(super) fn is_displaced(&self) -> bool {
        self.displacing.load(Ordering::Acquire) > 0
    }

    pub(super) async fn claim(self: &Arc<Self>) -> Result<Lease, NoClaim> {
        let claim = self.claims.fetch_add(1, Ordering::AcqRel) + 1;
        self.newer_claim.notify_waiters();
        self.outbox.control(Control::TakenOver);
        let mut state = pin!(Arc::clone(&self.state).lock_owned());
        loop {
            // Registers before it checks, so that no claim is missed between the two.
            let mut newer_claim = pin!(self.newer_claim.notified());
            newer_claim.as_mut().enable();
            if self.claims.load(Ordering::Acquire) != claim {
                return Err(NoClaim::Superseded);
            }
            tokio::select! {
                state = &mut state => return Ok(Lease { client: Arc::clone(self), state, claim }),
                () = newer_claim => {}
            }
        }
    }

    /// Number of claims so far.
    #[cfg(test)]
    pub(crate) fn claims(&self) -> u64 {
        self.claims.load(Ordering::Acquire)
    }

    /// Returns the lease if it is free. For the expiry queue, which leaves connected clients alone.
    pub(crate) fn try_lease(self: &Arc<Self>) -> Option<Lease> {
        let state = Arc::clone(&self.state).try_lock_owned().ok()?;
        Some(Lease { client: Arc::clone(self), state, claim: self.claims.load(Ordering::Acquire) })
    }
}

/// A user that waits for the end of an anonymous session, until this is dropped.
pub(super) struct Displacing<'a>(&'a Client);

impl<'a> Displacing<'a> {
    pub(super) fn of(client: &'a Client) -> Self {
        client.displacing.fetch_add(1, Ordering::AcqRel);
        Self(client)
    }
}

impl Drop for Displacing<'_> {
    fn drop(&mut self) {
        self.0.displacing.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Lease {
    /// Charges the owner's account for the session and all that it has. `charge`: the charge of a new session.
    pub(crate) fn charge_to(&mut self, account: &Arc<Account>, charge: Charge) {
        match &mut self.state.charge {
            Some(known) => known.move_to(account),
            None => self.state.charge = Some(charge),
        }
        self.client.outbox.charge_to(account);
        self.state.subscriptions.move_to(account);
    }

    /// Figures of the session. `session`: its messages in flight.
    pub(crate) fn figures(&self, session: &Session) -> SessionFigures {
        let state = &*self.state;
        SessionFigures {
            subscriptions: state.subscriptions.iter().map(|(filter, grant)| (filter.clone(), *grant)).collect(),
            in_flight: session.in_flight(),
            in_flight_bytes: session.in_flight_bytes(),
            is_durable: state.durable.is_some(),
            expires_at: state.expires_at.filter(|_| state.left_at.is_some()),
        }
    }

    /// The client as the store sees it.
    pub(crate) fn on_disk(&mut self) -> ClientOnDisk<'_> {
        let (client, state) = (&*self.client, &mut *self.state);
        let counted = state.counted.as_ref().map(|counted| counted.address());
        // An address without a bound on sessions has one on memory.
        let address = counted.or_else(|| client.outbox.account().and_then(|account| account.address()));
        ClientOnDisk {
            client_id: &client.id,
            rights: &client.rights,
            address,
            subscriptions: state.subscriptions.grants(),
            pending_will: state.will.as_ref().map(|pending| (&pending.will.will, pending.due)),
            session: &mut state.durable,
            will: &mut state.kept_will,
        }
    }

    /// Waits until a newer connection claims the session.
    pub(crate) async fn superseded(&self) {
        loop {
            let mut newer_claim = pin!(self.client.newer_claim.notified());
            newer_claim.as_mut().enable();
            if self.is_superseded() {
                return;
            }
            newer_claim.await;
        }
    }

    /// Whether a newer connection waits. Check this after [`Outbox::attach`], which drops earlier requests to the
    /// owner. A claim is counted before it sends its request, so that the owner sees the one or the other.
    pub(crate) fn is_superseded(&self) -> bool {
        self.client.claims.load(Ordering::Acquire) != self.claim
    }
}
