use std::fmt;

use super::TopicError;
use crate::{DecodeError, Text};

/// Topic Name of a message. At least one character, no wildcard.
///
/// Comparison is byte by byte, without normalization `[MQTT-4.7.3-4]`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicName(Text);

impl TopicName {
    /// The empty name in a PUBLISH whose Topic Alias replaces the topic; illegal elsewhere.
    pub const ALIASED: Self = Self(Text::EMPTY);

    /// Checks the rules of a Topic Name.
    ///
    /// # Errors
    /// Empty, or with a wildcard.
    pub fn new(text: Text) -> Result<Self, TopicError> {
        Self::check(&text)?;
        Ok(Self(text))
    }

    /// As [`TopicName::new`], but accepts an empty name if a Topic Alias may replace it.
    pub(crate) fn decode(text: Text, may_be_empty: bool) -> Result<Self, DecodeError> {
        match Self::new(text) {
            Err(TopicError::Empty) if may_be_empty => Ok(Self::ALIASED),
            Err(TopicError::Empty) => Err(DecodeError::TopicNameEmpty),
            name => name.map_err(DecodeError::from),
        }
    }

    /// Performs the checks of [`TopicName::new`] on a text that remains one.
    pub(crate) fn check(text: &Text) -> Result<(), TopicError> {
        if text.is_empty() {
            return Err(TopicError::Empty); // [MQTT-4.7.3-1]
        }
        // Without an early exit the loop processes many bytes at once, which is faster for a legal name.
        if text.as_bytes().iter().fold(false, |found, byte| found | matches!(byte, b'+' | b'#')) {
            return Err(TopicError::WildcardInName); // [MQTT-4.7.0-1]
        }
        Ok(())
    }

    /// Whether a Topic Alias replaces the name.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The name's text.
    pub fn text(&self) -> &Text {
        &self.0
    }

    /// The name's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Whether the topic is the server's own (`$SYS/…`), which leading wildcards do not match
    /// `[MQTT-4.7.2-1]`.
    pub fn starts_with_dollar(&self) -> bool {
        self.as_bytes().first() == Some(&b'$')
    }

    /// A copy that does not keep the buffer it was read from alive.
    #[must_use]
    pub fn detach(&self) -> Self {
        Self(self.0.detach())
    }
}

impl TryFrom<&str> for TopicName {
    type Error = TopicError;

    fn try_from(text: &str) -> Result<Self, TopicError> {
        Self::new(Text::try_from(text)?)
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
