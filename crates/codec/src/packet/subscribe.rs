use bytes::BufMut;

use super::put_packet;
use crate::property::{Property, PropertyReader, put_properties};
use crate::reader::Reader;
use crate::write_buffer::put_binary;
use crate::{
    DecodeError, PacketId, PacketType, PropertyId, ProtocolVersion, QoS, TopicFilter, UserProperty, WriteBuffer,
};

/// SUBSCRIBE (MQTT 5.0 §3.8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscribe {
    /// Repeated in SUBACK.
    pub packet_id: PacketId,
    /// Sent with every message that matches one of these subscriptions; 1 to 268,435,455.
    pub subscription_identifier: Option<u32>,
    /// User Properties of the client.
    pub user_properties: Vec<UserProperty>,
    /// At least one `[MQTT-3.8.3-2]`.
    pub subscriptions: Vec<Subscription>,
}

/// One filter of a SUBSCRIBE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// The filter, shared or not.
    pub filter: TopicFilter,
    /// Options of its deliveries.
    pub options: SubscriptionOptions,
}

/// Subscription Options (MQTT 5.0 §3.8.3.1). 3.1.1 has the QoS only.
///
/// ```text
///   bit   7 6        5 4              3                    2         1 0
///         reserved   Retain Handling  Retain As Published  No Local  Maximum QoS
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SubscriptionOptions {
    /// Highest QoS of deliveries.
    pub qos: QoS,
    /// Omit the client's own messages.
    pub no_local: bool,
    /// Keep the RETAIN flag as the publisher set it.
    pub retain_as_published: bool,
    /// When retained messages are sent.
    pub retain_handling: RetainHandling,
}

/// When a SUBSCRIBE brings the retained messages that match its filter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum RetainHandling {
    /// At every SUBSCRIBE `[MQTT-3.3.1-9]`.
    #[default]
    Always = 0,
    /// Only if the subscription is new `[MQTT-3.3.1-10]`.
    IfNew = 1,
    /// Never `[MQTT-3.3.1-11]`.
    Never = 2,
}

impl Subscribe {
    pub(super) fn decode(mut body: Reader, version: ProtocolVersion) -> Result<Self, DecodeError> {
        let packet_id = body.packet_id()?;
        let mut subscription_identifier = None;
        let mut user_properties = Vec::new();
        if version.is_v5() {
            let mut reader = PropertyReader::take(&mut body)?;
            while let Some(property) = reader.next()? {
                match property {
                    Property::SubscriptionIdentifier(id) => subscription_identifier = Some(id),
                    Property::UserProperty(property) => user_properties.push(property),
                    _ => return Err(reader.not_allowed()),
                }
            }
        }
        if body.is_empty() {
            return Err(DecodeError::NoTopicFilter); // [MQTT-3.8.3-2]
        }
        let mut subscriptions = Vec::new();
        while !body.is_empty() {
            if subscriptions.len() >= body.limits().filters as usize {
                return Err(DecodeError::TooManyFilters);
            }
            let filter = TopicFilter::new(body.text()?)?; // [MQTT-3.8.3-1]
            let options = SubscriptionOptions::decode(body.u8()?, version)?;
            if options.no_local && filter.is_shared() {
                return Err(DecodeError::NoLocalShared); // [MQTT-3.8.3-4]
            }
            subscriptions.push(Subscription { filter, options });
        }
        Ok(Self { packet_id, subscription_identifier, user_properties, subscriptions })
    }

    pub(super) fn encode(&self, version: ProtocolVersion, out: &mut WriteBuffer) {
        put_packet(out, PacketType::Subscribe, |body| {
            body.put_u16(self.packet_id.get());
            if version.is_v5() {
                put_properties(body, |writer| {
                    if let Some(id) = self.subscription_identifier {
                        writer.varint(PropertyId::SubscriptionIdentifier, id);
                    }
                    writer.user(&self.user_properties);
                });
            }
            for subscription in &self.subscriptions {
                put_binary(body, subscription.filter.as_bytes());
                body.put_u8(subscription.options.byte(version));
            }
        });
    }
}

impl SubscriptionOptions {
    /// Options with only this maximum QoS.
    pub fn at(qos: QoS) -> Self {
        Self { qos, ..Self::default() }
    }

    fn decode(byte: u8, version: ProtocolVersion) -> Result<Self, DecodeError> {
        // MQTT 3.1 does not define the reserved bits.
        let byte = if version == ProtocolVersion::V31 { byte & 3 } else { byte };
        let reserved = if version.is_v5() { 0b1100_0000 } else { 0b1111_1100 };
        if byte & reserved != 0 {
            return Err(DecodeError::SubscriptionOptions); // [MQTT-3.8.3-5]
        }
        let qos = QoS::from_bits(byte & 3).ok_or(DecodeError::SubscriptionOptionValue)?;
        let retain_handling = match byte >> 4 & 3 {
            0 => RetainHandling::Always,
            1 => RetainHandling::IfNew,
            2 => RetainHandling::Never,
            _ => return Err(DecodeError::SubscriptionOptionValue),
        };
        Ok(Self { qos, no_local: byte & 0b0100 != 0, retain_as_published: byte & 0b1000 != 0, retain_handling })
    }

    fn byte(self, version: ProtocolVersion) -> u8 {
        if !version.is_v5() {
            return self.qos.bits();
        }
        self.qos.bits()
            | u8::from(self.no_local) << 2
            | u8::from(self.retain_as_published) << 3
            | (self.retain_handling as u8) << 4
    }
}
