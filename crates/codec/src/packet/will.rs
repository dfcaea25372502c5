use bytes::Bytes;

use super::MessageProperties;
use crate::property::{Property, PropertyReader, put_properties};
use crate::reader::Reader;
use crate::write_buffer::put_binary;
use crate::{DecodeError, PropertyId, ProtocolVersion, QoS, TopicName};

/// Will Message (MQTT 5.0 §3.1.2.5): published by the server when the connection ends without DISCONNECT 0x00.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Will {
    /// QoS at which it is published.
    pub qos: QoS,
    /// Whether it is published as a retained message.
    pub retain: bool,
    /// Topic, which no alias can replace.
    pub topic: TopicName,
    /// At most 65,535 bytes.
    pub payload: Bytes,
    /// Seconds from the end of the connection until it is published, default 0 `[MQTT-3.1.3-9]`.
    pub delay_interval: Option<u32>,
    /// Properties of the message itself.
    pub properties: Option<Box<MessageProperties>>,
}

impl Will {
    /// Will Properties, Will Topic and Will Payload `[MQTT-3.1.2-9]`.
    pub(super) fn decode(
        qos: QoS,
        retain: bool,
        body: &mut Reader,
        version: ProtocolVersion,
    ) -> Result<Self, DecodeError> {
        let mut delay_interval = None;
        let mut properties = MessageProperties::default();
        if version.is_v5() {
            let mut reader = PropertyReader::take(body)?;
            while let Some(property) = reader.next()? {
                match property {
                    Property::WillDelayInterval(seconds) => delay_interval = Some(seconds),
                    property => {
                        if !properties.take(property)? {
                            return Err(reader.misplaced());
                        }
                    }
                }
            }
        }
        let topic = TopicName::decode(body.text()?, false)?; // [MQTT-3.1.3-11]
        let payload = body.binary()?;
        Ok(Self { qos, retain, topic, payload, delay_interval, properties: properties.boxed() })
    }

    /// A copy for long storage, which does not pin the buffer of its CONNECT.
    #[must_use]
    pub fn detach(&self) -> Self {
        Self {
            topic: self.topic.detach(),
            payload: Bytes::copy_from_slice(&self.payload),
            properties: self.properties.as_ref().map(|properties| Box::new(properties.detach())),
            ..*self
        }
    }

    pub(super) fn encode(&self, version: ProtocolVersion, out: &mut Vec<u8>) {
        if version.is_v5() {
            put_properties(out, |writer| {
                writer.u32(PropertyId::WillDelayInterval, self.delay_interval);
                if let Some(properties) = &self.properties {
                    properties.write(writer, true);
                }
            });
        }
        put_binary(out, self.topic.as_bytes());
        put_binary(out, &self.payload);
    }
}
