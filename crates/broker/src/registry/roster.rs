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
    entries: Mutex<BTreeMap<u64, Entry>>,
}

#[derive(Debug)]
struct Entry {
    client: Arc<Client>,
    connection: Option<Box<Connected>>,
}

#[derive(Debug)]
struct Connected {
    link: Link,
    questions: Vec<oneshot::Sender<SessionFigures>>,
}

/// Where a session's connection comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
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
        self.entries().insert(client.number, Entry { client: Arc::clone(client), connection: None });
    }

    pub(super) fn remove(&self, number: u64) {
        self.entries().remove(&number);
    }

    /// Takes note of a connection of a session.
    pub(crate) fn connected(&self, number: u64, link: Link) {
        if let Some(entry) = self.entries().get_mut(&number) {
            entry.connection = Some(Box::new(Connected { link, questions: Vec::new() }));
        }
    }

    /// Takes note of the end of a session's connection. Its questions stay without an answer.
    pub(crate) fn disconnected(&self, number: u64) {
        let ended = self.entries().get_mut(&number).and_then(|entry| entry.connection.take());
        drop(ended);
    }

    /// Visits sessions above number `after`, at most [`VISITS`], until `visit` breaks. Returns the number of the last
    /// visited one; `None` if there are no more.
    pub(crate) fn page(
        &self,
        after: u64,
        mut visit: impl FnMut(&Arc<Client>, Option<&Link>) -> ControlFlow<()>,
    ) -> Option<u64> {
        let entries = self.entries();
        let sessions = entries.range((Bound::Excluded(after), Bound::Unbounded));
        for (visited, (number, entry)) in sessions.enumerate() {
            let link = entry.connection.as_ref().map(|connection| &connection.link);
            if visit(&entry.client, link).is_break() || visited + 1 == VISITS {
                return Some(*number);
            }
        }
        None
    }

    /// The connection of a session.
    pub(crate) fn link(&self, number: u64) -> Option<Link> {
        Some(self.entries().get(&number)?.connection.as_ref()?.link)
    }

    /// Asks the owner of a session for its figures; the caller wakes the owner. `None` without a connection.
    pub(crate) fn ask(&self, number: u64) -> Option<oneshot::Receiver<SessionFigures>> {
        let (question, answer) = oneshot::channel();
        self.entries().get_mut(&number)?.connection.as_mut()?.questions.push(question);
        Some(answer)
    }

    /// Takes the questions to the owner of a session.
    pub(crate) fn questions(&self, number: u64) -> Vec<oneshot::Sender<SessionFigures>> {
        let mut entries = self.entries();
        let connection = entries.get_mut(&number).and_then(|entry| entry.connection.as_mut());
        connection.map(|connection| std::mem::take(&mut connection.questions)).unwrap_or_default()
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<u64, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sessions visited under one lock, which bounds its time.
const VISITS: usize = 1000;
