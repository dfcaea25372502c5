//! What a change of the rules takes away stops at once: for connected clients, stored sessions and share members.
//!
//! Ordinary subscriptions need nothing done: whoever routes asks for the receiver's rights, and the router's new
//! version makes every publisher ask again. What remains are members of share groups, messages that wait already,
//! and users who are not known any more.

use std::cell::RefCell;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use tenbin_balancer::Rng;
use tenbin_codec::QoS;
use tenbin_session::{Delivery, SentId};

use super::{AccessError, KnownRealm, Rights, Settings, Standing};
use crate::Config;
use crate::durable::{Outcomes, SafeAt, Stored, place};
use crate::lifecycle;
use crate::outbox::Control;
use crate::registry::{Client, Lease};
use crate::router::HeldKey;
use crate::shared::Shared;

/// Goes over to what `config` says of access; on an error all stays as it is. The realms to keep on disk, if they have changed:
/// the caller does, since that waits for the disk.
pub(crate) fn reload(shared: &Shared, config: &Config) -> Result<Option<Vec<KnownRealm>>, AccessError> {
    let mut settings = Settings::load(config, shared.is_configured_only)?;
    settings.keep_open(shared.config.all_listeners().map(|listener| listener.name()))?;
    let realms = shared.access.replace(settings);
    changed(shared);
    Ok(realms)
}

/// The rules have changed: looks at every session.
pub(crate) fn changed(shared: &Shared) {
    shared.access.changed();
    shared.router.invalidate();
    let mut clients = Vec::new();
    shared.registry.for_each(|client| clients.push(Arc::clone(client)));
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

/// The owner of a session takes over what has changed since it looked last, before it sends anything more; what is
/// left of its identity.
pub(crate) fn catch_up(shared: &Shared, lease: &mut Lease) -> Standing {
    match lease.state.rights_epoch == shared.access.epoch() {
        true => Standing::Current,
        false => judge(shared, lease, Instant::now()),
    }
}

/// Judges a session by the rules of now, whether or not they have changed; what is left of its identity.
pub(crate) fn judge(shared: &Shared, lease: &mut Lease, now: Instant) -> Standing {
    lease.state.rights_epoch = shared.access.epoch();
    let standing = lease.client.rights.standing();
    if standing == Standing::Revoked {
        suspend(shared, lease);
    } else {
        review(shared, lease, now);
    }
    standing
}

/// Gives back the lease of a session that is not connected. Changes of the rules that found the lease taken are taken over before.
pub(crate) fn release(shared: &Shared, mut lease: Lease) {
    while !lease.state.ended && lease.state.established {
        catch_up(shared, &mut lease);
        let (client, seen) = (Arc::clone(&lease.client), lease.state.rights_epoch);
        drop(lease);
        // A change raises the epoch before it asks for the lease: it finds the lease free, or is found here.
        if shared.access.epoch_after_release() == seen {
            return;
        }
        match client.try_lease() {
            Some(again) => lease = again,
            None => return, // whoever has it takes the change over
        }
    }
}

/// The session of a user who is not known now gets no new messages until the user is known again; messages that wait stay. In
/// a share group it stays a member that is not connected, so that messages of a group without other members stay too.
fn suspend(shared: &Shared, lease: &mut Lease) {
    let state = &mut *lease.state;
    for filter in state.subscriptions.keys().filter(|filter| !filter.is_shared()) {
        if state.suspended.insert(filter.clone()) {
            shared.router.unsubscribe(filter, lease.client.number);
        }
    }
}

/// Takes a session out of share groups that are not its any more, and back into those that are again; ends what [`suspend`]
/// did. Messages that
/// wait for it are judged by what holds now: those of a share group go to other members, the rest are dropped. So are
/// those under way that would be sent again; a connection has them itself, and judges them by [`is_forbidden`].
pub(crate) fn review(shared: &Shared, lease: &mut Lease, now: Instant) {
    let (client, state) = (Arc::clone(&lease.client), &mut *lease.state);
    let handover = shared.router.begin_handover(client.number, &client.outbox);
    let mut again = Vec::new();
    let has_suspended = !state.suspended.is_empty();
    for (filter, grant) in state.subscriptions.iter().filter(|(filter, _)| filter.is_shared() || has_suspended) {
        let allowed = !filter.is_shared() || client.rights.check_subscription(filter).is_ok();
        if !allowed && state.suspended.insert(filter.clone()) {
            tracing::info!(client = ?client.id, ?filter, "no longer authorized");
            shared.router.unsubscribe(filter, client.number);
        } else if allowed && state.suspended.remove(filter) {
            shared.router.subscribe(filter, &client.receiver(), *grant, now);
            again.push(filter);
        }
    }
    let not_kept = NotKept::default();
    let is_unwanted =
        |id, delivery: &Delivery| is_forbidden(&client.rights, delivery) && not_kept.note_sent(id, delivery);
    let given_up = state.session.as_mut().map_or(0, |session| session.give_up(is_unwanted));
    if given_up > 0 {
        tracing::info!(client = ?client.id, given_up, "messages under way are no longer authorized");
    }
    let mut forbidden = client.outbox.withdraw(|delivery| is_forbidden(&client.rights, delivery));
    forbidden.retain(|delivery| delivery.share.is_some() || !not_kept.note(delivery));
    state.settled_at = state.settled_at.and(not_kept.settle(shared, &client));
    let mut rng = Rng::new(client.number);
    shared.router.keys_done(forbidden.iter().filter_map(HeldKey::of), client.number);
    handover.finish(forbidden, now, &mut rng);
    shared.router.connected(again.into_iter(), now, &mut rng);
}

/// Messages that were given up and that are kept for the session on disk: until now.
#[derive(Debug, Default)]
pub(crate) struct NotKept {
    done: RefCell<Vec<NonZeroU64>>,
    /// Sent at QoS 2: the Packet Identifier is still needed, and no PUBLISH may come with it any more.
    released: RefCell<Vec<Released>>,
}

/// A QoS 2 message that is given up as if PUBREC had come: by which identifier it was sent, where it is stored, and the number
/// of its share group.
pub(crate) type Released = (SentId, NonZeroU64, Option<NonZeroU64>);

impl NotKept {
    /// One that was not sent. Always true.
    pub(crate) fn note(&self, delivery: &Delivery) -> bool {
        self.done.borrow_mut().extend(delivery.stored);
        true
    }

    /// One that was sent. Always true.
    pub(crate) fn note_sent(&self, id: SentId, delivery: &Delivery) -> bool {
        if delivery.qos != QoS::ExactlyOnce {
            return self.note(delivery);
        }
        self.released.borrow_mut().extend(delivery.stored.map(|stored| (id, stored, delivery.share)));
        true
    }

    /// PUBREL of these is to leave when what has become of them is safe.
    pub(crate) fn take_released(&self) -> Vec<Released> {
        self.released.take()
    }

    /// Keeps what has become of them; when that is safe.
    pub(crate) fn settle(self, shared: &Shared, client: &Client) -> SafeAt {
        let Some((durable, queue)) = shared.durable.as_ref().zip(client.outbox.stored()) else { return SafeAt::NOW };
        // What is in a share group's queue is the group's.
        let own = |stored| match Stored::of(stored) {
            Stored::InOwn(sequence) => Some(place(queue.id(), sequence)),
            Stored::InGroup(_) => None,
        };
        let released = self.released.into_inner().into_iter();
        let mut outcomes = Outcomes {
            done: self.done.into_inner().into_iter().filter_map(own).collect(),
            received: released.filter_map(|(id, stored, _)| Some((own(stored)?, id))).collect(),
            ..Outcomes::default()
        };
        if outcomes.is_empty() { SafeAt::NOW } else { durable.settle(&mut outcomes) }
    }
}

/// Whether a message that was meant for a session may not go to it any more.
pub(crate) fn is_forbidden(rights: &Rights, delivery: &Delivery) -> bool {
    !rights.may_receive_encoded(delivery.template.topic())
}

/// What is left of the identity of a session that is not connected.
fn look_at_stored(shared: &Shared, mut lease: Lease) -> Standing {
    let is_there = !lease.state.ended && lease.state.established;
    let standing = if is_there { catch_up(shared, &mut lease) } else { Standing::Current };
    lifecycle::put_down(shared, lease, Instant::now());
    standing
}
