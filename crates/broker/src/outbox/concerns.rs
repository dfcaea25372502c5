use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustc_hash::FxHashMap;
use tenbin_codec::TopicName;
use tokio::sync::Notify;

use crate::values::Bound;

/// Reports from queues to the slow-consumer monitor.
#[derive(Debug, Default)]
pub(crate) struct Concerns {
    alarm: Notify,
    /// Messages refused since the last query, by client number, with the last bound.
    refused: Mutex<FxHashMap<u64, (u64, Bound)>>,
    /// Messages of QoS 0 that full queues have dropped since the last query, and the last bound.
    dropped: AtomicU64,
    dropped_by: AtomicU8,
    not_retained: Mutex<Option<Refusals>>,
    by_groups: Mutex<Option<Refusals>>,
}

/// Messages refused since the last query by share groups, or by the store of retained messages.
#[derive(Debug)]
pub(crate) struct Refusals {
    pub(crate) messages: u64,
    /// Topic or share group of the first one.
    pub(crate) name: Box<str>,
    /// Bound that refused the first one.
    pub(crate) bound: Bound,
}

impl Concerns {
    /// Wakes the monitor: a queue is nearly full, or a receiver needs watching.
    pub(crate) fn alarm(&self) {
        self.alarm.notify_one();
    }

    /// Waits for an alarm.
    pub(crate) async fn wait(&self) {
        self.alarm.notified().await;
    }

    /// Counts a refused message for a client whose queue is over limit.
    pub(super) fn refuse(&self, client: u64, bound: Bound) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.is_empty() {
            self.alarm.notify_one();
        }
        // Bounds memory: further clients appear in the metrics only.
        if refused.len() < REFUSED_MAX || refused.contains_key(&client) {
            let (messages, last) = refused.entry(client).or_insert((0, bound));
            (*messages, *last) = (*messages + 1, bound);
        }
    }

    /// Counts messages of QoS 0 that a full queue has dropped.
    pub(super) fn drop_by(&self, bound: Bound, messages: u64) {
        self.dropped_by.store(bound as u8, Ordering::Relaxed);
        if self.dropped.fetch_add(messages, Ordering::Relaxed) == 0 {
            self.alarm.notify_one();
        }
    }

    /// Number of messages that full queues have dropped since the last call, and the last bound.
    pub(crate) fn take_dropped(&self) -> Option<(u64, Bound)> {
        let messages = self.dropped.swap(0, Ordering::Relaxed);
        let bound = *Bound::ALL.get(usize::from(self.dropped_by.load(Ordering::Relaxed)))?;
        (messages > 0).then_some((messages, bound))
    }

    /// Counts a message to `topic` that was not retained.
    pub(crate) fn not_retained(&self, topic: &TopicName, bound: Bound) {
        self.add_to(&self.not_retained, || topic.text().to_string(), bound);
    }

    /// Counts a message that a share group refused.
    pub(crate) fn refused_by(&self, group: impl FnOnce() -> String, bound: Bound) {
        self.add_to(&self.by_groups, group, bound);
    }

    fn add_to(&self, refusals: &Mutex<Option<Refusals>>, name: impl FnOnce() -> String, bound: Bound) {
        let mut refusals = refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let refusals = refusals.get_or_insert_with(|| {
            self.alarm.notify_one();
            Refusals { messages: 0, name: name().into(), bound }
        });
        refusals.messages += 1;
    }

    pub(crate) fn has_refused(&self) -> bool {
        let is_some = |refusals: &Mutex<Option<_>>| refusals.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        self.dropped.load(Ordering::Relaxed) > 0
            || !self.refused.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
            || is_some(&self.not_retained)
            || is_some(&self.by_groups)
    }

    pub(crate) fn take_not_retained(&self) -> Option<Refusals> {
        self.not_retained.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn take_by_groups(&self) -> Option<Refusals> {
        self.by_groups.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn take_refused(&self) -> FxHashMap<u64, (u64, Bound)> {
        std::mem::take(&mut *self.refused.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

const REFUSED_MAX: usize = 1000;
