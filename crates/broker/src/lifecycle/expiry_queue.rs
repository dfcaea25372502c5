use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use tokio::sync::Notify;

use crate::registry::Client;

/// Sessions without a connection, by the time at which their Will or their end is due.
#[derive(Debug, Default)]
pub(crate) struct ExpiryQueue {
    heap: Mutex<Heap>,
    earlier: Notify,
}

type Heap = BinaryHeap<Reverse<ExpiryEntry>>;

#[derive(Debug)]
struct ExpiryEntry {
    at: Instant,
    /// Weak, so that it does not keep a session alive that has ended otherwise.
    client: Weak<Client>,
}

impl ExpiryQueue {
    pub(crate) fn push(&self, at: Instant, client: &Arc<Client>) {
        let mut heap = self.heap();
        let is_first = heap.peek().is_none_or(|Reverse(first)| at < first.at);
        // Sessions that ended otherwise leave their entries behind.
        if heap.len() >= COMPACT_FROM && heap.len() == heap.capacity() {
            heap.retain(|Reverse(entry)| entry.client.strong_count() > 0);
        }
        heap.push(Reverse(ExpiryEntry { at, client: Arc::downgrade(client) }));
        drop(heap);
        if is_first {
            self.earlier.notify_one();
        }
    }

    /// Time at which the first work is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.heap().peek().map(|Reverse(entry)| entry.at)
    }

    /// Waits until work is added that is due before all other.
    pub(crate) async fn earlier(&self) {
        self.earlier.notified().await;
    }

    /// Takes the first session whose work is due at `now`.
    pub(crate) fn pop_due(&self, now: Instant) -> Option<Weak<Client>> {
        let mut heap = self.heap();
        if heap.peek().is_none_or(|Reverse(first)| first.at > now) {
            return None;
        }
        heap.pop().map(|Reverse(entry)| entry.client)
    }

    fn heap(&self) -> std::sync::MutexGuard<'_, Heap> {
        self.heap.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PartialEq for ExpiryEntry {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for ExpiryEntry {}

impl PartialOrd for ExpiryEntry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ExpiryEntry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

/// Number of entries from which on dead ones are removed before the heap grows.
const COMPACT_FROM: usize = 1024;
