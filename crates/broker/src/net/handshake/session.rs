//! The session of a pending client: claimed, begun, and durable as far as CONNACK promises.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tenbin_codec::{ReasonCode, Text};
use tenbin_session::{Restored, Session};

use super::establish::may_act;
use crate::auth::{Principal, Standing};
use crate::durable::{CommitPoint, Ended, Place, UnderWay};
use crate::lifecycle::{self, Beginning, Begun, BrokerState, NotBegun, Routing, Storage};
use crate::net::authentication::Refusal;
use crate::registry::{Claimed, Counted, Lease, NoClaim, OverQuota};
use crate::values::Peer;

/// Takes the session over from its last connection, or creates it. A session of an anonymous client ends for a user.
///
/// Returns its lease, and a session of the user that is already counted for its address.
pub(super) async fn claim(
    shared: &BrokerState,
    principal: &Principal,
    beginning: &Beginning<'_>,
    peer: Peer,
) -> Result<(Lease, Option<Box<Counted>>), Refusal> {
    let new_client = |number| shared.new_client(principal, number, Instant::now());
    let mut place = None;
    loop {
        let claimed = match beginning.must_be_new {
            true => shared.sessions.registry.claim_new(principal, new_client),
            false => shared.sessions.registry.claim(principal, new_client).await,
        };
        match claimed {
            Ok(Claimed::Ours(lease)) => return Ok((lease, place)),
            Ok(Claimed::ToEnd(lease)) => {
                may_act(shared).await?; // to publish its Will
                let now = Instant::now();
                // Displace no session for a user removed in between.
                if shared.admission.access.standing(principal) != Standing::Current {
                    lifecycle::give_back(shared, lease, now).await;
                    return Err(ReasonCode::NotAuthorized.into());
                }
                // Nor for a refused user.
                match lifecycle::may_displace(shared, &lease, beginning, peer.address()) {
                    Ok(counted) => place = counted,
                    Err(refusal) => return Err(not_begun(shared, lease, peer, refusal, now).await),
                }
                lifecycle::displace(shared, lease, now).await;
            }
            Err(NoClaim::Superseded) => return Err(ReasonCode::ServerBusy.into()),
            Err(NoClaim::Exists) => return Err(ReasonCode::ClientIdentifierNotValid.into()),
            Ok(Claimed::Others(lease)) => {
                lifecycle::give_back(shared, lease, Instant::now()).await;
                return Err(not_ours(peer, &principal.client_id).into());
            }
            Err(NoClaim::NotOurs) => return Err(not_ours(peer, &principal.client_id).into()),
        }
    }
}

/// Begins the connection for its session; returns whether the session goes on. All that CONNACK says of it is durable.
pub(super) async fn begin(
    shared: &BrokerState,
    mut lease: Lease,
    beginning: &Beginning<'_>,
    place: Option<Box<Counted>>,
    peer: Peer,
) -> Result<(Lease, bool), Refusal> {
    let now = Instant::now();
    let may_begin = if lifecycle::may_begin(&shared.storage, &lease, beginning) {
        lifecycle::count(&shared.sessions, &mut lease, beginning, peer.address(), place).map_err(NotBegun::OverQuota)
    } else {
        Err(NotBegun::CannotBeKept)
    };
    if let Err(refusal) = may_begin {
        return Err(not_begun(shared, lease, peer, refusal, now).await);
    }
    let begun = lifecycle::begin(shared, &mut lease, beginning, now).await;
    let is_present = begun.interrupted.is_some();
    if lease.state.has_unread && !read_under_way(&shared.storage, &mut lease).await {
        tracing::error!(%peer, client = ?lease.client.id, "connection refused: messages in flight of its session cannot be read");
        lifecycle::refuse(shared, lease, begun.interrupted, now).await;
        return Err(ReasonCode::ServerUnavailable.into());
    }
    if lease.state.session.as_ref().is_some_and(|session| session.has_external())
        && !complete_under_way(&shared.storage, &mut lease, peer).await
    {
        tracing::error!(%peer, client = ?lease.client.id, "connection refused: messages in flight of its session cannot be read");
        lifecycle::refuse(shared, lease, begun.interrupted, now).await;
        return Err(ReasonCode::ServerUnavailable.into());
    }
    Ok((wait_until_safe(shared, lease, begun, peer).await?, is_present))
}

/// Takes the session out of its lease; a fresh one is durable if the broker stores it.
pub(super) fn take(lease: &mut Lease) -> Session {
    match lease.state.session.take() {
        Some(session) => *session,
        None if lease.state.durable.is_some() => Session::stored(),
        None => Session::new(),
    }
}

/// Puts messages that the session had sent, and that its share groups have given back to it, in flight again.
///
/// QoS 2 messages stayed in flight. So the resumed session sends both in their order `[MQTT-4.6.0-1]`.
pub(super) fn take_returned(routing: &Routing, lease: &Lease, session: &mut Session, now: Instant) {
    // Most sessions have none, and their queue may be long.
    while session.is_withdrawn_in_part() {
        let returned = lease.client.outbox.take_first(|delivery| session.may_put_back(delivery));
        if returned.is_empty() {
            return;
        }
        let left: Vec<_> = returned.into_iter().filter_map(|delivery| session.put_back(delivery, now)).collect();
        let is_done = !left.is_empty();
        lease.client.outbox.put_back(left.into_iter());
        // The queue has room for more.
        lifecycle::takes_messages(routing, lease, now);
        if is_done {
            return;
        }
    }
}

fn not_ours(peer: Peer, client_id: &Text) -> ReasonCode {
    tracing::info!(%peer, client = ?client_id, "the Client Identifier is another user's");
    ReasonCode::NotAuthorized
}

/// Gives back the lease of a session that does not begin, and returns the refusal.
async fn not_begun(shared: &BrokerState, lease: Lease, peer: Peer, refusal: NotBegun, now: Instant) -> Refusal {
    let refusal = match refusal {
        NotBegun::CannotBeKept => {
            tracing::info!(%peer, client = ?lease.client.id, "connection refused: its session cannot be stored");
            ReasonCode::ServerUnavailable.into()
        }
        NotBegun::OverQuota(OverQuota { bound }) => Refusal::over(bound, ReasonCode::QuotaExceeded),
    };
    lifecycle::give_back(shared, lease, now).await;
    refusal
}

/// Restores in-flight messages of the broker's last run; returns whether it could.
async fn read_under_way(storage: &Storage, lease: &mut Lease) -> bool {
    let Some((durable, queue)) = storage.durable.as_ref().zip(lease.client.outbox.stored()) else { return true };
    let Ok(Some(under_way)) = durable.reader.under_way(queue.id()).await else { return false };
    lease.state.has_unread = false;
    let now = Instant::now();
    let session = lease.state.session.get_or_insert_with(|| Box::new(Session::stored()));
    let mut done = Vec::new();
    for UnderWay { id, stored, delivery } in under_way {
        let restored = delivery.map_or(Restored::Released(stored), Restored::Published);
        if !session.restore_sent(id, restored, now) {
            tracing::error!(client = ?lease.client.id, packet_id = %id.packet_id, "two messages under way have one identifier");
            done.extend(queue.place_of(stored));
        }
    }
    durable.end(Ended::Damaged, done);
    true
}

/// Reads in-flight messages that were sent by reference: they are sent again in whole. Returns whether it could.
async fn complete_under_way(storage: &Storage, lease: &mut Lease, peer: Peer) -> bool {
    let Some((durable, queue)) = storage.durable.as_ref().zip(lease.client.outbox.stored()) else { return true };
    let Ok(Some(under_way)) = durable.reader.under_way(queue.id()).await else { return false };
    let Some(session) = &mut lease.state.session else { return true };
    let mut found: HashMap<_, _> =
        under_way.into_iter().filter_map(|message| Some((message.stored, message.delivery?))).collect();
    let lost = session.complete(|stored| found.remove(&stored));
    let lost: Vec<_> = lost.into_iter().filter_map(|stored| queue.place_of(stored)).collect();
    for Place { sequence, .. } in &lost {
        tracing::error!(%peer, client = ?lease.client.id, stored = sequence.0, "a message under way cannot be read, and ends");
    }
    durable.end(Ended::Damaged, lost);
    true
}

/// Waits for the commit point of all facts in CONNACK. On failure the connection ends without a session.
async fn wait_until_safe(shared: &BrokerState, lease: Lease, begun: Begun, peer: Peer) -> Result<Lease, ReasonCode> {
    if begun.commit_point == CommitPoint::NOW {
        return Ok(lease);
    }
    let reason = tokio::select! {
        biased;
        () = shared.storage.safe(begun.commit_point) => return Ok(lease),
        () = safe_but_for_the_session(&shared.storage, &begun) => return Ok(lease),
        () = lease.superseded() => ReasonCode::ServerBusy,
        () = shared.operations.stopped() => ReasonCode::ServerUnavailable,
        () = tokio::time::sleep(shared.config.connect_timeout()) => ReasonCode::ServerUnavailable,
    };
    tracing::info!(%peer, client = ?lease.client.id, "connection refused: its session cannot be stored");
    lifecycle::refuse(shared, lease, begun.interrupted, Instant::now()).await;
    Err(reason)
}

/// Waits until all is durable except changes of a stored session, provided that the disk cannot write these.
async fn safe_but_for_the_session(storage: &Storage, begun: &Begun) {
    let Some(durable) = storage.durable.as_ref().filter(|_| begun.may_be_unwritten) else {
        return std::future::pending().await;
    };
    storage.safe(begun.settled_at).await;
    while !durable.is_failing() {
        tokio::time::sleep(LOOKED_AGAIN).await;
    }
}

/// Interval at which a pending client checks whether the disk fails.
const LOOKED_AGAIN: Duration = Duration::from_millis(50);
