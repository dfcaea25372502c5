//! Publication of Wills.

use std::time::Instant;

use tenbin_codec::Will;

use super::BrokerState;
use super::Denied;
use super::end::{is_over, put_down};
use crate::durable::CommitPoint;
use crate::hooks::{self, Events, Verdict};
use crate::registry::{ChargedWill, Client, Lease};
use crate::router::{Collector, Publisher};

/// Publishes a due Will of a session without a connection. Returns whether the session is over and has to be ended.
pub(crate) fn look_at(shared: &BrokerState, mut lease: Lease, now: Instant) -> bool {
    let is_over = publish_due_will(shared, &mut lease, now);
    if !is_over {
        put_down(shared, lease, now);
    }
    is_over
}

/// Returns whether the session is over.
pub(super) fn publish_due_will(shared: &BrokerState, lease: &mut Lease, now: Instant) -> bool {
    let is_over = !lease.state.ended && is_over(lease, now);
    if let Some(pending) = lease.state.will.take_if(|pending| is_over || pending.due <= now) {
        publish_kept_will(shared, lease, pending.will, now);
    }
    is_over
}

/// Publishes the Will of a session. Its record on disk goes once the published message is durable.
pub(super) fn publish_kept_will(shared: &BrokerState, lease: &mut Lease, will: ChargedWill, now: Instant) {
    let commit_point = publish_will(shared, &lease.client, will.will, now);
    if let Some((durable, number)) = shared.storage.durable.as_ref().zip(lease.state.kept_will.take()) {
        durable.will_published(&lease.client.id, number, commit_point);
    }
}

/// Publishes a Will if its client still has the right to. Returns the commit point of the message.
pub(crate) fn publish_will(shared: &BrokerState, client: &Client, will: Will, now: Instant) -> CommitPoint {
    let BrokerState { routing, operations, .. } = shared;
    if let Err(reason) = client.rights.check_will(&will.topic) {
        tracing::warn!(client = ?client.id, topic = ?will.topic, reason, "Will dropped");
        operations.count_denied(Denied::Will, &client.rights, &will.topic, now);
        operations.metrics.unseen_wills.add(1);
        return CommitPoint::NOW;
    }
    let mut will = hooks::Publication::of_will(will); // [MQTT-3.1.2-14], [MQTT-3.1.2-15]
    let asks_hooks = operations.hooks.has(Events::WILL);
    if asks_hooks && operations.hooks.ask(Events::WILL, |hooks| hooks.will(&client.id, &mut will)) != Verdict::Go {
        tracing::debug!(client = ?client.id, topic = ?will.topic, "Will dropped by a hook");
        return CommitPoint::NOW;
    }
    let publication = will.into_routed(now);
    if asks_hooks && let Err(reason) = routing.checks.own(&publication) {
        tracing::warn!(client = ?client.id, topic = ?publication.topic, %reason, "Will dropped: a hook has made it illegal");
        return CommitPoint::NOW;
    }
    let mut publisher = Publisher::new(&routing.router, client.number, &client.id);
    let mut collector = Collector::new();
    let published = publisher.publish(&routing.router, &mut collector, &publication, shared.clock.moment(now));
    let flushed = publisher.flush(&routing.router, &mut collector, now);
    let is_refused = published.reason.is_error() || !flushed.refused.is_empty();
    operations.metrics.unseen_wills.add(u64::from(is_refused));
    tracing::debug!(topic = ?publication.topic, reason = %published.reason, "will published");
    if operations.hooks.has(Events::WILL_SENT) {
        let (will, receivers) = (hooks::Publication::of(&publication), published.reached(&flushed.refused));
        operations.hooks.tell(Events::WILL_SENT, |hooks| hooks.will_sent(&client.id, &will, receivers));
    }
    flushed.commit_point
}
