use std::sync::{Mutex, PoisonError};

use rustc_hash::FxHashMap;
use tenbin_codec::TopicName;
use tokio::sync::Notify;

/// Reports from queues to the slow-consumer monitor.
#[derive(Debug, Default)]
pub(crate) struct Concerns {
    alarm: Notify,
    /// Messages refused since the last query, by client number.
    refused: Mutex<FxHashMap<u64, u64>>,
    not_retained: Mutex<Option<NotRetained>>,
}

/// Messages not retained since the last query because the store of retained messages is full.
#[derive(Debug)]
pub(crate) struct NotRetained {
    pub(crate) messages: u64,
    /// Topic of the first one.
    pub(crate) topic: Box<str>,
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
    pub(super) fn refuse(&self, client: u64) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.is_empty() {
            self.alarm.notify_one();
        }
        // Bounds memory: further clients appear in the metrics only.
        if refused.len() < REFUSED_MAX || refused.contains_key(&client) {
            *refused.entry(client).or_default() += 1;
        }
    }

    /// Counts a message to `topic` that was not retained.
    pub(crate) fn not_retained(&self, topic: &TopicName) {
        let mut not_retained = self.not_retained.lock().unwrap_or_else(PoisonError::into_inner);
        let not_retained = not_retained.get_or_insert_with(|| {
            self.alarm.notify_one();
            NotRetained { messages: 0, topic: topic.text().to_string().into() }
        });
        not_retained.messages += 1;
    }

    pub(crate) fn has_refused(&self) -> bool {
        !self.refused.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
            || self.not_retained.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    pub(crate) fn take_not_retained(&self) -> Option<NotRetained> {
        self.not_retained.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn take_refused(&self) -> FxHashMap<u64, u64> {
        std::mem::take(&mut *self.refused.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

const REFUSED_MAX: usize = 1000;
