use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tenbin_codec::{ProtocolVersion, TopicFilter};
use tokio::sync::oneshot;

use super::Client;
use crate::values::{Grant, Peer, TransportProtocol};

/// All sessions by number, with their connections, so that they can be listed in pages and asked.
///
/// Only a broker with admin HTTP has one. Its lock is held for a page at a time.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    by_number: BTreeMap<u64, RosterEntry>,
    /// Number of connections.
    connections: BTreeMap<(Arc<str>, &'static str), usize>,
}

#[derive(Debug)]
struct RosterEntry {
    client: Arc<Client>,
    connection: Option<Box<Connected>>,
}

#[derive(Debug)]
struct Connected {
    link: ConnectionInfo,
    questions: Vec<oneshot::Sender<SessionFigures>>,
}

/// Where a session's connection comes from.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionInfo {
    /// Name of the listener.
    pub(crate) listener: Arc<str>,
    pub(crate) peer: Peer,
    pub(crate) transport: TransportProtocol,
    pub(crate) version: ProtocolVersion,
    pub(crate) keep_alive: u16,
    pub(crate) since: Instant,
}

/// Figures of a session that only the holder of its lease knows.
#[derive(Debug)]
pub(crate) struct SessionFigures {
    pub(crate) subscriptions: Vec<(TopicFilter, Grant)>,
    pub(crate) in_flight: usize,
    pub(crate) in_flight_bytes: usize,
    pub(crate) is_durable: bool,
    /// End of a session without a connection; `None` = never, or connected.
    pub(crate) expires_at: Option<Instant>,
}

impl Roster {
    pub(super) fn add(&self, client: &Arc<Client>) {
        self.entries().by_number.insert(client.number, RosterEntry { client: Arc::clone(client), connection: None });
    }

    pub(super) fn remove(&self, number: u64) {
        let mut entries = self.entries();
        if let Some(RosterEntry { connection: Some(connection), .. }) = entries.by_number.remove(&number) {
            entries.count(&connection.link, false);
        }
    }

    /// Takes note of a connection of a session.
    pub(crate) fn connected(&self, number: u64, link: ConnectionInfo) {
        let mut entries = self.entries();
        let Some(entry) = entries.by_number.get_mut(&number) else { return };
        let before = entry.connection.replace(Box::new(Connected { link: link.clone(), questions: Vec::new() }));
        entries.count(&link, true);
        if let Some(before) = before {
            entries.count(&before.link, false);
        }
    }

    /// Takes note of the end of a session's connection. Its questions stay without an answer.
    pub(crate) fn disconnected(&self, number: u64) {
        let mut entries = self.entries();
        if let Some(ended) = entries.by_number.get_mut(&number).and_then(|entry| entry.connection.take()) {
            entries.count(&ended.link, false);
        }
    }

    /// Number of connections by listener and transport.
    pub(crate) fn connections(&self) -> Vec<(Arc<str>, &'static str, usize)> {
        let entries = self.entries();
        let counts = entries.connections.iter();
        counts.map(|((listener, transport), count)| (Arc::clone(listener), *transport, *count)).collect()
    }

    /// Visits sessions above number `after`, at most [`VISITS`], until `visit` breaks. Returns the number of the last
    /// visited one; `None` if there are no more.
    pub(crate) fn page(
        &self,
        after: u64,
        mut visit: impl FnMut(&Arc<Client>, Option<&ConnectionInfo>) -> ControlFlow<()>,
    ) -> Option<u64> {
        let entries = self.entries();
        let sessions = entries.by_number.range((Bound::Excluded(after), Bound::Unbounded));
        for (visited, (number, entry)) in sessions.enumerate() {
            let link = entry.connection.as_ref().map(|connection| &connection.link);
            if visit(&entry.client, link).is_break() || visited + 1 == VISITS {
                return Some(*number);
            }
        }
        None
    }

    /// The connection of a session.
    pub(crate) fn link(&self, number: u64) -> Option<ConnectionInfo> {
        Some(self.entries().by_number.get(&number)?.connection.as_ref()?.link.clone())
    }

    /// Asks the owner of a session for its figures; the caller wakes the owner. `None` without a connection.
    pub(crate) fn ask(&self, number: u64) -> Option<oneshot::Receiver<SessionFigures>> {
        let (question, answer) = oneshot::channel();
        self.entries().by_number.get_mut(&number)?.connection.as_mut()?.questions.push(question);
        Some(answer)
    }

    /// Takes the questions to the owner of a session.
    pub(crate) fn questions(&self, number: u64) -> Vec<oneshot::Sender<SessionFigures>> {
        let mut entries = self.entries();
        let connection = entries.by_number.get_mut(&number).and_then(|entry| entry.connection.as_mut());
        connection.map(|connection| std::mem::take(&mut connection.questions)).unwrap_or_default()
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    /// Counts a connection that begins or ends.
    fn count(&mut self, link: &ConnectionInfo, begins: bool) {
        let key = (Arc::clone(&link.listener), link.transport.name());
        let count = self.connections.entry(key).or_default();
        *count = if begins { *count + 1 } else { count.saturating_sub(1) };
    }
}

/// Sessions visited under one lock, which bounds its time.
const VISITS: usize = 1000;
