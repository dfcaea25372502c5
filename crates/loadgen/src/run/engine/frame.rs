//! PUBLISH frames to send and frames that arrive; parsing reads only the fields that the load needs.

use bytes::{Buf, Bytes};
use tenbin_codec::{
    Decoded, Decoder, Packet, PacketId, PacketType, ProtocolVersion, Publish, QoS, ReasonCode, TopicName, WriteBuffer,
};

use crate::run::Stamp;

/// The PUBLISH frames of one publisher, one for each topic.
///
/// They are encoded once. Each message patches the Packet Identifier and the stamp.
///
/// ```text
/// fixed header | topic | Packet Identifier (QoS 1, 2) | properties (v5: none) | payload with stamp
/// └───────────────────── one for each topic ────────────────────────────────┘  └────── one ─────┘
/// ```
#[derive(Debug, Clone)]
pub(in crate::run) struct Frames {
    /// Bytes before the payload, for one topic after the other.
    heads: Vec<u8>,
    /// Where each topic's head ends.
    ends: Vec<usize>,
    payload: Vec<u8>,
    /// Distance of the Packet Identifier from the end of a head; `None` at QoS 0.
    packet_id_from_end: Option<usize>,
}

/// Common properties of all frames of a publisher.
#[derive(Debug, Clone, Copy)]
pub(in crate::run) struct FrameOptions {
    pub(in crate::run) version: ProtocolVersion,
    pub(in crate::run) qos: QoS,
    pub(in crate::run) retain: bool,
    /// Bytes of the payload.
    pub(in crate::run) payload_len: usize,
}

impl Frames {
    /// Encodes the frames for these topics, in order.
    pub(in crate::run) fn new(options: FrameOptions, topics: impl IntoIterator<Item = TopicName>) -> Self {
        let FrameOptions { version, qos, payload_len, .. } = options;
        let payload = Bytes::from(vec![b'x'; payload_len]);
        let mut frames = Self {
            heads: Vec::new(),
            ends: Vec::new(),
            payload: payload.to_vec(),
            packet_id_from_end: qos.is_acknowledged().then_some(2 + usize::from(version.is_v5())),
        };
        for topic in topics {
            let mut publish = Publish::new(topic, payload.clone());
            publish.qos = qos;
            publish.retain = options.retain;
            publish.packet_id = if qos.is_acknowledged() { PacketId::new(1) } else { None };
            let mut out = WriteBuffer::new();
            Packet::Publish(publish).encode(version, &mut out);
            let head_len = out.remaining().saturating_sub(payload_len);
            frames.heads.extend_from_slice(&out.copy_to_bytes(head_len));
            frames.ends.push(frames.heads.len());
        }
        frames
    }

    /// Size of the largest frame, in bytes.
    pub(in crate::run) fn len_max(&self) -> usize {
        let head = (0..self.ends.len()).map(|topic| self.head(topic).len()).max().unwrap_or_default();
        head + self.payload.len()
    }

    /// Appends the frame of `topic` with `packet_id`, which is left out at QoS 0.
    #[inline]
    pub(in crate::run) fn append(&self, topic: usize, packet_id: u16, stamp: Stamp, out: &mut Vec<u8>) {
        out.extend_from_slice(self.head(topic));
        let payload_at = out.len();
        if let Some(from_end) = self.packet_id_from_end {
            let at = payload_at - from_end;
            out[at..at + 2].copy_from_slice(&packet_id.to_be_bytes());
        }
        out.extend_from_slice(&self.payload);
        stamp.encode(&mut out[payload_at..]);
    }

    /// As [`Frames::append`], with DUP set, for a message that was sent before [MQTT-3.3.1-1].
    pub(super) fn append_again(&self, topic: usize, packet_id: u16, stamp: Stamp, out: &mut Vec<u8>) {
        let start = out.len();
        self.append(topic, packet_id, stamp, out);
        out[start] |= DUP;
    }

    #[inline]
    fn head(&self, topic: usize) -> &[u8] {
        let start = topic.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.heads[start..self.ends[topic]]
    }
}

/// A frame that arrived: its first byte, and the bytes after the fixed header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub(super) first: u8,
    pub(super) body: &'a [u8],
}

/// The server that a DISCONNECT of MQTT 5.0 names, with Reason Code 0x9C.
pub(super) fn server_reference(frame: &Frame<'_>) -> Option<String> {
    if frame.packet_type() != Some(PacketType::Disconnect) {
        return None;
    }
    let mut bytes = vec![frame.first];
    let mut length = frame.body.len();
    loop {
        let byte = (length & 0x7F) as u8;
        length >>= 7;
        bytes.push(if length > 0 { byte | 0x80 } else { byte });
        if length == 0 {
            break;
        }
    }
    bytes.extend_from_slice(frame.body);
    let mut decoder = Decoder::client(ProtocolVersion::V5, u32::MAX);
    let decoded = decoder.decode(&mut bytes[..].into()).ok()?;
    let Decoded::Packet(Packet::Disconnect(disconnect)) = decoded else { return None };
    let server = disconnect.properties.and_then(|properties| properties.server_reference);
    server.filter(|_| disconnect.reason == ReasonCode::UseAnotherServer).map(|server| server.to_string())
}

/// The bytes are not a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoFrame;

/// Lengths of the fixed header and of the whole frame at the start of `bytes`; `None` if the header is incomplete.
#[inline]
pub(super) fn extent(bytes: &[u8]) -> Result<Option<(usize, usize)>, NoFrame> {
    let length = variable_length(bytes.get(1..).unwrap_or_default())?;
    Ok(length.map(|(remaining, size)| (1 + size, 1 + size + remaining)))
}

/// Value and size of the Variable Byte Integer at the start of `bytes`; `None` if it is incomplete.
#[inline]
fn variable_length(bytes: &[u8]) -> Result<Option<(usize, usize)>, NoFrame> {
    let mut value = 0;
    for index in 0..4 {
        let Some(&byte) = bytes.get(index) else { return Ok(None) };
        value |= usize::from(byte & 0x7F) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(Some((value, index + 1)));
        }
    }
    Err(NoFrame)
}

impl<'a> Frame<'a> {
    /// The frame at the start of `bytes` and its size; `None` if it is incomplete.
    #[inline]
    pub(super) fn split(bytes: &'a [u8]) -> Result<Option<(Self, usize)>, NoFrame> {
        let Some((header, frame)) = extent(bytes)? else { return Ok(None) };
        Ok(bytes.get(header..frame).map(|body| (Self { first: bytes[0], body }, frame)))
    }

    pub(super) fn packet_type(&self) -> Option<PacketType> {
        PacketType::from_bits(self.first >> 4)
    }

    /// Parses a PUBLISH; `None` if it is malformed.
    #[inline]
    pub(super) fn publish(&self, version: ProtocolVersion) -> Option<Arrival<'a>> {
        let qos = QoS::from_bits(self.first >> 1 & 3)?; // [MQTT-3.3.1-4]
        let (topic_len, rest) = self.body.split_first_chunk()?;
        let mut rest = rest.get(usize::from(u16::from_be_bytes(*topic_len))..)?;
        let mut packet_id = 0;
        if qos.is_acknowledged() {
            let (id, after) = rest.split_first_chunk()?;
            packet_id = u16::from_be_bytes(*id);
            if packet_id == 0 {
                return None; // [MQTT-2.2.1-3]
            }
            rest = after;
        }
        let payload = if version.is_v5() { after_properties(rest)? } else { rest };
        Some(Arrival { dup: self.first & DUP != 0, qos, packet_id, payload })
    }

    /// Packet Identifier of an acknowledgement.
    pub(super) fn ack_packet_id(&self) -> Option<u16> {
        self.body.first_chunk().map(|id| u16::from_be_bytes(*id))
    }

    /// Whether the acknowledgement's Reason Code is a refusal.
    pub(super) fn is_refusal(&self) -> bool {
        self.body.get(2).is_some_and(|&reason| reason >= 0x80)
    }

    /// Describes an unexpected frame: a DISCONNECT with its Reason Code, or a packet that is not allowed here.
    pub(super) fn complaint(&self) -> String {
        match (self.packet_type(), self.body.first()) {
            (Some(PacketType::Disconnect), Some(&reason)) => match ReasonCode::from_byte(reason) {
                Some(reason) => format!("DISCONNECT: {reason}"),
                None => format!("DISCONNECT with reason {reason:#04x}"),
            },
            (Some(packet_type), _) => format!("unexpected {packet_type}"),
            (None, _) => "malformed packet".to_owned(),
        }
    }
}

/// Content of a PUBLISH.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Arrival<'a> {
    pub(super) dup: bool,
    pub(super) qos: QoS,
    /// 0 at QoS 0.
    pub(super) packet_id: u16,
    pub(super) payload: &'a [u8],
}

/// Skips the properties at the start of `bytes`.
#[inline]
fn after_properties(bytes: &[u8]) -> Option<&[u8]> {
    // Fast path: usually there are no properties.
    if let Some((0, payload)) = bytes.split_first() {
        return Some(payload);
    }
    let (length, size) = variable_length(bytes).ok()??;
    bytes.get(size + length..)
}

/// Appends an acknowledgement with success.
#[inline]
pub(super) fn append_ack(packet_type: PacketType, packet_id: u16, out: &mut Vec<u8>) {
    let flags = if packet_type == PacketType::PubRel { 0b0010 } else { 0 };
    let [high, low] = packet_id.to_be_bytes();
    out.extend_from_slice(&[(packet_type as u8) << 4 | flags, 2, high, low]);
}

impl From<NoFrame> for String {
    fn from(_: NoFrame) -> Self {
        "malformed packet".to_owned()
    }
}

const DUP: u8 = 0b1000;

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use tenbin_codec::{Decoded, Decoder, MessageProperties, Text, UserProperty};

    use super::*;

    const VERSIONS: [ProtocolVersion; 2] = [ProtocolVersion::V311, ProtocolVersion::V5];
    const LEVELS: [QoS; 3] = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];

    fn topics(names: &[&str]) -> Vec<TopicName> {
        names.iter().map(|&name| TopicName::try_from(name).unwrap()).collect()
    }

    fn stamp(sequence: u32) -> Stamp {
        Stamp { due_ns: 1 << 60, tag: 0xABCD, stream: 7, sequence, late_us: 3 }
    }

    #[test]
    fn frame_carries_topic_packet_id_and_stamp() {
        let names = ["a/b", "some/longer/topic"];
        for (version, qos) in VERSIONS.into_iter().flat_map(|version| LEVELS.map(|qos| (version, qos))) {
            for payload_len in [8, 19, 20, 100, 200, 70_000, 300_000] {
                let frames = Frames::new(FrameOptions { version, qos, retain: true, payload_len }, topics(&names));
                let mut out = Vec::new();
                frames.append(0, 0x0102, stamp(5), &mut out);
                frames.append_again(1, 0xFFFF, stamp(6), &mut out);
                assert!(out.len() < 2 * frames.len_max() && out.len() > frames.len_max());

                let mut input = BytesMut::from(&out[..]);
                let mut decoder = Decoder::client(version, u32::MAX);
                let mut rest = &out[..];
                for (index, (id, sequence)) in [(0x0102, 5), (0xFFFF, 6)].into_iter().enumerate() {
                    // Nothing is sent again at QoS 0, where DUP must not be set [MQTT-3.3.1-2].
                    if qos == QoS::AtMostOnce && index == 1 {
                        break;
                    }
                    let Ok(Decoded::Packet(Packet::Publish(publish))) = decoder.decode(&mut input) else {
                        panic!("{version} {qos} {payload_len}");
                    };
                    let packet_id = if qos.is_acknowledged() { PacketId::new(id) } else { None };
                    assert_eq!((publish.packet_id, publish.qos, publish.dup), (packet_id, qos, index == 1));
                    assert_eq!((publish.topic.to_string().as_str(), publish.retain), (names[index], true));
                    assert_eq!(Stamp::decode_due_ns(&publish.payload), Some(stamp(sequence).due_ns));
                    if payload_len >= Stamp::LEN {
                        assert_eq!(Stamp::decode(&publish.payload), Some(stamp(sequence)));
                        assert!(publish.payload[Stamp::LEN..].iter().all(|&byte| byte == b'x'));
                    }

                    let (frame, size) = Frame::split(rest).unwrap().unwrap();
                    let arrival = frame.publish(version).unwrap();
                    assert_eq!((arrival.payload, arrival.qos), (&publish.payload[..], qos));
                    assert_eq!((arrival.dup, arrival.packet_id), (publish.dup, packet_id.map_or(0, PacketId::get)));
                    rest = &rest[size..];
                }
            }
        }
    }

    #[test]
    fn properties_of_a_message_are_skipped() {
        for text_len in [1, 100, 200, 20_000] {
            let mut publish = Publish::new(TopicName::try_from("t").unwrap(), Bytes::from_static(b"payload"));
            publish.subscription_identifiers = vec![1, 268_435_455];
            let text = Text::try_from("v".repeat(text_len)).unwrap();
            let property = UserProperty::new(text.clone(), text);
            let properties = MessageProperties { user_properties: vec![property], ..Default::default() };
            publish.properties = Some(Box::new(properties));
            let mut out = WriteBuffer::new();
            Packet::Publish(publish).encode(ProtocolVersion::V5, &mut out);
            let bytes = out.to_bytes();
            let (frame, _) = Frame::split(&bytes).unwrap().unwrap();
            assert_eq!(frame.publish(ProtocolVersion::V5).unwrap().payload, b"payload");
        }
    }

    #[test]
    fn malformed_publish_is_none() {
        for (first, body) in [
            (0x30, &b""[..]),
            (0x30, b"\0"),
            (0x30, b"\0\x05abc"),
            (0x30, b"\0\x01t"),                 // no properties
            (0x30, b"\0\x01t\x02a"),            // properties shorter than announced
            (0x30, b"\0\x01t\xFF\xFF\xFF\xFF"), // no valid length
            (0x32, b"\0\x01t\0"),               // half a Packet Identifier
            (0x32, b"\0\x01t\0\0\0"),           // Packet Identifier 0
            (0x36, b"\0\x01t\0\x01\0"),         // QoS 3
        ] {
            assert_eq!(Frame { first, body }.publish(ProtocolVersion::V5), None, "{first:#x} {body:?}");
        }
        assert_eq!(Frame { first: 0x30, body: b"\0\x01t" }.publish(ProtocolVersion::V311).unwrap().payload, b"");
    }

    #[test]
    fn incomplete_frame_is_none() {
        let bytes = [&[0x30, 0x80, 0x01][..], &[0; 128]].concat();
        for len in 0..bytes.len() {
            assert_eq!(Frame::split(&bytes[..len]), Ok(None), "{len}");
        }
        assert_eq!(Frame::split(&bytes), Ok(Some((Frame { first: 0x30, body: &[0; 128] }, 131))));
        assert_eq!(Frame::split(&[0x30, 0xFF, 0xFF, 0xFF, 0xFF]), Err(NoFrame));
    }

    #[test]
    fn acknowledgements_are_what_the_decoder_expects() {
        for packet_type in [PacketType::PubAck, PacketType::PubRec, PacketType::PubRel, PacketType::PubComp] {
            let mut out = Vec::new();
            append_ack(packet_type, 0x1234, &mut out);
            let (frame, _) = Frame::split(&out).unwrap().unwrap();
            assert_eq!((frame.ack_packet_id(), frame.is_refusal()), (Some(0x1234), false));
            let decoded = Decoder::client(ProtocolVersion::V5, 10).decode(&mut BytesMut::from(&out[..]));
            let Ok(Decoded::Packet(packet)) = decoded else { panic!("{packet_type}") };
            assert_eq!(packet.packet_type(), packet_type);
        }
        assert!(Frame { first: 0x40, body: &[0, 1, 0x97] }.is_refusal());
        assert!(!Frame { first: 0x40, body: &[0, 1, 0x10] }.is_refusal());
    }

    #[test]
    fn complaint_quotes_the_disconnect_reason() {
        assert_eq!(Frame { first: 0xE0, body: &[0x8B] }.complaint(), "DISCONNECT: Server shutting down (0x8B)");
        assert_eq!(Frame { first: 0xE0, body: &[0x7F] }.complaint(), "DISCONNECT with reason 0x7f");
        assert_eq!(Frame { first: 0xE0, body: &[] }.complaint(), "unexpected DISCONNECT");
        assert_eq!(Frame { first: 0x00, body: &[] }.complaint(), "malformed packet");
    }
}
