//! Constructors for tests.

use std::sync::Arc;

use super::{Budget, Limits, OutboxCommon, WhenFull};
use crate::values::Clock;

impl Limits {
    /// 1 MiB and no disk.
    pub(crate) fn for_tests(messages: usize, when_full: WhenFull) -> Self {
        Self { messages, bytes: 1 << 20, when_full, stored_bytes: 0, has_store: false }
    }
}

impl OutboxCommon {
    /// Without a disk.
    pub(crate) fn for_tests(limits: Limits, budget: Arc<Budget>) -> Self {
        Self {
            limits,
            budget,
            metrics: Arc::default(),
            clock: Clock::new(),
            concerns: Arc::default(),
            durable: None,
            hooks: Arc::default(),
        }
    }
}
