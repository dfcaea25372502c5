//! Bytes as hexadecimal digits, and text in percent-encoding.

/// Two lower-case digits for each byte.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of an even number of digits in either case; `None` for any other text.
pub fn from_hexadecimal(digits: &str) -> Option<Vec<u8>> {
    let value = |digit: u8| char::from(digit).to_digit(16);
    let pairs = digits.as_bytes().chunks(2).map(|pair| match pair {
        &[high, low] => u8::try_from(value(high)? * 16 + value(low)?).ok(),
        _ => None,
    });
    pairs.collect()
}

/// A text as one segment of a path: percent-encoded (RFC 3986 §2.1), except for ASCII letters, digits and `-._~`.
pub fn segment(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    text.bytes().map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_bytes_again() {
        assert_eq!(hexadecimal(&[0, 0x9a, 0xff]), "009aff");
        assert_eq!(from_hexadecimal("009Aff"), Some(vec![0, 0x9a, 0xff]));
        for text in ["0", "0g", "+f", " f", "ü"] {
            assert_eq!(from_hexadecimal(text), None, "{text}");
        }
    }
}
