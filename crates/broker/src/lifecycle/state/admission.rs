use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use tenbin_pending::PendingPeers;

use crate::Config;
use crate::admission::AddressBounds;
use crate::auth::Access;
use crate::connection_settings::ConnectionSettings;
use crate::descriptors;
use crate::gateways::Gateways;
use crate::registry::AddressQuota;
use crate::values::SessionLimits;

/// Access of clients, bounds of connections, and the connections that are open now.
///
/// Listeners, doors and the handshake use it. Connections look here whether rights have changed.
#[derive(Debug)]
pub(crate) struct Admission {
    pub(crate) access: Arc<Access>,
    /// True if the configuration alone decides which clients may connect.
    pub(crate) is_configured_only: bool,
    pub(crate) connection_settings: ConnectionSettings,
    /// Opens the listeners that the embedding program serves.
    pub(crate) gateways: Option<Arc<dyn Gateways>>,
    /// Bounds of connections, CONNECTs and failed logins by address.
    pub(crate) addresses: AddressBounds,
    /// Connections whose client has not logged in yet.
    pub(crate) pending: Arc<PendingPeers>,
    /// Clients that have closed their side and wait for the authenticator: at most [`HALF_CLOSED`] of each address.
    ///
    /// FIN says only that a client sends nothing more. It may listen for its CONNACK, or be gone for good, which shows
    /// only when the broker writes to it. A client that connects and closes over and over holds no socket open itself.
    /// It takes no more than these places from the clients that wait.
    pub(crate) half_closed: Arc<AddressQuota>,
    /// Maximum number of connections with sockets: the configured one, lowered to the available file descriptors.
    pub(crate) connections_maximum: usize,
    /// Connections that are open now.
    pub(crate) connections: AtomicUsize,
    /// Connections without a socket that are open now: clients of an MQTT-SN gateway.
    pub(crate) connections_in_memory: AtomicUsize,
}

impl Admission {
    /// `threads`: number of worker threads.
    pub(super) fn new(config: &Config, access: Arc<Access>, is_configured_only: bool, threads: usize) -> Self {
        let connections_maximum = descriptors::connections_maximum(config.connections.maximum, threads);
        let half_closed = SessionLimits { per_address: HALF_CLOSED, per_loopback_address: HALF_CLOSED };
        Self {
            access,
            is_configured_only,
            connection_settings: ConnectionSettings::new(config),
            gateways: None,
            addresses: AddressBounds::new(config.admission(connections_maximum), Instant::now()),
            pending: Arc::new(PendingPeers::new(LOGIN_TIME)),
            half_closed: AddressQuota::new(half_closed),
            connections_maximum,
            connections: AtomicUsize::new(0),
            connections_in_memory: AtomicUsize::new(0),
        }
    }
}

/// Time that a client has for its login, while places for connections are short.
const LOGIN_TIME: Duration = Duration::from_secs(1);
/// Half-closed clients of one address that may wait: enough for scripts that pipe packets into a socket.
const HALF_CLOSED: u32 = 4;
