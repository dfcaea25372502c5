//! A queue as operators see it.

use super::Outbox;
use super::consumer::ConsumerState;
use super::health::Pace;

/// State and figures of one queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutboxView {
    /// The consumer state in a word.
    pub(crate) state: &'static str,
    /// Whether the slow-consumer monitor finds the receiver slow.
    pub(crate) is_slow: bool,
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
    pub(crate) tail_messages: usize,
    pub(crate) tail_bytes: u64,
    /// Number of share groups.
    pub(crate) groups: usize,
}

impl Outbox {
    /// Reads state and figures; holds the lock for a moment.
    pub(crate) fn view(&self) -> OutboxView {
        let state = self.state();
        let entries = state.spill.as_ref().map(|spill| &spill.entries);
        let consumer = state.consumer.state(state.spill.is_some());
        OutboxView {
            state: match consumer {
                ConsumerState::Detached | ConsumerState::Closed => "offline",
                ConsumerState::Ready => "ready",
                ConsumerState::Blocked => "blocked",
                ConsumerState::Slow => "slow",
                ConsumerState::Spilling => "spilling",
            },
            is_slow: state.consumer.is_connected() && state.consumer.pace() != Pace::Normal,
            messages: state.queue.len(),
            bytes: state.queue.bytes(),
            tail_messages: entries.map_or(0, |entries| entries.messages()),
            tail_bytes: entries.map_or(0, |entries| entries.bytes()),
            groups: state.groups.len(),
        }
    }
}
