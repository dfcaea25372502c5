//! The fixed header: type and length of a packet, known before its body is buffered.
//!
//! ```text
//!   bit     7  6  5  4 | 3  2  1  0
//!   byte 1  packet type | flags          PUBLISH: DUP, QoS (2 bits), RETAIN; else one fixed value
//!   byte 2… Remaining Length, a Variable Byte Integer of 1 to 4 bytes
//! ```

use crate::varint::peek_any_varint;
use crate::{DecodeError, PacketType, ProtocolVersion, QoS, VARINT_MAX, varint_len};

/// Size of the largest possible control packet, fixed header included: 268,435,460 bytes.
pub const PACKET_SIZE_MAX: u32 = 5 + VARINT_MAX;

/// A complete fixed header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FixedHeader {
    pub(crate) packet_type: PacketType,
    pub(crate) flags: u8,
    /// Bytes of the header itself, 2 to 5.
    pub(crate) len: usize,
    /// Bytes that follow the header.
    pub(crate) remaining: usize,
}

impl FixedHeader {
    /// Returns packet type and flags of the first byte.
    ///
    /// MQTT 3.1 uses no flags except those of PUBLISH, and does not define their values: they are ignored.
    ///
    /// # Errors
    /// Packet type 0, flags other than the type's own `[MQTT-2.1.3-1]`, or a PUBLISH with QoS 3 or with DUP at QoS 0.
    pub(crate) fn first_byte(byte: u8, version: Option<ProtocolVersion>) -> Result<(PacketType, u8), DecodeError> {
        let packet_type = PacketType::from_bits(byte >> 4).ok_or(DecodeError::ReservedPacketType(byte >> 4))?;
        let flags = byte & 0x0F;
        if packet_type == PacketType::Publish {
            let qos = QoS::from_bits(flags >> 1 & 3).ok_or(DecodeError::QoSReserved)?; // [MQTT-3.3.1-4]
            if flags & 0b1000 != 0 && qos == QoS::AtMostOnce {
                return Err(DecodeError::DupAtQoS0); // [MQTT-3.3.1-2]
            }
        } else if byte != packet_type.first_byte() && version != Some(ProtocolVersion::V31) {
            return Err(DecodeError::FixedHeaderFlags(packet_type));
        }
        Ok((packet_type, flags))
    }

    /// Returns the header at the start of `bytes`, or `None` if it is incomplete.
    ///
    /// Only MQTT 5.0 demands the shortest form of the Remaining Length `[MQTT-1.5.5-1]`. Its rules apply while the
    /// version is unknown.
    pub(crate) fn peek(
        bytes: &[u8],
        maximum_packet_size: u32,
        version: Option<ProtocolVersion>,
    ) -> Result<Option<Self>, DecodeError> {
        let Some((&first, rest)) = bytes.split_first() else { return Ok(None) };
        let (packet_type, flags) = Self::first_byte(first, version)?;
        let Some((remaining, width)) = peek_any_varint(rest).map_err(|_| DecodeError::RemainingLength)? else {
            return Ok(None);
        };
        if version.is_none_or(ProtocolVersion::is_v5) && width > varint_len(remaining) {
            return Err(DecodeError::Varint);
        }
        let size = remaining + 1 + width as u32;
        if size > maximum_packet_size {
            return Err(DecodeError::PacketTooLarge { size, maximum: maximum_packet_size });
        }
        Ok(Some(Self { packet_type, flags, len: 1 + width, remaining: remaining as usize }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mqtt_2_1_3_1_flags_other_than_the_types_own_are_malformed() {
        for byte in 0..=u8::MAX {
            let legal = match byte >> 4 {
                0 => false,
                3 => (byte & 0b0110 != 0b0110) && (byte & 0b1110 != 0b1000),
                6 | 8 | 10 => byte & 0x0F == 2,
                _ => byte & 0x0F == 0,
            };
            assert_eq!(FixedHeader::first_byte(byte, Some(ProtocolVersion::V311)).is_ok(), legal, "{byte:#04x}");
            assert_eq!(FixedHeader::first_byte(byte, None).is_ok(), legal, "{byte:#04x}");
        }
    }

    #[test]
    fn the_maximum_packet_size_counts_the_whole_packet() {
        assert!(FixedHeader::peek(&[0x30, 8], 10, None).is_ok());
        let too_large = DecodeError::PacketTooLarge { size: 11, maximum: 10 };
        assert_eq!(FixedHeader::peek(&[0x30, 9], 10, None), Err(too_large));
        assert_eq!(FixedHeader::peek(&[0x30, 0x80], 10, None), Ok(None));
    }
}
