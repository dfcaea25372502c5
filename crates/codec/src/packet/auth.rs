use bytes::BufMut;

use super::ack::take_reason;
use super::put_packet;
use crate::property::{Property, PropertyReader, put_properties};
use crate::reader::Reader;
use crate::{
    DecodeError, PacketType, PropertyId, ProtocolVersion, ReasonCode, Secret, Text, UserProperty, WriteBuffer,
};

/// AUTH (MQTT 5.0 §3.15): one step of an extended authentication. Does not exist at 3.1.1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Auth {
    /// Success, Continue authentication or Re-authenticate `[MQTT-3.15.2-1]`.
    pub reason: ReasonCode,
    /// All optional here; the session checks them against the state of the exchange.
    pub properties: AuthProperties,
}

/// AUTH's properties (MQTT 5.0 §3.15.2.2).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuthProperties {
    /// Name of the method, the same throughout `[MQTT-4.12.0-5]`.
    pub authentication_method: Option<Text>,
    /// Data of the method.
    pub authentication_data: Option<Secret>,
    /// Explanation of the Reason Code for people.
    pub reason_string: Option<Text>,
    /// User Properties of the sender.
    pub user_properties: Vec<UserProperty>,
}

impl Auth {
    pub(super) fn decode(mut body: Reader, version: ProtocolVersion) -> Result<Self, DecodeError> {
        if !version.is_v5() {
            return Err(DecodeError::ReservedPacketType(PacketType::Auth as u8));
        }
        if body.is_empty() {
            return Ok(Self { reason: ReasonCode::Success, properties: AuthProperties::default() });
        }
        let reason = take_reason(PacketType::Auth, &mut body)?; // [MQTT-3.15.2-1]
        let mut properties = AuthProperties::default();
        let mut reader = PropertyReader::take(&mut body)?;
        while let Some(property) = reader.next()? {
            match property {
                Property::AuthenticationMethod(method) => properties.authentication_method = Some(method),
                Property::AuthenticationData(data) => properties.authentication_data = Some(data.into()),
                Property::ReasonString(text) => properties.reason_string = Some(text),
                Property::UserProperty(property) => properties.user_properties.push(property),
                _ => return Err(reader.misplaced()),
            }
        }
        body.finish()?;
        Ok(Self { reason, properties })
    }

    pub(super) fn encode(&self, version: ProtocolVersion, out: &mut WriteBuffer) {
        if !version.is_v5() {
            return;
        }
        put_packet(out, PacketType::Auth, |body| {
            if self.reason == ReasonCode::Success && self.properties == AuthProperties::default() {
                return;
            }
            body.put_u8(self.reason.byte());
            put_properties(body, |writer| {
                writer.text(PropertyId::AuthenticationMethod, self.properties.authentication_method.as_ref());
                let data = self.properties.authentication_data.as_ref();
                writer.binary(PropertyId::AuthenticationData, data.map(Secret::expose));
                writer.text(PropertyId::ReasonString, self.properties.reason_string.as_ref());
                writer.user(&self.properties.user_properties);
            });
        });
    }
}
