use serde::{Deserialize, Serialize};

/// What a QoS 0 message does that finds no room in the queue of its receiver, which has less of it while the receiver is
/// slow. QoS 1 and 2 messages are never pushed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenFull {
    /// It takes the place of the oldest QoS 0 message: who reads sees the newest state.
    #[default]
    DropOldest,
    /// It is dropped.
    DropNewest,
    /// It waits on disk, as a QoS 1 message does, while its receiver is slow. Without a store as `DropOldest`.
    Spool,
    /// Its receiver is disconnected with Quota exceeded (0x97).
    Disconnect,
}
