//! Length and message type, the first bytes of each message.
//!
//! ```text
//!   short   length (1)          | message type (1) | body      messages of at most 255 bytes
//!   long    0x01 | length (2)   | message type (1) | body
//! ```
//!
//! The length counts the whole message, itself included. Reading accepts the long form for short messages too.

use alloc::vec::Vec;

use crate::DecodeError;

/// Size of the largest message in bytes, its length field included.
pub const MESSAGE_SIZE_MAX: usize = u16::MAX as usize;

/// First byte of a long form.
const LONG: u8 = 0x01;
/// Bytes of length and type in the short form.
const SHORT_HEADER: usize = 2;
/// Bytes of length and type in the long form.
const LONG_HEADER: usize = 4;

/// Splits the front of `bytes` into message type, body and rest.
///
/// # Errors
/// The length is shorter than a header or reaches past the end.
pub(crate) fn split(bytes: &[u8]) -> Result<(u8, &[u8], &[u8]), DecodeError> {
    let (length, header) = match *bytes {
        [] => return Err(DecodeError::Empty),
        [LONG, high, low, ..] => (u16::from_be_bytes([high, low]), LONG_HEADER),
        [LONG, ..] => return Err(DecodeError::LengthMismatch { length: LONG.into(), size: bytes.len() }),
        [length, ..] => (length.into(), SHORT_HEADER),
    };
    if usize::from(length) < header {
        return Err(DecodeError::LengthTooShort(length)); // [SN-FRAME-2]
    }
    let mismatch = DecodeError::LengthMismatch { length, size: bytes.len() };
    let (message, rest) = bytes.split_at_checked(length.into()).ok_or(mismatch)?;
    Ok((message[header - 1], &message[header..], rest))
}

/// Splits a datagram of one message into message type and body.
///
/// # Errors
/// As [`split`], or the datagram is longer than the message.
pub(crate) fn split_whole(datagram: &[u8]) -> Result<(u8, &[u8]), DecodeError> {
    let (kind, body, rest) = split(datagram)?;
    if !rest.is_empty() {
        let length = (datagram.len() - rest.len()) as u16;
        return Err(DecodeError::LengthMismatch { length, size: datagram.len() }); // [SN-FRAME-1]
    }
    Ok((kind, body))
}

/// Appends the header of a message with a body of `body` bytes. Appends nothing and returns false if the message would
/// be larger than [`MESSAGE_SIZE_MAX`].
pub(crate) fn put_header(kind: u8, body: usize, out: &mut Vec<u8>) -> bool {
    if let Ok(length) = u8::try_from(SHORT_HEADER + body) {
        out.reserve(SHORT_HEADER + body);
        out.extend_from_slice(&[length, kind]);
    } else if let Ok(length) = u16::try_from(LONG_HEADER + body) {
        let [high, low] = length.to_be_bytes();
        out.reserve(LONG_HEADER + body);
        out.extend_from_slice(&[LONG, high, low, kind]); // [SN-FRAME-6]
    } else {
        return false;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_form_follows_the_size_of_the_message() {
        for (body, header) in [
            (0, &[2, 0x18][..]),
            (253, &[255, 0x18]),
            (254, &[1, 1, 2, 0x18]),
            (MESSAGE_SIZE_MAX - 4, &[1, 0xFF, 0xFF, 0x18]),
        ] {
            let mut out = Vec::new();
            assert!(put_header(0x18, body, &mut out));
            assert_eq!(out, header);
            out.resize(header.len() + body, 7);
            let (kind, read) = split_whole(&out).expect("one message");
            assert_eq!((kind, read.len()), (0x18, body));
        }
        let mut out = Vec::new();
        assert!(!put_header(0x18, MESSAGE_SIZE_MAX - 3, &mut out));
        assert!(out.is_empty());
    }

    #[test]
    fn lengths_other_than_the_size_are_refused() {
        let mismatch = |length, size| Err(DecodeError::LengthMismatch { length, size });
        assert_eq!(split_whole(&[]), Err(DecodeError::Empty));
        assert_eq!(split_whole(&[0]), Err(DecodeError::LengthTooShort(0)));
        assert_eq!(split_whole(&[0, 0x17]), Err(DecodeError::LengthTooShort(0)));
        assert_eq!(split_whole(&[1]), mismatch(1, 1));
        assert_eq!(split_whole(&[1, 0]), mismatch(1, 2));
        assert_eq!(split_whole(&[1, 0, 3, 0x17]), Err(DecodeError::LengthTooShort(3)));
        assert_eq!(split_whole(&[1, 0, 4]), mismatch(4, 3));
        assert_eq!(split_whole(&[1, 0, 4, 0x17]), Ok((0x17, &[][..])));
        assert_eq!(split_whole(&[2]), mismatch(2, 1));
        assert_eq!(split_whole(&[3, 0x17]), mismatch(3, 2));
        assert_eq!(split_whole(&[2, 0x17, 0]), mismatch(2, 3));
    }
}
