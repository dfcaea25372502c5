//! The end of connections and sessions.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenbin_balancer::Rng;
use tenbin_codec::TopicFilter;
use tenbin_session::{Delivery, Session, SessionExpiry};
use tokio::sync::oneshot;

use super::wills::publish_due_will;
use super::{BrokerState, Operations, Routing, enforcement};
use crate::durable::CommitPoint;
use crate::durable::{Durable, Ended};
use crate::hooks::Events;
use crate::outbox::Booked;
use crate::registry::{ChargedWill, Client, Lease, PendingWill};
use crate::router::{Detached, HeldKey};
use crate::slices::Pauses;

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
    let waiting = leave(shared, &mut lease, end, now);
    let mut pauses = Pauses::default();
    for group in waiting {
        shared.routing.router.dispatch(group, now, &mut Rng::new(lease.client.number));
        pauses.rest().await;
    }
    if lease.client.load.learned_speed().is_some() {
        let groups = lease.state.subscriptions.remembered_groups();
        groups.for_each(|filter| leaves(&shared.routing, &lease.client, filter, now));
    }
    let is_will_due = lease.state.will.as_ref().is_some_and(|pending| pending.due <= now);
    if is_will_due || is_over(&lease, now) && lease.state.subscriptions.len() > FEW {
        let client = Arc::clone(&lease.client);
        enforcement::release(shared, lease);
        return Some(shared.sessions.long_ends.end(client));
    }
    expire(shared, lease, now, &mut pauses).await;
    None
}

/// Disconnects the client from share groups, and stores when its session ends and its Will is due.
///
/// The groups redeliver its messages to other members, and give it no more. Returns further groups with a backlog, which
/// may wait for this client.
fn leave(shared: &BrokerState, lease: &mut Lease, end: ConnectionEnd, now: Instant) -> Vec<NonZeroU64> {
    let BrokerState { storage, routing, operations, .. } = shared;
    operations.metrics.clients_connected.subtract(1);
    lease.state.retained_pages.connection_ended();
    lease.state.settled_at = end.settled_at;
    let (client, mut session) = (Arc::clone(&lease.client), end.session);
    // Shared messages go to other members: first those it has not acknowledged, then those in its queue. QoS 2 messages
    // stay with the member that they were sent to [MQTT-4.8.2-4]. Messages that come back unsent are
    // resends [MQTT-4.4.0-1].
    let late = session.end_late();
    if !late.is_empty() {
        client.load.set_overdue(0);
        take_back(shared, &client, late.iter().map(Booked::of_sent).sum());
    }
    let under_way = session.shared_in_flight().map(|delivery| delivery.share);
    let Detached { redelivery, taken, waiting } = routing.router.detach(client.number, &client.outbox, under_way);
    let mut orphans = routing.router.withdraw(&mut session, client.number);
    take_back(shared, &client, orphans.iter().map(Booked::of).sum());
    orphans.extend(taken);
    routing.router.keys_done(orphans.iter().filter_map(HeldKey::of), client.number);
    redelivery.finish(orphans, now, &mut Rng::new(client.number));
    let ends_now = end.expiry == SessionExpiry::AtDisconnect;
    lease.state.left_at = Some(now);
    lease.state.subscriptions.set_away(!ends_now);
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
    let is_on_disk = !ends_now && lease.state.durable.is_some() && client.outbox.keeps_in().is_some();
    if is_on_disk && session.forget_stored() {
        lease.state.has_unread = true;
    } else {
        session.detach();
        client.outbox.count_under_way(session.in_flight_bytes());
    }
    lease.state.session = Some(Box::new(session));
    if let Some(durable) = &storage.durable {
        durable.connection_ended(lease.on_disk(), end.expiry, is_restored, now);
    }
    waiting
}

/// Redelivers unsent shared messages of a draining client to other members; returns their number.
///
/// In-flight messages stay with the client, and so do messages that must follow them in order.
pub(crate) fn hand_over(shared: &BrokerState, client: &Client, now: Instant) -> usize {
    let redelivery = shared.routing.router.begin_redelivery(client.number, &client.outbox);
    let waiting = client.outbox.withdraw_by(|queue| {
        let freed = redelivery.free(queue.iter(), shared.clock.nanos(now));
        move |delivery: &Delivery| freed.contains(delivery)
    });
    let messages = waiting.len();
    if messages > 0 {
        tracing::debug!(client = ?client.id, messages, "member drains: its messages go to other members");
    }
    let rng = &mut Rng::new(client.number);
    redelivery.finish(waiting, now, rng);
    client.outbox.offer_backlogs(); // they may wait for this client
    shared.routing.router.serve(&client.outbox, true, now, rng);
    messages
}

/// Remembers the speed of a client that leaves the share group of `filter`, for good or for now.
///
/// Does nothing for a filter of no group, and for a client that has shown no speed.
pub(crate) fn leaves(routing: &Routing, client: &Client, filter: &TopicFilter, now: Instant) {
    if filter.is_shared()
        && let Some(processing_time) = client.load.learned_speed()
    {
        routing.speeds.keep(&client.rights.principal(), filter, processing_time, now);
    }
}

/// Publishes a due Will of a session without a connection, and ends the session if it has expired.
pub(crate) async fn expire(shared: &BrokerState, mut lease: Lease, now: Instant, pauses: &mut Pauses) {
    if publish_due_will(shared, &mut lease, now) {
        count_expired(&shared.operations, &lease);
        finish(shared, lease, pauses).await;
    } else {
        put_down(shared, lease, now);
    }
}

/// Ends the session.
pub(super) async fn finish(shared: &BrokerState, mut lease: Lease, pauses: &mut Pauses) {
    wipe(shared, &mut lease, pauses).await;
    if let Some(durable) = &shared.storage.durable {
        durable.will_over(&lease.client.id, &mut lease.state.kept_will);
    }
    lease.client.outbox.close();
    lease.state.counted = None;
    lease.state.ended = true;
    lease.state.charge = None;
    shared.sessions.registry.remove(&lease.client);
}

/// Forgets subscriptions, messages in flight, and queued messages.
///
/// The session ends on disk first. Until its last subscription is gone, messages may still come for it. They end with
/// its queue, which belongs to no session after a crash.
pub(super) async fn wipe(shared: &BrokerState, lease: &mut Lease, pauses: &mut Pauses) {
    if let Some(durable) = &shared.storage.durable {
        durable.session_over(lease.on_disk());
    }
    let subscriptions = std::mem::take(&mut lease.state.subscriptions);
    shared.operations.metrics.subscriptions.subtract(subscriptions.len() as u64);
    let mut filters = subscriptions.keys().peekable();
    while filters.peek().is_some() {
        shared.routing.router.unsubscribe_all(filters.by_ref().take(WIPED_TOGETHER), lease.client.number);
        pauses.rest().await;
    }
    lease.state.suspended.clear();
    let session = lease.state.session.take().unwrap_or_default();
    let under_way = session.shared_in_flight();
    take_back(shared, &lease.client, under_way.map(|delivery| Booked::of_sent(&delivery)).sum());
    let held = session.shared_in_flight().filter_map(|delivery| HeldKey::of_sent(&delivery));
    shared.routing.router.keys_done(held, lease.client.number);
    lease.state.retained_pages.clear();
    lease.state.has_unread = false;
    lease.state.partly_refused = None;
    lease.client.outbox.clear();
    if let Some(durable) = &shared.storage.durable {
        forget_messages(&shared.routing, lease, &session, durable);
    }
}

/// Removes the stored messages of a session. QoS 2 messages that share groups had sent to it go to no other member
/// `[MQTT-4.8.2-5]`.
fn forget_messages(routing: &Routing, lease: &Lease, session: &Session, durable: &Durable) {
    if let Some(queue) = lease.client.outbox.stored() {
        durable.end_queue(Ended::Session, &queue);
    }
    let in_flight = session.stored_in_flight();
    let ended = Ended::Session;
    durable.end(ended, in_flight.filter_map(|(stored, share)| routing.router.queue_of_group(share?)?.place_of(stored)));
}

/// Ends the bookings of shared messages that this member will not complete.
fn take_back(shared: &BrokerState, client: &Client, booked: Booked) {
    booked.take_back(&client.load, shared.clock.nanos(Instant::now()));
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
        Some(due) if due <= now => shared.sessions.long_ends.look_at(client),
        Some(due) => shared.sessions.expiry.push(due, &client),
        None => {}
    }
}

/// Whether a session without a connection has expired. [MQTT-4.1.0-2]
pub(super) fn is_over(lease: &Lease, at: Instant) -> bool {
    lease.state.expires_at.is_some_and(|expires_at| expires_at <= at)
}

/// Counts an expired session, unless it ended with its connection.
pub(super) fn count_expired(operations: &Operations, lease: &Lease) {
    if lease.state.expires_at != lease.state.left_at {
        tracing::debug!(client = ?lease.client.id, "session expired");
        operations.metrics.clients_expired.add(1);
        if operations.hooks.has(Events::SESSION_EXPIRED) {
            operations.hooks.tell(Events::SESSION_EXPIRED, |hooks| hooks.session_expired(&lease.client.id));
        }
    }
}

/// Subscriptions that a change of the index removes.
const WIPED_TOGETHER: usize = 32;

/// Subscriptions up to which an expired session ends at once, without waiting for its turn.
const FEW: usize = 32;

/// Visits that are due within this time do not count as scheduled: they may find the lease taken.
const SCHEDULE_SLACK: Duration = Duration::from_secs(1);
