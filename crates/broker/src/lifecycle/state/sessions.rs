use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use tenbin_codec::Text;
use tenbin_session::handshake::Capabilities;

use crate::Config;
use crate::lifecycle::{ExpiryQueue, LongEnds};
use crate::registry::{AddressQuota, ClientRegistry};

/// All sessions, and the work that is due for sessions without a connection.
///
/// The handshake, the begin and end of sessions, and the tasks of due work use it.
#[derive(Debug)]
pub(crate) struct Sessions {
    pub(crate) registry: ClientRegistry,
    pub(crate) address_quota: Arc<AddressQuota>,
    pub(crate) expiry: ExpiryQueue,
    pub(crate) long_ends: LongEnds,
    /// Offer of the broker to each session, from which CONNECT and CONNACK negotiate.
    pub(crate) capabilities: Capabilities,
    /// Counter for assigned Client Identifiers.
    assigned_ids: AtomicUsize,
    /// Start of the broker in milliseconds since 1970. Keeps assigned identifiers of different runs apart.
    started_at: u128,
}

impl Sessions {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            registry: ClientRegistry::default(),
            address_quota: AddressQuota::new(config.session_limits()),
            expiry: ExpiryQueue::default(),
            long_ends: LongEnds::default(),
            capabilities: config.capabilities(),
            assigned_ids: AtomicUsize::new(0),
            started_at: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis()),
        }
    }

    /// Returns a new Client Identifier for a client that sent none.
    pub(crate) fn next_assigned_id(&self) -> Text {
        let number = self.assigned_ids.fetch_add(1, Ordering::Relaxed);
        let id = format!("tenbin-{:x}-{number}", self.started_at);
        Text::try_from(id).unwrap_or(Text::EMPTY)
    }
}
