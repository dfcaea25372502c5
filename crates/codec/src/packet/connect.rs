use std::num::{NonZeroU16, NonZeroU32};

use bytes::BufMut;

use super::{Will, put_packet};
use crate::property::{Property, PropertyReader, put_properties};
use crate::reader::Reader;
use crate::write_buffer::put_binary;
use crate::{DecodeError, PacketType, PropertyId, ProtocolVersion, QoS, Secret, Text, UserProperty, WriteBuffer};

/// CONNECT (MQTT 5.0 §3.1), the first packet of a connection.
///
/// ```text
///   "MQTT" (3.1: "MQIsdp") | level | flags | Keep Alive | properties (v5) | Client Identifier
///     | Will Properties (v5), Will Topic, Will Payload | User Name | Password
///
///   flags   User Name | Password | Will Retain | Will QoS (2) | Will Flag | Clean Start | reserved 0
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connect {
    /// Protocol version of the connection.
    pub version: ProtocolVersion,
    /// Bit 7 of the protocol level, outside of the standards: the client is a bridge. It wants RETAIN of messages as
    /// published, and none of the messages that it sent.
    pub is_bridge: bool,
    /// Discard a stored session first. At 3.1.1 "Clean Session", which also discards it at the end.
    pub clean_start: bool,
    /// Keep Alive in seconds, 0 = off.
    pub keep_alive: u16,
    /// Empty to request one from the server.
    pub client_id: Text,
    /// Published when the connection ends abnormally.
    pub will: Option<Will>,
    /// User Name.
    pub user_name: Option<Text>,
    /// Password: any bytes. v5 allows one without a user name.
    pub password: Option<Secret>,
    /// Empty at 3.1.1.
    pub properties: ConnectProperties,
}

/// CONNECT's properties (MQTT 5.0 §3.1.2.11). `None` means absent, with the default that the standard gives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConnectProperties {
    /// Seconds that the session outlives the connection; absent = 0, `u32::MAX` = for ever.
    pub session_expiry_interval: Option<u32>,
    /// QoS 1 and 2 messages that the client accepts unacknowledged; absent = 65,535.
    pub receive_maximum: Option<NonZeroU16>,
    /// Largest packet that the client accepts, in bytes; absent = no limit.
    pub maximum_packet_size: Option<NonZeroU32>,
    /// Topic Aliases that the client accepts; absent = 0.
    pub topic_alias_maximum: Option<u16>,
    /// Whether CONNACK may carry Response Information; absent = false.
    pub request_response_information: Option<bool>,
    /// Whether any packet may carry Reason String and User Properties; absent = true.
    pub request_problem_information: Option<bool>,
    /// User Properties of the application.
    pub user_properties: Vec<UserProperty>,
    /// Name of the extended authentication method.
    pub authentication_method: Option<Text>,
    /// First data of the extended authentication.
    pub authentication_data: Option<Secret>,
}

impl Connect {
    /// Bit of the protocol level that marks a bridge.
    pub const BRIDGE: u8 = 0x80;

    /// A CONNECT with Clean Start, Keep Alive 60 s and nothing optional.
    pub fn new(version: ProtocolVersion, client_id: Text) -> Self {
        Self {
            version,
            is_bridge: false,
            clean_start: true,
            keep_alive: 60,
            client_id,
            will: None,
            user_name: None,
            password: None,
            properties: ConnectProperties::default(),
        }
    }

    /// The version in a CONNECT's body, if it is supported.
    pub(crate) fn peek_version(body: &[u8]) -> Option<ProtocolVersion> {
        let (length, rest) = body.split_first_chunk()?;
        let (name, rest) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
        Self::version_of(name, *rest.first()?)
    }

    fn version_of(name: &[u8], level: u8) -> Option<ProtocolVersion> {
        match (name, level & !Self::BRIDGE) {
            (b"MQIsdp", 3) => Some(ProtocolVersion::V31),
            (b"MQTT", 4) => Some(ProtocolVersion::V311),
            (b"MQTT", 5) => Some(ProtocolVersion::V5),
            _ => None,
        }
    }

    pub(super) fn decode(mut body: Reader) -> Result<Self, DecodeError> {
        let name = body.binary()?;
        let level = body.u8()?;
        let version = Self::version_of(&name, level).ok_or(match &name[..] {
            b"MQTT" | b"MQIsdp" => DecodeError::ProtocolVersion(level),
            _ => DecodeError::ProtocolName, // [MQTT-3.1.2-1]
        })?;
        let flags = ConnectFlags::decode(body.u8()?, version)?;
        let keep_alive = body.u16()?;
        let properties = if version.is_v5() { ConnectProperties::decode(&mut body)? } else { Default::default() };

        // [MQTT-3.1.3-1]: the payload's order
        let client_id = body.text()?;
        let will = match flags.will {
            Some((qos, retain)) => Some(Will::decode(qos, retain, &mut body, version)?),
            None => None,
        };
        let user_name = if flags.user_name { Some(user_name(&mut body)?) } else { None };
        let password =
            if flags.password { Some(body.binary().map_err(|_| DecodeError::Credentials)?.into()) } else { None };
        body.finish()?;
        Ok(Self {
            version,
            is_bridge: level & Self::BRIDGE != 0,
            clean_start: flags.clean_start,
            keep_alive,
            client_id,
            will,
            user_name,
            password,
            properties,
        })
    }

    pub(super) fn encode(&self, out: &mut WriteBuffer) {
        put_packet(out, PacketType::Connect, |body| {
            put_binary(body, self.version.name());
            body.put_u8(self.version.level() | if self.is_bridge { Self::BRIDGE } else { 0 });
            body.put_u8(self.flags());
            body.put_u16(self.keep_alive);
            if self.version.is_v5() {
                self.properties.encode(body);
            }
            put_binary(body, self.client_id.as_bytes());
            if let Some(will) = &self.will {
                will.encode(self.version, body);
            }
            if let Some(user_name) = &self.user_name {
                put_binary(body, user_name.as_bytes());
            }
            if let Some(password) = &self.password {
                put_binary(body, password.expose());
            }
        });
    }

    fn flags(&self) -> u8 {
        let mut flags = u8::from(self.clean_start) << 1;
        if let Some(will) = &self.will {
            flags |= 1 << 2 | will.qos.bits() << 3 | u8::from(will.retain) << 5;
        }
        flags | u8::from(self.password.is_some()) << 6 | u8::from(self.user_name.is_some()) << 7
    }
}

/// Reads a user name: well-formed `[MQTT-3.1.3-12]` and without control characters.
///
/// A receiver may refuse these (MQTT 5.0 §1.5.4), and they would be harmful in logs and rules.
fn user_name(body: &mut Reader) -> Result<Text, DecodeError> {
    let text = body.text().map_err(|_| DecodeError::Credentials)?;
    if text.as_str().chars().any(char::is_control) { Err(DecodeError::Credentials) } else { Ok(text) }
}

struct ConnectFlags {
    clean_start: bool,
    will: Option<(QoS, bool)>,
    password: bool,
    user_name: bool,
}

impl ConnectFlags {
    fn decode(byte: u8, version: ProtocolVersion) -> Result<Self, DecodeError> {
        // MQTT 3.1 does not define the reserved bit.
        if byte & 1 != 0 && version != ProtocolVersion::V31 {
            return Err(DecodeError::ConnectFlagReserved); // [MQTT-3.1.2-3]
        }
        let will_qos = QoS::from_bits(byte >> 3 & 3).ok_or(DecodeError::WillFlags)?; // [MQTT-3.1.2-12]
        let will_retain = byte >> 5 & 1 != 0;
        let will = if byte >> 2 & 1 != 0 {
            Some((will_qos, will_retain))
        } else if will_qos != QoS::AtMostOnce || will_retain {
            return Err(DecodeError::WillFlags); // [MQTT-3.1.2-11], [MQTT-3.1.2-13]
        } else {
            None
        };
        let (user_name, password) = (byte >> 7 & 1 != 0, byte >> 6 & 1 != 0);
        if password && !user_name && !version.is_v5() {
            return Err(DecodeError::PasswordWithoutUserName); // 3.1.1 [MQTT-3.1.2-22]
        }
        Ok(Self { clean_start: byte >> 1 & 1 != 0, will, password, user_name })
    }
}

impl ConnectProperties {
    fn decode(body: &mut Reader) -> Result<Self, DecodeError> {
        let mut properties = Self::default();
        let mut reader = PropertyReader::take(body)?;
        while let Some(property) = reader.next()? {
            match property {
                Property::SessionExpiryInterval(seconds) => properties.session_expiry_interval = Some(seconds),
                Property::ReceiveMaximum(messages) => properties.receive_maximum = Some(messages),
                Property::MaximumPacketSize(bytes) => properties.maximum_packet_size = Some(bytes),
                Property::TopicAliasMaximum(aliases) => properties.topic_alias_maximum = Some(aliases),
                Property::RequestResponseInformation(asked) => properties.request_response_information = Some(asked),
                Property::RequestProblemInformation(asked) => properties.request_problem_information = Some(asked),
                Property::UserProperty(property) => properties.user_properties.push(property),
                Property::AuthenticationMethod(method) => properties.authentication_method = Some(method),
                Property::AuthenticationData(data) => properties.authentication_data = Some(data.into()),
                _ => return Err(reader.misplaced()),
            }
        }
        if properties.authentication_data.is_some() && properties.authentication_method.is_none() {
            return Err(DecodeError::AuthenticationDataAlone);
        }
        Ok(properties)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        put_properties(out, |writer| {
            writer.u32(PropertyId::SessionExpiryInterval, self.session_expiry_interval);
            writer.u16(PropertyId::ReceiveMaximum, self.receive_maximum.map(NonZeroU16::get));
            writer.u32(PropertyId::MaximumPacketSize, self.maximum_packet_size.map(NonZeroU32::get));
            writer.u16(PropertyId::TopicAliasMaximum, self.topic_alias_maximum);
            writer.flag(PropertyId::RequestResponseInformation, self.request_response_information);
            writer.flag(PropertyId::RequestProblemInformation, self.request_problem_information);
            writer.user(&self.user_properties);
            writer.text(PropertyId::AuthenticationMethod, self.authentication_method.as_ref());
            writer.binary(PropertyId::AuthenticationData, self.authentication_data.as_ref().map(Secret::expose));
        });
    }
}
