//! What happens to a session and its Will when a connection begins and ends (MQTT 5.0 §3.1.2.4, §3.1.2.5,
//! §4.1).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenbin_balancer::Rng;
use tenbin_codec::{TopicFilter, Will};
use tenbin_session::{Publication, Session, SessionExpiry};
use tokio::sync::oneshot;

use crate::auth::enforcement;
use crate::durable::{Durable, SafeAt, Stored, place};
use crate::outbox::Booked;
use crate::registry::{ChargedWill, Client, CountedSession, Lease, OverQuota, PendingWill};
use crate::router::{HeldKey, Published, Publisher};
use crate::shared::Shared;
use crate::slices::Pace;

/// How a connection ended.
#[derive(Debug)]
pub(crate) struct ConnectionEnd {
    /// The messages under way.
    pub(crate) session: Session,
    /// The Will, unless DISCONNECT 0x00 took it away `[MQTT-3.14.4-3]`.
    pub(crate) will: Option<Box<ChargedWill>>,
    /// How long the session goes on.
    pub(crate) expiry: SessionExpiry,
    /// When what has become of messages is safe.
    pub(crate) settled_at: SafeAt,
}

/// How a connection begins.
#[derive(Debug)]
pub(crate) struct Beginning<'a> {
    pub(crate) clean_start: bool,
    /// How long the session outlives it.
    pub(crate) expiry: SessionExpiry,
    pub(crate) will: Option<&'a Will>,
    /// When its CONNECT came: the time that counts for what is over by then.
    pub(crate) arrived_at: Instant,
}

/// A connection has begun.
#[derive(Debug)]
pub(crate) struct Begun {
    /// What was under way of the session with which it goes on; `None` = there was none.
    pub(crate) interrupted: Option<Interrupted>,
    /// When the client may be told.
    pub(crate) safe_at: SafeAt,
    /// Whether it may be told as well where the state cannot be written: [`Durable::can_begin_unwritten`].
    pub(crate) may_be_unwritten: bool,
    /// When it may be then.
    pub(crate) settled_at: SafeAt,
}

/// What comes in time, if no connection does.
#[derive(Debug)]
pub(crate) struct Interrupted {
    will: Option<Box<PendingWill>>,
    expires_at: Option<Instant>,
}

/// Why a connection does not begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotBegun {
    /// The disk does not take the session.
    CannotBeKept,
    OverQuota(OverQuota),
}

/// Whether a connection may begin: not where something would have to be kept for it, and the disk does not take it.
pub(crate) fn may_begin(shared: &Shared, lease: &Lease, beginning: &Beginning<'_>) -> bool {
    let Some(durable) = &shared.durable else { return true };
    let session_ends = beginning.ends_session(lease);
    !(durable.is_failing() || durable.is_congested()) || durable.can_begin_unwritten(lease, session_ends, beginning)
}

impl Beginning<'_> {
    /// By what time it is judged what is over: a connection that is taken over ends after the next one has come.
    fn judged_at(&self, lease: &Lease) -> Instant {
        lease.state.left_at.map_or(self.arrived_at, |left_at| left_at.max(self.arrived_at))
    }

    fn ends_session(&self, lease: &Lease) -> bool {
        lease.state.established && (self.clean_start || is_over(lease, self.judged_at(lease)))
    }
}

/// Whether the time of a session without a connection is over. [MQTT-4.1.0-2]
fn is_over(lease: &Lease, at: Instant) -> bool {
    lease.state.expires_at.is_some_and(|expires_at| expires_at <= at)
}

/// Counts a session that is over because nobody came back in time.
fn count_expired(shared: &Shared, lease: &Lease) {
    if lease.state.expires_at != lease.state.left_at {
        tracing::debug!(client = ?lease.client.id, "session expired");
        shared.metrics.clients_expired.add(1);
    }
}

/// Whether an anonymous session may end, because a user wants its Client Identifier: not where the user's connection could not
/// begin after it. The place of the user's session at its address.
pub(crate) fn may_displace(
    shared: &Shared,
    lease: &Lease,
    beginning: &Beginning<'_>,
    address: IpAddr,
) -> Result<Option<Box<CountedSession>>, NotBegun> {
    if !may_begin(shared, lease, &Beginning { clean_start: true, ..*beginning }) {
        return Err(NotBegun::CannotBeKept);
    }
    shared.address_quota.count(address, lease.state.counted.as_deref()).map_err(NotBegun::OverQuota)
}

/// An anonymous session ends, because a user wants its Client Identifier. Nothing of it is the user's.
pub(crate) async fn displace(shared: &Shared, mut lease: Lease, now: Instant) {
    tracing::info!(client = ?lease.client.id, "anonymous session ended: a user connects with its Client Identifier");
    if let Some(pending) = lease.state.will.take() {
        publish_kept_will(shared, &mut lease, pending.will, now); // [MQTT-3.1.3-9]
    }
    finish(shared, lease, &mut Pace::default()).await;
}

/// Counts the session that begins for the address that begins it. `place`: it is counted already.
///
/// # Errors
/// The address has as many sessions as it may have.
pub(crate) fn count(
    shared: &Shared,
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

/// A connection that was not to begin: all is as it was before.
pub(crate) async fn give_back(shared: &Shared, mut lease: Lease, now: Instant) {
    if !lease.state.established {
        finish(shared, lease, &mut Pace::default()).await;
        return;
    }
    rights_renewed(shared, &mut lease, now);
    put_down(shared, lease, now);
}

/// A connection begins.
pub(crate) async fn begin(shared: &Shared, lease: &mut Lease, beginning: &Beginning<'_>, now: Instant) -> Begun {
    let judged_at = beginning.judged_at(lease);
    if is_over(lease, judged_at) {
        count_expired(shared, lease);
    }
    let session_ends = beginning.ends_session(lease);
    let session_present = lease.state.established && !session_ends;
    let durable = shared.durable.as_ref();
    let may_be_unwritten = durable.is_some_and(|durable| durable.can_begin_unwritten(lease, session_ends, beginning));
    if session_ends {
        wipe(shared, lease, &mut Pace::default()).await; // [MQTT-3.1.2-4]
    }
    // The old session's end ends the delay too; else, back within the delay, it is not sent. [MQTT-3.1.3-9]
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
    // What was kept of messages on an earlier connection is safe before this one goes on with it.
    let settled_at = if session_present { lease.state.settled_at } else { SafeAt::NOW };
    let safe_at = durable.map_or(SafeAt::NOW, |durable| {
        let safe_at = durable.connection_begins(lease, beginning.expiry, beginning.will);
        store_messages(lease, durable);
        safe_at.and(settled_at)
    });
    Begun { interrupted, safe_at, may_be_unwritten, settled_at }
}

/// A connection that has begun is refused after all, before its client knows of it: a session that was there before goes on
/// as it was, and one that was not ends. What a clean start or time have ended is over all the same.
pub(crate) async fn refuse(shared: &Shared, mut lease: Lease, interrupted: Option<Interrupted>, now: Instant) {
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

/// A client has come back to its session, perhaps through another listener: what publishers remember of its rights is void.
pub(crate) fn rights_renewed(shared: &Shared, lease: &mut Lease, now: Instant) {
    shared.router.invalidate();
    enforcement::judge(shared, lease, now);
}

/// Rounded up: kept are whole ones.
fn whole_seconds(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs() + u64::from(duration.subsec_nanos() > 0))
}

/// Messages for a session that is kept are kept too.
fn store_messages(lease: &Lease, durable: &Durable) {
    let Some(session) = &lease.state.durable else { return };
    let before = lease.client.outbox.any_queue();
    if !before.as_ref().is_some_and(|queue| session.has(queue)) {
        lease.client.outbox.store_in(Some(session.queue(durable, before.as_deref())));
    }
}

/// A connection ended: the session waits for the next one or ends with it.
///
/// What others may rely on is so at once, see [`leave`]. What takes long waits for its turn, without the lease: then it is over
/// when this receiver ends.
pub(crate) async fn end(
    shared: &Shared,
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

/// Share groups give nothing to the client any more, and others get what it had of them; the disk has when its session ends, and
/// when its Will is due.
fn leave(shared: &Shared, lease: &mut Lease, end: ConnectionEnd, now: Instant) {
    shared.metrics.clients_connected.subtract(1);
    lease.state.retained_pages.connection_ended();
    lease.state.settled_at = end.settled_at;
    let (client, mut session) = (Arc::clone(&lease.client), end.session);
    // What share groups gave to this member goes to others: what it has not acknowledged, then what it has not
    // been sent. QoS 2 stays with whom it was sent to. [MQTT-4.8.2-4]
    let under_way = session.shared_in_flight().map(|delivery| delivery.share);
    let (handover, queued) = shared.router.detach(client.number, &client.outbox, under_way);
    let mut orphans = session.withdraw(|delivery| delivery.share.is_some());
    take_back(shared, &client, orphans.iter().map(Booked::of).sum());
    orphans.extend(queued);
    shared.router.keys_done(orphans.iter().filter_map(HeldKey::of), client.number);
    handover.finish(orphans, now, &mut Rng::new(client.number));
    let ends_now = end.expiry == SessionExpiry::AtDisconnect;
    lease.state.left_at = Some(now);
    lease.state.expires_at = match end.expiry {
        SessionExpiry::AtDisconnect => Some(now),
        SessionExpiry::After(interval) => now.checked_add(interval),
        SessionExpiry::Never => None,
    };
    // Of a connection that is refused: the record on disk may be another's.
    let is_restored = end.will.is_none() && lease.state.will.is_some();
    if let Some(will) = end.will {
        let delay = if ends_now { 0 } else { will.will.delay_interval.unwrap_or(0) };
        let due = now.checked_add(Duration::from_secs(delay.into())).unwrap_or(now);
        lease.state.will = Some(Box::new(PendingWill { will: *will, due })); // [MQTT-3.1.2-8]
    }
    // What is on disk need not be in memory too, where each session would have its own copy.
    let is_on_disk = !ends_now && lease.state.durable.is_some() && client.outbox.is_stored();
    if is_on_disk && session.forget_stored() {
        lease.state.has_unread = true;
    } else {
        session.detach();
        client.outbox.count_under_way(session.in_flight_bytes());
    }
    lease.state.session = Some(Box::new(session));
    if let Some(durable) = &shared.durable {
        durable.connection_ended(lease, end.expiry, is_restored, now);
    }
}

/// A client comes to the share group of `filter`, if that is one: what is known of its speed there counts until more
/// is known.
pub(crate) fn joins(shared: &Shared, client: &Client, filter: &TopicFilter, now: Instant) {
    if filter.is_shared()
        && !client.load.is_speed_known()
        && let Some(processing_time) = shared.speeds.recall(&client.rights.principal(), filter, now)
    {
        client.load.assume_speed(processing_time);
    }
}

/// A member of share groups takes messages, or takes them again: what waits with its groups goes to it and to others.
pub(crate) fn takes_messages(shared: &Shared, lease: &Lease, now: Instant) {
    shared.router.connected(lease.state.subscriptions.keys(), now, &mut Rng::new(lease.client.number));
}

/// A client leaves the share group of `filter`, if that is one, for good or for now: its speed is remembered, if it has
/// shown one.
pub(crate) fn leaves(shared: &Shared, client: &Client, filter: &TopicFilter, now: Instant) {
    if filter.is_shared()
        && let Some(processing_time) = client.load.learned_speed()
    {
        shared.speeds.keep(&client.rights.principal(), filter, processing_time, now);
    }
}

/// Publishes the Will of a session without a connection, if it is due; whether the session is over, and to be ended.
pub(crate) fn look_at(shared: &Shared, mut lease: Lease, now: Instant) -> bool {
    let is_over = publish_due_will(shared, &mut lease, now);
    if !is_over {
        put_down(shared, lease, now);
    }
    is_over
}

/// Does what is due for a session without a connection.
pub(crate) async fn expire(shared: &Shared, mut lease: Lease, now: Instant, pace: &mut Pace) {
    if publish_due_will(shared, &mut lease, now) {
        count_expired(shared, &lease);
        finish(shared, lease, pace).await;
    } else {
        put_down(shared, lease, now);
    }
}

/// Whether the session is over.
fn publish_due_will(shared: &Shared, lease: &mut Lease, now: Instant) -> bool {
    let is_over = !lease.state.ended && is_over(lease, now);
    if let Some(pending) = lease.state.will.take_if(|pending| is_over || pending.due <= now) {
        publish_kept_will(shared, lease, pending.will, now);
    }
    is_over
}

/// What share groups gave to a member and will not come to an end with it.
fn take_back(shared: &Shared, client: &Client, booked: Booked) {
    booked.take_back(&client.load, shared.clock.nanos(Instant::now()));
}

/// The session is over.
async fn finish(shared: &Shared, mut lease: Lease, pace: &mut Pace) {
    wipe(shared, &mut lease, pace).await;
    if let Some(durable) = &shared.durable {
        durable.will_over(&mut lease);
    }
    lease.client.outbox.close();
    lease.state.counted = None;
    lease.state.ended = true;
    lease.state.charge = None;
    shared.registry.remove(&lease.client);
}

/// Forgets subscriptions, messages under way and waiting ones.
///
/// On disk the session is over first. A message that comes for it until the last subscription is gone goes with its queue: also
/// after a crash, when nobody has that queue any more.
async fn wipe(shared: &Shared, lease: &mut Lease, pace: &mut Pace) {
    if let Some(durable) = &shared.durable {
        durable.session_over(lease);
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

/// What is kept of messages for a session goes with it. What share groups had sent to it at QoS 2 goes to nobody else
/// `[MQTT-4.8.2-5]`.
fn forget_messages(shared: &Shared, lease: &Lease, session: &Session, durable: &Durable) {
    if let Some(queue) = lease.client.outbox.stored() {
        durable.end_queue(&queue);
    }
    let of_groups = session.stored_in_flight().filter_map(|(stored, share)| match Stored::of(stored) {
        Stored::InGroup(sequence) => Some(place(shared.router.queue_of_group(share?)?.id(), sequence)),
        Stored::InOwn(_) => None,
    });
    durable.done(of_groups);
}

/// Gives back the lease of a session without a connection. Somebody looks at it when something is due.
pub(crate) fn put_down(shared: &Shared, mut lease: Lease, now: Instant) {
    let will_due = lease.state.will.as_ref().map(|pending| pending.due);
    let due = [will_due, lease.state.expires_at].into_iter().flatten().min().filter(|_| !lease.state.ended);
    // One that is due earlier looks again by itself. One that is nearly due may just now find the lease taken.
    let (scheduled, counted_on) = (lease.state.scheduled, now + SCHEDULE_SLACK);
    let is_known = |due: Instant| scheduled.is_some_and(|known| known <= due && known > counted_on);
    let due = due.filter(|&due| !is_known(due));
    lease.state.scheduled = due.or(scheduled);
    let client = Arc::clone(&lease.client);
    enforcement::release(shared, lease); // whoever looks at once finds it free
    match due {
        Some(due) if due <= now => shared.long_ends.look_at(client),
        Some(due) => shared.expiry.push(due, &client),
        None => {}
    }
}

/// Publishes the Will of a session, and forgets it when whoever is to have it is sure to.
fn publish_kept_will(shared: &Shared, lease: &mut Lease, will: ChargedWill, now: Instant) {
    let safe_at = publish_will(shared, &lease.client, will.will, now);
    if let Some(durable) = &shared.durable {
        durable.will_published(lease, safe_at);
    }
}

/// Publishes a Will, if its client still may; when that is safe.
pub(crate) fn publish_will(shared: &Shared, client: &Client, will: Will, now: Instant) -> SafeAt {
    if let Err(reason) = client.rights.check_will(&will.topic) {
        tracing::warn!(client = ?client.id, topic = ?will.topic, reason, "Will dropped");
        return SafeAt::NOW;
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
    flushed.safe_at
}

/// Subscriptions that go in one change of the index.
const WIPED_TOGETHER: usize = 32;

/// Subscriptions of a session that ends at once.
const FEW: usize = 32;

/// A visit of the expiry queue that is due so soon is not counted on.
const SCHEDULE_SLACK: Duration = Duration::from_secs(1);
