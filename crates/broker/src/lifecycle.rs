//! What happens to a session and its Will when a connection begins and ends (MQTT 5.0 §3.1.2.4, §3.1.2.5,
//! §4.1).

use std::time::{Duration, Instant};

use tenbin_codec::Will;
use tenbin_session::{Publication, Session, SessionExpiry};

use crate::registry::{Lease, PendingWill};
use crate::router::Publisher;
use crate::shared::Shared;

/// How a connection ended.
#[derive(Debug)]
pub(crate) struct ConnectionEnd {
    /// The messages under way.
    pub(crate) session: Session,
    /// The Will, unless DISCONNECT 0x00 took it away `[MQTT-3.14.4-3]`.
    pub(crate) will: Option<Will>,
    /// How long the session goes on.
    pub(crate) expiry: SessionExpiry,
}

/// A connection begins: returns whether it goes on with a session.
pub(crate) fn begin(shared: &Shared, lease: &mut Lease, clean_start: bool, now: Instant) -> bool {
    let session_present = lease.state.established && !clean_start;
    let will = lease.state.will.take();
    if lease.state.established && clean_start {
        wipe(shared, lease); // [MQTT-3.1.2-4]
        // The old session ends here, and with it the delay of its Will.
        if let Some(pending) = will {
            publish_will(shared, lease.client.number, pending.will, now);
        }
    }
    // else: back within the delay, the Will is not sent. [MQTT-3.1.3-9]
    lease.state.established = true;
    lease.state.expires_at = None;
    lease.client.load.connected(shared.clock.nanos(now));
    session_present
}

/// A connection ended: the session waits for the next one or ends with it.
pub(crate) fn end(shared: &Shared, mut lease: Lease, end: ConnectionEnd, now: Instant) {
    lease.client.outbox.detach();
    let ends_now = end.expiry == SessionExpiry::AtDisconnect;
    if let Some(will) = end.will {
        let delay = Duration::from_secs(u64::from(will.delay_interval.unwrap_or(0)));
        match now.checked_add(delay) {
            Some(due) if !delay.is_zero() && !ends_now => lease.state.will = Some(PendingWill { will, due }),
            _ => publish_will(shared, lease.client.number, will, now), // [MQTT-3.1.2-8]
        }
    }
    if ends_now {
        finish(shared, lease);
        return;
    }
    lease.state.session = end.session;
    lease.state.expires_at = match end.expiry {
        SessionExpiry::After(interval) => now.checked_add(interval),
        SessionExpiry::AtDisconnect | SessionExpiry::Never => None,
    };
    schedule(shared, &mut lease, now);
}

/// The expiry queue has come to this session: does what is due.
pub(crate) fn expire(shared: &Shared, mut lease: Lease, now: Instant) {
    lease.state.scheduled = None;
    let expired = lease.state.expires_at.is_some_and(|at| at <= now);
    if let Some(pending) = lease.state.will.take_if(|pending| expired || pending.due <= now) {
        publish_will(shared, lease.client.number, pending.will, now);
    }
    if expired {
        tracing::debug!(client = %lease.client.id, "session expired"); // [MQTT-4.1.0-2]
        finish(shared, lease);
    } else {
        schedule(shared, &mut lease, now);
    }
}

/// The session is over.
fn finish(shared: &Shared, mut lease: Lease) {
    wipe(shared, &mut lease);
    lease.state.ended = true;
    shared.registry.remove(&lease.client);
}

/// Forgets subscriptions, messages under way and waiting ones.
fn wipe(shared: &Shared, lease: &mut Lease) {
    for (filter, _) in std::mem::take(&mut lease.state.subscriptions) {
        shared.router.unsubscribe(&filter, lease.client.number);
    }
    lease.state.session = Session::new();
    lease.client.outbox.clear();
}

fn schedule(shared: &Shared, lease: &mut Lease, now: Instant) {
    let will_due = lease.state.will.as_ref().map(|pending| pending.due);
    let Some(at) = [will_due, lease.state.expires_at].into_iter().flatten().min() else { return };
    // One that is due earlier looks again by itself; one in the past may have found the client connected.
    if lease.state.scheduled.is_none_or(|scheduled| scheduled > at || scheduled <= now) {
        lease.state.scheduled = Some(at);
        shared.expiry.push(at, &lease.client);
    }
}

fn publish_will(shared: &Shared, number: u64, will: Will, now: Instant) {
    let publication = Publication {
        qos: will.qos,
        retain: will.retain, // [MQTT-3.1.2-14], [MQTT-3.1.2-15]
        expires_at: Publication::expiry(will.properties.as_deref(), now),
        properties: will.properties,
        ..Publication::new(will.topic, will.payload)
    };
    let mut publisher = Publisher::new(number);
    let reason = publisher.publish(&shared.router, &publication, now);
    publisher.flush();
    tracing::debug!(topic = %publication.topic, %reason, "will published");
}
