//! Restores sessions, subscriptions, retained messages, Wills and speeds of the last run.

use std::sync::Arc;
use std::time::Instant;

use super::BrokerState;
use crate::auth::Standing;
use crate::durable::{Durable, RestoredSession, RestoredWill, Restoring, StoreError};
use crate::memory::Kind;
use crate::registry::{ChargedWill, Client, PartlyRefused, PendingWill, session_bytes};
use crate::values::Principal;

/// Restores the state of the last run, before any client can connect.
///
/// # Errors
/// A part cannot be read: see [`Restoring`].
pub(crate) fn restore(shared: &BrokerState, durable: &Durable) -> Result<(), StoreError> {
    let began = Instant::now();
    let mut restoring = durable.restoring()?;
    let listeners = shared.config.listener_names();
    let mut start = Start { shared, listeners, now: restoring.now(), sessions: 0, unknown: 0 };
    let expired = restoring.sessions(|session| start.session(session))?;
    shared.operations.metrics.clients_expired.add(expired as u64);
    if start.unknown > 0 {
        let sessions = start.unknown;
        tracing::warn!(sessions, "sessions of users or listeners that are not configured stay until they expire");
    }
    shared.routing.router.stand(|| durable.groups_without_rule());
    let mut known = shared.routing.router.restore_waiting(durable);
    shared.routing.router.tell_dormant();
    shared.sessions.registry.for_each(|client| known.extend(client.outbox.stored().map(|queue| queue.id())));
    let (waiting, dropped) = restoring.drop_unknown(&known);
    shared.operations.metrics.dropped_offline.add(dropped);
    let retained = restoring.retained(|publication| shared.routing.router.restore_retained(publication, start.now))?;
    let speeds = restoring.speeds(shared.config.remembered_speeds().time)?;
    shared.routing.speeds.restore(speeds, start.now);
    let wills = restoring.wills()?;
    let wills_found = wills.len();
    // No error is possible any more.
    restoring.all_is_read();
    // Last: a Will needs its receivers.
    for will in wills {
        start.will(will, &mut restoring);
    }
    restoring.finish(waiting);
    let directory = durable.directory().display();
    tracing::info!(%directory, sessions = start.sessions, retained, wills = wills_found, took = ?began.elapsed(), "state loaded");
    Ok(())
}

struct Start<'a> {
    shared: &'a BrokerState,
    /// Names of the configured listeners.
    listeners: Vec<Arc<str>>,
    now: Instant,
    sessions: usize,
    /// Sessions whose user or listener is not configured.
    unknown: usize,
}

impl Start<'_> {
    /// Restores a session and its subscriptions.
    fn session(&mut self, session: RestoredSession) {
        let RestoredSession { owner, address, on_disk, subscriptions, queue, waiting, session, refused, expires_at } =
            session;
        let principal = self.principal(owner);
        let is_known = self.shared.admission.access.standing(&principal) != Standing::Revoked;
        if !is_known {
            self.note_unknown(&principal);
        }
        self.sessions += 1;
        let shared = self.shared;
        let client_id = &principal.client_id;
        let new = |number| shared.new_client(&principal, number, self.now);
        let client = shared.sessions.registry.restore(client_id, new);
        let mut lease = client.try_lease().expect("nobody else knows of it yet");
        let state = &mut *lease.state;
        state.established = true;
        let account = shared.storage.memory.account_of(&principal.identity, address);
        state.charge = Some(account.charge_always(Kind::Sessions, session_bytes(client_id.len(), true)));
        client.outbox.charge_to(&account);
        let mut partly_refused = PartlyRefused::default();
        for id in refused {
            partly_refused.add(id, usize::MAX);
        }
        state.partly_refused = Some(Box::new(partly_refused)).filter(|refused| !refused.is_empty());
        state.session = Some(Box::new(session));
        state.has_unread = true;
        client.outbox.restore(queue, waiting);
        state.rights_epoch = shared.admission.access.epoch();
        state.durable = Some(Box::new(on_disk));
        state.counted = address.and_then(|address| shared.sessions.address_quota.restore(address));
        state.expires_at = expires_at;
        shared.operations.metrics.subscriptions.add(subscriptions.len() as u64);
        for (filter, grant) in subscriptions {
            state.subscriptions.restore(&filter, grant, &account);
            // Share groups keep members whose user is unknown, for messages in their queues: see `enforcement`.
            let is_shared = filter.is_shared();
            let is_allowed = || !is_shared || client.rights.check_subscription(&filter).is_ok();
            let is_routed = if is_known { is_allowed() } else { is_shared };
            if is_routed {
                shared.routing.router.subscribe(&filter, &client.receiver(), grant, self.now);
                continue;
            }
            shared.routing.router.suspend_all(std::iter::once(&filter), &client.receiver()); // nothing, but for a share group
            state.suspended.insert(filter);
        }
        state.subscriptions.set_away(true);
        super::put_down(shared, lease, self.now);
    }

    fn principal(&self, before: Principal) -> Principal {
        self.shared.admission.access.owner_now(&self.listeners, before)
    }

    /// Logs the first session whose user or listener is not configured, and counts all of them. They stay.
    fn note_unknown(&mut self, Principal { client_id, identity, listener }: &Principal) {
        let (user, realm) = (&identity.user, &identity.realm);
        if self.unknown == 0 {
            tracing::warn!(
                client = ?client_id, ?user, %realm, %listener,
                "session kept without new messages: its user or listener is not configured"
            );
        }
        self.unknown += 1;
    }

    /// Restores a Will in its delay, or publishes it.
    fn will(&self, will: RestoredWill, restoring: &mut Restoring<'_>) {
        let shared = self.shared;
        let client_id = &will.owner.client_id;
        let waits = will.due.filter(|&due| will.is_last && due > self.now);
        let client = shared.sessions.registry.find(client_id);
        if let Some((client, due)) = client.as_ref().zip(waits) {
            let mut lease = client.try_lease().expect("nobody else knows of it yet");
            restoring.will_waits(&will, due);
            let account = client.outbox.account();
            let account =
                account.unwrap_or_else(|| shared.storage.memory.account_of(&client.rights.principal().identity, None));
            lease.state.kept_will = Some(will.number);
            let will = ChargedWill::restored(will.will, &account);
            lease.state.will = Some(Box::new(PendingWill { will, due }));
            super::put_down(shared, lease, self.now);
            return;
        }
        // Without a session there is no delay. [MQTT-3.1.3-9]
        match shared.operations.leadership.holds() {
            true => publish(shared, will, self.now),
            false => shared.operations.leadership.add_due_will(will),
        }
    }
}

/// Publishes a Will of the last run.
pub(super) fn publish(shared: &BrokerState, will: RestoredWill, now: Instant) {
    let RestoredWill { owner, will, number, .. } = will;
    let client_id = owner.client_id.clone();
    let commit_point = match shared.sessions.registry.find(&client_id) {
        Some(client) => super::publish_will(shared, &client, will, now),
        None => {
            let listeners = shared.config.listener_names();
            let client: Client = shared.new_client(&shared.admission.access.owner_now(&listeners, owner), 0, now);
            super::publish_will(shared, &client, will, now)
        }
    };
    if let Some(durable) = &shared.storage.durable {
        durable.will_published(&client_id, number, commit_point);
    }
}
