use bytes::{Buf, Bytes, BytesMut};

use crate::frame::FixedHeader;
use crate::reader::{Limits, Reader};
use crate::{Connect, DecodeError, Packet, PacketId, PacketType, PlainPublish, ProtocolVersion};

/// Cuts packets out of a stream of bytes.
///
/// Knows which side it reads for: a packet that the other side never sends is refused at its first byte. A
/// server's decoder learns the version from CONNECT, which has to come first.
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

/// What a decoder found at the start of its input.
#[derive(Debug, PartialEq, Eq)]
pub enum Decoded {
    /// A whole packet, taken off the input.
    Packet(Packet),
    /// No whole packet yet: at least so many more bytes are needed. Nothing was taken.
    NeedMore(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Reads what clients send.
    Server,
    /// Reads what a server sends.
    Client,
}

impl Decoder {
    /// For a server: CONNECT comes first and tells the version. `maximum_packet_size` is the largest packet
    /// that is taken, header included, in bytes.
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

    /// For a client, which has said its version in CONNECT.
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

    /// The version, once it is known: from CONNECT, however illegal the rest of it is.
    pub fn version(&self) -> Option<ProtocolVersion> {
        self.version
    }

    /// Changes the limit, as after CONNECT: until then a server takes little from a stranger.
    pub fn set_maximum_packet_size(&mut self, bytes: u32) {
        self.maximum_packet_size = bytes;
    }

    /// Bounds the User Properties of one packet, and of one Will; without a bound a packet of short ones takes
    /// twelve times its size in memory.
    pub fn set_user_properties_maximum(&mut self, count: u32) {
        self.limits.user_properties = count;
    }

    /// Bounds the Topic Filters of one SUBSCRIBE or UNSUBSCRIBE.
    pub fn set_filters_maximum(&mut self, count: u32) {
        self.limits.filters = count;
    }

    /// Whether extended PINGREQs are taken, as at first; where not, any body of a PINGREQ is malformed, as the standard
    /// has it.
    pub fn set_extended_pingreq(&mut self, taken: bool) {
        self.extended_pingreq = taken;
    }

    /// Takes the next packet off the front of `input`. Its strings and payload are slices of the input's
    /// memory.
    ///
    /// # Errors
    /// Whatever the peer did wrong; the connection cannot go on. Fixed header, direction and size are judged
    /// before the body has arrived.
    pub fn decode(&mut self, input: &mut BytesMut) -> Result<Decoded, DecodeError> {
        let Some(&first) = input.first() else { return Ok(Decoded::NeedMore(2)) };
        self.check_type(first)?;
        let header = match FixedHeader::peek(input, self.maximum_packet_size, self.version) {
            Ok(Some(header)) => header,
            Ok(None) => return Ok(Decoded::NeedMore(1)),
            // Whatever its flags, it has no place here.
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
        // Only the body is split off, and only where there is one: each part counts references.
        input.advance(header.len);
        let body = if header.remaining == 0 { Bytes::new() } else { input.split_to(header.remaining).freeze() };
        let is_first = self.version.is_none();
        if is_first {
            // Known even if the rest is malformed: the answer has to be in this version.
            self.version = Connect::peek_version(&body);
        }
        let body = Reader::new(body, self.limits);
        let decoded = Packet::decode(header, body, self.version.unwrap_or(ProtocolVersion::V5)).map(Decoded::Packet);
        if is_first && let Ok(Decoded::Packet(Packet::Connect(connect))) = &decoded {
            self.authenticates = connect.properties.authentication_method.is_some();
        }
        decoded
    }

    /// The next packet and its size in bytes, if it is a [`PlainPublish`] that is all there; whatever else it is, and
    /// whether its topic is one, is for [`Decoder::decode`] to say. To be taken off the front by the caller.
    #[inline]
    pub fn peek_plain<'a>(&self, input: &'a [u8]) -> Option<(PlainPublish<'a>, usize)> {
        let (publish, rest) = PlainPublish::split_first(self.version?, input)?;
        let size = input.len() - rest.len();
        (size <= self.maximum_packet_size as usize).then_some((publish, size))
    }

    /// What the first byte alone tells.
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

/// An acknowledgement that says its Packet Identifier and nothing else, as nearly all do; it needs no body of its own.
fn plain_ack(header: FixedHeader, body: &[u8]) -> Option<Packet> {
    let &[high, low] = body else { return None };
    let packet_id = PacketId::new(u16::from_be_bytes([high, low]))?;
    Packet::plain_ack(header.packet_type, packet_id)
}
