use bytes::BufMut;

use super::ack::{AckProperties, take_reason};
use super::put_packet;
use crate::property::put_properties;
use crate::reader::Reader;
use crate::{DecodeError, PacketId, PacketType, ProtocolVersion, ReasonCode, WriteBuffer};

/// SUBACK (MQTT 5.0 §3.9).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubAck {
    /// Packet Identifier of the SUBSCRIBE `[MQTT-3.8.4-2]`.
    pub packet_id: PacketId,
    /// Empty at 3.1.1.
    pub properties: AckProperties,
    /// Granted QoS or failure for each filter, in the filters' order `[MQTT-3.9.3-1]`. At 3.1.1 every failure
    /// is written as 0x80.
    pub reasons: Vec<ReasonCode>,
}

/// UNSUBACK (MQTT 5.0 §3.11).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsubAck {
    /// Packet Identifier of the UNSUBSCRIBE `[MQTT-3.10.4-5]`.
    pub packet_id: PacketId,
    /// Empty at 3.1.1.
    pub properties: AckProperties,
    /// One code for each filter, in the filters' order `[MQTT-3.11.3-1]`; not sent at 3.1.1.
    pub reasons: Vec<ReasonCode>,
}

impl SubAck {
    pub(super) fn decode(mut body: Reader, version: ProtocolVersion) -> Result<Self, DecodeError> {
        let packet_id = body.packet_id()?;
        let properties = if version.is_v5() { AckProperties::decode(&mut body)? } else { AckProperties::default() };
        let mut reasons = Vec::new();
        while !body.is_empty() {
            let reason = take_reason(PacketType::SubAck, &mut body)?;
            if !version.is_v5() && reason.byte() > 2 && reason != ReasonCode::UnspecifiedError {
                return Err(DecodeError::ReasonCode(reason.byte())); // 3.1.1 [MQTT-3.9.3-2]
            }
            reasons.push(reason);
        }
        Ok(Self { packet_id, properties, reasons })
    }

    pub(super) fn encode(&self, version: ProtocolVersion, out: &mut WriteBuffer) {
        put_packet(out, PacketType::SubAck, |body| {
            body.put_u16(self.packet_id.get());
            if version.is_v5() {
                put_properties(body, |writer| self.properties.write(writer));
            }
            for reason in &self.reasons {
                let v311_failure = !version.is_v5() && reason.is_error();
                body.put_u8(if v311_failure { ReasonCode::UnspecifiedError.byte() } else { reason.byte() });
            }
        });
    }
}

impl UnsubAck {
    pub(super) fn decode(mut body: Reader, version: ProtocolVersion) -> Result<Self, DecodeError> {
        let packet_id = body.packet_id()?;
        let mut reasons = Vec::new();
        let mut properties = AckProperties::default();
        if version.is_v5() {
            properties = AckProperties::decode(&mut body)?;
            while !body.is_empty() {
                reasons.push(take_reason(PacketType::UnsubAck, &mut body)?);
            }
        }
        body.finish()?;
        Ok(Self { packet_id, properties, reasons })
    }

    pub(super) fn encode(&self, version: ProtocolVersion, out: &mut WriteBuffer) {
        put_packet(out, PacketType::UnsubAck, |body| {
            body.put_u16(self.packet_id.get());
            if version.is_v5() {
                put_properties(body, |writer| self.properties.write(writer));
                self.reasons.iter().for_each(|reason| body.put_u8(reason.byte()));
            }
        });
    }
}
