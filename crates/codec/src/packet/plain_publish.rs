use bytes::{BufMut, BytesMut};

use super::PublishTemplate;
use crate::varint::{peek_varint, write_varint};
use crate::{PacketId, PacketType, ProtocolVersion, QoS, TopicName, WriteBuffer, varint_len};

/// A PUBLISH at QoS 0 with only a Topic Name and a small payload: neither RETAIN nor properties.
///
/// It is the same packet for all receivers of one protocol version. So it can be encoded on arrival, and pass queues as
/// bytes, many in a row. [`PlainPublish::split_first`] separates them again.
///
/// ```
/// use tenbin_codec::{PlainPublish, ProtocolVersion, TopicName};
///
/// let topic = TopicName::try_from("a/b")?;
/// let mut packets = Vec::new();
/// for payload in [b"hi", b"ho"] {
///     let publish = PlainPublish::new(&topic, payload).expect("it is small");
///     publish.encode(ProtocolVersion::V5, &mut packets);
/// }
/// assert_eq!(packets, b"\x30\x08\0\x03a/b\0hi\x30\x08\0\x03a/b\0ho");
/// let (first, rest) = PlainPublish::split_first(ProtocolVersion::V5, &packets).expect("there are two");
/// assert_eq!((first.payload(), rest.len()), (&b"hi"[..], 10));
/// # Ok::<(), tenbin_codec::TopicError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlainPublish<'a> {
    topic: &'a [u8],
    payload: &'a [u8],
}

impl<'a> PlainPublish<'a> {
    /// Returns `None` for a payload of [`WriteBuffer::SHARE_FROM`] bytes or more, which is better shared than copied.
    #[inline]
    pub fn new(topic: &'a TopicName, payload: &'a [u8]) -> Option<Self> {
        (payload.len() < WriteBuffer::SHARE_FROM).then_some(Self { topic: topic.as_bytes(), payload })
    }

    /// Whether a plain PUBLISH may be the first of `packets`, judged by its first byte.
    #[inline]
    pub fn may_begin(packets: &[u8]) -> bool {
        packets.first() == Some(&FIRST_BYTE)
    }

    /// Splits the first of `packets` from the rest, if it is a complete plain PUBLISH. Does not check the Topic Name.
    #[inline]
    pub fn split_first(version: ProtocolVersion, packets: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (&first, after_first) = packets.split_first()?;
        if first != FIRST_BYTE {
            return None;
        }
        let (topic, body, rest) = split_topic(packets, after_first)?;
        Some((Self::of(version, topic, body)?, rest))
    }

    /// A plain message of the part behind Topic Name and Packet Identifier.
    #[inline(always)] // once for each message
    fn of(version: ProtocolVersion, topic: &'a [u8], body: &'a [u8]) -> Option<Self> {
        let payload = if version.is_v5() { body.strip_prefix(&[NO_PROPERTIES])? } else { body };
        (payload.len() < WriteBuffer::SHARE_FROM).then_some(Self { topic, payload })
    }

    /// The Topic Name.
    #[inline]
    pub fn topic(&self) -> &'a [u8] {
        self.topic
    }

    /// The payload.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Size of the packet in bytes.
    #[inline]
    pub fn encoded_len(&self, version: ProtocolVersion) -> usize {
        let remaining = self.remaining(version);
        1 + varint_len(remaining as u32) + remaining
    }

    /// [`PublishTemplate::len`] of [`PlainPublish::template`].
    #[inline]
    pub fn template_len(&self) -> usize {
        2 + self.topic.len() + self.payload.len()
    }

    /// Appends the packet.
    #[inline]
    pub fn encode(&self, version: ProtocolVersion, out: &mut Vec<u8>) {
        let remaining = self.remaining(version);
        out.reserve(HEADER_LEN_MAX + remaining);
        out.push(FIRST_BYTE);
        write_varint(out, remaining as u32);
        out.put_u16(self.topic.len() as u16);
        out.extend_from_slice(self.topic);
        if version.is_v5() {
            out.push(NO_PROPERTIES);
        }
        out.extend_from_slice(self.payload);
    }

    /// The message as a template, which allows QoS and flags; for `block` see [`PublishTemplate::new`].
    pub fn template(&self, block: &mut BytesMut) -> PublishTemplate {
        PublishTemplate::small(self.topic, self.payload, block)
    }

    /// Remaining Length, which fits: a topic and a small payload are far below its maximum.
    fn remaining(&self, version: ProtocolVersion) -> usize {
        self.template_len() + usize::from(version.is_v5())
    }
}

/// A PUBLISH at QoS 1 or 2 that is plain otherwise ([`PlainPublish`]), and is sent for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlainAcknowledged<'a> {
    /// Topic Name and payload.
    pub publish: PlainPublish<'a>,
    /// 1 or 2.
    pub qos: QoS,
    /// Packet Identifier.
    pub packet_id: PacketId,
}

impl<'a> PlainAcknowledged<'a> {
    /// Whether such a PUBLISH may be the first of `packets`, judged by its first byte.
    #[inline]
    pub fn may_begin(packets: &[u8]) -> bool {
        matches!(packets.first(), Some(&(FIRST_BYTE_OF_QOS_1 | FIRST_BYTE_OF_QOS_2)))
    }

    /// Splits the first of `packets` from the rest, if it is such a PUBLISH and complete. Does not check the Topic Name.
    #[inline]
    pub fn split_first(version: ProtocolVersion, packets: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (&first, after_first) = packets.split_first()?;
        let qos = match first {
            FIRST_BYTE_OF_QOS_1 => QoS::AtLeastOnce,
            FIRST_BYTE_OF_QOS_2 => QoS::ExactlyOnce,
            _ => return None,
        };
        let (topic, body, rest) = split_topic(packets, after_first)?;
        let (packet_id, body) = body.split_first_chunk::<2>()?;
        let packet_id = PacketId::new(u16::from_be_bytes(*packet_id))?;
        Some((Self { publish: PlainPublish::of(version, topic, body)?, qos, packet_id }, rest))
    }
}

/// Splits the Topic Name of the first of `packets` from the rest of its body, and both from the other packets.
#[inline(always)] // once for each message
fn split_topic<'a>(packets: &'a [u8], after_first: &[u8]) -> Option<(&'a [u8], &'a [u8], &'a [u8])> {
    let (remaining, width) = peek_varint(after_first).ok()??;
    let (packet, rest) = packets.split_at_checked(1 + width + remaining as usize)?;
    let body = &packet[1 + width..];
    let (topic_len, body) = body.split_first_chunk::<2>()?;
    let (topic, body) = body.split_at_checked(usize::from(u16::from_be_bytes(*topic_len)))?;
    Some((topic, body, rest))
}

/// First byte of a PUBLISH without flags.
const FIRST_BYTE: u8 = (PacketType::Publish as u8) << 4;
/// First byte of a PUBLISH with QoS 1 or 2, without DUP and RETAIN.
const FIRST_BYTE_OF_QOS_1: u8 = FIRST_BYTE | QoS::AtLeastOnce.bits() << 1;
const FIRST_BYTE_OF_QOS_2: u8 = FIRST_BYTE | QoS::ExactlyOnce.bits() << 1;
/// Property Length 0.
const NO_PROPERTIES: u8 = 0;
/// Bytes of the longest fixed header.
const HEADER_LEN_MAX: usize = 5;
