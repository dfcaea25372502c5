//! PUBLISH frames to send and frames that came, without a look at what they do not tell the load.

use bytes::Bytes;
use tenbin_codec::{Packet, PacketId, PacketType, ProtocolVersion, Publish, QoS, TopicName, WriteBuffer};

/// One PUBLISH, encoded once and sent over and over with another Packet Identifier and mark.
#[derive(Debug, Clone)]
pub(super) struct PublishFrame {
    bytes: Vec<u8>,
    /// Where the Packet Identifier stands; `None` at QoS 0.
    packet_id_at: Option<usize>,
}

impl PublishFrame {
    /// The mark is the last byte of the payload, so that `payload_len` is at least 1.
    pub(super) fn new(version: ProtocolVersion, topic: &TopicName, payload_len: usize, qos: QoS) -> Self {
        let mut publish = Publish::new(topic.clone(), Bytes::from(vec![b'x'; payload_len]));
        publish.qos = qos;
        publish.packet_id = if qos.is_acknowledged() { PacketId::new(1) } else { None };
        let mut out = WriteBuffer::new();
        Packet::Publish(publish).encode(version, &mut out);
        let bytes = Vec::from(out.to_bytes());
        let properties_len = usize::from(version.is_v5());
        let packet_id_at = qos.is_acknowledged().then(|| bytes.len() - payload_len - properties_len - 2);
        Self { bytes, packet_id_at }
    }

    /// Size in bytes.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Appends the frame with `packet_id`, which QoS 0 leaves out, and `mark`.
    pub(super) fn append(&self, packet_id: u16, mark: u8, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&self.bytes);
        if let Some(at) = self.packet_id_at {
            out[start + at..start + at + 2].copy_from_slice(&packet_id.to_be_bytes());
        }
        if let Some(last) = out.last_mut() {
            *last = mark;
        }
    }
}

/// A frame that came: its first byte and what follows the fixed header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub(super) first: u8,
    pub(super) body: &'a [u8],
}

/// Bytes that are no frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoFrame;

impl<'a> Frame<'a> {
    /// The frame at the start of `bytes` and its size; `None` when it goes on past the end.
    pub(super) fn split(bytes: &'a [u8]) -> Result<Option<(Self, usize)>, NoFrame> {
        let mut remaining = 0;
        for index in 0..4 {
            let Some(&byte) = bytes.get(1 + index) else { return Ok(None) };
            remaining |= usize::from(byte & 0x7F) << (7 * index);
            if byte & 0x80 == 0 {
                let start = 2 + index;
                let body = bytes.get(start..start + remaining);
                return Ok(body.map(|body| (Self { first: bytes[0], body }, start + remaining)));
            }
        }
        Err(NoFrame)
    }

    pub(super) fn packet_type(&self) -> Option<PacketType> {
        PacketType::from_bits(self.first >> 4)
    }

    /// QoS of a PUBLISH.
    pub(super) fn qos(&self) -> Option<QoS> {
        QoS::from_bits(self.first >> 1 & 3)
    }

    /// Packet Identifier of a PUBLISH above QoS 0.
    pub(super) fn publish_packet_id(&self) -> Option<u16> {
        let (topic_len, rest) = self.body.split_first_chunk()?;
        let after_topic = rest.get(usize::from(u16::from_be_bytes(*topic_len))..)?;
        after_topic.first_chunk().map(|id| u16::from_be_bytes(*id))
    }

    /// Mark of a PUBLISH.
    pub(super) fn mark(&self) -> u8 {
        self.body.last().copied().unwrap_or_default()
    }

    /// Packet Identifier of an acknowledgement.
    pub(super) fn ack_packet_id(&self) -> Option<u16> {
        self.body.first_chunk().map(|id| u16::from_be_bytes(*id))
    }

    /// Whether an acknowledgement refuses.
    pub(super) fn is_refusal(&self) -> bool {
        self.body.get(2).is_some_and(|&reason| reason >= 0x80)
    }
}

/// Appends an acknowledgement that says success.
pub(super) fn append_ack(packet_type: PacketType, packet_id: u16, out: &mut Vec<u8>) {
    let flags = if packet_type == PacketType::PubRel { 0b0010 } else { 0 };
    let [high, low] = packet_id.to_be_bytes();
    out.extend_from_slice(&[(packet_type as u8) << 4 | flags, 2, high, low]);
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use tenbin_codec::{Decoded, Decoder};

    use super::*;

    const VERSIONS: [ProtocolVersion; 2] = [ProtocolVersion::V311, ProtocolVersion::V5];
    const LEVELS: [QoS; 3] = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];

    #[test]
    fn a_frame_carries_the_packet_id_and_the_mark_it_is_given() {
        let topic = TopicName::try_from("a/b").unwrap();
        for (version, qos) in VERSIONS.into_iter().flat_map(|version| LEVELS.map(|qos| (version, qos))) {
            for payload_len in [1, 100, 200, 70_000] {
                let frame = PublishFrame::new(version, &topic, payload_len, qos);
                let mut out = Vec::new();
                frame.append(0x0102, 7, &mut out);
                frame.append(0xFFFF, 255, &mut out);
                assert_eq!(out.len(), 2 * frame.len());

                let mut input = BytesMut::from(&out[..]);
                let mut decoder = Decoder::client(version, u32::MAX);
                for (id, mark) in [(0x0102, 7), (0xFFFF, 255)] {
                    let Ok(Decoded::Packet(Packet::Publish(publish))) = decoder.decode(&mut input) else {
                        panic!("{version} {qos} {payload_len}");
                    };
                    assert_eq!(publish.packet_id, if qos.is_acknowledged() { PacketId::new(id) } else { None });
                    assert_eq!((publish.qos, publish.payload.len()), (qos, payload_len));
                    assert_eq!(publish.payload.last(), Some(&mark));
                }
                let (first, size) = Frame::split(&out).unwrap().unwrap();
                assert_eq!((size, first.mark()), (frame.len(), 7));
                assert_eq!((first.packet_type(), first.qos()), (Some(PacketType::Publish), Some(qos)));
                if qos.is_acknowledged() {
                    assert_eq!(first.publish_packet_id(), Some(0x0102));
                }
            }
        }
    }

    #[test]
    fn a_frame_is_whole_or_not_there() {
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
}
