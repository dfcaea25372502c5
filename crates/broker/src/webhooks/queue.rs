use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::metrics::Metrics;

/// Events that wait for a webhook, as JSON. The oldest go if it takes them too slowly.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    /// The first event has come, there are enough for a batch, or no further one comes.
    changed: Notify,
    metrics: OnceLock<Arc<Metrics>>,
}

#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<String>,
    is_closed: bool,
}

impl Queue {
    /// Counts dropped events in `metrics` from now on.
    pub(super) fn count_in(&self, metrics: &Arc<Metrics>) {
        let _ = self.metrics.set(Arc::clone(metrics));
    }

    /// Counts events that the webhook does not get.
    pub(super) fn drop_events(&self, count: usize) {
        self.metrics.get().into_iter().for_each(|metrics| metrics.webhook_dropped.add(count as u64));
    }

    /// Adds an event. Never waits.
    pub(super) fn push(&self, event: String) {
        let mut waiting = self.lock();
        let oldest = if waiting.events.len() >= WAITING_MAX { waiting.events.pop_front() } else { None };
        waiting.events.push_back(event);
        let is_news = [1, BATCH].contains(&waiting.events.len());
        drop(waiting);
        if is_news {
            self.changed.notify_one();
        }
        if oldest.is_some() {
            self.drop_events(1);
        }
    }

    /// No further event comes.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_one();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Waits for events, and then for more of them, up to [`GATHERED`]. `None`: the queue is closed and empty.
    pub(super) async fn next(&self) -> Option<Vec<String>> {
        self.has(1).await;
        let _ = timeout(GATHERED, self.has(BATCH)).await;
        let mut waiting = self.lock();
        let count = waiting.events.len().min(BATCH);
        (count > 0).then(|| waiting.events.drain(..count).collect())
    }

    /// Waits until there are so many events, or the queue is closed.
    async fn has(&self, count: usize) {
        let is_missing = || {
            let waiting = self.lock();
            waiting.events.len() < count && !waiting.is_closed
        };
        while is_missing() {
            self.changed.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Maximum number of waiting events.
const WAITING_MAX: usize = 10_000;
/// Maximum number of events in a request.
const BATCH: usize = 256;
/// Time for which a request waits for more events.
const GATHERED: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn oldest_events_go_and_are_counted() {
        let (queue, metrics) = (Queue::default(), Arc::default());
        queue.count_in(&metrics);
        (0..WAITING_MAX + 3).for_each(|number| queue.push(number.to_string()));
        assert_eq!(metrics.snapshot().webhook_dropped, 3);
        let batch = queue.next().await.expect("there are events");
        assert_eq!((batch.len(), &batch[0][..]), (BATCH, "3"));
    }

    #[tokio::test]
    async fn closed_queue_gives_the_rest_and_ends() {
        let queue = Queue::default();
        queue.push("1".to_owned());
        queue.close();
        assert_eq!(queue.next().await.as_deref(), Some(&["1".to_owned()][..]));
        assert_eq!(queue.next().await, None);
    }
}
