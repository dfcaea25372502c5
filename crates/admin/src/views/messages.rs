//! Messages: receivers of a topic, retained messages, dead letters, publication.

use serde::{Deserialize, Serialize};

/// A receiver of a topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReceiverView {
    /// Topic Filter that matches, with `$share/…` for a share group.
    pub filter: String,
    /// Client Identifier; `None` = a share group, one of whose members gets each message.
    pub client: Option<String>,
    /// Share name of a group.
    pub group: Option<String>,
    /// Maximum QoS; `None` = each member of the group has its own.
    pub qos: Option<u8>,
    /// Whether the client may receive the topic.
    pub allowed: bool,
}

/// Selects the topic of a list of receivers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopicQuery {
    /// Topic Name.
    pub topic: String,
    /// Cursor of the page before.
    pub cursor: Option<String>,
    /// Maximum number of items.
    pub limit: Option<usize>,
}

/// Selects retained messages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetainedQuery {
    /// Topic Filter; without one, all topics but those that begin with `$`.
    pub filter: Option<String>,
    /// Cursor of the page before.
    pub cursor: Option<String>,
    /// Maximum number of items.
    pub limit: Option<usize>,
}

/// A retained message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RetainedView {
    /// Topic Name.
    pub topic: String,
    /// QoS.
    pub qos: u8,
    /// Bytes of the message as a packet.
    pub bytes: usize,
    /// Seconds until it expires; `None` = never.
    pub expires_in_seconds: Option<u64>,
}

/// Result of a removal of retained messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RemovedView {
    /// Number of removed messages.
    pub removed: usize,
    /// Whether there may be more: repeat the request.
    pub more: bool,
}

/// Selects dead letters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LettersQuery {
    /// Cursor of the page before.
    pub cursor: Option<String>,
    /// Maximum number of letters.
    pub limit: Option<usize>,
    /// Leaves letters alone that were made later: milliseconds since 1970 by the broker's clock.
    pub before_ms: Option<u64>,
}

/// A dead letter that waits in a standing group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeadLetterView {
    /// Topic of the original.
    pub topic: String,
    /// Why it is a dead letter: rejected, limit, overdue, expired, or a member's words.
    pub reason: String,
    /// Deliveries of the original.
    pub deliveries: u32,
    /// Member that had the original last; empty if it is unknown.
    pub client: String,
    /// Seconds since it became a dead letter.
    pub age_seconds: Option<u64>,
    /// QoS.
    pub qos: u8,
    /// Bytes of the payload.
    pub bytes: usize,
    /// The standing group in which it waits.
    pub waits_in: String,
}

/// Result of a replay of dead letters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReplayedView {
    /// Originals that are published and durable.
    pub replayed: usize,
    /// Letters that stay, as a receiver has no room for the original now.
    pub refused: usize,
    /// Letters that stay, as no receiver would keep the original: no share group of its name, and no client at QoS 1 or 2.
    pub skipped: usize,
    /// Whether there may be more: repeat the request.
    pub more: bool,
    /// `before_ms` of the request, or else the time of the request: a repetition with this value finds no letters of originals that
    /// were rejected again.
    pub before_ms: u64,
}

/// A message to publish.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishRequest {
    /// Topic Name.
    pub topic: String,
    /// Payload as text.
    pub payload: Option<String>,
    /// Payload in Base64, in place of `payload`.
    pub payload_base64: Option<String>,
    /// QoS: 0 (the default), 1 or 2.
    #[serde(default)]
    pub qos: u8,
    /// RETAIN.
    #[serde(default)]
    pub retain: bool,
    /// Message Expiry Interval.
    pub expiry_seconds: Option<u32>,
    /// Content Type.
    pub content_type: Option<String>,
    /// User Properties.
    #[serde(default)]
    pub user_properties: Vec<(String, String)>,
}

/// Result of a publication.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PublishedView {
    /// Reason Code that a publisher would get: 0, 16 (no matching subscribers), or the code of a refusal.
    pub reason_code: u8,
    /// The Reason Code in words.
    pub reason: String,
    /// Number of receivers; a share group is one.
    pub receivers: u32,
}
