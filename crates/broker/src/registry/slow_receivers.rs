use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use super::Client;
use crate::outbox::Concerns;

/// Receivers that the slow-consumer monitor samples.
#[derive(Debug, Default)]
pub(crate) struct SlowReceivers {
    newcomers: Mutex<Vec<Arc<Client>>>,
    /// The monitor sleeps, and the next receiver must wake it. Accessed under the lock of `newcomers`; relaxed.
    is_resting: AtomicBool,
    pub(crate) concerns: Arc<Concerns>,
    /// Signals that the number of slow receivers has changed.
    changed: Notify,
}

impl SlowReceivers {
    /// Waits until the number of slow receivers changes.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Monitors this client until it keeps up.
    pub(crate) fn watch(&self, client: &Arc<Client>) {
        let mut newcomers = self.newcomers.lock().unwrap_or_else(PoisonError::into_inner);
        newcomers.push(Arc::clone(client));
        if self.is_resting.swap(false, Ordering::Relaxed) {
            self.concerns.alarm();
        }
    }

    /// Whether the monitor may sleep: no receiver is registered. If so, the next one wakes it.
    pub(crate) fn may_rest(&self) -> bool {
        let newcomers = self.newcomers.lock().unwrap_or_else(PoisonError::into_inner);
        let may_rest = newcomers.is_empty() && !self.concerns.has_refused();
        self.is_resting.store(may_rest, Ordering::Relaxed);
        may_rest
    }

    /// Takes the receivers that registered since the last call.
    pub(crate) fn take_newcomers(&self) -> Vec<Arc<Client>> {
        mem::take(&mut self.newcomers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Tells [`SlowReceivers::changed`] that the number of slow receivers has changed.
    pub(crate) fn tell_changed(&self) {
        self.changed.notify_one();
    }
}
