//! The beginning of connections.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use tenbin_balancer::Rng;
use tenbin_codec::{TopicFilter, Will};
use tenbin_session::{Session, SessionExpiry};

use super::end::{ConnectionEnd, count_expired, end, finish, is_over, put_down, wipe};
use super::wills::publish_kept_will;
use super::{BrokerState, Routing, Sessions, Storage, enforcement};
use crate::durable::{CommitPoint, Durable};
use crate::registry::{Client, Counted, Lease, OverQuota, PendingWill};
use crate::slices::Pauses;

/// How a connection begins.
#[derive(Debug)]
pub(crate) struct Beginning<'a> {
    pub(crate) clean_start: bool,
    /// The client may not have a session that exists.
    pub(crate) must_be_new: bool,
    /// How long the session outlives it.
    pub(crate) expiry: SessionExpiry,
    pub(crate) will: Option<&'a Will>,
    /// When its CONNECT came: expiry is judged at this time.
    pub(crate) arrived_at: Instant,
}

/// A connection that has begun.
#[derive(Debug)]
pub(crate) struct Begun {
    /// Pending Will and expiry of the session that goes on; `None`: there was no session.
    pub(crate) interrupted: Option<Interrupted>,
    /// Commit point for CONNACK.
    pub(crate) commit_point: CommitPoint,
    /// Whether CONNACK may go out even if the state cannot be written: [`Durable::can_begin_unwritten`].
    pub(crate) may_be_unwritten: bool,
    /// Commit point for CONNACK in that case.
    pub(crate) settled_at: CommitPoint,
}

/// Pending Will and expiry of a session, interrupted by a new connection.
#[derive(Debug)]
pub(crate) struct Interrupted {
    will: Option<Box<PendingWill>>,
    expires_at: Option<Instant>,
}

/// Why a connection cannot begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotBegun {
    /// The disk cannot store the session.
    CannotBeKept,
    OverQuota(OverQuota),
}

/// Whether a connection may begin. It may not if something has to be stored for it and the disk takes no writes.
pub(crate) fn may_begin(storage: &Storage, lease: &Lease, beginning: &Beginning<'_>) -> bool {
    let Some(durable) = &storage.durable else { return true };
    let session_ends = beginning.ends_session(lease);
    !(durable.is_failing() || durable.is_congested()) || beginning.may_be_unwritten(durable, lease, session_ends)
}

impl Beginning<'_> {
    /// When expiry is judged: the arrival of CONNECT, or the end of the last connection if that is later.
    /// A connection that is taken over ends later.
    fn judged_at(&self, lease: &Lease) -> Instant {
        lease.state.left_at.map_or(self.arrived_at, |left_at| left_at.max(self.arrived_at))
    }

    fn ends_session(&self, lease: &Lease) -> bool {
        lease.state.established && (self.clean_start || is_over(lease, self.judged_at(lease)))
    }

    /// Whether the connection can begin though the disk takes no writes. `session_ends`: an existing session ends first.
    fn may_be_unwritten(&self, durable: &Durable, lease: &Lease, session_ends: bool) -> bool {
        let Lease { client, state, .. } = lease;
        self.will.is_none()
            && state.kept_will.is_none()
            && durable.can_begin_unwritten(&client.id, state.durable.as_deref(), session_ends, self.expiry)
    }
}

/// Whether an anonymous session may end for a user with the same Client Identifier.
///
/// It may not if the user's connection could not begin afterwards. Returns the user's session, counted for its address.
pub(crate) fn may_displace(
    shared: &BrokerState,
    lease: &Lease,
    beginning: &Beginning<'_>,
    address: IpAddr,
) -> Result<Option<Box<Counted>>, NotBegun> {
    if !may_begin(&shared.storage, lease, &Beginning { clean_start: true, ..*beginning }) {
        return Err(NotBegun::CannotBeKept);
    }
    shared.sessions.address_quota.count(address, lease.state.counted.as_deref()).map_err(NotBegun::OverQuota)
}

/// Ends an anonymous session for a user with the same Client Identifier. The user inherits nothing of it.
pub(crate) async fn displace(shared: &BrokerState, mut lease: Lease, now: Instant) {
    tracing::info!(client = ?lease.client.id, "anonymous session ended: a user connects with its Client Identifier");
    if let Some(pending) = lease.state.will.take() {
        publish_kept_will(shared, &mut lease, pending.will, now); // [MQTT-3.1.3-9]
    }
    finish(shared, lease, &mut Pauses::default()).await;
}

/// Counts a new session for its client's address. `place`: the session, if it is counted already.
///
/// # Errors
/// The address has as many sessions as it may have.
pub(crate) fn count(
    sessions: &Sessions,
    lease: &mut Lease,
    beginning: &Beginning<'_>,
    address: IpAddr,
    place: Option<Box<Counted>>,
) -> Result<(), OverQuota> {
    if !lease.state.established || beginning.ends_session(lease) {
        lease.state.counted = match place {
            None => sessions.address_quota.count(address, lease.state.counted.as_deref())?,
            counted => counted,
        };
    }
    Ok(())
}

/// Gives back the lease of a connection that may not begin. An existing session stays as it was, and a new one ends.
pub(crate) async fn give_back(shared: &BrokerState, mut lease: Lease, now: Instant) {
    if !lease.state.established {
        finish(shared, lease, &mut Pauses::default()).await;
        return;
    }
    rights_renewed(shared, &mut lease, now);
    put_down(shared, lease, now);
}

/// Begins a connection.
pub(crate) async fn begin(shared: &BrokerState, lease: &mut Lease, beginning: &Beginning<'_>, now: Instant) -> Begun {
    let judged_at = beginning.judged_at(lease);
    if is_over(lease, judged_at) {
        count_expired(&shared.operations, lease);
    }
    let session_ends = beginning.ends_session(lease);
    let session_present = lease.state.established && !session_ends;
    let durable = shared.storage.durable.as_ref();
    let may_be_unwritten = durable.is_some_and(|durable| beginning.may_be_unwritten(durable, lease, session_ends));
    if session_ends {
        wipe(shared, lease, &mut Pauses::default()).await; // [MQTT-3.1.2-4]
        lease.client.load.set_concurrency(0);
    }
    // The old session's end ends the Will's delay. A client that is back within the delay cancels the Will.
    // [MQTT-3.1.3-9]
    if let Some(pending) = lease.state.will.take_if(|pending| session_ends || pending.due <= judged_at) {
        publish_kept_will(shared, lease, pending.will, now);
    }
    lease.state.left_at = None;
    lease.state.subscriptions.set_away(false);
    lease.state.established = true;
    let (will, expires_at) = (lease.state.will.take(), lease.state.expires_at.take());
    let interrupted = session_present.then_some(Interrupted { will, expires_at });
    lease.client.load.connected(shared.clock.nanos(now));
    for filter in lease.state.subscriptions.remembered_groups() {
        joins(&shared.routing, &lease.client, filter, now);
    }
    shared.operations.metrics.client_connected();
    // The delivery updates of an earlier connection are durable before this one goes on with the session.
    let settled_at = if session_present { lease.state.settled_at } else { CommitPoint::NOW };
    let commit_point = durable.map_or(CommitPoint::NOW, |durable| {
        let commit_point = durable.keep_connection(lease.on_disk(), beginning.expiry, beginning.will);
        store_messages(lease, durable);
        commit_point.and(settled_at)
    });
    Begun { interrupted, commit_point, may_be_unwritten, settled_at }
}

/// Refuses a connection that has begun, before its client knows of it.
///
/// An existing session goes on as it was, and a new one ends. A session that a clean start or time has ended stays
/// ended.
pub(crate) async fn refuse(shared: &BrokerState, mut lease: Lease, interrupted: Option<Interrupted>, now: Instant) {
    let expiry = match interrupted {
        None => SessionExpiry::AtDisconnect,
        Some(Interrupted { will, expires_at }) => {
            rights_renewed(shared, &mut lease, now);
            lease.state.will = will;
            expires_at.map_or(SessionExpiry::Never, |at| SessionExpiry::After(whole_seconds(at - now)))
        }
    };
    let session = lease.state.session.take().map_or_else(Session::new, |session| *session);
    let settled_at = lease.state.settled_at;
    end(shared, lease, ConnectionEnd { session, will: None, expiry, settled_at }, now).await;
}

/// Applies the rights of a client that is back, perhaps through another listener. Publishers drop cached rights.
fn rights_renewed(shared: &BrokerState, lease: &mut Lease, now: Instant) {
    shared.routing.router.invalidate();
    enforcement::judge(shared, lease, now);
}

/// Rounds up: the store has whole seconds.
fn whole_seconds(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs() + u64::from(duration.subsec_nanos() > 0))
}

/// Gives a session that is on disk a queue there too, unless it has one.
fn store_messages(lease: &Lease, durable: &Durable) {
    let Some(session) = &lease.state.durable else { return };
    let before = lease.client.outbox.any_queue();
    if !before.as_ref().is_some_and(|queue| session.has(queue)) {
        lease.client.outbox.store_in(Some(session.queue(durable, before.as_deref())));
    }
}

/// Joins a client to the share group of `filter`, if that is one. Its remembered speed counts until more is known.
pub(crate) fn joins(routing: &Routing, client: &Client, filter: &TopicFilter, now: Instant) {
    if filter.is_shared()
        && !client.load.is_speed_known()
        && let Some(processing_time) = routing.speeds.recall(&client.rights.principal(), filter, now)
    {
        client.load.assume_speed(processing_time);
    }
}

/// Dispatches the backlogs of share groups after a member has begun to take messages, or has begun again.
pub(crate) fn takes_messages(routing: &Routing, lease: &Lease, now: Instant) {
    routing.router.serve(&lease.client.outbox, true, now, &mut Rng::new(lease.client.number));
}
