//! The start: reads the state from disk.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenbin_codec::{PacketId, Text, TopicFilter, Will};
use tenbin_session::{Publication, Session};
use tenbin_store::spool::Recovered;
use tenbin_store::state::Table;

use super::bytes::{RecordError, text};
use super::error::{Cause, decode_each};
use super::groups::GROUP_KEY;
use super::queue::{StoredQueue, publishers};
use super::record::{
    Owner, RetainedRecord, SessionRecord, SpeedRecord, WillRecord, decode_grant, decode_subscription_key,
    decode_will_key, subscription_key, will_key,
};
use super::wall_clock::WallClock;
use super::{
    Changes, Durable, DurableSession, Ended, NUMBERS_KEY, QueueId, RUN_KEY, StoreError, WaitingEntries, speeds,
};
use crate::auth::Principal;
use crate::values::{Grant, KnownSpeed};

/// Reads the state of the last run, part by part. Expired and superfluous records are removed.
///
/// An error means that a part cannot be read. A broker that went on without it would lose state that it has
/// acknowledged, so that it is better not to start.
#[derive(Debug)]
pub(crate) struct Restoring<'a> {
    durable: &'a Durable,
    clock: WallClock,
    now: Instant,
    /// The last number that was given to a session or share group.
    last_number: u64,
    /// Updates of records that time or changed rules have made outdated.
    changes: Changes,
}

/// A session of the last run that has not expired.
#[derive(Debug)]
pub(crate) struct RestoredSession {
    /// Its owner in the last run.
    pub(crate) owner: Principal,
    /// Network address for which it counts.
    pub(crate) address: Option<IpAddr>,
    pub(crate) on_disk: DurableSession,
    pub(crate) subscriptions: Vec<(TopicFilter, Grant)>,
    /// Its queue, and the messages in it.
    pub(crate) queue: Arc<StoredQueue>,
    pub(crate) waiting: WaitingEntries,
    /// Knows the received QoS 2 messages that are not released. All else is read when the client comes back.
    pub(crate) session: Session,
    /// Refused messages whose publisher may not know of the refusal.
    pub(crate) refused: Vec<PacketId>,
    /// When it ends unless its client comes back; `None` = never.
    pub(crate) expires_at: Option<Instant>,
}

/// A Will of the last run.
#[derive(Debug)]
pub(crate) struct RestoredWill {
    /// Its client in the last run.
    pub(crate) owner: Principal,
    pub(crate) will: Will,
    /// When it is due, if its session goes on; `None` = too late for this clock.
    pub(crate) due: Option<Instant>,
    /// Which of the client's Wills.
    pub(crate) number: u16,
    /// It is the newest of its client.
    pub(crate) is_last: bool,
    /// Its connection ended with the last run.
    was_connected: bool,
}

/// How long a start waits for the disk, at most twice.
const RUN_PATIENCE: Duration = Duration::from_secs(2);
/// Run numbers that a failed write may skip, of 2^22.
const RUNS_LEFT_OUT: u64 = 1 << 10;

impl Durable {
    /// Begins the start: reads the numbers of the last run, and begins another run.
    ///
    /// # Errors
    /// A record cannot be read.
    pub(crate) fn restoring(&self) -> Result<Restoring<'_>, StoreError> {
        if let Some(cut) = self.state.cut_off() {
            tracing::warn!("left out of the state: {cut}");
        }
        let (clock, now) = (WallClock::now(), Instant::now());
        let mut restoring = Restoring { durable: self, clock, now, last_number: 0, changes: Changes::default() };
        restoring.last_number = restoring.last_number()?;
        Ok(restoring)
    }
}

impl Restoring<'_> {
    /// The time of the start.
    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    /// Passes each session to `restore`, one by one. Returns the number of expired sessions.
    ///
    /// # Errors
    /// A record cannot be read.
    pub(crate) fn sessions(&mut self, mut restore: impl FnMut(RestoredSession)) -> Result<usize, StoreError> {
        let mut subscriptions = HashMap::<u64, Vec<(TopicFilter, Grant)>>::new();
        self.each(Table::Subscriptions, |key, value| {
            let (session, filter) = decode_subscription_key(key)?;
            subscriptions.entry(session).or_default().push((filter, decode_grant(value)?));
            Ok(())
        })?;
        let mut records = Vec::new();
        self.each(Table::Sessions, |key, value| {
            let record = SessionRecord::decode(value)?;
            if record.number.get() > self.last_number {
                return Err(RecordError::Illegal("number"));
            }
            records.push((text(key, "Client Identifier")?, record));
            Ok(())
        })?;
        let mut expired = 0;
        for (client_id, record) in records {
            let its_own = subscriptions.remove(&record.number.get()).unwrap_or_default();
            match self.session(client_id, record, its_own) {
                Some(session) => restore(session),
                None => expired += 1,
            }
        }
        // Subscriptions of ended sessions, which a crash may leave.
        for (session, filters) in subscriptions {
            if let Some(number) = NonZeroU64::new(session) {
                let keys = filters.iter().map(|(filter, _)| subscription_key(number, filter));
                keys.for_each(|key| self.changes.remove(Table::Subscriptions, key));
            }
        }
        Ok(expired)
    }

    /// Returns a session, unless it has expired.
    fn session(
        &mut self,
        client_id: Text,
        mut record: SessionRecord,
        subscriptions: Vec<(TopicFilter, Grant)>,
    ) -> Option<RestoredSession> {
        // [MQTT-4.1.0-2]
        if self.clock.has_come(record.expires()) {
            tracing::debug!(client = ?client_id, "session expired");
            self.changes.remove(Table::Sessions, client_id.as_bytes().to_vec());
            for (filter, _) in subscriptions {
                self.changes.remove(Table::Subscriptions, subscription_key(record.number, &filter));
            }
            return None;
        }
        if record.ended == 0 && record.expiry != u32::MAX {
            // Its connection ended with the last run, at an unknown time: its expiry begins now.
            record.ended = self.clock.to_wall(Some(self.now));
            self.changes.put(Table::Sessions, client_id.as_bytes().to_vec(), record.encode());
        }
        let on_disk = DurableSession::loaded(&record);
        let queue = on_disk.queue(self.durable, None);
        let held = |queue| {
            let held = self.durable.spool.queue(queue).map(|content| content.held).unwrap_or_default();
            held.into_iter().filter_map(PacketId::new)
        };
        let mut session = Session::stored();
        held(queue.id()).for_each(|id| session.restore_received(id));
        Some(RestoredSession {
            owner: record.owner.principal(client_id),
            address: record.address.map(IpAddr::from),
            on_disk,
            subscriptions,
            waiting: self.durable.waiting_entries(&queue),
            session,
            refused: held(queue.refused_id()).collect(),
            queue,
            expires_at: self.clock.to_instant_within(Duration::from_secs(record.expiry.into()), record.expires()),
        })
    }

    /// Drops queues that are not `known`, and share groups that are still unknown. Returns the number of messages in
    /// the others, which stay on disk, and of the groups' messages.
    pub(crate) fn drop_unknown(&mut self, known: &HashSet<QueueId>) -> (u64, u64) {
        let of_groups = self.durable.forget_unknown_groups(&mut self.changes);
        let before = self.durable.spool.stats().waiting;
        let dropped = self.durable.spool.retain_queues(|queue| known.contains(&publishers(queue)));
        let waiting = self.durable.spool.stats().waiting;
        self.durable.ended.add(Ended::Ownerless, before.saturating_sub(waiting) as usize);
        if dropped > 0 {
            tracing::debug!(dropped, "queues without an owner");
        }
        (waiting, of_groups as u64)
    }

    /// Passes each retained message to `restore`. Returns their number.
    ///
    /// # Errors
    /// A record cannot be read.
    pub(crate) fn retained(&mut self, mut restore: impl FnMut(&Publication)) -> Result<usize, StoreError> {
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
            restore(&Publication {
                qos: publish.qos,
                retain: true,
                properties: publish.properties,
                expires_at: self.clock.expires_at(expiry), // [MQTT-3.3.2-6]
                ..Publication::new(publish.topic, publish.payload)
            });
            count += 1;
            Ok(())
        })?;
        expired.into_iter().for_each(|topic| self.changes.remove(Table::Retained, topic));
        Ok(count)
    }

    /// Returns the remembered speeds, the oldest first. `time`: how long a speed is remembered.
    ///
    /// # Errors
    /// A record cannot be read.
    pub(crate) fn speeds(&mut self, time: Duration) -> Result<Vec<KnownSpeed>, StoreError> {
        let mut records = Vec::new();
        let mut over = Vec::new();
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
        Ok(speeds::known(records, self.clock, self.now))
    }

    /// Returns all Wills on disk, the newest of each client last.
    ///
    /// These are Wills of connections that ended with the last run, Wills in their delay, and Wills that were published
    /// as that run ended.
    ///
    /// # Errors
    /// A record cannot be read.
    pub(crate) fn wills(&self) -> Result<Vec<RestoredWill>, StoreError> {
        let mut wills = Vec::<RestoredWill>::new();
        self.each(Table::Wills, |key, value| {
            let (client_id, number) = decode_will_key(key)?;
            let WillRecord { owner, due, will } = WillRecord::decode(value)?;
            if let Some(before) = wills.last_mut() {
                before.is_last = before.owner.client_id != client_id;
            }
            let delay = Duration::from_secs(u64::from(will.delay_interval.unwrap_or(0)));
            let was_connected = due == 0;
            let due = match was_connected {
                true => self.now.checked_add(delay),
                false => self.clock.to_instant_within(delay, due),
            };
            wills.push(RestoredWill {
                owner: owner.principal(client_id),
                will,
                due,
                number,
                is_last: true,
                was_connected,
            });
            Ok(())
        })?;
        Ok(wills)
    }

    /// Makes the changes so far. Call this when all parts are read, before the Wills, which may change the same records
    /// again.
    pub(crate) fn all_is_read(&mut self) {
        self.durable.state.found_whole();
        self.durable.make(&std::mem::take(&mut self.changes));
    }

    /// Stores when a Will is due whose connection ended with the last run.
    pub(crate) fn will_waits(&mut self, will: &RestoredWill, due: Instant) {
        if will.was_connected {
            let due = self.clock.to_wall(Some(due));
            let record = WillRecord { owner: Owner::from(&will.owner), due, will: will.will.clone() };
            let key = will_key(will.owner.client_id.as_bytes(), will.number);
            self.changes.put(Table::Wills, key, record.encode());
        }
    }

    /// Makes the last changes. `waiting`: number of messages that wait on disk.
    pub(crate) fn finish(self, waiting: u64) {
        self.durable.make(&self.changes);
        let Recovered { segments, bytes, was_closed, .. } = self.durable.recovered;
        tracing::info!(segments, bytes, was_closed, waiting, "messages found");
    }

    /// Calls `decode` with every record of a table.
    fn each(&self, table: Table, decode: impl FnMut(&[u8], &[u8]) -> Result<(), RecordError>) -> Result<(), Cause> {
        decode_each(table, |visit| self.durable.state.scan(table, visit), decode)
    }

    /// Returns the last number that was given, and begins another run.
    fn last_number(&self) -> Result<u64, Cause> {
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
            let written = self.durable.state.put(Table::Meta, RUN_KEY.into(), run.to_le_bytes().into());
            self.durable.state.wait(written, RUN_PATIENCE)
        };
        let mut run = run;
        if !write(run) {
            run += 1 + RandomState::new().hash_one(run) % RUNS_LEFT_OUT;
            write(run);
            tracing::warn!(
                "the state cannot be written at the start: offsets of messages begin at a random run number"
            );
        }
        self.durable.set_run(run);
    }
}
