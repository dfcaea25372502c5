use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use tenbin_codec::{Text, TopicFilter, Will};
use tenbin_session::SessionExpiry;
use tenbin_store::state::Table;

use super::queue::{QueueKind, StoredQueue};
use super::record::{Owner, SessionRecord, encode_grant, subscription_key};
use super::wall_clock::WallClock;
use super::{Changes, CommitPoint, Durable};
use crate::auth::Rights;
use crate::values::Grant;

/// A client as the store sees it: the facts that its records need, and its state in the store.
#[derive(Debug)]
pub(crate) struct ClientOnDisk<'a> {
    pub(crate) client_id: &'a Text,
    pub(crate) rights: &'a Rights,
    /// Network address by which the session counts, or else its memory.
    pub(crate) address: Option<IpAddr>,
    pub(crate) subscriptions: &'a HashMap<TopicFilter, Grant>,
    /// The Will of an ended connection, and when it is due.
    pub(crate) pending_will: Option<(&'a Will, Instant)>,
    /// The record of its session; `None` = none. The store updates it.
    pub(crate) session: &'a mut Option<Box<DurableSession>>,
    /// Number of its Will, above the numbers of its published Wills; `None` = none. The store updates it.
    pub(crate) will: &'a mut Option<u16>,
}

/// A session's record on disk: its number, a hash of its contents, and its commit points.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DurableSession {
    number: NonZeroU64,
    /// Hash of the record that was written last.
    written: u64,
    /// Commit point of that record. A later CONNECT that changes nothing waits for it too.
    pub(super) commit_point: CommitPoint,
    /// Commit point of the session's first record: from then on the session survives a crash.
    pub(super) there_at: CommitPoint,
}

impl Durable {
    /// Writes the record of a session whose connection begins, or has ended at `ended_at`.
    ///
    /// Removes the record if the session ends with its connection. The record is durable once both `changes` and the
    /// returned commit point are.
    pub(super) fn keep_session(
        &self,
        client: &mut ClientOnDisk<'_>,
        expiry: SessionExpiry,
        ended_at: Option<Instant>,
        changes: &mut Changes,
    ) -> CommitPoint {
        if expiry == SessionExpiry::AtDisconnect {
            self.forget_session(client, changes);
            return CommitPoint::NOW;
        }
        let before = client.session.as_deref().copied();
        let number = before.map_or_else(|| self.next_number(), |session| session.number);
        let record = record(client, number, expiry, ended_at);
        let written = hash(&record);
        if let Some(before) = before.filter(|before| before.written == written) {
            return before.commit_point;
        }
        changes.put(Table::Sessions, client.client_id.as_bytes().to_vec(), record);
        let there_at = before.map_or(CommitPoint::NOW, |session| session.there_at);
        let session = DurableSession { number, written, commit_point: CommitPoint::NOW, there_at };
        if before.is_none() {
            for (filter, grant) in client.subscriptions {
                changes.subscribed(&session, filter, grant);
            }
        }
        *client.session = Some(Box::new(session));
        CommitPoint::NOW
    }

    /// Whether a connection can begin though the disk takes no writes.
    ///
    /// It can if there is nothing to write, or if the session is on disk already. `expiry`: the connection's.
    /// `session_ends`: an existing session ends first. A connection with a Will or with a Will on disk cannot.
    ///
    /// Until such a session can be written, the disk has its earlier record. After a crash in that time its earlier
    /// Session Expiry Interval applies. It runs from when the client left before, or from the restart if that time was
    /// not written either. So the session may be over though its client was connected until the crash, or last longer
    /// than asked. To refuse the connection would be worse: the messages for this client may be those that fill the
    /// disk.
    pub(crate) fn can_begin_unwritten(
        &self,
        client_id: &Text,
        session: Option<&DurableSession>,
        session_ends: bool,
        expiry: SessionExpiry,
    ) -> bool {
        if !self.is_safe(self.ended(client_id)) {
            return false;
        }
        match session {
            None => expiry == SessionExpiry::AtDisconnect,
            Some(_) if session_ends || expiry == SessionExpiry::AtDisconnect => false,
            Some(session) => self.is_safe(session.there_at),
        }
    }

    /// Removes the record of a session that ends or begins anew. Call it before the subscriptions are forgotten.
    pub(super) fn forget_session(&self, client: &mut ClientOnDisk<'_>, changes: &mut Changes) {
        let Some(session) = client.session.take() else { return };
        changes.remove(Table::Sessions, client.client_id.as_bytes().to_vec());
        for filter in client.subscriptions.keys() {
            changes.unsubscribed(&session, filter);
        }
    }

    /// As [`Durable::forget_session`], at once. The next CONNECT of the client waits for this change: see
    /// [`Durable::ended`].
    pub(crate) fn session_over(&self, mut client: ClientOnDisk<'_>) {
        let is_kept = client.session.is_some();
        let mut changes = Changes::default();
        self.forget_session(&mut client, &mut changes);
        let commit_point = self.make(&changes);
        if is_kept {
            self.note_ending(client.client_id, commit_point);
        }
    }

    pub(super) fn note_ending(&self, client_id: &Text, commit_point: CommitPoint) {
        self.endings.add(client_id, commit_point, |at| self.is_safe(at));
    }

    /// Commit point of the end of the client's previous session, for any reason.
    pub(super) fn ended(&self, client_id: &Text) -> CommitPoint {
        self.endings.of(client_id)
    }
}

impl DurableSession {
    /// Its queue. `before`: the queue of the session that it replaces. Offsets of that queue are not given again, since
    /// a message that was routed earlier may still arrive with one of them.
    pub(crate) fn queue(&self, durable: &Durable, before: Option<&StoredQueue>) -> Arc<StoredQueue> {
        let first = before.map_or(0, StoredQueue::peek).max(durable.first_place());
        StoredQueue::new(QueueKind::Session, self.number, first)
    }

    /// Whether `queue` is its queue.
    pub(crate) fn has(&self, queue: &StoredQueue) -> bool {
        self.number.get() == queue.id().0
    }

    /// Sets the commit point of its newest change. `is_new`: the change created the record.
    pub(super) fn changed(&mut self, commit_point: CommitPoint, is_new: bool) {
        self.commit_point = commit_point;
        if is_new {
            self.there_at = commit_point;
        }
    }

    pub(super) fn loaded(record: &SessionRecord) -> Self {
        Self {
            number: record.number,
            written: hash(&record.encode()),
            commit_point: CommitPoint::NOW,
            there_at: CommitPoint::NOW,
        }
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

fn record(client: &ClientOnDisk<'_>, number: NonZeroU64, expiry: SessionExpiry, ended_at: Option<Instant>) -> Vec<u8> {
    let expiry = seconds(expiry);
    // Without an expiry no time is counted, and nothing is written when a connection ends.
    let ended = if expiry == u32::MAX { 0 } else { WallClock::now().to_wall(ended_at) };
    let owner = Owner::from(&*client.rights.principal());
    let address = client.address.map(|address| match address {
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
