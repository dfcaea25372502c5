use std::fmt;
use std::hash::{Hash, Hasher};

use bytes::Bytes;

use crate::DecodeError;

/// UTF-8 Encoded String (MQTT 5.0 §1.5.4): well-formed UTF-8 without U+0000, at most 65,535 bytes.
///
/// A slice of the buffer it was read from: cloning copies no text, and each `Text` keeps that buffer alive
/// ([`Text::detach`] copies it out).
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Text(
    // INVARIANT: valid UTF-8, no NUL, len() <= 65,535; established by every constructor.
    Bytes,
);

impl Text {
    /// A string without characters.
    pub const EMPTY: Self = Self(Bytes::new());

    /// Checks `bytes` and wraps them unchanged.
    ///
    /// # Errors
    /// [`TextError`] for anything that MQTT does not allow in a string.
    pub fn new(bytes: Bytes) -> Result<Self, TextError> {
        if bytes.len() > usize::from(u16::MAX) {
            return Err(TextError::TooLong);
        }
        if !is_plain(&bytes) {
            // EF BB BF is an ordinary U+FEFF and stays. [MQTT-1.5.4-3]
            if std::str::from_utf8(&bytes).is_err() {
                return Err(TextError::InvalidUtf8); // [MQTT-1.5.4-1]
            }
            if bytes.contains(&0) {
                return Err(TextError::NulCharacter); // [MQTT-1.5.4-2]
            }
        }
        Ok(Self(bytes))
    }

    /// A string known at compile time.
    ///
    /// # Panics
    /// If the text is not a legal MQTT string.
    pub fn from_static(text: &'static str) -> Self {
        Self::new(Bytes::from_static(text.as_bytes())).expect("a literal is a legal MQTT string")
    }

    /// The text. Checks UTF-8 again (there is no `unsafe` here); hot paths compare [`Text::as_bytes`].
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("INVARIANT: checked by every constructor")
    }

    /// The text's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The shared slice itself.
    pub fn into_bytes(self) -> Bytes {
        self.0
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has no characters.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A copy that does not keep the buffer it was read from alive.
    #[must_use]
    pub fn detach(&self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
    }

    /// The part from byte `start` to byte `end`, sharing the buffer; the caller cuts at ASCII characters.
    pub(crate) fn slice(&self, start: usize, end: usize) -> Self {
        debug_assert!(self.as_str().is_char_boundary(start) && self.as_str().is_char_boundary(end));
        Self(self.0.slice(start..end))
    }
}

/// True for ASCII without NUL, as in most strings: legal without further checks.
fn is_plain(bytes: &[u8]) -> bool {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let (words, rest) = bytes.as_chunks();
    // Subtracting one from a byte of 1 to 127 keeps its highest bit clear and borrows nothing from its neighbour.
    // Without an early exit the loops process many bytes at once.
    let words = words.iter().map(|&word| u64::from_ne_bytes(word));
    let highest_of_words = words.fold(0, |found, word| found | word | word.wrapping_sub(ONES));
    let highest_of_rest = rest.iter().fold(0, |found, &byte| found | byte | byte.wrapping_sub(1));
    (highest_of_words & (ONES << 7)) | u64::from(highest_of_rest & 0x80) == 0
}

/// Reason why bytes are not a UTF-8 Encoded String.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextError {
    /// More than 65,535 bytes.
    TooLong,
    /// Not well-formed UTF-8 `[MQTT-1.5.4-1]`.
    InvalidUtf8,
    /// U+0000 `[MQTT-1.5.4-2]`.
    NulCharacter,
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLong => "string of more than 65,535 bytes",
            Self::InvalidUtf8 => "string is not well-formed UTF-8 [MQTT-1.5.4-1]",
            Self::NulCharacter => "string holds U+0000 [MQTT-1.5.4-2]",
        })
    }
}

impl std::error::Error for TextError {}

impl From<TextError> for DecodeError {
    fn from(error: TextError) -> Self {
        match error {
            TextError::TooLong => Self::Truncated,
            TextError::InvalidUtf8 => Self::InvalidUtf8,
            TextError::NulCharacter => Self::NulCharacter,
        }
    }
}

impl TryFrom<String> for Text {
    type Error = TextError;

    fn try_from(text: String) -> Result<Self, TextError> {
        Self::new(Bytes::from(text))
    }
}

impl TryFrom<&str> for Text {
    type Error = TextError;

    fn try_from(text: &str) -> Result<Self, TextError> {
        Self::new(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl Hash for Text {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl std::borrow::Borrow<[u8]> for Text {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<str> for Text {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_plain_checks_every_byte_at_every_position() {
        for len in 1..20 {
            for (place, byte) in (0..len).flat_map(|place| (0..=u8::MAX).map(move |byte| (place, byte))) {
                // Neighbours that a borrow or carry would reveal.
                for others in [1, b'a', 0x7F] {
                    let mut bytes = vec![others; len];
                    bytes[place] = byte;
                    assert_eq!(is_plain(&bytes), (1..0x80).contains(&byte), "{byte:#04x} at {place} of {len}");
                }
            }
        }
        assert!(is_plain(b""));
    }

    #[test]
    fn mqtt_1_5_4_illegal_strings_are_refused() {
        for (bytes, error) in [
            (&b"a\xED\xA0\x80"[..], TextError::InvalidUtf8),
            (b"\xC0\x80", TextError::InvalidUtf8),
            (b"a\0b", TextError::NulCharacter),
        ] {
            assert_eq!(Text::new(Bytes::from_static(bytes)), Err(error));
        }
        assert_eq!(Text::new(Bytes::from(vec![b'a'; 65_536])), Err(TextError::TooLong));
    }

    #[test]
    fn mqtt_1_5_4_3_a_byte_order_mark_is_kept() {
        let text = Text::new(Bytes::from_static(b"\xEF\xBB\xBFa")).unwrap();
        assert_eq!(text.as_bytes(), b"\xEF\xBB\xBFa");
    }
}
