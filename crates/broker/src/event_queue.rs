//! Events that wait for a service which takes them over HTTP.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::metrics::{Counter, Metrics};

/// Events that wait for a service, as JSON. The oldest go if it takes them too slowly.
///
/// Bounded in number and bytes: events may have payloads.
#[derive(Debug)]
pub(crate) struct EventQueue {
    bounds: Bounds,
    waiting: Mutex<Waiting>,
    /// There is a first event, there are enough for a batch, or no further one comes.
    changed: Notify,
    /// No further event comes.
    closed: Notify,
    metrics: OnceLock<Arc<Metrics>>,
}

/// Bounds of a queue and of its requests, and the counters of its events.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Maximum number of waiting events. 16 MiB of them wait at most.
    pub(crate) waiting: usize,
    /// Maximum number of events in a request. It takes no further event from 1 MiB on.
    pub(crate) batch: usize,
    /// Time for which a request waits for more events.
    pub(crate) gathered: Duration,
    /// Events that the service does not get.
    pub(crate) dropped: fn(&Metrics) -> &Counter,
    /// Events that the service has taken, if they are counted.
    pub(crate) taken: Option<fn(&Metrics) -> &Counter>,
}

#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<String>,
    /// Size of `events`.
    bytes: usize,
    /// Number of events in the request that is being sent.
    in_request: usize,
    is_closed: bool,
}

impl EventQueue {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            waiting: Mutex::default(),
            changed: Notify::new(),
            closed: Notify::new(),
            metrics: OnceLock::new(),
        }
    }

    /// Counts events in `metrics` from now on.
    pub(crate) fn count_in(&self, metrics: &Arc<Metrics>) {
        let _ = self.metrics.set(Arc::clone(metrics));
    }

    /// Counts events that the service does not get.
    pub(crate) fn drop_events(&self, count: usize) {
        if let Some(metrics) = self.metrics.get() {
            (self.bounds.dropped)(metrics).add(count as u64);
        }
    }

    /// Counts events that the service has taken.
    pub(crate) fn count_taken(&self, count: usize) {
        if let Some((metrics, taken)) = self.metrics.get().zip(self.bounds.taken) {
            taken(metrics).add(count as u64);
        }
    }

    /// Adds an event. Never waits.
    pub(crate) fn push(&self, event: String) {
        let mut waiting = self.lock();
        let was_full = self.is_batch(&waiting);
        waiting.bytes += event.len();
        waiting.events.push_back(event);
        let mut dropped = 0;
        while waiting.events.len() > self.bounds.waiting || waiting.bytes > WAITING_BYTES_MAX {
            waiting.take_oldest();
            dropped += 1;
        }
        let is_news = waiting.events.len() == 1 || self.is_batch(&waiting) != was_full;
        drop(waiting);
        if is_news {
            self.changed.notify_one();
        }
        if dropped > 0 {
            self.drop_events(dropped);
        }
    }

    /// No further event comes.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_one();
        self.closed.notify_one();
    }

    /// Waits until the queue is closed. For one caller.
    pub(crate) async fn closed(&self) {
        if !self.is_closed() {
            self.closed.notified().await;
        }
    }

    /// Drops all events, also of an unfinished request.
    pub(crate) fn drop_rest(&self) {
        let mut waiting = self.lock();
        let count = waiting.events.len() + std::mem::take(&mut waiting.in_request);
        (waiting.events, waiting.bytes) = (VecDeque::new(), 0);
        drop(waiting);
        self.drop_events(count);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Waits for events, and then for more of them, up to [`Bounds::gathered`]. `None`: the queue is closed and empty.
    ///
    /// The request with the events of the last call is over.
    pub(crate) async fn next(&self) -> Option<Vec<String>> {
        self.lock().in_request = 0;
        self.has(|waiting| !waiting.events.is_empty()).await;
        let _ = timeout(self.bounds.gathered, self.has(|waiting| self.is_batch(waiting))).await;
        let mut waiting = self.lock();
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < self.bounds.batch
            && bytes < BATCH_BYTES
            && let Some(event) = waiting.take_oldest()
        {
            bytes += event.len();
            batch.push(event);
        }
        waiting.in_request = batch.len();
        (!batch.is_empty()).then_some(batch)
    }

    /// Waits until there are enough events, or the queue is closed.
    async fn has(&self, is_enough: impl Fn(&Waiting) -> bool) {
        let is_missing = || {
            let waiting = self.lock();
            !is_enough(&waiting) && !waiting.is_closed
        };
        while is_missing() {
            self.changed.notified().await;
        }
    }

    /// Whether there is enough for a request.
    fn is_batch(&self, waiting: &Waiting) -> bool {
        waiting.events.len() >= self.bounds.batch || waiting.bytes >= BATCH_BYTES
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn take_oldest(&mut self) -> Option<String> {
        let oldest = self.events.pop_front()?;
        self.bytes -= oldest.len();
        Some(oldest)
    }
}

/// Maximum bytes of waiting events.
const WAITING_BYTES_MAX: usize = 16 << 20;
/// Bytes from which on a request takes no further event.
const BATCH_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    const WAITING_MAX: usize = 10_000;
    const BATCH: usize = 256;

    fn queue() -> EventQueue {
        EventQueue::new(Bounds {
            waiting: WAITING_MAX,
            batch: BATCH,
            gathered: Duration::from_millis(1),
            dropped: |metrics| &metrics.webhook_dropped,
            taken: None,
        })
    }

    #[tokio::test]
    async fn oldest_events_go_and_are_counted() {
        let (queue, metrics) = (queue(), Arc::default());
        queue.count_in(&metrics);
        (0..WAITING_MAX + 3).for_each(|number| queue.push(number.to_string()));
        assert_eq!(metrics.snapshot().webhook_dropped, 3);
        let batch = queue.next().await.expect("there are events");
        assert_eq!((batch.len(), &batch[0][..]), (BATCH, "3"));
    }

    #[tokio::test]
    async fn large_events_are_bounded_by_their_bytes() {
        let (queue, metrics) = (queue(), Arc::default());
        queue.count_in(&metrics);
        (0..20).for_each(|_| queue.push("x".repeat(1 << 20)));
        assert_eq!(metrics.snapshot().webhook_dropped, 4, "16 MiB wait");
        assert_eq!(queue.next().await.map(|batch| batch.len()), Some(1), "a request has about 1 MiB");
        queue.drop_rest();
        assert_eq!(metrics.snapshot().webhook_dropped, 20, "those of the open request count, too");
    }

    #[tokio::test]
    async fn closed_queue_gives_the_rest_and_ends() {
        let queue = queue();
        queue.push("1".to_owned());
        queue.close();
        assert_eq!(queue.next().await.as_deref(), Some(&["1".to_owned()][..]));
        assert_eq!(queue.next().await, None);
    }
}
