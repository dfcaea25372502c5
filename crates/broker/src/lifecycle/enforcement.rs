//! Applies changed access rules to connected clients, stored sessions and share-group members.
//!
//! Ordinary subscriptions need no update. Routing checks the receiver's rights, and the router's new version makes
//! every publisher check again. This module handles members of share groups, queued messages, and users that are no
//! longer known. A missing right stops deliveries, and deletes nothing.

use std::sync::Arc;
use std::time::Instant;

use tenbin_balancer::Rng;
use tenbin_session::Delivery;

use super::{BrokerState, Routing};
use crate::auth::{KnownRealm, Rights, Settings, Standing};
use crate::lifecycle;
use crate::outbox::Control;
use crate::registry::Lease;
use crate::router::HeldKey;

/// Replaces the access rules, and calls `and_then` before clients learn of it.
///
/// Returns the realms if they have changed. The caller must store them, since that waits for the disk.
pub(crate) fn apply(shared: &BrokerState, settings: Settings, and_then: impl FnOnce()) -> Option<Vec<KnownRealm>> {
    let realms = shared.admission.access.replace(settings);
    // Routes follow the new rules from here on. Receivers must see that before newer messages.
    shared.admission.access.changed();
    and_then();
    changed(shared);
    realms
}

/// Applies changed rules to every session.
pub(crate) fn changed(shared: &BrokerState) {
    shared.admission.access.changed();
    shared.routing.router.invalidate();
    let mut clients = Vec::new();
    shared.sessions.registry.for_each(|client| clients.push(Arc::clone(client)));
    let mut unknown = 0_usize;
    for client in clients {
        match client.try_lease() {
            Some(lease) => unknown += usize::from(look_at_stored(shared, lease) == Standing::Revoked),
            None => client.outbox.control(Control::RightsChanged),
        }
    }
    if unknown > 0 {
        tracing::warn!(
            sessions = unknown,
            "sessions of users or listeners that are not configured stay until they expire"
        );
    }
}

/// Applies rule changes to a leased session if there were any. Call it before the session sends anything more.
///
/// Returns the validity of the session's identity.
pub(crate) fn catch_up(shared: &BrokerState, lease: &mut Lease) -> Standing {
    match lease.state.rights_epoch == shared.admission.access.epoch() {
        true => Standing::Current,
        false => judge(shared, lease, Instant::now()),
    }
}

/// Applies the current rules to a leased session, whether or not they have changed.
///
/// Returns the validity of the session's identity.
pub(crate) fn judge(shared: &BrokerState, lease: &mut Lease, now: Instant) -> Standing {
    lease.state.rights_epoch = shared.admission.access.epoch();
    let standing = lease.client.rights.standing();
    if standing == Standing::Revoked {
        suspend(&shared.routing, lease);
    } else {
        review(&shared.routing, lease, false, now);
    }
    standing
}

/// Releases the lease of a disconnected session, after applying rule changes that found the lease held.
pub(crate) fn release(shared: &BrokerState, mut lease: Lease) {
    while !lease.state.ended && lease.state.established {
        catch_up(shared, &mut lease);
        let (client, seen) = (Arc::clone(&lease.client), lease.state.rights_epoch);
        drop(lease);
        // A change raises the epoch before it tries the lease: either it gets the lease, or this check sees the epoch.
        if shared.admission.access.epoch_after_release() == seen {
            return;
        }
        match client.try_lease() {
            Some(again) => lease = again,
            None => return, // the new holder applies the change
        }
    }
}

/// Stops new messages to the session of an unknown user, until the user is known again; queued messages stay.
///
/// The session stays a disconnected member of its share groups, so messages of a group without other members stay too.
fn suspend(routing: &Routing, lease: &mut Lease) {
    let state = &mut *lease.state;
    let ordinary = state.subscriptions.keys().filter(|filter| !filter.is_shared());
    let new: Vec<_> = ordinary.filter(|filter| state.suspended.insert((*filter).clone())).collect();
    for some in new.chunks(CHANGED_TOGETHER) {
        routing.router.unsubscribe_all(some.iter().copied(), lease.client.number);
    }
}

/// Suspends a session's membership in share groups that it may not use at present, and ends the suspension of those that
/// it may use again. Ends a [`suspend`].
///
/// Checks the queued messages of a connected session against the current rules. Forbidden ones of a share group go to
/// other members or wait with the group; the session's own wait until they are allowed. A connection has its in-flight
/// messages itself and checks them with [`is_forbidden`].
///
/// `is_reviewed`: the rights have not changed since the last review, so that only the queued messages are checked.
pub(crate) fn review(routing: &Routing, lease: &mut Lease, is_reviewed: bool, now: Instant) {
    let (client, state) = (Arc::clone(&lease.client), &mut *lease.state);
    let (mut lost, mut again) = (Vec::new(), Vec::new());
    let has_suspended = !state.suspended.is_empty();
    let subscriptions = state.subscriptions.iter().take(if is_reviewed { 0 } else { usize::MAX });
    for (filter, grant) in subscriptions.filter(|(filter, _)| filter.is_shared() || has_suspended) {
        let allowed = !filter.is_shared() || client.rights.check_subscription(filter).is_ok();
        if !allowed && state.suspended.insert(filter.clone()) {
            tracing::info!(client = ?client.id, ?filter, "no longer authorized: the member of the share group is suspended");
            lost.push(filter);
        } else if allowed && state.suspended.remove(filter) {
            again.push((filter, *grant));
        }
    }
    let redelivery = routing.router.begin_redelivery(client.number, &client.outbox);
    let redelivery = redelivery.and_leaving(lost.iter().copied());
    let receiver = client.receiver();
    for some in lost.chunks(CHANGED_TOGETHER) {
        routing.router.suspend_all(some.iter().copied(), &receiver);
    }
    for some in again.chunks(CHANGED_TOGETHER) {
        let mut edit = routing.router.edit();
        some.iter().for_each(|(filter, grant)| edit.subscribe(filter, &receiver, *grant, now));
    }
    let (forbidden, withheld) = client.outbox.withhold(|delivery| is_forbidden(&client.rights, delivery));
    if withheld > 0 {
        tracing::info!(client = ?client.id, messages = withheld, "queued messages wait for the right to receive them");
    }
    let mut rng = Rng::new(client.number);
    routing.router.keys_done(forbidden.iter().filter_map(HeldKey::of), client.number);
    redelivery.finish(forbidden, now, &mut rng);
    routing.router.connected(again.into_iter().map(|(filter, _)| filter), now, &mut rng);
}

/// Subscriptions in one change of the index, while other tasks wait for it.
const CHANGED_TOGETHER: usize = 32;

/// Whether the session may not receive this queued or in-flight message.
pub(crate) fn is_forbidden(rights: &Rights, delivery: &Delivery) -> bool {
    !rights.may_receive_encoded(delivery.template.topic())
}

/// Applies rule changes to a disconnected session and returns the validity of its identity.
fn look_at_stored(shared: &BrokerState, mut lease: Lease) -> Standing {
    let is_there = !lease.state.ended && lease.state.established;
    let standing = if is_there { catch_up(shared, &mut lease) } else { Standing::Current };
    lifecycle::put_down(shared, lease, Instant::now());
    standing
}
