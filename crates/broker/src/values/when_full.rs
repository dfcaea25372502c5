use serde::{Deserialize, Serialize};

/// Overflow policy for QoS 0 messages. A slow receiver's queue has less room for them.
///
/// QoS 1 and 2 messages are never evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenFull {
    /// Replaces the oldest QoS 0 message, so that the receiver sees the newest state.
    #[default]
    DropOldest,
    /// Drops the new message.
    DropNewest,
    /// Keeps the message on disk, like a QoS 1 message, while its receiver is slow. Without a store: like `DropOldest`.
    Spool,
    /// Disconnects the receiver with Quota exceeded (0x97).
    Disconnect,
}
