use std::sync::{Mutex, PoisonError};

use rustc_hash::FxHashMap;
use tenbin_codec::TopicName;
use tokio::sync::Notify;

/// What queues tell whoever looks after slow receivers.
#[derive(Debug, Default)]
pub(crate) struct Concerns {
    alarm: Notify,
    /// Messages that were refused since this was asked last, by the numbers of the clients that they were for.
    refused: Mutex<FxHashMap<u64, u64>>,
    not_retained: Mutex<Option<NotRetained>>,
}

/// Messages that were not retained since this was asked last: the store of retained messages has no room.
#[derive(Debug)]
pub(crate) struct NotRetained {
    pub(crate) messages: u64,
    /// Of the first one.
    pub(crate) topic: Box<str>,
}

impl Concerns {
    /// A queue is nearly full, or there is somebody to look at.
    pub(crate) fn alarm(&self) {
        self.alarm.notify_one();
    }

    /// Waits for an alarm.
    pub(crate) async fn wait(&self) {
        self.alarm.notified().await;
    }

    /// A message for this client was refused: no more may wait for it.
    pub(super) fn refuse(&self, client: u64) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.is_empty() {
            self.alarm.notify_one();
        }
        // A bound: more are counted and not named.
        if refused.len() < REFUSED_MAX || refused.contains_key(&client) {
            *refused.entry(client).or_default() += 1;
        }
    }

    /// A message to this topic was not retained.
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
