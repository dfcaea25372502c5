use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tenbin_codec::{MessageProperties, PacketId, PublishTemplate, QoS, TopicName};

/// A message that the peer published, with its Topic Alias resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// The topic.
    pub topic: TopicName,
    /// QoS of the publication.
    pub qos: QoS,
    /// From a client: whether to retain it. From a server: whether it is a retained message.
    pub retain: bool,
    /// A slice of the connection's read buffer, which it keeps alive.
    pub payload: Bytes,
    /// Properties to forward; `expires_at` replaces the Message Expiry Interval.
    pub properties: Option<Box<MessageProperties>>,
    /// Expiry time; `None` = never.
    pub expires_at: Option<Instant>,
    /// Identifiers of the matching subscriptions; only at a client.
    pub subscription_identifiers: Vec<u32>,
    /// Acknowledgement to send once the message is durable; `None` at QoS 0.
    pub ack: Option<PendingAck>,
    /// Whether the peer may have sent the message before (DUP).
    pub is_resent: bool,
}

/// A due acknowledgement: PUBACK at QoS 1, PUBREC at QoS 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingAck {
    /// Packet Identifier of the PUBLISH.
    pub packet_id: PacketId,
    /// 1 or 2.
    pub qos: QoS,
}

impl Publication {
    /// A QoS 0 message of this side.
    pub fn new(topic: TopicName, payload: Bytes) -> Self {
        Self {
            topic,
            qos: QoS::AtMostOnce,
            retain: false,
            payload,
            properties: None,
            expires_at: None,
            subscription_identifiers: Vec::new(),
            ack: None,
            is_resent: false,
        }
    }

    /// Encodes the part common to all receivers, once. `block` is a reused buffer.
    pub fn template(&self, block: &mut BytesMut) -> PublishTemplate {
        PublishTemplate::new(&self.topic, self.properties.as_deref(), &self.payload, block)
    }

    /// Returns the expiry time of a message received now with these properties.
    pub fn expiry(properties: Option<&MessageProperties>, now: Instant) -> Option<Instant> {
        let seconds = properties?.message_expiry_interval?;
        now.checked_add(Duration::from_secs(u64::from(seconds)))
    }
}
