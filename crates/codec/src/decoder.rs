use bytes::{Buf, Bytes, BytesMut};

use crate::frame::FixedHeader;
use crate::reader::{Limits, Reader};
use crate::{Connect, DecodeError, Packet, PacketId, PacketType, PlainAcknowledged, PlainPublish, ProtocolVersion};

/// Splits a stream of bytes into packets.
///
/// A decoder refuses a packet that the other side never sends at its first byte. A server's decoder learns the version
/// from CONNECT, which must come first.
///
/// ```
/// use bytes::BytesMut;
/// use tenbin_codec::{Decoded, Decoder, Packet};
///
/// let mut decoder = Decoder::server(1024);
/// let mut input = BytesMut::from(&b"\x10\x0D\0\x04MQTT\x05\x02\0\x3C\0\0"[..]);
/// assert_eq!(decoder.decode(&mut input)?, Decoded::NeedMore(1));
///
/// input.extend_from_slice(b"\0\xC0\0"); // the end of CONNECT, and a PINGREQ
/// assert!(matches!(decoder.decode(&mut input)?, Decoded::Packet(Packet::Connect(_))));
/// assert!(matches!(decoder.decode(&mut input)?, Decoded::Packet(Packet::PingReq(_))));
/// assert!(input.is_empty());
/// # Ok::<(), tenbin_codec::DecodeError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Decoder {
    role: Role,
    version: Option<ProtocolVersion>,
    maximum_packet_size: u32,
    limits: Limits,
    /// Whether a PINGREQ may have a body.
    extended_pingreq: bool,
    /// CONNECT named an Authentication Method, without which a Client sends no AUTH `[MQTT-4.12.0-7]`.
    authenticates: bool,
}

/// Result of decoding the start of the input.
#[derive(Debug, PartialEq, Eq)]
pub enum Decoded {
    /// A complete packet, removed from the input.
    Packet(Packet),
    /// Incomplete packet: at least this number of further bytes is needed. The input is unchanged.
    NeedMore(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Reads packets of clients.
    Server,
    /// Reads packets of a server.
    Client,
}

impl Decoder {
    /// Decoder of a server: CONNECT comes first and determines the version.
    ///
    /// `maximum_packet_size` is the largest accepted packet in bytes, header included.
    pub fn server(maximum_packet_size: u32) -> Self {
        Self {
            role: Role::Server,
            version: None,
            maximum_packet_size,
            limits: Limits::NONE,
            extended_pingreq: true,
            authenticates: false,
        }
    }

    /// Decoder of a client, which has sent its version in CONNECT.
    pub fn client(version: ProtocolVersion, maximum_packet_size: u32) -> Self {
        Self {
            role: Role::Client,
            version: Some(version),
            maximum_packet_size,
            limits: Limits::NONE,
            extended_pingreq: true,
            authenticates: true,
        }
    }

    /// The version, once known: from CONNECT, even if the rest of that is malformed.
    pub fn version(&self) -> Option<ProtocolVersion> {
        self.version
    }

    /// Changes the limit, as after CONNECT: until then a server accepts little from a pending client.
    pub fn set_maximum_packet_size(&mut self, bytes: u32) {
        self.maximum_packet_size = bytes;
    }

    /// Limits the User Properties of one packet, and of one Will.
    ///
    /// Without a limit, a packet of short ones takes twelve times its size in memory.
    pub fn set_user_properties_maximum(&mut self, count: u32) {
        self.limits.user_properties = count;
    }

    /// Limits the Topic Filters of one SUBSCRIBE or UNSUBSCRIBE.
    pub fn set_filters_maximum(&mut self, count: u32) {
        self.limits.filters = count;
    }

    /// Accepts extended PINGREQs, the default, or treats any body of a PINGREQ as malformed, as in the standard.
    pub fn set_extended_pingreq(&mut self, taken: bool) {
        self.extended_pingreq = taken;
    }

    /// Decodes the next packet at the front of `input`. Its strings and payload are slices of the input's memory.
    ///
    /// # Errors
    /// Any violation by the peer; the connection cannot continue. Fixed header, direction and size are checked before
    /// the body has arrived.
    pub fn decode(&mut self, input: &mut BytesMut) -> Result<Decoded, DecodeError> {
        let Some(&first) = input.first() else { return Ok(Decoded::NeedMore(2)) };
        self.check_type(first)?;
        let header = match FixedHeader::peek(input, self.maximum_packet_size, self.version) {
            Ok(Some(header)) => header,
            Ok(None) => return Ok(Decoded::NeedMore(1)),
            // AUTH is illegal here, with any flags.
            Err(DecodeError::FixedHeaderFlags(PacketType::Auth)) if !self.authenticates => {
                return Err(DecodeError::UnexpectedAuth);
            }
            Err(error) => return Err(error),
        };
        self.check_direction(header.packet_type)?;
        if header.packet_type == PacketType::PingReq && header.remaining > 0 && !self.extended_pingreq {
            return Err(DecodeError::PingBody);
        }
        let size = header.len + header.remaining;
        if input.len() < size {
            return Ok(Decoded::NeedMore(size - input.len()));
        }
        if let Some(ack) = plain_ack(header, &input[header.len..size]) {
            input.advance(size);
            return Ok(Decoded::Packet(ack));
        }
        // Splits off only the body, and only if there is one: each split counts references.
        input.advance(header.len);
        let body = if header.remaining == 0 { Bytes::new() } else { input.split_to(header.remaining).freeze() };
        let is_first = self.version.is_none();
        if is_first {
            // Known even if the rest is malformed: the answer must be in this version.
            self.version = Connect::peek_version(&body);
        }
        let body = Reader::new(body, self.limits);
        let decoded = Packet::decode(header, body, self.version.unwrap_or(ProtocolVersion::V5)).map(Decoded::Packet);
        if is_first && let Ok(Decoded::Packet(Packet::Connect(connect))) = &decoded {
            self.authenticates = connect.properties.authentication_method.is_some();
        }
        decoded
    }

    /// Returns the next packet and its size in bytes, if it is a complete [`PlainPublish`].
    ///
    /// [`Decoder::decode`] handles all other packets and checks the topic. The caller removes the packet from the
    /// input.
    #[inline]
    pub fn peek_plain<'a>(&self, input: &'a [u8]) -> Option<(PlainPublish<'a>, usize)> {
        let (publish, rest) = PlainPublish::split_first(self.version?, input)?;
        let size = input.len() - rest.len();
        (size <= self.maximum_packet_size as usize).then_some((publish, size))
    }

    /// As [`Decoder::peek_plain`], for a [`PlainAcknowledged`].
    #[inline]
    pub fn peek_acknowledged<'a>(&self, input: &'a [u8]) -> Option<(PlainAcknowledged<'a>, usize)> {
        let (publish, rest) = PlainAcknowledged::split_first(self.version?, input)?;
        let size = input.len() - rest.len();
        (size <= self.maximum_packet_size as usize).then_some((publish, size))
    }

    /// Returns type and Packet Identifier of the next packet, if it is a complete acknowledgement without Reason Code and
    /// properties: [`Decoder::PLAIN_ACK_BYTES`] bytes.
    #[inline]
    pub fn peek_ack(&self, input: &[u8]) -> Option<(PacketType, PacketId)> {
        let Some(&[first, 2, high, low]) = input.first_chunk() else { return None };
        let packet_type = match first {
            0x40 => PacketType::PubAck,
            0x50 => PacketType::PubRec,
            0x62 => PacketType::PubRel,
            0x70 => PacketType::PubComp,
            _ => return None,
        };
        let may_come = self.version.is_some() && self.maximum_packet_size as usize >= Self::PLAIN_ACK_BYTES;
        PacketId::new(u16::from_be_bytes([high, low])).filter(|_| may_come).map(|packet_id| (packet_type, packet_id))
    }

    /// Bytes of an acknowledgement without Reason Code and properties.
    pub const PLAIN_ACK_BYTES: usize = 4;

    /// Checks the packet type in the first byte.
    fn check_type(&self, first: u8) -> Result<(), DecodeError> {
        let Some(packet_type) = PacketType::from_bits(first >> 4) else {
            return Err(DecodeError::ReservedPacketType(first >> 4));
        };
        if self.version.is_none() && packet_type != PacketType::Connect {
            return Err(DecodeError::ConnectExpected(packet_type)); // [MQTT-3.1.0-1]
        }
        if packet_type == PacketType::Auth && self.is_v3() {
            return Err(DecodeError::ReservedPacketType(first >> 4)); // 3.1.1 §2.2.1
        }
        Ok(())
    }

    fn check_direction(&self, packet_type: PacketType) -> Result<(), DecodeError> {
        let wrong = match self.role {
            Role::Server => packet_type.is_server_only(),
            // A server of 3.1.1 has no DISCONNECT, it just closes (3.1.1 §3.14).
            Role::Client => packet_type.is_client_only() || (packet_type == PacketType::Disconnect && self.is_v3()),
        };
        if wrong {
            return Err(DecodeError::WrongDirection(packet_type));
        }
        if packet_type == PacketType::Auth && !self.authenticates {
            return Err(DecodeError::UnexpectedAuth); // [MQTT-4.12.0-7]
        }
        Ok(())
    }

    fn is_v3(&self) -> bool {
        self.version.is_some_and(|version| !version.is_v5())
    }
}

/// Decodes an acknowledgement with only a Packet Identifier, the usual form, without a separate body.
fn plain_ack(header: FixedHeader, body: &[u8]) -> Option<Packet> {
    let &[high, low] = body else { return None };
    let packet_id = PacketId::new(u16::from_be_bytes([high, low]))?;
    Packet::plain_ack(header.packet_type, packet_id)
}
