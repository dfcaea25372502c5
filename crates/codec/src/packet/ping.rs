use bytes::Bytes;

use super::put_packet;
use crate::property::{Property, PropertyReader, put_properties};
use crate::reader::Reader;
use crate::{DecodeError, PacketType, ProtocolVersion, UserProperty, WriteBuffer};

/// PINGREQ (MQTT 5.0 §3.12), plain or extended (thesis §4.1.1, Fig. 33).
///
/// ```text
///   plain      C0 00
///   extended   C0 | Remaining Length | Property Length | User Properties … | payload: the rest, any bytes
/// ```
///
/// The standard has only the plain form. The extended form carries a worker's load report. Its reader interprets the
/// payload (`tenbin-balancer`'s `LoadReport`), not the codec.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PingReq {
    /// `None` for the plain form.
    pub body: Option<Box<PingBody>>,
}

/// Body of an extended PINGREQ.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PingBody {
    /// User Properties, the only legal ones, in any number.
    pub user_properties: Vec<UserProperty>,
    /// Any bytes, or none.
    pub payload: Bytes,
}

impl PingReq {
    /// The plain form.
    pub const PLAIN: Self = Self { body: None };

    /// The extended form without properties.
    pub fn with_payload(payload: Bytes) -> Self {
        Self { body: Some(Box::new(PingBody { user_properties: Vec::new(), payload })) }
    }

    pub(super) fn decode(mut body: Reader, version: ProtocolVersion) -> Result<Self, DecodeError> {
        if body.is_empty() {
            return Ok(Self::PLAIN);
        }
        if !version.is_v5() {
            return Err(DecodeError::PingBody);
        }
        let mut user_properties = Vec::new();
        let mut reader = PropertyReader::take(&mut body)?;
        while let Some(property) = reader.next()? {
            match property {
                Property::UserProperty(property) => user_properties.push(property),
                _ => return Err(reader.not_allowed()),
            }
        }
        Ok(Self { body: Some(Box::new(PingBody { user_properties, payload: body.rest() })) })
    }

    /// Omits the body at 3.1.1, where it would make the peer close the connection.
    pub(super) fn encode(&self, version: ProtocolVersion, out: &mut WriteBuffer) {
        put_packet(out, PacketType::PingReq, |packet| {
            if let Some(body) = self.body.as_ref().filter(|_| version.is_v5()) {
                put_properties(packet, |writer| writer.user(&body.user_properties));
                packet.extend_from_slice(&body.payload);
            }
        });
    }
}
