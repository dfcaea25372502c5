use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::num::NonZeroU64;
use std::time::Instant;

use tenbin_codec::TopicFilter;
use tenbin_session::SessionExpiry;
use tenbin_store::state::Table;

use super::record::{Owner, SessionRecord, encode_grant, subscription_key};
use super::wall_clock::WallClock;
use super::{Changes, Durable, SafeAt};
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
        let (client, state) = (&lease.client, &mut *lease.state);
        let expiry = seconds(expiry);
        // Nothing is counted where it lasts for ever, and nothing need be written.
        let ended = if expiry == u32::MAX { 0 } else { WallClock::now().to_wall(ended_at) };
        let before = state.durable.as_deref().copied();
        let number = before.map_or_else(|| self.next_number(), |session| session.number);
        let owner = Owner::from(&*client.rights.principal());
        let record = SessionRecord { number, owner, expiry, ended }.encode();
        let written = hash(&record);
        if let Some(before) = before.filter(|before| before.written == written) {
            return before.safe_at;
        }
        changes.put(Table::Sessions, client.id.as_bytes().to_vec(), record);
        let session = DurableSession { number, written, safe_at: SafeAt::NOW };
        if before.is_none() {
            for (filter, grant) in state.subscriptions.iter() {
                changes.subscribed(&session, filter, grant);
            }
        }
        state.durable = Some(Box::new(session));
        SafeAt::NOW
    }

    /// The session is over, or begins anew; before its subscriptions are forgotten.
    pub(super) fn forget_session(&self, lease: &mut Lease, changes: &mut Changes) {
        let Some(session) = lease.state.durable.take() else { return };
        changes.remove(Table::Sessions, lease.client.id.as_bytes().to_vec());
        for filter in lease.state.subscriptions.keys() {
            changes.unsubscribed(&session, filter);
        }
    }

    /// As [`Durable::forget_session`], at once.
    pub(crate) fn session_over(&self, lease: &mut Lease) -> SafeAt {
        let mut changes = Changes::default();
        self.forget_session(lease, &mut changes);
        self.make(&changes)
    }
}

impl DurableSession {
    pub(super) fn loaded(record: &SessionRecord) -> Self {
        Self { number: record.number, written: hash(&record.encode()), safe_at: SafeAt::NOW }
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
