use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tenbin_codec::{MessageProperties, PacketId, PublishTemplate, QoS, TopicName};

/// A message that the peer published, its Topic Alias resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// Where to.
    pub topic: TopicName,
    /// At which QoS it was published.
    pub qos: QoS,
    /// To be kept for the topic (from a client), or kept (from a server).
    pub retain: bool,
    /// A slice of the connection's read buffer, which it keeps alive.
    pub payload: Bytes,
    /// Properties that travel on; Message Expiry is `expires_at`'s matter.
    pub properties: Option<Box<MessageProperties>>,
    /// When it becomes worthless; `None` = never.
    pub expires_at: Option<Instant>,
    /// Identifiers of the matching subscriptions; only at a client.
    pub subscription_identifiers: Vec<u32>,
    /// To be acknowledged once it is safe; `None` at QoS 0.
    pub ack: Option<PendingAck>,
    /// The peer says that it may have sent it before (DUP).
    pub is_resent: bool,
}

/// An acknowledgement that the peer waits for: PUBACK at QoS 1, PUBREC at QoS 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingAck {
    /// That of the PUBLISH.
    pub packet_id: PacketId,
    /// 1 or 2.
    pub qos: QoS,
}

impl Publication {
    /// A QoS 0 message of our own.
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

    /// What all receivers have in common, encoded once; `block` is reused scratch memory.
    pub fn template(&self, block: &mut BytesMut) -> PublishTemplate {
        PublishTemplate::new(&self.topic, self.properties.as_deref(), &self.payload, block)
    }

    /// When a message received now with such an interval expires.
    pub fn expiry(properties: Option<&MessageProperties>, now: Instant) -> Option<Instant> {
        let seconds = properties?.message_expiry_interval?;
        now.checked_add(Duration::from_secs(u64::from(seconds)))
    }
}
