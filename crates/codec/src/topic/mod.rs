//! Topic Names, Topic Filters and shared subscriptions (MQTT 5.0 §4.7, §4.8.2).

mod filter;
mod name;
mod share;

use std::fmt;

pub use filter::TopicFilter;
pub use name::TopicName;
pub use share::{ShareName, SharedFilter};

use crate::{DecodeError, TextError};

/// Reason why a text is no Topic Name or Topic Filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopicError {
    /// Not a legal MQTT string at all.
    Text(TextError),
    /// No character `[MQTT-4.7.3-1]`.
    Empty,
    /// A wildcard in a Topic Name `[MQTT-4.7.0-1]`.
    WildcardInName,
    /// `#` that is not the last level, or `+` or `#` beside other characters `[MQTT-4.7.1-1]`,
    /// `[MQTT-4.7.1-2]`.
    MisplacedWildcard,
    /// `$share/` without a share name and a filter `[MQTT-4.8.2-1]`, `[MQTT-4.8.2-2]`.
    Share,
}

impl fmt::Display for TopicError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(error) => error.fmt(f),
            Self::Empty => f.write_str("empty topic [MQTT-4.7.3-1]"),
            Self::WildcardInName => f.write_str("wildcard in a topic name [MQTT-4.7.0-1]"),
            Self::MisplacedWildcard => f.write_str("misplaced wildcard in a topic filter [MQTT-4.7.1-1]"),
            Self::Share => f.write_str("$share/ wants a name and a filter [MQTT-4.8.2-2]"),
        }
    }
}

impl std::error::Error for TopicError {}

impl From<TextError> for TopicError {
    fn from(error: TextError) -> Self {
        Self::Text(error)
    }
}

impl From<TopicError> for DecodeError {
    fn from(error: TopicError) -> Self {
        match error {
            TopicError::Text(error) => error.into(),
            TopicError::Empty => Self::TopicFilter,
            TopicError::WildcardInName => Self::TopicNameWildcard,
            TopicError::MisplacedWildcard => Self::TopicFilter,
            TopicError::Share => Self::SharedFilter,
        }
    }
}
