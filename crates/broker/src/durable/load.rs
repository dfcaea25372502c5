//! The start: restores the state from disk before clients can connect.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenbin_codec::{PacketId, Text, TopicFilter};
use tenbin_session::{Publication, Session};
use tenbin_store::spool::Recovered;
use tenbin_store::state::Table;

use super::bytes::{RecordError, text};
use super::error::Cause;
use super::groups::GROUP_KEY;
use super::queue::{StoredQueue, publishers};
use super::record::{
    Owner, RetainedRecord, SessionRecord, SpeedRecord, WillRecord, decode_grant, decode_subscription_key,
    decode_will_key, subscription_key, will_key,
};
use super::wall_clock::WallClock;
use super::{Changes, CommitPoint, Durable, DurableSession, NUMBERS_KEY, RUN_KEY, StoreError, speeds};
use crate::auth::{Principal, Standing};
use crate::lifecycle;
use crate::lifecycle::BrokerState;
use crate::memory::Kind;
use crate::registry::{ChargedWill, Client, PartlyRefused, PendingWill, session_bytes};
use crate::values::Grant;

/// Restores the state of the last run: sessions, subscriptions, retained messages, Wills and speeds.
///
/// # Errors
/// A part cannot be read. A broker that went on without it would lose state that it has acknowledged, so that it is
/// better not to start.
pub(crate) fn load(shared: &BrokerState, durable: &Durable) -> Result<(), StoreError> {
    let began = Instant::now();
    if let Some(cut) = durable.state.cut_off() {
        tracing::warn!("left out of the state: {cut}");
    }
    let mut loading =
        Loading { shared, durable, clock: WallClock::now(), now: began, changes: Changes::default(), unknown: 0 };
    let last_number = loading.last_number()?;
    let sessions = loading.sessions(last_number)?;
    if loading.unknown > 0 {
        let sessions = loading.unknown;
        tracing::warn!(sessions, "sessions of users or listeners that are not configured stay until they expire");
    }
    let waiting = loading.messages();
    let retained = loading.retained()?;
    loading.speeds()?;
    let records = loading.will_records()?;
    let wills = records.len();
    durable.state.found_whole();
    // No error is possible any more. Before the Wills, which may change the same records again.
    durable.make(&std::mem::take(&mut loading.changes));
    // Last: a Will needs its receivers.
    let mut records = records.into_iter().peekable();
    while let Some((client_id, number, record)) = records.next() {
        let is_last = records.peek().is_none_or(|(next, ..)| *next != client_id);
        loading.will(&client_id, number, record, is_last);
    }
    durable.make(&loading.changes);
    let directory = durable.directory().display();
    let Recovered { segments, bytes, was_closed, .. } = durable.recovered;
    tracing::info!(segments, bytes, was_closed, waiting, "messages found");
    tracing::info!(%directory, sessions, retained, wills, took = ?began.elapsed(), "state loaded");
    Ok(())
}

struct Loading<'a> {
    shared: &'a BrokerState,
    durable: &'a Durable,
    clock: WallClock,
    now: Instant,
    /// Updates of records that time or changed rules have made outdated.
    changes: Changes,
    /// Sessions whose user or listener is not configured.
    unknown: usize,
}

/// How long a start waits for the disk, at most twice.
const RUN_PATIENCE: Duration = Duration::from_secs(2);
/// Run numbers that a failed write may skip, of 2^23.
const RUNS_LEFT_OUT: u64 = 1 << 10;

type Subscriptions = HashMap<u64, Vec<(TopicFilter, Grant)>>;

impl Loading<'_> {
    /// Calls `decode` with every record of a table.
    fn each(&self, table: Table, mut decode: impl FnMut(&[u8], &[u8]) -> Result<(), RecordError>) -> Result<(), Cause> {
        let mut damaged = None;
        let scanned = self.durable.state.scan(table, &mut |key, value| {
            if damaged.is_none()
                && let Err(error) = decode(key, value)
            {
                damaged = Some(Cause::Record(table.name(), key.escape_ascii().to_string(), error.to_string()));
            }
        });
        scanned.map_err(|error| Cause::Table(table.name(), error))?;
        damaged.map_or(Ok(()), Err)
    }

    /// Returns the last number that was given, and begins another run.
    fn last_number(&mut self) -> Result<u64, Cause> {
        let (mut last, mut run, mut queues) = (0, 0, 0);
        self.each(Table::Meta, |key, value| {
            let number = || value.try_into().map(u64::from_le_bytes).map_err(|_| RecordError::Illegal("length"));
            if key == NUMBERS_KEY {
                last = number()?;
            } else if key == RUN_KEY {
                run = number()?;
            } else if key.starts_with(GROUP_KEY) {
                let queue = self.durable.know_group(key, value).ok_or(RecordError::Illegal("number"))?;
                queues = queue.get().max(queues);
            }
            Ok(())
        })?;
        let last = last.max(queues);
        self.durable.set_last_number(last);
        self.begin_run(run + 1);
        Ok(last)
    }

    /// Begins a run.
    ///
    /// The run's number makes its offsets unique, so that it is durable before the first of them is used. If the disk
    /// does not take it, a random higher number replaces it, which the next run is unlikely to get.
    fn begin_run(&self, run: u64) {
        let write = |run: u64| {
            let mut change = Changes::default();
            change.put(Table::Meta, RUN_KEY.to_vec(), run.to_le_bytes().to_vec());
            let CommitPoint { state, .. } = self.durable.make(&change);
            self.durable.state.wait(state, RUN_PATIENCE)
        };
        let mut run = run;
        if !write(run) {
            run += 1 + RandomState::new().hash_one(run) % RUNS_LEFT_OUT;
            write(run);
            tracing::warn!("the state cannot be written at the start: places of messages go on somewhere else");
        }
        self.durable.set_run(run);
    }

    /// Drops queues without an owner. Returns the number of messages in the others, which stay on disk.
    fn messages(&mut self) -> u64 {
        let mut known = self.shared.router.restore_waiting(self.durable);
        self.durable.forget_unknown_groups(&mut self.changes);
        self.shared.registry.for_each(|client| known.extend(client.outbox.stored().map(|queue| queue.id())));
        let dropped = self.durable.spool.retain_queues(|queue| known.contains(&publishers(queue)));
        if dropped > 0 {
            tracing::debug!(dropped, "queues of nobody");
        }
        self.durable.spool.stats().waiting
    }

    /// Restores sessions and their subscriptions. Returns the number of sessions.
    fn sessions(&mut self, last_number: u64) -> Result<usize, Cause> {
        let mut subscriptions = Subscriptions::new();
        self.each(Table::Subscriptions, |key, value| {
            let (session, filter) = decode_subscription_key(key)?;
            subscriptions.entry(session).or_default().push((filter, decode_grant(value)?));
            Ok(())
        })?;
        let mut records = Vec::new();
        self.each(Table::Sessions, |key, value| {
            let record = SessionRecord::decode(value)?;
            if record.number.get() > last_number {
                return Err(RecordError::Illegal("number"));
            }
            records.push((text(key, "Client Identifier")?, record));
            Ok(())
        })?;
        let mut count = 0;
        for (client_id, record) in records {
            let its_own = subscriptions.remove(&record.number.get()).unwrap_or_default();
            count += usize::from(self.session(client_id, record, its_own));
        }
        // Subscriptions of ended sessions, which a crash may leave.
        for (session, filters) in subscriptions {
            if let Some(number) = std::num::NonZeroU64::new(session) {
                let keys = filters.iter().map(|(filter, _)| subscription_key(number, filter));
                keys.for_each(|key| self.changes.remove(Table::Subscriptions, key));
            }
        }
        Ok(count)
    }

    /// Restores a session, unless it has expired. Returns whether it goes on.
    fn session(
        &mut self,
        client_id: Text,
        mut record: SessionRecord,
        subscriptions: Vec<(TopicFilter, Grant)>,
    ) -> bool {
        // [MQTT-4.1.0-2]
        if self.clock.has_come(record.expires()) {
            self.shared.metrics.clients_expired.add(1);
            tracing::debug!(client = ?client_id, "session expired");
            self.changes.remove(Table::Sessions, client_id.as_bytes().to_vec());
            for (filter, _) in subscriptions {
                self.changes.remove(Table::Subscriptions, subscription_key(record.number, &filter));
            }
            return false;
        }
        let principal = self.principal(&record.owner, &client_id);
        let is_known = self.shared.access.standing(&principal) != Standing::Revoked;
        if !is_known {
            self.note_unknown(&principal);
        }
        if record.ended == 0 && record.expiry != u32::MAX {
            // Its connection ended with the last run, at an unknown time: its expiry begins now.
            record.ended = self.clock.to_wall(Some(self.now));
            self.changes.put(Table::Sessions, client_id.as_bytes().to_vec(), record.encode());
        }
        let shared = self.shared;
        let new = |number| shared.new_client(&principal, number, self.now);
        let client = shared.registry.restore(&client_id, new);
        let mut lease = client.try_lease().expect("nobody else knows of it yet");
        let state = &mut *lease.state;
        state.established = true;
        let account = shared.memory.account_of(&principal.identity, record.address.map(IpAddr::from));
        state.charge = Some(account.charge_always(Kind::Sessions, session_bytes(client_id.len(), true)));
        client.outbox.charge_to(&account);
        let (session, queue, partly_refused) = self.messages_of(&record);
        state.partly_refused = partly_refused.filter(|refused| !refused.is_empty());
        state.session = Some(Box::new(session));
        state.has_unread = true;
        client.outbox.restore(Arc::clone(&queue), self.durable.tail_of_session(&queue));
        state.rights_epoch = shared.access.epoch();
        state.durable = Some(Box::new(DurableSession::loaded(&record)));
        state.counted = record.address.and_then(|address| shared.address_quota.restore(address.into()));
        state.expires_at = self.clock.to_instant_within(Duration::from_secs(record.expiry.into()), record.expires());
        shared.metrics.subscriptions.add(subscriptions.len() as u64);
        for (filter, grant) in subscriptions {
            state.subscriptions.restore(&filter, grant, &account);
            // Share groups keep members whose user is unknown, for messages in their queues: see `enforcement`.
            let is_allowed = || !filter.is_shared() || client.rights.check_subscription(&filter).is_ok();
            let is_routed = if is_known { is_allowed() } else { filter.is_shared() };
            if is_routed {
                shared.router.subscribe(&filter, &client.receiver(), grant, self.now);
            } else {
                state.suspended.insert(filter);
            }
        }
        lifecycle::put_down(shared, lease, self.now);
        true
    }

    /// The parts of a session that need no read from the log.
    ///
    /// Returns the session, its queue, and refusals that the client may not know of.
    fn messages_of(&self, record: &SessionRecord) -> (Session, Arc<StoredQueue>, Option<Box<PartlyRefused>>) {
        let queue = DurableSession::loaded(record).queue(self.durable, None);
        let mut session = Session::stored();
        let held = |queue| self.durable.spool.queue(queue).map(|content| content.held).unwrap_or_default();
        held(queue.id()).into_iter().filter_map(PacketId::new).for_each(|id| session.restore_received(id));
        let mut refused = PartlyRefused::default();
        for id in held(queue.refused_id()).into_iter().filter_map(PacketId::new) {
            refused.add(id, usize::MAX);
        }
        (session, queue, Some(Box::new(refused)))
    }

    fn principal(&self, owner: &Owner, client_id: &Text) -> Principal {
        let listeners = self.shared.config.all_listeners().map(|listener| listener.name()).collect::<Vec<_>>();
        self.shared.access.owner_now(&listeners, owner.principal(client_id.clone()))
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

    /// Restores retained messages. Returns their number.
    fn retained(&mut self) -> Result<usize, Cause> {
        let mut expired = Vec::new();
        let mut count = 0;
        self.each(Table::Retained, |key, value| {
            let RetainedRecord { expiry, publish } = RetainedRecord::decode(value)?;
            if key != publish.topic.as_bytes() {
                return Err(RecordError::Illegal("topic"));
            }
            if self.clock.has_come(expiry.time) {
                expired.push(key.to_vec());
                return Ok(());
            }
            let publication = Publication {
                qos: publish.qos,
                retain: true,
                properties: publish.properties,
                expires_at: self.clock.expires_at(expiry), // [MQTT-3.3.2-6]
                ..Publication::new(publish.topic, publish.payload)
            };
            self.shared.router.restore_retained(&publication, self.now);
            count += 1;
            Ok(())
        })?;
        expired.into_iter().for_each(|topic| self.changes.remove(Table::Retained, topic));
        Ok(count)
    }

    fn speeds(&mut self) -> Result<(), Cause> {
        let mut records = Vec::new();
        let mut over = Vec::new();
        let time = self.shared.config.remembered_speeds().time;
        self.each(Table::Speeds, |key, value| {
            let name = key.try_into().map(u64::from_le_bytes).map_err(|_| RecordError::Illegal("hash"))?;
            let record = SpeedRecord::decode(value)?;
            if self.clock.since(record.kept) > time {
                over.push(key.to_vec());
            } else {
                records.push((name, record));
            }
            Ok(())
        })?;
        over.into_iter().for_each(|key| self.changes.remove(Table::Speeds, key));
        self.shared.speeds.restore(speeds::known(records, self.clock, self.now), self.now);
        Ok(())
    }

    /// Reads all Wills on disk, the newest of each client last.
    ///
    /// These are Wills of connections that ended with the last run, Wills in their delay, and Wills that were published
    /// as that run ended.
    fn will_records(&self) -> Result<Vec<(Text, u16, WillRecord)>, Cause> {
        let mut records = Vec::new();
        self.each(Table::Wills, |key, value| {
            let (client_id, number) = decode_will_key(key)?;
            records.push((client_id, number, WillRecord::decode(value)?));
            Ok(())
        })?;
        Ok(records)
    }

    fn will(&mut self, client_id: &Text, number: u16, mut record: WillRecord, is_last: bool) {
        let shared = self.shared;
        let delay = Duration::from_secs(u64::from(record.will.delay_interval.unwrap_or(0)));
        let due =
            if record.due == 0 { self.now.checked_add(delay) } else { self.clock.to_instant_within(delay, record.due) };
        let waits = due.filter(|&due| is_last && due > self.now);
        let client = shared.registry.find(client_id);
        if let Some((client, due)) = client.as_ref().zip(waits) {
            let mut lease = client.try_lease().expect("nobody else knows of it yet");
            if record.due == 0 {
                record.due = self.clock.to_wall(Some(due));
                self.changes.put(Table::Wills, will_key(client_id.as_bytes(), number), record.encode());
            }
            let account = client.outbox.account();
            let account =
                account.unwrap_or_else(|| shared.memory.account_of(&client.rights.principal().identity, None));
            let will = ChargedWill::restored(record.will, &account);
            lease.state.will = Some(Box::new(PendingWill { will, due }));
            lease.state.kept_will = Some(number);
            lifecycle::put_down(shared, lease, self.now);
            return;
        }
        // Without a session there is no delay. [MQTT-3.1.3-9]
        let principal = self.principal(&record.owner, client_id);
        let of_no_session = |principal: &Principal| -> Client { shared.new_client(principal, 0, self.now) };
        let commit_point = match client {
            Some(client) => lifecycle::publish_will(shared, &client, record.will, self.now),
            None => lifecycle::publish_will(shared, &of_no_session(&principal), record.will, self.now),
        };
        self.durable.forget_will_when(commit_point, client_id, number);
    }
}
