use bytes::BufMut;

use super::ack::take_reason;
use super::put_packet;
use crate::property::{Property, PropertyReader, put_properties};
use crate::reader::Reader;
use crate::{DecodeError, PacketType, PropertyId, ProtocolVersion, ReasonCode, Text, UserProperty, WriteBuffer};

/// DISCONNECT (MQTT 5.0 §3.14): the last packet of a connection. At 3.1.1 only a Client sends it, without a reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disconnect {
    /// Reason of the end. Success is the normal one, which drops the Will.
    pub reason: ReasonCode,
    /// `None` if there are none, the usual case.
    pub properties: Option<Box<DisconnectProperties>>,
}

/// DISCONNECT's properties (MQTT 5.0 §3.14.2.2).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DisconnectProperties {
    /// Seconds that the session outlives the connection; from a Client only `[MQTT-3.14.2-2]`.
    pub session_expiry_interval: Option<u32>,
    /// Explanation of the Reason Code for people.
    pub reason_string: Option<Text>,
    /// User Properties of the sender.
    pub user_properties: Vec<UserProperty>,
    /// Another server to use; from a Server only.
    pub server_reference: Option<Text>,
}

impl Disconnect {
    /// A DISCONNECT without properties.
    pub fn new(reason: ReasonCode) -> Self {
        Self { reason, properties: None }
    }

    pub(super) fn decode(mut body: Reader, version: ProtocolVersion) -> Result<Self, DecodeError> {
        if !version.is_v5() || body.is_empty() {
            body.finish()?;
            return Ok(Self::new(ReasonCode::Success));
        }
        let reason = take_reason(PacketType::Disconnect, &mut body)?; // [MQTT-3.14.2-1]
        let mut properties = DisconnectProperties::default();
        if !body.is_empty() {
            let mut reader = PropertyReader::take(&mut body)?;
            while let Some(property) = reader.next()? {
                match property {
                    Property::SessionExpiryInterval(seconds) => properties.session_expiry_interval = Some(seconds),
                    Property::ReasonString(text) => properties.reason_string = Some(text),
                    Property::UserProperty(property) => properties.user_properties.push(property),
                    Property::ServerReference(text) => properties.server_reference = Some(text),
                    _ => return Err(reader.misplaced()),
                }
            }
        }
        body.finish()?;
        let properties = (properties != DisconnectProperties::default()).then(|| Box::new(properties));
        Ok(Self { reason, properties })
    }

    pub(super) fn encode(&self, version: ProtocolVersion, out: &mut WriteBuffer) {
        put_packet(out, PacketType::Disconnect, |body| {
            if !version.is_v5() || (self.reason == ReasonCode::Success && self.properties.is_none()) {
                return;
            }
            body.put_u8(self.reason.byte());
            if let Some(properties) = &self.properties {
                put_properties(body, |writer| {
                    writer.u32(PropertyId::SessionExpiryInterval, properties.session_expiry_interval);
                    writer.text(PropertyId::ReasonString, properties.reason_string.as_ref());
                    writer.user(&properties.user_properties);
                    writer.text(PropertyId::ServerReference, properties.server_reference.as_ref());
                });
            }
        });
    }
}
