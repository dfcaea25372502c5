use std::num::{NonZeroU16, NonZeroU32};

use bytes::BufMut;

use super::put_packet;
use crate::property::{Property, PropertyReader, put_properties};
use crate::reader::Reader;
use crate::{
    DecodeError, PacketType, PropertyId, ProtocolVersion, QoS, ReasonCode, Secret, Text, UserProperty, WriteBuffer,
};

/// CONNACK (MQTT 5.0 §3.2): the server's answer to CONNECT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnAck {
    /// True if the server resumed a stored session.
    pub session_present: bool,
    /// Success, or the reason of the refusal. At 3.1.1 one of the codes that [`ReasonCode::v311_connect_return_code`]
    /// knows.
    pub reason: ReasonCode,
    /// Empty at 3.1.1.
    pub properties: ConnAckProperties,
}

/// CONNACK's properties (MQTT 5.0 §3.2.2.3). `None` means absent, with the default that the standard gives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConnAckProperties {
    /// Seconds that the session outlives the connection, if other than requested.
    pub session_expiry_interval: Option<u32>,
    /// QoS 1 and 2 messages that the server accepts unacknowledged; absent = 65,535.
    pub receive_maximum: Option<NonZeroU16>,
    /// Highest QoS that the server accepts: 0 or 1; absent = 2.
    pub maximum_qos: Option<QoS>,
    /// Whether retained messages are supported; absent = true.
    pub retain_available: Option<bool>,
    /// Largest packet that the server accepts, in bytes; absent = no limit.
    pub maximum_packet_size: Option<NonZeroU32>,
    /// Client Identifier that the server assigned to a client without one.
    pub assigned_client_identifier: Option<Text>,
    /// Topic Aliases that the server accepts; absent = 0.
    pub topic_alias_maximum: Option<u16>,
    /// Explanation of the Reason Code for people.
    pub reason_string: Option<Text>,
    /// User Properties of the server.
    pub user_properties: Vec<UserProperty>,
    /// Whether filters with wildcards are supported; absent = true.
    pub wildcard_subscription_available: Option<bool>,
    /// Whether Subscription Identifiers are supported; absent = true.
    pub subscription_identifier_available: Option<bool>,
    /// Whether shared subscriptions are supported; absent = true.
    pub shared_subscription_available: Option<bool>,
    /// Keep Alive in seconds that replaces the client's.
    pub server_keep_alive: Option<u16>,
    /// Basis for response topics.
    pub response_information: Option<Text>,
    /// Another server to use.
    pub server_reference: Option<Text>,
    /// Name of the extended authentication method.
    pub authentication_method: Option<Text>,
    /// Last data of the extended authentication.
    pub authentication_data: Option<Secret>,
}

impl ConnAck {
    /// A CONNACK without properties.
    pub fn new(session_present: bool, reason: ReasonCode) -> Self {
        Self { session_present, reason, properties: ConnAckProperties::default() }
    }

    pub(super) fn decode(mut body: Reader, version: ProtocolVersion) -> Result<Self, DecodeError> {
        // Session Present was introduced by 3.1.1: before, the byte was reserved.
        let has_session_present = version != ProtocolVersion::V31;
        let flags = body.u8()? & if has_session_present { 0xFF } else { 0 };
        if flags > 1 {
            return Err(DecodeError::ConnAckFlags); // [MQTT-3.2.2-1]
        }
        let code = body.u8()?;
        let reason = match version {
            ProtocolVersion::V5 => ReasonCode::from_byte(code).filter(|code| code.is_valid_in(PacketType::ConnAck)),
            ProtocolVersion::V31 | ProtocolVersion::V311 => ReasonCode::from_v311_connect_return_code(code),
        }
        .ok_or(DecodeError::ReasonCode(code))?;
        let properties = if version.is_v5() { ConnAckProperties::decode(&mut body)? } else { Default::default() };
        body.finish()?;
        Ok(Self { session_present: flags == 1, reason, properties })
    }

    pub(super) fn encode(&self, version: ProtocolVersion, out: &mut WriteBuffer) {
        let code = match version {
            ProtocolVersion::V5 => self.reason.byte(),
            ProtocolVersion::V31 | ProtocolVersion::V311 => match self.reason.v311_connect_return_code() {
                Some(code) => code,
                None => return,
            },
        };
        put_packet(out, PacketType::ConnAck, |body| {
            body.put_u8(u8::from(self.session_present && version != ProtocolVersion::V31));
            body.put_u8(code);
            if version.is_v5() {
                self.properties.encode(body);
            }
        });
    }
}

impl ConnAckProperties {
    fn decode(body: &mut Reader) -> Result<Self, DecodeError> {
        let mut properties = Self::default();
        let mut reader = PropertyReader::take(body)?;
        while let Some(property) = reader.next()? {
            match property {
                Property::SessionExpiryInterval(seconds) => properties.session_expiry_interval = Some(seconds),
                Property::ReceiveMaximum(messages) => properties.receive_maximum = Some(messages),
                Property::MaximumQoS(qos) => properties.maximum_qos = Some(qos),
                Property::RetainAvailable(available) => properties.retain_available = Some(available),
                Property::MaximumPacketSize(bytes) => properties.maximum_packet_size = Some(bytes),
                Property::AssignedClientIdentifier(id) => properties.assigned_client_identifier = Some(id),
                Property::TopicAliasMaximum(aliases) => properties.topic_alias_maximum = Some(aliases),
                Property::ReasonString(text) => properties.reason_string = Some(text),
                Property::UserProperty(property) => properties.user_properties.push(property),
                Property::WildcardSubscriptionAvailable(available) => {
                    properties.wildcard_subscription_available = Some(available);
                }
                Property::SubscriptionIdentifierAvailable(available) => {
                    properties.subscription_identifier_available = Some(available);
                }
                Property::SharedSubscriptionAvailable(available) => {
                    properties.shared_subscription_available = Some(available);
                }
                Property::ServerKeepAlive(seconds) => properties.server_keep_alive = Some(seconds),
                Property::ResponseInformation(text) => properties.response_information = Some(text),
                Property::ServerReference(text) => properties.server_reference = Some(text),
                Property::AuthenticationMethod(method) => properties.authentication_method = Some(method),
                Property::AuthenticationData(data) => properties.authentication_data = Some(data.into()),
                _ => return Err(reader.misplaced()),
            }
        }
        Ok(properties)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        put_properties(out, |writer| {
            writer.u32(PropertyId::SessionExpiryInterval, self.session_expiry_interval);
            writer.u16(PropertyId::ReceiveMaximum, self.receive_maximum.map(NonZeroU16::get));
            writer.qos(PropertyId::MaximumQoS, self.maximum_qos);
            writer.flag(PropertyId::RetainAvailable, self.retain_available);
            writer.u32(PropertyId::MaximumPacketSize, self.maximum_packet_size.map(NonZeroU32::get));
            writer.text(PropertyId::AssignedClientIdentifier, self.assigned_client_identifier.as_ref());
            writer.u16(PropertyId::TopicAliasMaximum, self.topic_alias_maximum);
            writer.text(PropertyId::ReasonString, self.reason_string.as_ref());
            writer.user(&self.user_properties);
            writer.flag(PropertyId::WildcardSubscriptionAvailable, self.wildcard_subscription_available);
            writer.flag(PropertyId::SubscriptionIdentifierAvailable, self.subscription_identifier_available);
            writer.flag(PropertyId::SharedSubscriptionAvailable, self.shared_subscription_available);
            writer.u16(PropertyId::ServerKeepAlive, self.server_keep_alive);
            writer.text(PropertyId::ResponseInformation, self.response_information.as_ref());
            writer.text(PropertyId::ServerReference, self.server_reference.as_ref());
            writer.text(PropertyId::AuthenticationMethod, self.authentication_method.as_ref());
            writer.binary(PropertyId::AuthenticationData, self.authentication_data.as_ref().map(Secret::expose));
        });
    }
}
