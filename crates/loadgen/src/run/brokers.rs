//! How the brokers of a plan belong together, and the loss of connections to them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How the brokers of a plan belong together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Doors {
    /// Each broker is a separate system: a message reaches only subscribers of the broker that it was sent to.
    #[default]
    Independent,
    /// All brokers are doors of one system: a message reaches subscribers of all of them.
    ///
    /// A client that cannot connect to its broker, or loses it, tries the next one in the list.
    OneSystem,
}

/// Reaction to the unexpected loss of a publisher's or a subscriber's connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnLost {
    /// The run ends with an error that names the client.
    #[default]
    Fail,
    /// The loss is counted, and the client connects again until it succeeds or the run ends.
    ///
    /// With [`ConnectionOptions::session_expiry`](super::ConnectionOptions) it resumes its session and sends unacknowledged
    /// messages again; without it, these stay unconfirmed. Messages that became due while it was away keep their due times.
    /// With Keep Alive, a broker that sends nothing for that long counts as lost.
    Reconnect {
        /// Pause before the first attempt. It doubles with each failure; each pause is random between half and all of
        /// its length.
        first: Duration,
        /// Longest pause.
        most: Duration,
    },
}

impl OnLost {
    /// Whether clients connect again.
    pub fn reconnects(self) -> bool {
        matches!(self, Self::Reconnect { .. })
    }
}
