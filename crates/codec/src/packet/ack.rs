use bytes::BufMut;

use super::put_packet;
use crate::property::{Property, PropertyReader, PropertyWriter, put_properties};
use crate::reader::Reader;
use crate::{
    DecodeError, PacketId, PacketType, PropertyId, ProtocolVersion, ReasonCode, Text, UserProperty, WriteBuffer,
};

/// PUBACK, PUBREC, PUBREL or PUBCOMP (MQTT 5.0 §3.4 to §3.7), which have the same form.
///
/// ```text
///   Packet Identifier | Reason Code (absent = 0x00) | properties (absent = none)
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ack {
    /// Packet Identifier of the PUBLISH `[MQTT-2.2.1-5]`.
    pub packet_id: PacketId,
    /// Always success at 3.1.1, which has no Reason Codes.
    pub reason: ReasonCode,
    /// `None` if there are none, the usual case.
    pub properties: Option<Box<AckProperties>>,
}

/// Reason String and User Properties, legal in all acknowledgements.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AckProperties {
    /// Explanation of the Reason Code for people.
    pub reason_string: Option<Text>,
    /// User Properties of the sender.
    pub user_properties: Vec<UserProperty>,
}

impl Ack {
    /// An acknowledgement without properties.
    pub fn new(packet_id: PacketId, reason: ReasonCode) -> Self {
        Self { packet_id, reason, properties: None }
    }

    /// Appends `self` as a packet of type `packet_type`, one of these four.
    pub fn encode(&self, packet_type: PacketType, version: ProtocolVersion, out: &mut WriteBuffer) {
        if !version.is_v5() || (self.reason == ReasonCode::Success && self.properties.is_none()) {
            let [high, low] = self.packet_id.get().to_be_bytes();
            out.block().extend_from_slice(&[packet_type.first_byte(), 2, high, low]);
            return;
        }
        put_packet(out, packet_type, |body| {
            body.put_u16(self.packet_id.get());
            body.put_u8(self.reason.byte());
            if let Some(properties) = &self.properties {
                put_properties(body, |writer| properties.write(writer));
            }
        });
    }

    pub(super) fn decode(kind: PacketType, mut body: Reader, version: ProtocolVersion) -> Result<Self, DecodeError> {
        let packet_id = body.packet_id()?;
        if !version.is_v5() || body.is_empty() {
            body.finish()?;
            return Ok(Self::new(packet_id, ReasonCode::Success));
        }
        let reason = take_reason(kind, &mut body)?;
        let properties = if body.is_empty() { AckProperties::default() } else { AckProperties::decode(&mut body)? };
        body.finish()?;
        Ok(Self { packet_id, reason, properties: properties.boxed() })
    }
}

impl AckProperties {
    pub(super) fn decode(body: &mut Reader) -> Result<Self, DecodeError> {
        let mut properties = Self::default();
        let mut reader = PropertyReader::take(body)?;
        while let Some(property) = reader.next()? {
            match property {
                Property::ReasonString(text) => properties.reason_string = Some(text),
                Property::UserProperty(property) => properties.user_properties.push(property),
                _ => return Err(reader.misplaced()),
            }
        }
        Ok(properties)
    }

    pub(super) fn write(&self, writer: &mut PropertyWriter<'_>) {
        writer.text(PropertyId::ReasonString, self.reason_string.as_ref());
        writer.user(&self.user_properties);
    }

    fn boxed(self) -> Option<Box<Self>> {
        (self != Self::default()).then(|| Box::new(self))
    }
}

/// Reads a Reason Code, which must be legal in `kind`.
pub(super) fn take_reason(kind: PacketType, body: &mut Reader) -> Result<ReasonCode, DecodeError> {
    let code = body.u8()?;
    ReasonCode::from_byte(code).filter(|reason| reason.is_valid_in(kind)).ok_or(match kind {
        PacketType::Disconnect => DecodeError::DisconnectReason(code),
        _ => DecodeError::ReasonCode(code),
    })
}
