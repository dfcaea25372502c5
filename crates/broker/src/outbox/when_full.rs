use serde::Deserialize;

/// What a QoS 0 message does when the queue of its receiver is full. QoS 1 and 2 messages are never pushed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenFull {
    /// It takes the place of the oldest QoS 0 message: who reads sees the newest state.
    #[default]
    DropOldest,
    /// It is dropped.
    DropNewest,
}
