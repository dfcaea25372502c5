//! Sessions and Wills when a connection begins and ends (MQTT 5.0 §3.1.2.4, §3.1.2.5, §4.1).

pub(crate) mod enforcement;
mod expiry_queue;
mod long_ends;
mod restore;
mod state;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenbin_balancer::Rng;
use tenbin_codec::{TopicFilter, Will};
use tenbin_session::{Publication, Session, SessionExpiry};
use tokio::sync::oneshot;

pub(crate) use expiry_queue::ExpiryQueue;
pub(crate) use long_ends::{Due, LongEnds};
pub(crate) use restore::restore;
pub(crate) use state::BrokerState;

use crate::durable::{CommitPoint, Durable, Stored, place};
use crate::outbox::Booked;
use crate::registry::{ChargedWill, Client, CountedSession, Lease, OverQuota, PendingWill};
use crate::router::{HeldKey, Published, Publisher};
use crate::slices::Pace;

/// How a connection ended.
#[derive(Debug)]
pub(crate) struct ConnectionEnd {
    /// The messages in flight.
    pub(crate) session: Session,
    /// The Will, unless DISCONNECT 0x00 removed it `[MQTT-3.14.4-3]`.
    pub(crate) will: Option<Box<ChargedWill>>,
    /// How long the session outlives the connection.
    pub(crate) expiry: SessionExpiry,
    /// Commit point of the connection's delivery updates.
    pub(crate) settled_at: CommitPoint,
}

/// How a connection begins.
#[derive(Debug)]
pub(crate) struct Beginning<'a> {
    pub(crate) clean_start: bool,
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
pub(crate) fn may_begin(shared: &BrokerState, lease: &Lease, beginning: &Beginning<'_>) -> bool {
    let Some(durable) = &shared.durable else { return true };
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

/// Whether a session without a connection has expired. [MQTT-4.1.0-2]
fn is_over(lease: &Lease, at: Instant) -> bool {
    lease.state.expires_at.is_some_and(|expires_at| expires_at <= at)
}

/// Counts an expired session, unless it ended with its connection.
fn count_expired(shared: &BrokerState, lease: &Lease) {
    if lease.state.expires_at != lease.state.left_at {
        tracing::debug!(client = ?lease.client.id, "session expired");
        shared.metrics.clients_expired.add(1);
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
) -> Result<Option<Box<CountedSession>>, NotBegun> {
    if !may_begin(shared, lease, &Beginning { clean_start: true, ..*beginning }) {
        return Err(NotBegun::CannotBeKept);
    }
    shared.address_quota.count(address, lease.state.counted.as_deref()).map_err(NotBegun::OverQuota)
}

/// Ends an anonymous session for a user with the same Client Identifier. The user inherits nothing of it.
pub(crate) async fn displace(shared: &BrokerState, mut lease: Lease, now: Instant) {
    tracing::info!(client = ?lease.client.id, "anonymous session ended: a user connects with its Client Identifier");
    if let Some(pending) = lease.state.will.take() {
        publish_kept_will(shared, &mut lease, pending.will, now); // [MQTT-3.1.3-9]
    }
    finish(shared, lease, &mut Pace::default()).await;
}

/// Counts a new session for its client's address. `place`: the session, if it is counted already.
///
/// # Errors
/// The address has as many sessions as it may have.
pub(crate) fn count(
    shared: &BrokerState,
    lease: &mut Lease,
    beginning: &Beginning<'_>,
    address: IpAddr,
    place: Option<Box<CountedSession>>,
) -> Result<(), OverQuota> {
    if !lease.state.established || beginning.ends_session(lease) {
        lease.state.counted = match place {
            None => shared.address_quota.count(address, lease.state.counted.as_deref())?,
            counted => counted,
        };
    }
    Ok(())
}

/// Gives back the lease of a connection that may not begin. An existing session stays as it was, and a new one ends.
pub(crate) async fn give_back(shared: &BrokerState, mut lease: Lease, now: Instant) {
    if !lease.state.established {
        finish(shared, lease, &mut Pace::default()).await;
        return;
    }
    rights_renewed(shared, &mut lease, now);
    put_down(shared, lease, now);
}

/// Begins a connection.
pub(crate) async fn begin(shared: &BrokerState, lease: &mut Lease, beginning: &Beginning<'_>, now: Instant) -> Begun {
    let judged_at = beginning.judged_at(lease);
    if is_over(lease, judged_at) {
        count_expired(shared, lease);
    }
    let session_ends = beginning.ends_session(lease);
    let session_present = lease.state.established && !session_ends;
    let durable = shared.durable.as_ref();
    let may_be_unwritten = durable.is_some_and(|durable| beginning.may_be_unwritten(durable, lease, session_ends));
    if session_ends {
        wipe(shared, lease, &mut Pace::default()).await; // [MQTT-3.1.2-4]
    }
    // The old session's end ends the Will's delay. A client that is back within the delay cancels the Will.
    // [MQTT-3.1.3-9]
    if let Some(pending) = lease.state.will.take_if(|pending| session_ends || pending.due <= judged_at) {
        publish_kept_will(shared, lease, pending.will, now);
    }
    lease.state.left_at = None;
    lease.state.established = true;
    let (will, expires_at) = (lease.state.will.take(), lease.state.expires_at.take());
    let interrupted = session_present.then_some(Interrupted { will, expires_at });
    lease.client.load.connected(shared.clock.nanos(now));
    for filter in lease.state.subscriptions.keys() {
        joins(shared, &lease.client, filter, now);
    }
    shared.metrics.client_connected();
    // The delivery updates of an earlier connection are durable before this one goes on with the session.
    let settled_at = if session_present { lease.state.settled_at } else { CommitPoint::NOW };
    let commit_point = durable.map_or(CommitPoint::NOW, |durable| {
        let commit_point = durable.connection_begins(lease.on_disk(), beginning.expiry, beginning.will);
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
pub(crate) fn rights_renewed(shared: &BrokerState, lease: &mut Lease, now: Instant) {
    shared.router.invalidate();
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

/// Ends a connection. Its session waits for the next connection, or ends with this one.
///
/// Changes that others rely on are made at once, see [`leave`]. Long work waits for its turn, without the lease. It is
/// done when the returned receiver ends.
pub(crate) async fn end(
    shared: &BrokerState,
    mut lease: Lease,
    end: ConnectionEnd,
    now: Instant,
) -> Option<oneshot::Receiver<()>> {
    leave(shared, &mut lease, end, now);
    let mut pace = Pace::default();
    if lease.client.load.learned_speed().is_some() {
        for filter in lease.state.subscriptions.keys() {
            leaves(shared, &lease.client, filter, now);
            pace.rest().await;
        }
    }
    let is_will_due = lease.state.will.as_ref().is_some_and(|pending| pending.due <= now);
    if is_will_due || is_over(&lease, now) && lease.state.subscriptions.len() > FEW {
        let client = Arc::clone(&lease.client);
        enforcement::release(shared, lease);
        return Some(shared.long_ends.end(client));
    }
    expire(shared, lease, now, &mut pace).await;
    None
}

/// Disconnects the client from share groups, and stores when its session ends and its Will is due.
///
/// The groups redeliver its messages to other members, and give it no more.
fn leave(shared: &BrokerState, lease: &mut Lease, end: ConnectionEnd, now: Instant) {
    shared.metrics.clients_connected.subtract(1);
    lease.state.retained_pages.connection_ended();
    lease.state.settled_at = end.settled_at;
    let (client, mut session) = (Arc::clone(&lease.client), end.session);
    // BrokerState messages go to other members: first those it has not acknowledged, then those in its queue. QoS 2 messages
    // stay with the member that they were sent to. [MQTT-4.8.2-4]
    let under_way = session.shared_in_flight().map(|delivery| delivery.share);
    let (redelivery, queued) = shared.router.detach(client.number, &client.outbox, under_way);
    let mut orphans = session.withdraw(|delivery| delivery.share.is_some());
    take_back(shared, &client, orphans.iter().map(Booked::of).sum());
    orphans.extend(queued);
    shared.router.keys_done(orphans.iter().filter_map(HeldKey::of), client.number);
    redelivery.finish(orphans, now, &mut Rng::new(client.number));
    let ends_now = end.expiry == SessionExpiry::AtDisconnect;
    lease.state.left_at = Some(now);
    lease.state.expires_at = match end.expiry {
        SessionExpiry::AtDisconnect => Some(now),
        SessionExpiry::After(interval) => now.checked_add(interval),
        SessionExpiry::Never => None,
    };
    // The Will of an earlier connection, whose record on disk a refused connection may have replaced.
    let is_restored = end.will.is_none() && lease.state.will.is_some();
    if let Some(will) = end.will {
        let delay = if ends_now { 0 } else { will.will.delay_interval.unwrap_or(0) };
        let due = now.checked_add(Duration::from_secs(delay.into())).unwrap_or(now);
        lease.state.will = Some(Box::new(PendingWill { will: *will, due })); // [MQTT-3.1.2-8]
    }
    // Messages on disk need not be in memory too, where each session would have its own copy.
    let is_on_disk = !ends_now && lease.state.durable.is_some() && client.outbox.is_stored();
    if is_on_disk && session.forget_stored() {
        lease.state.has_unread = true;
    } else {
        session.detach();
        client.outbox.count_under_way(session.in_flight_bytes());
    }
    lease.state.session = Some(Box::new(session));
    if let Some(durable) = &shared.durable {
        durable.connection_ended(lease.on_disk(), end.expiry, is_restored, now);
    }
}

/// Joins a client to the share group of `filter`, if that is one. Its remembered speed counts until more is known.
pub(crate) fn joins(shared: &BrokerState, client: &Client, filter: &TopicFilter, now: Instant) {
    if filter.is_shared()
        && !client.load.is_speed_known()
        && let Some(processing_time) = shared.speeds.recall(&client.rights.principal(), filter, now)
    {
        client.load.assume_speed(processing_time);
    }
}

/// Dispatches the backlogs of share groups after a member has begun to take messages, or has begun again.
pub(crate) fn takes_messages(shared: &BrokerState, lease: &Lease, now: Instant) {
    shared.router.connected(lease.state.subscriptions.keys(), now, &mut Rng::new(lease.client.number));
}

/// Remembers the speed of a client that leaves the share group of `filter`, for good or for now.
///
/// Does nothing for a filter of no group, and for a client that has shown no speed.
pub(crate) fn leaves(shared: &BrokerState, client: &Client, filter: &TopicFilter, now: Instant) {
    if filter.is_shared()
        && let Some(processing_time) = client.load.learned_speed()
    {
        shared.speeds.keep(&client.rights.principal(), filter, processing_time, now);
    }
}

/// Publishes a due Will of a session without a connection. Returns whether the session is over and has to be ended.
pub(crate) fn look_at(shared: &BrokerState, mut lease: Lease, now: Instant) -> bool {
    let is_over = publish_due_will(shared, &mut lease, now);
    if !is_over {
        put_down(shared, lease, now);
    }
    is_over
}

/// Publishes a due Will of a session without a connection, and ends the session if it has expired.
pub(crate) async fn expire(shared: &BrokerState, mut lease: Lease, now: Instant, pace: &mut Pace) {
    if publish_due_will(shared, &mut lease, now) {
        count_expired(shared, &lease);
        finish(shared, lease, pace).await;
    } else {
        put_down(shared, lease, now);
    }
}

/// Returns whether the session is over.
fn publish_due_will(shared: &BrokerState, lease: &mut Lease, now: Instant) -> bool {
    let is_over = !lease.state.ended && is_over(lease, now);
    if let Some(pending) = lease.state.will.take_if(|pending| is_over || pending.due <= now) {
        publish_kept_will(shared, lease, pending.will, now);
    }
    is_over
}

/// Ends the bookings of shared messages that this member will not complete.
fn take_back(shared: &BrokerState, client: &Client, booked: Booked) {
    booked.take_back(&client.load, shared.clock.nanos(Instant::now()));
}

/// Ends the session.
async fn finish(shared: &BrokerState, mut lease: Lease, pace: &mut Pace) {
    wipe(shared, &mut lease, pace).await;
    if let Some(durable) = &shared.durable {
        durable.will_over(&lease.client.id, &mut lease.state.kept_will);
    }
    lease.client.outbox.close();
    lease.state.counted = None;
    lease.state.ended = true;
    lease.state.charge = None;
    shared.registry.remove(&lease.client);
}

/// Forgets subscriptions, messages in flight, and queued messages.
///
/// The session ends on disk first. Until its last subscription is gone, messages may still come for it. They end with
/// its queue, which belongs to no session after a crash.
async fn wipe(shared: &BrokerState, lease: &mut Lease, pace: &mut Pace) {
    if let Some(durable) = &shared.durable {
        durable.session_over(lease.on_disk());
    }
    let subscriptions = std::mem::take(&mut lease.state.subscriptions);
    shared.metrics.subscriptions.subtract(subscriptions.len() as u64);
    let mut filters = subscriptions.keys().peekable();
    while filters.peek().is_some() {
        shared.router.unsubscribe_all(filters.by_ref().take(WIPED_TOGETHER), lease.client.number);
        pace.rest().await;
    }
    lease.state.suspended.clear();
    let session = lease.state.session.take().unwrap_or_default();
    let under_way = session.shared_in_flight();
    take_back(shared, &lease.client, under_way.map(|delivery| Booked::of_sent(&delivery)).sum());
    let held = session.shared_in_flight().filter_map(|delivery| HeldKey::of_sent(&delivery));
    shared.router.keys_done(held, lease.client.number);
    lease.state.retained_pages.clear();
    lease.state.has_unread = false;
    lease.state.partly_refused = None;
    lease.client.outbox.clear();
    if let Some(durable) = &shared.durable {
        forget_messages(shared, lease, &session, durable);
    }
}

/// Removes the stored messages of a session. QoS 2 messages that share groups had sent to it go to no other member
/// `[MQTT-4.8.2-5]`.
fn forget_messages(shared: &BrokerState, lease: &Lease, session: &Session, durable: &Durable) {
    if let Some(queue) = lease.client.outbox.stored() {
        durable.end_queue(&queue);
    }
    let of_groups = session.stored_in_flight().filter_map(|(stored, share)| match Stored::of(stored) {
        Stored::InGroup(sequence) => Some(place(shared.router.queue_of_group(share?)?.id(), sequence)),
        Stored::InOwn(_) => None,
    });
    durable.done(of_groups);
}

/// Gives back the lease of a session without a connection, and schedules a visit for its Will or its end.
pub(crate) fn put_down(shared: &BrokerState, mut lease: Lease, now: Instant) {
    let will_due = lease.state.will.as_ref().map(|pending| pending.due);
    let due = [will_due, lease.state.expires_at].into_iter().flatten().min().filter(|_| !lease.state.ended);
    // A visit scheduled earlier schedules the next one itself. One that is nearly due may find the lease taken.
    let (scheduled, counted_on) = (lease.state.scheduled, now + SCHEDULE_SLACK);
    let is_known = |due: Instant| scheduled.is_some_and(|known| known <= due && known > counted_on);
    let due = due.filter(|&due| !is_known(due));
    lease.state.scheduled = due.or(scheduled);
    let client = Arc::clone(&lease.client);
    enforcement::release(shared, lease); // first, so that the visit finds the lease free
    match due {
        Some(due) if due <= now => shared.long_ends.look_at(client),
        Some(due) => shared.expiry.push(due, &client),
        None => {}
    }
}

/// Publishes the Will of a session. Its record on disk goes once the published message is durable.
fn publish_kept_will(shared: &BrokerState, lease: &mut Lease, will: ChargedWill, now: Instant) {
    let commit_point = publish_will(shared, &lease.client, will.will, now);
    if let Some((durable, number)) = shared.durable.as_ref().zip(lease.state.kept_will.take()) {
        durable.will_published(&lease.client.id, number, commit_point);
    }
}

/// Publishes a Will if its client still has the right to. Returns the commit point of the message.
pub(crate) fn publish_will(shared: &BrokerState, client: &Client, will: Will, now: Instant) -> CommitPoint {
    if let Err(reason) = client.rights.check_will(&will.topic) {
        tracing::warn!(client = ?client.id, topic = ?will.topic, reason, "Will dropped");
        return CommitPoint::NOW;
    }
    let publication = Publication {
        qos: will.qos,
        retain: will.retain, // [MQTT-3.1.2-14], [MQTT-3.1.2-15]
        expires_at: Publication::expiry(will.properties.as_deref(), now),
        properties: will.properties,
        ..Publication::new(will.topic, will.payload)
    };
    let mut publisher = Publisher::new(&shared.router, client.number, &client.id);
    let Published { reason, .. } = publisher.publish(&shared.router, &publication, shared.clock.moment(now));
    let flushed = publisher.flush(&shared.router, now);
    tracing::debug!(topic = ?publication.topic, %reason, "will published");
    flushed.commit_point
}

/// Subscriptions that one change of the index removes.
const WIPED_TOGETHER: usize = 32;

/// Subscriptions up to which an expired session ends at once, without waiting for its turn.
const FEW: usize = 32;

/// Visits that are due within this time do not count as scheduled: they may find the lease taken.
const SCHEDULE_SLACK: Duration = Duration::from_secs(1);
