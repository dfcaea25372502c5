use bytes::BufMut;

use super::put_packet;
use crate::property::{Property, PropertyReader, put_properties};
use crate::reader::Reader;
use crate::write_buffer::put_binary;
use crate::{DecodeError, PacketId, PacketType, ProtocolVersion, TopicFilter, UserProperty, WriteBuffer};

/// UNSUBSCRIBE (MQTT 5.0 §3.10).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsubscribe {
    /// Repeated in UNSUBACK.
    pub packet_id: PacketId,
    /// User Properties of the client.
    pub user_properties: Vec<UserProperty>,
    /// At least one `[MQTT-3.10.3-2]`; compared character by character `[MQTT-3.10.4-1]`.
    pub filters: Vec<TopicFilter>,
}

impl Unsubscribe {
    pub(super) fn decode(mut body: Reader, version: ProtocolVersion) -> Result<Self, DecodeError> {
        let packet_id = body.packet_id()?;
        let mut user_properties = Vec::new();
        if version.is_v5() {
            let mut reader = PropertyReader::take(&mut body)?;
            while let Some(property) = reader.next()? {
                match property {
                    Property::UserProperty(property) => user_properties.push(property),
                    _ => return Err(reader.not_allowed()),
                }
            }
        }
        if body.is_empty() {
            return Err(DecodeError::NoTopicFilter); // [MQTT-3.10.3-2]
        }
        let mut filters = Vec::new();
        while !body.is_empty() {
            if filters.len() >= body.limits().filters as usize {
                return Err(DecodeError::TooManyFilters);
            }
            filters.push(TopicFilter::new(body.text()?)?); // [MQTT-3.10.3-1]
        }
        Ok(Self { packet_id, user_properties, filters })
    }

    pub(super) fn encode(&self, version: ProtocolVersion, out: &mut WriteBuffer) {
        put_packet(out, PacketType::Unsubscribe, |body| {
            body.put_u16(self.packet_id.get());
            if version.is_v5() {
                put_properties(body, |writer| writer.user(&self.user_properties));
            }
            self.filters.iter().for_each(|filter| put_binary(body, filter.as_bytes()));
        });
    }
}
