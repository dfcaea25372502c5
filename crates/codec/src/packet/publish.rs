use std::num::NonZeroU16;

use bytes::Bytes;

use super::publish_template::{PROPERTIES_SIZE, PublishHeader, PublishParts};
use crate::property::{Property, PropertyReader, PropertyWriter};
use crate::reader::Reader;
use crate::{DecodeError, PacketId, PropertyId, ProtocolVersion, QoS, Text, TopicName, UserProperty, WriteBuffer};

/// PUBLISH (MQTT 5.0 §3.3).
///
/// ```text
///   fixed header flags   DUP | QoS (2) | RETAIN
///   Topic Name | Packet Identifier (QoS 1, 2) | properties (v5) | payload: the rest
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publish {
    /// True for a repeated delivery.
    pub dup: bool,
    /// Quality of Service.
    pub qos: QoS,
    /// From a client: store it for the topic. From a server: it is a retained message.
    pub retain: bool,
    /// Topic, or [`TopicName::ALIASED`] if `topic_alias` replaces it.
    pub topic: TopicName,
    /// Present exactly when `qos` is not 0 `[MQTT-2.2.1-2]`.
    pub packet_id: Option<PacketId>,
    /// A number that stands for the topic on this connection, in this direction.
    pub topic_alias: Option<NonZeroU16>,
    /// Identifiers of the matching subscriptions; only from a server.
    pub subscription_identifiers: Vec<u32>,
    /// Properties forwarded from publisher to subscriber; `None` if there are none, the usual case.
    pub properties: Option<Box<MessageProperties>>,
    /// Any bytes.
    pub payload: Bytes,
}

/// Properties of the message, which are forwarded with it (MQTT 5.0 §3.3.2.3).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageProperties {
    /// Whether the payload is UTF-8 text; absent = unspecified bytes.
    pub payload_format_indicator: Option<bool>,
    /// Seconds until the message expires; absent = never.
    pub message_expiry_interval: Option<u32>,
    /// MIME type or similar.
    pub content_type: Option<Text>,
    /// Topic Name for an answer `[MQTT-3.3.2-14]`.
    pub response_topic: Option<Text>,
    /// Lets the requester match an answer with its request.
    pub correlation_data: Option<Bytes>,
    /// User Properties of the publisher, in order `[MQTT-3.3.2-18]`.
    pub user_properties: Vec<UserProperty>,
}

impl Publish {
    /// A QoS 0 message without optional fields.
    pub fn new(topic: TopicName, payload: Bytes) -> Self {
        Self {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            topic,
            packet_id: None,
            topic_alias: None,
            subscription_identifiers: Vec::new(),
            properties: None,
            payload,
        }
    }

    pub(super) fn decode(flags: u8, mut body: Reader, version: ProtocolVersion) -> Result<Self, DecodeError> {
        let (dup, retain) = (flags & 0b1000 != 0, flags & 1 != 0);
        let qos = QoS::from_bits(flags >> 1 & 3).ok_or(DecodeError::QoSReserved)?; // [MQTT-3.3.1-4]
        let topic = TopicName::decode(body.text()?, version.is_v5())?; // [MQTT-3.3.2-1], [MQTT-3.3.2-2]
        let packet_id = if qos.is_acknowledged() { Some(body.packet_id()?) } else { None };
        let mut topic_alias = None;
        let mut subscription_identifiers = Vec::new();
        let mut properties: Option<Box<MessageProperties>> = None;
        if version.is_v5() && !body.skip_no_properties() {
            let mut reader = PropertyReader::take(&mut body)?.let_subscription_ids_repeat();
            while let Some(property) = reader.next()? {
                match property {
                    Property::TopicAlias(alias) => topic_alias = Some(alias),
                    Property::SubscriptionIdentifier(id) => subscription_identifiers.push(id),
                    property => {
                        if !properties.get_or_insert_default().take(property)? {
                            return Err(reader.misplaced());
                        }
                    }
                }
            }
        }
        if topic.is_empty() && topic_alias.is_none() {
            return Err(DecodeError::TopicNameEmpty);
        }
        let payload = body.rest();
        Ok(Self { dup, qos, retain, topic, packet_id, topic_alias, subscription_identifiers, properties, payload })
    }

    pub(super) fn encode(&self, version: ProtocolVersion, out: &mut WriteBuffer) {
        let mut bytes = Vec::new();
        if let Some(properties) = self.properties.as_ref().filter(|_| version.is_v5()) {
            bytes.reserve(PROPERTIES_SIZE);
            properties.write(&mut PropertyWriter { bytes: &mut bytes }, false);
        }
        let parts = PublishParts {
            topic: self.topic.as_bytes(),
            rest: &bytes,
            properties_len: bytes.len(),
            payload_len: self.payload.len(),
        };
        let header = PublishHeader {
            dup: self.dup,
            qos: self.qos,
            retain: self.retain,
            packet_id: self.packet_id,
            topic_alias: self.topic_alias,
            topic_is_aliased: false,
            subscription_identifiers: &self.subscription_identifiers,
            message_expiry_interval: self.properties.as_ref().and_then(|p| p.message_expiry_interval),
            deliveries: 0,
        };
        if parts.encode(&header, version, out) {
            out.put_payload(&self.payload);
        }
    }
}

impl MessageProperties {
    /// A copy that does not keep the buffer it was read from alive.
    #[must_use]
    pub fn detach(&self) -> Self {
        let user_property =
            |property: &UserProperty| UserProperty { name: property.name.detach(), value: property.value.detach() };
        Self {
            content_type: self.content_type.as_ref().map(Text::detach),
            response_topic: self.response_topic.as_ref().map(Text::detach),
            correlation_data: self.correlation_data.as_ref().map(|data| Bytes::copy_from_slice(data)),
            user_properties: self.user_properties.iter().map(user_property).collect(),
            ..*self
        }
    }

    /// Takes over `property`, or returns false if it does not belong to the message.
    pub(super) fn take(&mut self, property: Property) -> Result<bool, DecodeError> {
        match property {
            Property::PayloadFormatIndicator(is_text) => self.payload_format_indicator = Some(is_text),
            Property::MessageExpiryInterval(seconds) => self.message_expiry_interval = Some(seconds),
            Property::ContentType(text) => self.content_type = Some(text),
            Property::ResponseTopic(text) => {
                // [MQTT-3.3.2-14], and as a Topic Name it has at least one character
                TopicName::check(&text).map_err(|_| DecodeError::PropertyValue(PropertyId::ResponseTopic))?;
                self.response_topic = Some(text);
            }
            Property::CorrelationData(data) => self.correlation_data = Some(data),
            Property::UserProperty(property) => self.user_properties.push(property),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Writes all properties. A PUBLISH writes Message Expiry itself, since it counts down on the way: it is omitted
    /// unless `with_expiry`.
    pub(super) fn write(&self, writer: &mut PropertyWriter<'_>, with_expiry: bool) {
        writer.flag(PropertyId::PayloadFormatIndicator, self.payload_format_indicator);
        if with_expiry {
            writer.u32(PropertyId::MessageExpiryInterval, self.message_expiry_interval);
        }
        writer.text(PropertyId::ContentType, self.content_type.as_ref());
        writer.text(PropertyId::ResponseTopic, self.response_topic.as_ref());
        writer.binary(PropertyId::CorrelationData, self.correlation_data.as_ref());
        writer.user(&self.user_properties);
    }

    /// `None` for a message without properties, which costs no allocation.
    pub fn boxed(self) -> Option<Box<Self>> {
        (self != Self::default()).then(|| Box::new(self))
    }
}
