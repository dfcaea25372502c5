use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::registry::Client;
use crate::shared::Shared;
use crate::slices::Pace;

/// Sessions without a connection, by the time at which something is due: a Will, or the session's end.
#[derive(Debug, Default)]
pub(crate) struct ExpiryQueue {
    heap: Mutex<Heap>,
    earlier: Notify,
}

type Heap = BinaryHeap<Reverse<Entry>>;

#[derive(Debug)]
struct Entry {
    at: Instant,
    /// Does not keep a session alive that has ended otherwise.
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

    /// Tells when something is due, for ever.
    pub(crate) async fn run(shared: Arc<Shared>) {
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

/// Gives the memory of retained messages back whose time is over, for ever. None is delivered from then on anyway, so
/// there is no hurry.
pub(crate) async fn sweep_retained(shared: Arc<Shared>) {
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

/// Between two parts of a sweep: one through a million topics takes some minutes and little of a processor.
const SWEEP_PAUSE: Duration = Duration::from_millis(100);

/// From the end of a sweep to the look whether something has expired since.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// From so many entries on, dead ones are taken out before the heap grows.
const COMPACT_FROM: usize = 1024;
