//! Variable Byte Integer (MQTT 5.0 §1.5.5): seven bits a byte, least significant first, at most four bytes.

use bytes::BufMut;

use crate::DecodeError;

/// Largest value a Variable Byte Integer holds: 268,435,455.
pub const VARINT_MAX: u32 = 0x0FFF_FFFF;

/// Bytes that `value` takes on the wire, 1 to 4. Values above [`VARINT_MAX`] cannot be encoded.
pub const fn varint_len(value: u32) -> usize {
    match value {
        0..=0x7F => 1,
        0x80..=0x3FFF => 2,
        0x4000..=0x1F_FFFF => 3,
        _ => 4,
    }
}

/// Appends `value`, which must be at most [`VARINT_MAX`].
pub(crate) fn write_varint(out: &mut impl BufMut, mut value: u32) {
    debug_assert!(value <= VARINT_MAX, "value {value} does not fit a Variable Byte Integer");
    loop {
        let byte = (value & 0x7F) as u8;
        value >>= 7;
        if value == 0 {
            out.put_u8(byte);
            return;
        }
        out.put_u8(byte | 0x80);
    }
}

/// Appends the output of `fill`, preceded by its length.
///
/// Returns false if the length exceeds a Variable Byte Integer: then the appended bytes are invalid.
pub(crate) fn put_counted(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) -> bool {
    let at = out.len();
    out.push(0);
    fill(out);
    let len = out.len() - at - 1;
    if len > VARINT_MAX as usize {
        return false;
    }
    if len <= 0x7F {
        out[at] = len as u8; // nearly always: no bytes have to move
    } else {
        let mut length = Vec::with_capacity(4);
        write_varint(&mut length, len as u32);
        out.splice(at..=at, length);
    }
    true
}

/// Returns value and width of the integer at the start of `bytes`, or `None` if it is incomplete.
///
/// # Errors
/// [`DecodeError::Varint`] for more than four bytes, or more than necessary `[MQTT-1.5.5-1]`.
pub(crate) fn peek_varint(bytes: &[u8]) -> Result<Option<(u32, usize)>, DecodeError> {
    match peek_any_varint(bytes)? {
        // A last byte of 0 adds nothing: a shorter form exists.
        Some((_, width)) if width > 1 && bytes[width - 1] == 0 => Err(DecodeError::Varint),
        found => Ok(found),
    }
}

/// As [`peek_varint`], but accepts the longer forms, which MQTT 3.1.1 does not forbid.
pub(crate) fn peek_any_varint(bytes: &[u8]) -> Result<Option<(u32, usize)>, DecodeError> {
    let mut value = 0u32;
    for (index, &byte) in bytes.iter().take(4).enumerate() {
        value |= u32::from(byte & 0x7F) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(Some((value, index + 1)));
        }
    }
    if bytes.len() >= 4 { Err(DecodeError::Varint) } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boundaries_of_each_width_round_trip() {
        for value in [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, VARINT_MAX] {
            let mut bytes = Vec::new();
            write_varint(&mut bytes, value);
            assert_eq!(bytes.len(), varint_len(value));
            assert_eq!(peek_varint(&bytes), Ok(Some((value, bytes.len()))));
            assert_eq!(peek_varint(&bytes[..bytes.len() - 1]), Ok(None));
        }
    }

    #[test]
    fn put_counted_prefixes_lengths_of_every_width() {
        for len in [0, 127, 128, 16_383, 16_384, 2_097_152] {
            let mut bytes = vec![9];
            assert!(put_counted(&mut bytes, |out| out.resize(out.len() + len, 7)));
            let (value, width) = peek_varint(&bytes[1..]).unwrap().unwrap();
            assert_eq!((value as usize, bytes.len()), (len, 1 + width + len));
            assert!(bytes[1 + width..].iter().all(|&byte| byte == 7));
        }
    }

    #[test]
    fn mqtt_1_5_5_1_longer_forms_are_malformed() {
        for bytes in [&[0x80, 0x00][..], &[0xFF, 0x00], &[0x80, 0x80, 0x80, 0x00], &[0x80, 0x80, 0x80, 0x80]] {
            assert_eq!(peek_varint(bytes), Err(DecodeError::Varint));
        }
    }
}
