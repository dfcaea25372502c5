use std::num::NonZeroU16;

use bytes::{BufMut, Bytes, BytesMut};

use super::MessageProperties;
use crate::property::PropertyWriter;
use crate::varint::write_varint;
use crate::{PacketId, PacketType, PropertyId, ProtocolVersion, QoS, TopicName, VARINT_MAX, WriteBuffer, varint_len};

/// A message encoded once for all its receivers, each of which adds its own [`PublishHeader`].
///
/// ```text
///   head      Topic Name length (2) | Topic Name | properties | payload, when it is small
///   payload   when it is large: the publisher's own slice, shared
/// ```
///
/// The head is carved out of a block that the caller reuses. So a small message costs no allocation and does not pin
/// the connection's read buffer. Cloning counts references and copies nothing.
///
/// ```
/// use bytes::{Bytes, BytesMut};
/// use tenbin_codec::{PacketId, ProtocolVersion, PublishHeader, PublishTemplate, QoS, TopicName, WriteBuffer};
///
/// let topic = TopicName::try_from("a/b")?;
/// let template = PublishTemplate::new(&topic, None, &Bytes::from_static(b"hi"), &mut BytesMut::new());
///
/// let mut to_first = WriteBuffer::new();
/// template.encode(&PublishHeader::default(), ProtocolVersion::V311, &mut to_first);
/// assert_eq!(to_first.to_bytes(), &b"\x30\x07\0\x03a/bhi"[..]);
///
/// let mut to_second = WriteBuffer::new();
/// let header = PublishHeader { qos: QoS::AtLeastOnce, packet_id: PacketId::new(1), ..PublishHeader::default() };
/// template.encode(&header, ProtocolVersion::V5, &mut to_second);
/// assert_eq!(to_second.to_bytes(), &b"\x32\x0A\0\x03a/b\0\x01\0hi"[..]);
/// # Ok::<(), tenbin_codec::TopicError>(())
/// ```
#[derive(Debug, Clone)]
pub struct PublishTemplate {
    // INVARIANT: 2 <= topic_end <= properties_end <= head.len() <= u32::MAX
    head: Bytes,
    topic_end: u32,
    properties_end: u32,
    /// Empty when the payload is in `head`. Shorter than [`WriteBuffer::SHARE_FROM`] when it stands for a payload that is
    /// elsewhere.
    payload: Bytes,
}

/// Parts of a PUBLISH that differ between receivers.
#[derive(Debug, Clone, Copy, Default)]
pub struct PublishHeader<'a> {
    /// True for a repeated delivery to this receiver.
    pub dup: bool,
    /// At most the QoS that the receiver was granted.
    pub qos: QoS,
    /// RETAIN, as this receiver's subscription requests it.
    pub retain: bool,
    /// Present exactly when `qos` is not 0.
    pub packet_id: Option<PacketId>,
    /// Topic Alias on the receiver's connection.
    pub topic_alias: Option<NonZeroU16>,
    /// The receiver knows the alias already: omit the topic.
    pub topic_is_aliased: bool,
    /// Identifiers of the receiver's matching subscriptions.
    pub subscription_identifiers: &'a [u32],
    /// Remaining seconds.
    pub message_expiry_interval: Option<u32>,
    /// Value of a User Property [`PublishHeader::DELIVERIES`] in front of the publisher's properties; 0 = none.
    pub deliveries: u32,
}

impl PublishHeader<'_> {
    /// Name of the User Property with [`PublishHeader::deliveries`].
    pub const DELIVERIES: &'static str = "deliveries";

    /// Bytes of that User Property; 0 = there is none.
    fn deliveries_len(&self) -> usize {
        if self.deliveries == 0 {
            0
        } else {
            1 + 2 + Self::DELIVERIES.len() + 2 + self.deliveries.ilog10() as usize + 1
        }
    }

    /// Appends that User Property.
    #[cold]
    fn put_deliveries(&self, block: &mut Vec<u8>) {
        let value = self.deliveries.to_string();
        block.push(PropertyId::UserProperty.value());
        for text in [Self::DELIVERIES, &value] {
            block.put_u16(text.len() as u16);
            block.extend_from_slice(text.as_bytes());
        }
    }

    /// Appends a PUBLISH without further properties, or nothing if it would be larger than [`crate::PACKET_SIZE_MAX`].
    /// Copies `topic` and `payload`, for a caller that owns neither.
    pub fn encode(&self, topic: &TopicName, payload: &[u8], version: ProtocolVersion, out: &mut WriteBuffer) {
        let parts =
            PublishParts { topic: topic.as_bytes(), rest: payload, properties_len: 0, payload_len: payload.len() };
        // False writes nothing, as documented.
        let _ = parts.encode(self, version, out);
    }
}

impl PublishTemplate {
    /// Encodes the parts common to all receivers.
    ///
    /// `block` is scratch memory that grows as needed and should be reused between calls. Its content is discarded.
    pub fn new(
        topic: &TopicName,
        properties: Option<&MessageProperties>,
        payload: &Bytes,
        block: &mut BytesMut,
    ) -> Self {
        Self::from_parts(topic.as_bytes(), properties, payload, block)
    }

    /// As [`PublishTemplate::new`], for the bytes of a Topic Name.
    pub(super) fn from_parts(
        topic: &[u8],
        properties: Option<&MessageProperties>,
        payload: &Bytes,
        block: &mut BytesMut,
    ) -> Self {
        let inline = if payload.len() < WriteBuffer::SHARE_FROM { payload.len() } else { 0 };
        let (head, topic_end, properties_end) = Self::head(topic, properties, &payload[..inline], block);
        let payload = if inline == payload.len() { Bytes::new() } else { payload.clone() };
        Self { head, topic_end, properties_end, payload }
    }

    /// Encodes a message without properties whose payload is shorter than [`WriteBuffer::SHARE_FROM`].
    pub(super) fn small(topic: &[u8], payload: &[u8], block: &mut BytesMut) -> Self {
        debug_assert!(payload.len() < WriteBuffer::SHARE_FROM);
        let (head, topic_end, properties_end) = Self::head(topic, None, payload, block);
        Self { head, topic_end, properties_end, payload: Bytes::new() }
    }

    /// Encodes the head. Returns it with the ends of the topic and the properties.
    #[inline]
    fn head(
        topic: &[u8],
        properties: Option<&MessageProperties>,
        payload: &[u8],
        block: &mut BytesMut,
    ) -> (Bytes, u32, u32) {
        let inline = payload.len();
        block.clear();
        // One growth for many messages: one allocation for each block, not for each message.
        if block.capacity() < topic.len() + inline + 2 {
            block.reserve(BLOCK_SIZE.max(topic.len() + inline + 2));
        }
        block.put_u16(topic.len() as u16);
        block.put_slice(topic);
        let topic_end = block.len() as u32;
        if let Some(properties) = properties {
            let mut bytes = Vec::with_capacity(PROPERTIES_SIZE);
            properties.write(&mut PropertyWriter { bytes: &mut bytes }, false);
            block.put_slice(&bytes);
        }
        let properties_end = block.len() as u32;
        block.put_slice(payload);
        (block.split().freeze(), topic_end, properties_end)
    }

    /// The stored form, for [`PublishTemplate::restore`]: length of the properties, and all bytes in two parts.
    pub fn to_store(&self) -> (u32, [&[u8]; 2]) {
        (self.properties_end - self.topic_end, [&self.head, &self.payload])
    }

    /// Restores a stored message, see [`PublishTemplate::to_store`]. Returns `None` for invalid bytes.
    ///
    /// The message is a slice of `bytes`, which it keeps alive.
    pub fn restore(properties_len: u32, bytes: Bytes) -> Option<Self> {
        let topic_len = u16::from_be_bytes(*bytes.first_chunk()?);
        let topic_end = 2 + u32::from(topic_len);
        let properties_end = topic_end.checked_add(properties_len)?;
        let payload_len = bytes.len().checked_sub(properties_end as usize)?;
        u32::try_from(bytes.len()).ok()?;
        if topic_len == 0 || std::str::from_utf8(&bytes[2..topic_end as usize]).is_err() {
            return None;
        }
        let (mut head, mut payload) = (bytes, Bytes::new());
        if payload_len >= WriteBuffer::SHARE_FROM {
            payload = head.split_off(properties_end as usize);
        }
        Some(Self { head, topic_end, properties_end, payload })
    }

    /// Whether the payload is elsewhere: see [`PublishTemplate::external`].
    #[inline]
    pub fn is_external(&self) -> bool {
        !self.payload.is_empty() && self.payload.len() < WriteBuffer::SHARE_FROM
    }

    /// The message with `stand_in` in place of its payload, which is empty.
    pub(super) fn with_stand_in(self, stand_in: Bytes) -> Self {
        Self { payload: stand_in, ..self }
    }

    /// The value of the first User Property with this name.
    pub fn user_property(&self, name: &str) -> Option<&[u8]> {
        let mut rest = &self.head[self.topic_end as usize..self.properties_end as usize];
        while let Some((id, after)) = rest.split_first() {
            rest = after;
            match PropertyId::from_value(u32::from(*id))? {
                PropertyId::PayloadFormatIndicator => rest = rest.get(1..)?,
                PropertyId::UserProperty => {
                    let (key, value) = (take_counted(&mut rest)?, take_counted(&mut rest)?);
                    if key == name.as_bytes() {
                        return Some(value);
                    }
                }
                _ => _ = take_counted(&mut rest)?, // Content Type, Response Topic, Correlation Data
            }
        }
        None
    }

    /// The topic's bytes.
    pub fn topic(&self) -> &[u8] {
        &self.head[2..self.topic_end as usize]
    }

    /// The payload.
    pub fn payload(&self) -> &[u8] {
        if self.payload.is_empty() { &self.head[self.properties_end as usize..] } else { &self.payload }
    }

    /// Bytes of memory that the message accounts for in a queue.
    pub fn len(&self) -> usize {
        self.head.len() + self.payload.len()
    }

    /// Always false: a topic has at least one character.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// A copy that pins no larger buffer, for long storage.
    #[must_use]
    pub fn detach(&self) -> Self {
        Self {
            head: Bytes::copy_from_slice(&self.head),
            payload: if self.payload.is_empty() { Bytes::new() } else { Bytes::copy_from_slice(&self.payload) },
            ..*self
        }
    }

    /// Address and length of the head. Messages encoded into one block lie side by side.
    pub fn head_place(&self) -> (usize, usize) {
        (self.head.as_ptr().addr(), self.head.len())
    }

    /// As [`PublishTemplate::detach`], but a shared payload stays shared: copies for many receivers would take more
    /// memory than the buffer that it pins.
    #[must_use]
    pub fn detach_head(&self) -> Self {
        Self { head: Bytes::copy_from_slice(&self.head), payload: self.payload.clone(), ..*self }
    }

    /// Size of the whole packet in bytes, to compare with the receiver's Maximum Packet Size.
    pub fn encoded_len(&self, header: &PublishHeader<'_>, version: ProtocolVersion) -> usize {
        let remaining = self.parts().remaining(header, version).0;
        1 + varint_len(remaining as u32) + remaining
    }

    /// An upper bound of [`PublishTemplate::encoded_len`] that is cheaper to compute.
    pub fn encoded_len_maximum(&self, header: &PublishHeader<'_>) -> usize {
        let identifiers = header.subscription_identifiers.len() * (1 + VARINT_WIDTH_MAX);
        self.len() + OWN_SIZE_MAX + identifiers + header.deliveries_len()
    }

    /// Appends the packet for one receiver, or nothing if it would be larger than [`crate::PACKET_SIZE_MAX`].
    pub fn encode(&self, header: &PublishHeader<'_>, version: ProtocolVersion, out: &mut WriteBuffer) {
        if self.parts().encode(header, version, out) && !self.payload.is_empty() {
            out.put_payload(&self.payload);
        }
    }

    fn parts(&self) -> PublishParts<'_> {
        PublishParts {
            topic: self.topic(),
            rest: &self.head[self.topic_end as usize..],
            properties_len: (self.properties_end - self.topic_end) as usize,
            payload_len: self.len() - self.properties_end as usize,
        }
    }
}

/// The parts of a PUBLISH, in separate places of memory.
pub(super) struct PublishParts<'a> {
    pub(super) topic: &'a [u8],
    /// Encoded properties without Topic Alias, Subscription Identifiers and Message Expiry, and a payload that directly
    /// follows them.
    pub(super) rest: &'a [u8],
    pub(super) properties_len: usize,
    pub(super) payload_len: usize,
}

impl PublishParts<'_> {
    /// Remaining Length and Property Length.
    fn remaining(&self, header: &PublishHeader<'_>, version: ProtocolVersion) -> (usize, usize) {
        let topic = if header.topic_is_aliased { 0 } else { self.topic.len() };
        let packet_id = if header.packet_id.is_some() { 2 } else { 0 };
        let body = 2 + topic + packet_id + self.payload_len;
        if !version.is_v5() {
            return (body, 0);
        }
        let ids: usize = header.subscription_identifiers.iter().map(|&id| 1 + varint_len(id)).sum();
        let properties = self.properties_len
            + ids
            + header.deliveries_len()
            + if header.topic_alias.is_some() { 3 } else { 0 }
            + if header.message_expiry_interval.is_some() { 5 } else { 0 };
        (body + varint_len(properties as u32) + properties, properties)
    }

    /// Appends everything up to the end of `rest`. Appends nothing and returns false if the size exceeds the largest
    /// Remaining Length.
    #[must_use]
    pub(super) fn encode(&self, header: &PublishHeader<'_>, version: ProtocolVersion, out: &mut WriteBuffer) -> bool {
        debug_assert_eq!(header.packet_id.is_some(), header.qos.is_acknowledged(), "[MQTT-2.2.1-2]");
        debug_assert!(version.is_v5() || !header.topic_is_aliased, "3.1.1 has no Topic Alias");
        let (remaining, properties_len) = self.remaining(header, version);
        if remaining > VARINT_MAX as usize {
            return false;
        }
        let block = out.block();
        let inline_payload = if self.payload_len < WriteBuffer::SHARE_FROM { self.payload_len } else { 0 };
        block.reserve(5 + remaining - self.payload_len + inline_payload);
        let flags = u8::from(header.dup) << 3 | header.qos.bits() << 1 | u8::from(header.retain);
        block.push((PacketType::Publish as u8) << 4 | flags);
        write_varint(block, remaining as u32);
        if header.topic_is_aliased {
            block.put_u16(0);
        } else {
            block.put_u16(self.topic.len() as u16);
            block.extend_from_slice(self.topic);
        }
        if let Some(packet_id) = header.packet_id {
            block.put_u16(packet_id.get());
        }
        if !version.is_v5() {
            block.extend_from_slice(&self.rest[self.properties_len..]);
            return true;
        }
        write_varint(block, properties_len as u32);
        if let Some(seconds) = header.message_expiry_interval {
            block.push(PropertyId::MessageExpiryInterval.value());
            block.put_u32(seconds);
        }
        if let Some(alias) = header.topic_alias {
            block.push(PropertyId::TopicAlias.value());
            block.put_u16(alias.get());
        }
        for &id in header.subscription_identifiers {
            block.push(PropertyId::SubscriptionIdentifier.value());
            write_varint(block, id);
        }
        if header.deliveries != 0 {
            header.put_deliveries(block);
        }
        block.extend_from_slice(self.rest);
        true
    }
}

/// Takes a value behind its length in two bytes.
fn take_counted<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (len, after) = rest.split_first_chunk()?;
    let (value, after) = after.split_at_checked(u16::from_be_bytes(*len).into())?;
    *rest = after;
    Some(value)
}

/// Bytes of the longest Variable Byte Integer.
const VARINT_WIDTH_MAX: usize = 4;

/// Largest receiver-specific part of a PUBLISH without Subscription Identifiers: first byte, two lengths, Packet
/// Identifier, Topic Alias, Message Expiry Interval.
const OWN_SIZE_MAX: usize = 1 + 2 * VARINT_WIDTH_MAX + 2 + 3 + 5;

/// Room for a message's properties in bytes: nearly always enough for one allocation.
pub(super) const PROPERTIES_SIZE: usize = 128;

/// Size in bytes of the blocks that heads are carved out of.
const BLOCK_SIZE: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Text, UserProperty};

    #[test]
    fn borrowed_parts_encode_as_a_template_does() {
        let topic = TopicName::try_from("a/b").unwrap();
        for (version, size) in [(ProtocolVersion::V5, 3), (ProtocolVersion::V311, 3), (ProtocolVersion::V5, 5000)] {
            let payload = Bytes::from(vec![7; size]);
            let header = PublishHeader {
                dup: true,
                qos: QoS::AtLeastOnce,
                retain: true,
                packet_id: PacketId::new(9),
                ..PublishHeader::default()
            };
            let (mut borrowed, mut shared) = (WriteBuffer::new(), WriteBuffer::new());
            header.encode(&topic, &payload, version, &mut borrowed);
            PublishTemplate::new(&topic, None, &payload, &mut BytesMut::new()).encode(&header, version, &mut shared);
            assert_eq!(borrowed.to_bytes(), shared.to_bytes());
        }
    }

    #[test]
    fn deliveries_are_a_user_property_of_version_5_alone() {
        let topic = TopicName::try_from("t").unwrap();
        let template = PublishTemplate::new(&topic, None, &Bytes::from_static(b"hi"), &mut BytesMut::new());
        for (deliveries, version, packet) in [
            (0, ProtocolVersion::V5, &b"\x30\x06\0\x01t\0hi"[..]),
            (2, ProtocolVersion::V5, b"\x30\x16\0\x01t\x10\x26\0\x0Adeliveries\0\x012hi"),
            (10, ProtocolVersion::V5, b"\x30\x17\0\x01t\x11\x26\0\x0Adeliveries\0\x0210hi"),
            (2, ProtocolVersion::V311, b"\x30\x05\0\x01thi"),
        ] {
            let (mut out, header) = (WriteBuffer::new(), PublishHeader { deliveries, ..PublishHeader::default() });
            template.encode(&header, version, &mut out);
            assert_eq!(out.to_bytes(), packet, "{deliveries}");
            assert_eq!(template.encoded_len(&header, version), packet.len());
            assert!(template.encoded_len_maximum(&header) >= packet.len());
        }
    }

    #[test]
    fn first_user_property_of_a_name_is_found_behind_all_others() {
        let (topic, text) = (TopicName::try_from("t").unwrap(), Text::from_static);
        let named = |name, value| UserProperty::new(text(name), text(value));
        let properties = MessageProperties {
            payload_format_indicator: Some(true),
            message_expiry_interval: Some(5),
            content_type: Some(text("c")),
            response_topic: Some(text("r")),
            correlation_data: Some(Bytes::from_static(b"\x26\0\x01b\0\x01x")),
            user_properties: vec![named("a", "1"), named("b", "2"), named("b", "3")],
        };
        let of =
            |properties| PublishTemplate::new(&topic, properties, &Bytes::from_static(b"hi"), &mut BytesMut::new());
        let found = ["a", "b", "c"].map(|name| of(Some(&properties)).user_property(name).map(<[u8]>::to_vec));
        assert_eq!(found, [Some(b"1".to_vec()), Some(b"2".to_vec()), None]);
        assert_eq!(of(None).user_property("a"), None);
    }

    #[test]
    fn stored_message_round_trips_and_invalid_bytes_are_refused() {
        let topic = TopicName::try_from("a/b").unwrap();
        let properties = MessageProperties { payload_format_indicator: Some(true), ..MessageProperties::default() };
        for (properties, payload) in [(None, 0), (Some(&properties), 5), (Some(&properties), 5000), (None, 4096)] {
            let payload = Bytes::from(vec![7; payload]);
            let template = PublishTemplate::new(&topic, properties, &payload, &mut BytesMut::new());
            let (properties_len, parts) = template.to_store();
            let stored = Bytes::from(parts.concat());
            let restored = PublishTemplate::restore(properties_len, stored.clone()).unwrap();
            assert_eq!((restored.topic(), restored.payload()), (template.topic(), template.payload()));
            let encoded = [&template, &restored].map(|template| {
                let mut out = WriteBuffer::new();
                template.encode(&PublishHeader::default(), ProtocolVersion::V5, &mut out);
                out.to_bytes()
            });
            assert_eq!(encoded[0], encoded[1]);
            for end in 0..5 {
                assert!(PublishTemplate::restore(0, stored.slice(..end)).is_none(), "{end} bytes");
            }
            assert!(PublishTemplate::restore(u32::MAX, stored.clone()).is_none());
            assert!(PublishTemplate::restore(stored.len() as u32 - 4, stored).is_none());
        }
    }
}
