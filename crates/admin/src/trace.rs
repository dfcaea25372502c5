//! Events of a trace: packets as they come and go.

use std::fmt;
use std::task::{Context, Poll};

use serde::{Deserialize, Serialize};

/// Selects the packets of a trace: either all of a client, or PUBLISH packets by topic.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceQuery {
    /// Client Identifier.
    pub client: Option<String>,
    /// Topic Filter.
    pub topic: Option<String>,
}

/// A packet of a trace, without its payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PacketView {
    /// Milliseconds since 1970.
    pub time_ms: u64,
    /// `in`: from the client; `out`: to it.
    pub direction: &'static str,
    /// Client Identifier.
    pub client: String,
    /// Packet type, such as `PUBLISH`.
    pub packet: String,
    /// Topic of a PUBLISH.
    pub topic: Option<String>,
    /// The first filters of a SUBSCRIBE or UNSUBSCRIBE.
    pub filters: Vec<String>,
    /// QoS of a PUBLISH.
    pub qos: Option<u8>,
    /// Packet Identifier.
    pub packet_id: Option<u16>,
    /// Reason Code; of several ones the highest.
    pub reason: Option<u8>,
    /// Size of the whole packet in bytes; `None` = unknown.
    pub bytes: Option<usize>,
}

/// An event of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TraceEvent {
    /// A packet was received or sent.
    Packet(PacketView),
    /// This many packets are missing here, as the reader was too slow.
    Dropped(u64),
}

type Next = dyn FnMut(&mut Context<'_>) -> Poll<Option<TraceEvent>> + Send;

/// The events of a running trace, which ends when this is dropped.
pub struct TraceFeed(pub(crate) Box<Next>);

impl TraceFeed {
    /// A trace whose events `next` gives; `None` = it is over.
    pub fn new(next: impl FnMut(&mut Context<'_>) -> Poll<Option<TraceEvent>> + Send + 'static) -> Self {
        Self(Box::new(next))
    }
}

impl fmt::Debug for TraceFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceFeed").finish_non_exhaustive()
    }
}
