use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use tenbin_codec::TopicFilter;
use tenbin_session::SessionExpiry;
use tenbin_store::state::Table;

use super::queue::StoredQueue;
use super::record::{Owner, SessionRecord, encode_grant, subscription_key};
use super::wall_clock::WallClock;
use super::{Changes, Durable, SafeAt};
use crate::lifecycle::Beginning;
use crate::registry::Lease;
use crate::router::Grant;

/// What is on disk of a session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DurableSession {
    number: NonZeroU64,
    /// A hash of what was written last.
    written: u64,
    /// When that is safe: one that was not begun for want of it may be begun again.
    pub(super) safe_at: SafeAt,
    /// When anything of it is, from which on it is there after a crash.
    pub(super) there_at: SafeAt,
}

impl Durable {
    /// A connection of the session begins, or has ended: `ended_at`. One that ends with its connection is not kept. Safe
    /// when `changes` are, and the answer.
    pub(super) fn keep_session(
        &self,
        lease: &mut Lease,
        expiry: SessionExpiry,
        ended_at: Option<Instant>,
        changes: &mut Changes,
    ) -> SafeAt {
        if expiry == SessionExpiry::AtDisconnect {
            self.forget_session(lease, changes);
            return SafeAt::NOW;
        }
        let before = lease.state.durable.as_deref().copied();
        let number = before.map_or_else(|| self.next_number(), |session| session.number);
        let record = record(lease, number, expiry, ended_at);
        let (client, state) = (&lease.client, &mut *lease.state);
        let written = hash(&record);
        if let Some(before) = before.filter(|before| before.written == written) {
            return before.safe_at;
        }
        changes.put(Table::Sessions, client.id.as_bytes().to_vec(), record);
        let there_at = before.map_or(SafeAt::NOW, |session| session.there_at);
        let session = DurableSession { number, written, safe_at: SafeAt::NOW, there_at };
        if before.is_none() {
            for (filter, grant) in state.subscriptions.iter() {
                changes.subscribed(&session, filter, grant);
            }
        }
        state.durable = Some(Box::new(session));
        SafeAt::NOW
    }

    /// Whether a connection can begin though nothing can be written: there is nothing to be kept, or the session is on disk
    /// already. `session_ends`: a session that is there ends first.
    ///
    /// Of a session that goes on in this way the disk has what was before, until it can be written: after a crash in that
    /// time its expiry is the one of then, which runs from when its client left before, or from the restart if that was not
    /// written either. So it may be over though its client was connected until the crash, or last longer than was asked.
    /// The other way would be worse: what waits for the client may be what fills the disk.
    pub(crate) fn can_begin_unwritten(&self, lease: &Lease, session_ends: bool, beginning: &Beginning<'_>) -> bool {
        let state = &*lease.state;
        if beginning.will.is_some() || state.kept_will.is_some() || !self.is_safe(self.ended(lease)) {
            return false;
        }
        match state.durable.as_deref() {
            None => beginning.expiry == SessionExpiry::AtDisconnect,
            Some(_) if session_ends || beginning.expiry == SessionExpiry::AtDisconnect => false,
            Some(session) => self.is_safe(session.there_at),
        }
    }

    /// The session is over, or begins anew; before its subscriptions are forgotten.
    pub(super) fn forget_session(&self, lease: &mut Lease, changes: &mut Changes) {
        let Some(session) = lease.state.durable.take() else { return };
        changes.remove(Table::Sessions, lease.client.id.as_bytes().to_vec());
        for filter in lease.state.subscriptions.keys() {
            changes.unsubscribed(&session, filter);
        }
    }

    /// As [`Durable::forget_session`], at once. Whoever begins the next one waits for that: see [`Durable::ended`].
    pub(crate) fn session_over(&self, lease: &mut Lease) {
        let is_kept = lease.state.durable.is_some();
        let mut changes = Changes::default();
        self.forget_session(lease, &mut changes);
        let safe_at = self.make(&changes);
        if is_kept {
            self.note_ending(lease, safe_at);
        }
    }

    pub(super) fn note_ending(&self, lease: &Lease, safe_at: SafeAt) {
        self.endings.add(&lease.client.id, safe_at, |at| self.is_safe(at));
    }

    /// When it is safe that the client's session before is over, however that ended.
    pub(super) fn ended(&self, lease: &Lease) -> SafeAt {
        self.endings.of(&lease.client.id)
    }
}

impl DurableSession {
    /// Where its messages are kept. `before`: where those of the session were that it takes the place of; places that were
    /// given there are never given again, since one who was chosen before may still have a message for it.
    pub(crate) fn queue(&self, durable: &Durable, before: Option<&StoredQueue>) -> Arc<StoredQueue> {
        let first = before.map_or(0, StoredQueue::peek).max(durable.first_place());
        StoredQueue::of_session(self.number, first)
    }

    /// Whether its messages are kept there.
    pub(crate) fn has(&self, queue: &StoredQueue) -> bool {
        self.number.get() == queue.id().0
    }

    /// All that has changed of it until now is safe then.
    pub(super) fn changed(&mut self, safe_at: SafeAt, is_new: bool) {
        self.safe_at = safe_at;
        if is_new {
            self.there_at = safe_at;
        }
    }

    pub(super) fn loaded(record: &SessionRecord) -> Self {
        Self { number: record.number, written: hash(&record.encode()), safe_at: SafeAt::NOW, there_at: SafeAt::NOW }
    }
}

impl Changes {
    pub(crate) fn subscribed(&mut self, session: &DurableSession, filter: &TopicFilter, grant: &Grant) {
        self.put(Table::Subscriptions, subscription_key(session.number, filter), encode_grant(grant));
    }

    pub(crate) fn unsubscribed(&mut self, session: &DurableSession, filter: &TopicFilter) {
        self.remove(Table::Subscriptions, subscription_key(session.number, filter));
    }
}

fn record(lease: &Lease, number: NonZeroU64, expiry: SessionExpiry, ended_at: Option<Instant>) -> Vec<u8> {
    let expiry = seconds(expiry);
    // Nothing is counted where it lasts for ever, and nothing need be written.
    let ended = if expiry == u32::MAX { 0 } else { WallClock::now().to_wall(ended_at) };
    let owner = Owner::from(&*lease.client.rights.principal());
    let counted = lease.state.counted.as_ref().map(|counted| counted.address());
    // An address without a bound for sessions has one for memory.
    let address = counted.or_else(|| lease.client.outbox.account().and_then(|account| account.address()));
    let address = address.map(|address| match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    });
    SessionRecord { number, owner, expiry, ended, address }.encode()
}

fn seconds(expiry: SessionExpiry) -> u32 {
    match expiry {
        SessionExpiry::AtDisconnect => 0,
        SessionExpiry::After(interval) => u32::try_from(interval.as_secs()).unwrap_or(u32::MAX),
        SessionExpiry::Never => u32::MAX,
    }
}

fn hash(record: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    record.hash(&mut hasher);
    hasher.finish()
}
