//! The brokers of a plan, and the loss of connections to them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Address of a broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broker {
    /// Name in reports.
    pub name: String,
    /// Host name or address. Connections rotate over the addresses of a name.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl Broker {
    /// The broker at `host`, with `name` in reports.
    pub fn new(name: impl Into<String>, host: impl Into<String>, port: u16) -> Self {
        Self { name: name.into(), host: host.into(), port }
    }

    /// `HOST:PORT`, with brackets around an IPv6 address.
    pub(crate) fn address(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

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
