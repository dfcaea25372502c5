//! The drain of listeners: they are closed, and their clients go one after the other.
//!
//! ```text
//!   None ─► Running ─► Done        begin; the last client has gone
//!     ▲        │         │
//!     └────────┴─────────┘         a reload, or an operator who ends it, opens the listeners again
//! ```

use tokio::task::AbortHandle;

/// State of the drain. Dropping it keeps clients that have not gone yet.
#[derive(Debug, Default)]
pub(super) enum Drain {
    #[default]
    None,
    Some {
        /// Name of the drained listener; `None` = all.
        listener: Option<String>,
        job: Job,
    },
}

/// A task that sends clients away. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Job(AbortHandle);

impl Drain {
    pub(super) fn begun(listener: Option<&str>, job: AbortHandle) -> Self {
        Self::Some { listener: listener.map(str::to_owned), job: Job(job) }
    }

    /// Whether clients still go.
    pub(super) fn is_running(&self) -> bool {
        matches!(self, Self::Some { job: Job(job), .. } if !job.is_finished())
    }

    /// Whether all listeners are drained.
    pub(super) fn is_of_all(&self) -> bool {
        matches!(self, Self::Some { listener: None, .. })
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.0.abort();
    }
}
