use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::broker_state::BrokerState;
use crate::registry::Client;
use crate::slices::Pace;

/// Sessions without a connection, by the time at which their Will or their end is due.
#[derive(Debug, Default)]
pub(crate) struct ExpiryQueue {
    heap: Mutex<Heap>,
    earlier: Notify,
}

type Heap = BinaryHeap<Reverse<Entry>>;

#[derive(Debug)]
struct Entry {
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
        heap.push(Reverse(Entry { at, client: Arc::downgrade(client) }));
        drop(heap);
        if is_first {
            self.earlier.notify_one();
        }
    }

    /// Passes sessions on when work for them is due, for as long as the broker runs.
    pub(crate) async fn run(shared: Arc<BrokerState>) {
        loop {
            let queue = &shared.expiry;
            let next = queue.heap().peek().map(|Reverse(entry)| entry.at);
            let wait = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = wait => {}
                () = queue.earlier.notified() => continue,
            }
            let now = Instant::now();
            let mut pace = Pace::default();
            while let Some(client) = queue.pop_due(now) {
                if let Some(client) = client.upgrade() {
                    shared.long_ends.look_at(client);
                }
                pace.rest().await;
            }
        }
    }

    fn pop_due(&self, now: Instant) -> Option<Weak<Client>> {
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

/// Frees the memory of expired retained messages, for as long as the broker runs. There is no hurry: the router does
/// not deliver them any more.
pub(crate) async fn sweep_retained(shared: Arc<BrokerState>) {
    loop {
        let is_more = shared.router.sweep_retained(Instant::now());
        tokio::time::sleep(if is_more { SWEEP_PAUSE } else { SWEEP_INTERVAL }).await;
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

/// Pause between two parts of a sweep. For a million topics a sweep takes minutes, and little processor time.
const SWEEP_PAUSE: Duration = Duration::from_millis(100);

/// Pause between two sweeps.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Number of entries from which on dead ones are removed before the heap grows.
const COMPACT_FROM: usize = 1024;
