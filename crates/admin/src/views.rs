//! Bodies of answers and requests.

mod messages;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use messages::*;

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Page<T> {
    /// The items; with a cursor, there may be fewer than the limit.
    pub items: Vec<T>,
    /// Cursor of the next page; `None` after the last.
    pub cursor: Option<String>,
}

/// Bounds of a page.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageQuery {
    /// Cursor of the page before.
    pub cursor: Option<String>,
    /// Maximum number of items.
    pub limit: Option<usize>,
}

/// The broker as a whole.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StatusView {
    /// Version of the broker.
    pub version: String,
    /// `starting`, `serving`, `draining` or `stopping`.
    pub state: &'static str,
    /// Identifier of the process.
    pub process: u32,
    /// Start, in seconds since 1970.
    pub started_at: u64,
    /// Seconds since the start.
    pub uptime_seconds: u64,
    /// Open listening sockets.
    pub listeners: Vec<ListenerView>,
    /// Open Network Connections.
    pub connections: usize,
    /// Maximum number of Network Connections.
    pub connections_maximum: usize,
    /// Sessions, connected or not.
    pub sessions: usize,
    /// Share groups.
    pub groups: usize,
    /// Retained messages.
    pub retained_messages: usize,
    /// Bytes of the retained messages.
    pub retained_bytes: usize,
    /// Messages in memory, in all queues.
    pub queued_messages: usize,
    /// Bytes of the messages in memory.
    pub queued_bytes: usize,
    /// Bytes that clients occupy outside of queues.
    pub memory_bytes: usize,
    /// Worker threads in use; `None` = the broker runs on the embedding program's threads.
    pub threads: Option<usize>,
    /// The store; `None` = the broker stores nothing.
    pub store: Option<StoreView>,
    /// All counters, by name.
    pub counters: Value,
}

/// An open listening socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ListenerView {
    /// Name of the listener.
    pub name: String,
    /// Address of the socket.
    pub address: String,
    /// `tcp`, `tls`, `websocket`, `websocket_tls` or `unix`.
    pub transport: &'static str,
}

/// The store on disk.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StoreView {
    /// Data directory.
    pub directory: String,
    /// `writing` or `failed`.
    pub state_health: &'static str,
    /// `writing`, `failed`, `no room` or `damaged`.
    pub messages_health: &'static str,
    /// Messages on disk that are not delivered.
    pub waiting_messages: u64,
    /// Bytes of these messages.
    pub waiting_bytes: u64,
    /// Disk space in use, in bytes.
    pub used_bytes: u64,
    /// Bound on the disk space in bytes; 0 = none.
    pub maximum_bytes: u64,
    /// Free disk space in bytes, if the system tells.
    pub free_bytes: Option<u64>,
    /// Commits of the log of messages.
    pub commits: u64,
    /// Mean time of a commit, in milliseconds.
    pub commit_ms: f64,
}

/// Selects clients.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientQuery {
    /// Cursor of the page before.
    pub cursor: Option<String>,
    /// Maximum number of items.
    pub limit: Option<usize>,
    /// Text within the Client Identifier.
    pub client: Option<String>,
    /// Authenticated user; empty = anonymous clients.
    pub user: Option<String>,
    /// Address, without its port.
    pub address: Option<String>,
    /// State, as in [`ClientView::state`], or `connected`.
    pub state: Option<String>,
    /// Whether the client is slow.
    pub slow: Option<bool>,
}

/// A session, connected or not.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClientView {
    /// Client Identifier.
    pub client: String,
    /// Authenticated user; `None` = anonymous.
    pub user: Option<String>,
    /// Name of its listener.
    pub listener: String,
    /// `offline`, `ready`, `blocked` (socket or quota), `slow` or `spilling`.
    pub state: &'static str,
    /// Whether the slow-consumer monitor finds it slow.
    pub slow: bool,
    /// The connection; `None` without one.
    pub connection: Option<ConnectionView>,
    /// Messages in memory.
    pub queued_messages: usize,
    /// Bytes of the messages in memory.
    pub queued_bytes: usize,
    /// Messages on disk only.
    pub disk_messages: usize,
    /// Bytes of the messages on disk only.
    pub disk_bytes: u64,
    /// Number of its share groups.
    pub groups: usize,
}

/// A Network Connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConnectionView {
    /// Address of the client, as in the log.
    pub peer: String,
    /// `tcp`, `tls`, `websocket`, `websocket_tls`, `unix` or `embedded`.
    pub transport: &'static str,
    /// Version of MQTT.
    pub version: &'static str,
    /// Keep Alive in seconds; 0 = none.
    pub keep_alive_seconds: u16,
    /// Seconds since CONNACK.
    pub seconds: u64,
}

/// A session with the figures that only its owner knows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClientDetailView {
    /// The session.
    #[serde(flatten)]
    pub client: ClientView,
    /// Number of subscriptions.
    pub subscriptions: usize,
    /// QoS 1 and 2 messages in flight to the client.
    pub in_flight_messages: usize,
    /// Bytes of the messages in flight.
    pub in_flight_bytes: usize,
    /// Whether the session is on disk.
    pub durable: bool,
    /// Seconds until a session without a connection ends; `None` = connected, or never.
    pub expires_in_seconds: Option<u64>,
}

/// A subscription of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SubscriptionView {
    /// Topic Filter.
    pub filter: String,
    /// Maximum QoS.
    pub qos: u8,
    /// No Local.
    pub no_local: bool,
    /// Retain As Published.
    pub retain_as_published: bool,
    /// Subscription Identifier.
    pub identifier: Option<u32>,
}

/// Ends a connection.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KickQuery {
    /// Whether the session ends too.
    #[serde(default)]
    pub session: bool,
    /// Reason Code of DISCONNECT: 128 to 255; 152 (Administrative action) by default.
    pub reason: Option<u8>,
}

/// Result of a [`KickQuery`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KickedView {
    /// Whether there was a connection to end.
    pub connected: bool,
    /// Whether the session has ended.
    pub session_ended: bool,
}

/// Figures by which a share group scales.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScaleView {
    /// Members that would clear the backlog within 60 s at 80 % of their speed, and one more for each stalled member;
    /// `None` = no speed is known, or the group is known for less than 5 s.
    pub desired: Option<u64>,
    /// Connected members.
    pub members: usize,
    /// Those of them that hold messages and make no progress.
    pub stalled: usize,
    /// Messages a second that arrive, averaged over 30 s.
    pub arrivals_per_second: f64,
    /// Messages a second that the connected members can complete; `None` = unknown.
    pub completions_per_second: Option<f64>,
    /// Messages that are not completed.
    pub backlog: u64,
    /// Seconds until the backlog is gone; `None` = never, or unknown.
    pub drain_seconds: Option<f64>,
}

/// Something that looks wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FindingView {
    /// `stalled`, `overdue`, `gone`, `letters_refused`, `fewer_than_wanted`, `slower`, `dead_letters`, `refused`, `denied`
    /// or `left`.
    pub kind: &'static str,
    /// The finding in words.
    pub text: String,
    /// What to do.
    pub advice: String,
    /// Place in the dashboard, from `#` on.
    pub link: String,
    /// Begin, in milliseconds since 1970.
    pub since_ms: u64,
    /// Share name.
    pub group: Option<String>,
    /// Topic Filter of the share group.
    pub filter: Option<String>,
    /// Client Identifier of the member.
    pub client: Option<String>,
    /// Key of the configuration.
    pub key: Option<String>,
}

/// Result of draining a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemberDrainView {
    /// Messages in its queue that went to other members.
    pub moved: usize,
}

/// Moves clients to other servers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainRequest {
    /// Listener that loses its clients; without it, all listeners.
    pub listener: Option<String>,
    /// Time in which they go: 0 to 86400.
    #[serde(default)]
    pub seconds: u32,
    /// Server Reference for MQTT 5.0 clients.
    pub server_reference: Option<String>,
}

/// Result of a [`DrainRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DrainView {
    /// Connections that will end.
    pub connections: usize,
    /// Time in which they end.
    pub seconds: u32,
}

/// A bridge to another broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BridgeView {
    /// Its name.
    pub name: String,
    /// The other broker.
    pub remote: String,
    /// Whether it is connected to both brokers.
    pub connected: bool,
    /// Why not.
    pub error: Option<String>,
    /// Messages to the remote broker.
    pub out: BridgeWayView,
    /// Messages from the remote broker.
    pub r#in: BridgeWayView,
    /// Messages that were not passed on, by reason.
    pub dropped: Map<String, Value>,
}

/// One direction of a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BridgeWayView {
    /// Messages that were passed on.
    pub messages: u64,
    /// QoS 1 and 2 messages under way.
    pub in_flight: u64,
}

/// A ban.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BanView {
    /// Number of a ban made here, for its removal; `None` = of the configuration.
    #[serde(skip_deserializing)]
    pub number: Option<u64>,
    /// Authenticated user.
    pub user: Option<String>,
    /// Client Identifier.
    pub client: Option<String>,
    /// Network of the client's address, or one address.
    pub network: Option<String>,
    /// SHA-256 fingerprint of the client's certificate.
    pub certificate: Option<String>,
    /// End, in seconds since 1970; `None` = it has none.
    pub until: Option<u64>,
}

/// Changes the level of log lines.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogRequest {
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub level: String,
    /// Client Identifier, for lines about one client alone.
    pub client: Option<String>,
    /// Seconds after which the level is as before; without it, until the next request.
    pub r#for: Option<u64>,
}

/// Result of a check of a configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ConfigCheckView {
    /// Whether a broker would start with it.
    pub ok: bool,
    /// Errors, a line each.
    pub errors: Vec<String>,
    /// Keys that differ from their defaults, with both values.
    pub differences: Vec<DifferenceView>,
}

/// A key with two values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DifferenceView {
    /// The key with its table.
    pub key: String,
    /// Value before, or by default.
    pub old: String,
    /// New value.
    pub new: String,
}

/// Result of a reload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ReloadView {
    /// Changed keys that are in effect, with the values before and after.
    pub taken: Vec<DifferenceView>,
    /// Changed keys that need a restart.
    pub not_taken: Vec<DifferenceView>,
}

/// The broker at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Sample {
    /// Counters that only rise, of which snapshots have rates.
    #[serde(skip)]
    pub counters: Vec<(&'static str, u64)>,
    /// Counts of delivery times by their upper bound in seconds, of which snapshots have quantiles.
    #[serde(skip)]
    pub delivery_times: Vec<(f64, u64)>,
    /// Figures that snapshots have as they are.
    pub figures: Value,
}
