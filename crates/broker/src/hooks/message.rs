use bytes::Bytes;
use tenbin_codec::{TextError, TopicError, Will};

use super::{MessageProperties, PacketId, QoS, Text, TopicName};

/// A message that a client publishes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Publication {
    /// Topic.
    pub topic: TopicName,
    /// Payload.
    pub payload: Bytes,
    /// QoS.
    pub qos: QoS,
    /// Whether it is to be retained.
    pub retain: bool,
    /// Properties; `None` = none.
    pub properties: Option<Box<MessageProperties>>,
}

/// A message of the embedding program.
pub type Message = Publication;

impl Publication {
    /// Creates a QoS 0 message.
    ///
    /// # Errors
    /// `topic` is no Topic Name: empty, with a wildcard, or too long.
    pub fn new(topic: &str, payload: impl Into<Bytes>) -> Result<Self, TopicError> {
        let topic = TopicName::try_from(topic)?;
        Ok(Self { topic, payload: payload.into(), qos: QoS::AtMostOnce, retain: false, properties: None })
    }

    /// Publishes at this QoS.
    #[must_use]
    pub fn qos(self, qos: QoS) -> Self {
        Self { qos, ..self }
    }

    /// Retains the message, or not.
    #[must_use]
    pub fn retain(self, retain: bool) -> Self {
        Self { retain, ..self }
    }

    /// Adds a User Property.
    ///
    /// # Errors
    /// Name or value is no text of MQTT.
    pub fn user_property(mut self, name: &str, value: &str) -> Result<Self, TextError> {
        let property = tenbin_codec::UserProperty::new(Text::try_from(name)?, Text::try_from(value)?);
        self.properties.get_or_insert_default().user_properties.push(property);
        Ok(self)
    }

    /// A client's message as its hooks see it.
    pub(crate) fn of(publication: &tenbin_session::Publication) -> Self {
        Self {
            topic: publication.topic.clone(),
            payload: publication.payload.clone(),
            qos: publication.qos,
            retain: publication.retain,
            properties: publication.properties.clone(),
        }
    }

    pub(crate) fn of_will(will: Will) -> Self {
        let Will { topic, payload, qos, retain, properties, .. } = will;
        Self { topic, payload, qos, retain, properties }
    }

    /// Applies the changes of hooks to the message that they saw, received `now`.
    pub(crate) fn apply_to(self, publication: &mut tenbin_session::Publication, now: std::time::Instant) {
        if self.properties != publication.properties {
            publication.expires_at = tenbin_session::Publication::expiry(self.properties.as_deref(), now);
        }
        let Self { topic, payload, qos, retain, properties } = self;
        *publication = tenbin_session::Publication { topic, payload, qos, retain, properties, ..publication.clone() };
    }

    /// The message for the router, of which no client waits for an acknowledgement.
    pub(crate) fn into_routed(self, now: std::time::Instant) -> tenbin_session::Publication {
        let Self { topic, payload, qos, retain, properties } = self;
        let expires_at = tenbin_session::Publication::expiry(properties.as_deref(), now);
        tenbin_session::Publication {
            qos,
            retain,
            properties,
            expires_at,
            ..tenbin_session::Publication::new(topic, payload)
        }
    }
}

/// A message that was dropped on the way to a receiver.
#[derive(Debug)]
#[non_exhaustive]
pub struct Dropped<'a> {
    /// Receiver.
    pub client_id: &'a Text,
    /// Topic.
    pub topic: &'a str,
    /// Why it was dropped.
    pub reason: DropReason,
}

/// An action of a client that rules have denied.
#[derive(Debug)]
#[non_exhaustive]
pub struct Denial<'a> {
    /// The client.
    pub client_id: &'a Text,
    /// User; `None` for an anonymous client.
    pub user: Option<&'a Text>,
    /// Name of its listener.
    pub listener: &'a str,
    /// `publish`, `subscribe` or `will`.
    pub action: &'static str,
    /// Topic of the message, or filter of the subscription.
    pub topic: &'a str,
}

impl<'a> Dropped<'a> {
    pub(crate) fn new(client_id: &'a Text, topic: &'a [u8], reason: DropReason) -> Self {
        Self { client_id, topic: std::str::from_utf8(topic).unwrap_or_default(), reason }
    }
}

/// A message of a share group that has become a dead letter.
#[derive(Debug)]
#[non_exhaustive]
pub struct DeadLetter<'a> {
    /// The share group: `$share/NAME/FILTER`.
    pub group: String,
    /// Topic of the message.
    pub topic: &'a str,
    /// Why: `rejected`, `overdue`, `expired`, `limit`, or the words of the member.
    pub reason: &'a str,
    /// Times that it was delivered.
    pub deliveries: u32,
    /// The member that had it last; empty if that is unknown.
    pub client_id: &'a Text,
}

/// Why a message was dropped, by the counters in [`MetricsSnapshot`](crate::MetricsSnapshot).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DropReason {
    /// The receiver's queue is full.
    QueueFull,
    /// QoS 0, and the receiver is not connected; or its session has ended.
    Offline,
    /// The message has expired.
    Expired,
    /// The message is larger than the receiver's Maximum Packet Size.
    TooLarge,
}

/// A sent message of QoS 1 or 2.
#[derive(Debug)]
#[non_exhaustive]
pub struct InFlight<'a> {
    /// Packet Identifier.
    pub packet_id: u16,
    /// Topic.
    pub topic: &'a str,
    /// QoS, 1 or 2.
    pub qos: QoS,
}

impl<'a> InFlight<'a> {
    pub(crate) fn new(packet_id: PacketId, topic: &'a [u8], qos: QoS) -> Self {
        Self { packet_id: packet_id.get(), topic: std::str::from_utf8(topic).unwrap_or_default(), qos }
    }
}

/// Why a sent message of QoS 1 or 2 ends without a complete acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QosDropReason {
    /// The client has refused it.
    Refused,
    /// It exceeds the Maximum Packet Size of the client's next connection.
    TooLarge,
    /// The connection has ended, and another member of the share group gets it or the session is over.
    Ended,
}
