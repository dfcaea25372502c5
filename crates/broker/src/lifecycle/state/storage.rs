use std::sync::Arc;

use crate::Config;
use crate::durable::{CommitPoint, Durable};
use crate::memory::Memory;
use crate::outbox::{Budget, Limits, OutboxCommon};
use crate::values::WhenFull;

/// Messages and sessions on disk, and bounds of the memory that clients make the broker keep.
///
/// Each connection waits here for the disk. The begin and the end of sessions write and charge here.
#[derive(Debug)]
pub(crate) struct Storage {
    /// Store; `None` = nothing is stored.
    pub(crate) durable: Option<Arc<Durable>>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) memory: Arc<Memory>,
    /// Common settings of the session queues.
    pub(super) queues: Arc<OutboxCommon>,
    /// As `queues`, for receivers in the embedding program: in memory alone.
    pub(super) embedded_queues: Arc<OutboxCommon>,
}

impl Storage {
    /// `queues`: common settings of the session queues.
    pub(super) fn new(config: &Config, queues: OutboxCommon) -> Self {
        let limits = Limits { when_full: WhenFull::DropOldest, has_store: false, ..queues.limits };
        Self {
            durable: queues.durable.clone(),
            budget: Arc::clone(&queues.budget),
            memory: Memory::new(config.memory_limits()),
            embedded_queues: Arc::new(OutboxCommon { limits, durable: None, ..queues.clone() }),
            queues: Arc::new(queues),
        }
    }

    /// Waits until the commit point `at` is durable.
    pub(crate) async fn safe(&self, at: CommitPoint) {
        if let Some(durable) = &self.durable {
            durable.safe(at).await;
        }
    }
}
