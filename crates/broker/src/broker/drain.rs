//! The drain of listeners: they are closed, and their clients go one after the other.
//!
//! ```text
//!   None ─► Running ─► Done        begin; the last client has gone
//!     ▲        │         │
//!     └────────┴─────────┘         a reload, or an operator who ends it, opens the listeners again
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::AbortHandle;

/// State of the drain. Dropping it keeps clients that have not gone yet.
#[derive(Debug, Default)]
pub(super) enum Drain {
    #[default]
    None,
    Some(Job),
}

/// A task that sends clients away. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Job {
    task: AbortHandle,
    /// Tells the task at once that it is over: an abort waits for its next pause.
    is_over: Arc<AtomicBool>,
}

impl Drain {
    /// A drain whose task `send_away` begins, with the flag that tells the task that it is over.
    pub(super) fn begun(send_away: impl FnOnce(Arc<AtomicBool>) -> AbortHandle) -> Self {
        let is_over = Arc::<AtomicBool>::default();
        Self::Some(Job { task: send_away(Arc::clone(&is_over)), is_over })
    }

    /// Whether clients still go.
    pub(super) fn is_running(&self) -> bool {
        matches!(self, Self::Some(job) if !job.task.is_finished())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.task.abort();
    }
}
