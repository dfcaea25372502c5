//! Minimal parsing of frames: size, topic length and Packet Identifier.

use std::io;

/// A PUBLISH among the bytes that were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Publish {
    /// Offset of its first byte, and the offset behind its last byte.
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// Offset of its Packet Identifier; `None` at QoS 0.
    pub(crate) id_at: Option<usize>,
}

impl Publish {
    /// Parses the PUBLISH at `start..end`, whose header is `header` bytes long.
    ///
    /// # Errors
    /// Above QoS 0, if the topic or the Packet Identifier does not end within the frame.
    pub(crate) fn of(bytes: &[u8], start: usize, header: usize, end: usize) -> io::Result<Self> {
        if bytes[start] & QOS == 0 {
            return Ok(Self { start, end, id_at: None });
        }
        let topic_at = start + header;
        let topic = word(&bytes[..end], topic_at).ok_or_else(malformed)?;
        let id_at = topic_at + 2 + usize::from(topic);
        word(&bytes[..end], id_at).ok_or_else(malformed)?;
        Ok(Self { start, end, id_at: Some(id_at) })
    }
}

/// Size of the first frame of `bytes` and of its header; `None` while the header is incomplete.
///
/// # Errors
/// If the length has more than four bytes.
#[inline]
pub(crate) fn size(bytes: &[u8]) -> io::Result<Option<(usize, usize)>> {
    let mut length = 0;
    for (at, &byte) in bytes.iter().skip(1).take(4).enumerate() {
        length |= usize::from(byte & 0x7F) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(Some((at + 2 + length, at + 2)));
        }
    }
    if bytes.len() > 4 { Err(malformed()) } else { Ok(None) }
}

/// Two bytes at offset `at`, as a big-endian number.
pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

pub(crate) fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "malformed packet")
}

const QOS: u8 = 0b0110;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_ends_where_its_length_says_or_is_not_there_yet() {
        assert_eq!(size(&[0x30, 3, 0, 1, b'a']).unwrap(), Some((5, 2)));
        assert_eq!(size(&[0x30, 0x80, 1]).unwrap(), Some((131, 3)));
        for unfinished in [&[][..], &[0x30], &[0x30, 0x80], &[0x30, 0x80, 0x80, 0x80]] {
            assert_eq!(size(unfinished).unwrap(), None, "{unfinished:?}");
        }
        assert!(size(&[0x30, 0xFF, 0xFF, 0xFF, 0xFF, 0]).is_err());
    }

    #[test]
    fn the_packet_identifier_is_behind_the_topic() {
        let bytes = [0xC0, 0, 0x32, 6, 0, 1, b'a', 0, 7, b'x'];
        assert_eq!(Publish::of(&bytes, 2, 2, 10).unwrap(), Publish { start: 2, end: 10, id_at: Some(7) });
        assert_eq!(Publish::of(&[0x30, 3, 0, 1, b'a'], 0, 2, 5).unwrap().id_at, None);
        assert!(Publish::of(&[0x32, 3, 0, 1, b'a'], 0, 2, 5).is_err());
    }
}
