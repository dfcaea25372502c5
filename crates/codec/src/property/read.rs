use std::num::{NonZeroU16, NonZeroU32};

use bytes::Bytes;

use super::UserProperty;
use crate::reader::Reader;
use crate::{DecodeError, PropertyId, QoS, Text};

/// One property with its value, of the type that the standard gives it.
#[derive(Debug)]
pub(crate) enum Property {
    PayloadFormatIndicator(bool),
    MessageExpiryInterval(u32),
    ContentType(Text),
    ResponseTopic(Text),
    CorrelationData(Bytes),
    SubscriptionIdentifier(u32),
    SessionExpiryInterval(u32),
    AssignedClientIdentifier(Text),
    ServerKeepAlive(u16),
    AuthenticationMethod(Text),
    AuthenticationData(Bytes),
    RequestProblemInformation(bool),
    WillDelayInterval(u32),
    RequestResponseInformation(bool),
    ResponseInformation(Text),
    ServerReference(Text),
    ReasonString(Text),
    ReceiveMaximum(NonZeroU16),
    TopicAliasMaximum(u16),
    TopicAlias(NonZeroU16),
    MaximumQoS(QoS),
    RetainAvailable(bool),
    UserProperty(UserProperty),
    MaximumPacketSize(NonZeroU32),
    WildcardSubscriptionAvailable(bool),
    SubscriptionIdentifierAvailable(bool),
    SharedSubscriptionAvailable(bool),
}

/// The properties of one packet, in their order.
///
/// ```text
///   Property Length (varint) | { identifier (varint) | value } …
/// ```
pub(crate) struct PropertyReader {
    reader: Reader,
    /// One bit for each identifier seen so far; all are below 64.
    seen: u64,
    last: Option<PropertyId>,
    subscription_ids_repeat: bool,
    user_properties_left: u32,
}

impl PropertyReader {
    /// Reads Property Length and properties from `body`.
    ///
    /// # Errors
    /// A Property Length past the end of the packet.
    pub(crate) fn take(body: &mut Reader) -> Result<Self, DecodeError> {
        let len = body.varint()? as usize;
        let user_properties_left = body.limits().user_properties;
        let reader = body.part(len)?;
        Ok(Self { reader, seen: 0, last: None, subscription_ids_repeat: false, user_properties_left })
    }

    /// Permits repeated Subscription Identifiers: in a PUBLISH to a Client every matching subscription adds its own
    /// `[MQTT-3.3.4-4]`.
    pub(crate) fn let_subscription_ids_repeat(mut self) -> Self {
        self.subscription_ids_repeat = true;
        self
    }

    /// Returns the next property, or `None` after the last.
    ///
    /// # Errors
    /// Unknown identifiers, malformed values, and repeated properties other than User Properties.
    pub(crate) fn next(&mut self) -> Result<Option<Property>, DecodeError> {
        if self.reader.is_empty() {
            return Ok(None);
        }
        let value = self.reader.varint()?;
        let id = PropertyId::from_value(value).ok_or(DecodeError::PropertyNotAllowed(value))?;
        let may_repeat = id == PropertyId::UserProperty
            || (id == PropertyId::SubscriptionIdentifier && self.subscription_ids_repeat);
        let bit = 1u64 << id.value();
        if self.seen & bit != 0 && !may_repeat {
            return Err(DecodeError::PropertyTwice(id));
        }
        self.seen |= bit;
        if id == PropertyId::UserProperty {
            let left = self.user_properties_left.checked_sub(1);
            self.user_properties_left = left.ok_or(DecodeError::TooManyUserProperties)?;
        }
        self.last = Some(id);
        self.value(id).map(Some)
    }

    /// As [`PropertyReader::misplaced`], for packets where the error is Malformed Packet: docs/decisions/0004.
    pub(crate) fn not_allowed(&self) -> DecodeError {
        DecodeError::PropertyNotAllowed(self.last.map_or(0, |id| u32::from(id.value())))
    }

    /// Error for the property that [`PropertyReader::next`] just returned: it is illegal in this packet.
    pub(crate) fn misplaced(&self) -> DecodeError {
        self.last.map_or(DecodeError::PropertyNotAllowed(0), DecodeError::PropertyMisplaced)
    }

    fn value(&mut self, id: PropertyId) -> Result<Property, DecodeError> {
        let reader = &mut self.reader;
        let illegal = DecodeError::PropertyValue(id);
        Ok(match id {
            PropertyId::PayloadFormatIndicator => Property::PayloadFormatIndicator(flag(reader.u8()?).ok_or(illegal)?),
            PropertyId::MessageExpiryInterval => Property::MessageExpiryInterval(reader.u32()?),
            PropertyId::ContentType => Property::ContentType(reader.text()?),
            PropertyId::ResponseTopic => Property::ResponseTopic(reader.text()?),
            PropertyId::CorrelationData => Property::CorrelationData(reader.binary()?),
            PropertyId::SubscriptionIdentifier => match reader.varint()? {
                0 => return Err(illegal),
                value => Property::SubscriptionIdentifier(value),
            },
            PropertyId::SessionExpiryInterval => Property::SessionExpiryInterval(reader.u32()?),
            PropertyId::AssignedClientIdentifier => Property::AssignedClientIdentifier(reader.text()?),
            PropertyId::ServerKeepAlive => Property::ServerKeepAlive(reader.u16()?),
            PropertyId::AuthenticationMethod => Property::AuthenticationMethod(reader.text()?),
            PropertyId::AuthenticationData => Property::AuthenticationData(reader.binary()?),
            PropertyId::RequestProblemInformation => {
                Property::RequestProblemInformation(flag(reader.u8()?).ok_or(illegal)?)
            }
            PropertyId::WillDelayInterval => Property::WillDelayInterval(reader.u32()?),
            PropertyId::RequestResponseInformation => {
                Property::RequestResponseInformation(flag(reader.u8()?).ok_or(illegal)?)
            }
            PropertyId::ResponseInformation => Property::ResponseInformation(reader.text()?),
            PropertyId::ServerReference => Property::ServerReference(reader.text()?),
            PropertyId::ReasonString => Property::ReasonString(reader.text()?),
            PropertyId::ReceiveMaximum => Property::ReceiveMaximum(NonZeroU16::new(reader.u16()?).ok_or(illegal)?),
            PropertyId::TopicAliasMaximum => Property::TopicAliasMaximum(reader.u16()?),
            PropertyId::TopicAlias => Property::TopicAlias(NonZeroU16::new(reader.u16()?).ok_or(illegal)?),
            PropertyId::MaximumQoS => match reader.u8()? {
                0 => Property::MaximumQoS(QoS::AtMostOnce),
                1 => Property::MaximumQoS(QoS::AtLeastOnce),
                _ => return Err(illegal),
            },
            PropertyId::RetainAvailable => Property::RetainAvailable(flag(reader.u8()?).ok_or(illegal)?),
            PropertyId::UserProperty => {
                Property::UserProperty(UserProperty { name: reader.text()?, value: reader.text()? })
            }
            PropertyId::MaximumPacketSize => {
                Property::MaximumPacketSize(NonZeroU32::new(reader.u32()?).ok_or(illegal)?)
            }
            PropertyId::WildcardSubscriptionAvailable => {
                Property::WildcardSubscriptionAvailable(flag(reader.u8()?).ok_or(illegal)?)
            }
            PropertyId::SubscriptionIdentifierAvailable => {
                Property::SubscriptionIdentifierAvailable(flag(reader.u8()?).ok_or(illegal)?)
            }
            PropertyId::SharedSubscriptionAvailable => {
                Property::SharedSubscriptionAvailable(flag(reader.u8()?).ok_or(illegal)?)
            }
        })
    }
}

fn flag(byte: u8) -> Option<bool> {
    match byte {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}
