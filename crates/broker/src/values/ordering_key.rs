use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use tenbin_codec::Text;

/// The part of a message that keeps its order in a share group. A key stays with its member while earlier messages of
/// it are outstanding there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrderingKey {
    /// `topic`: the whole topic.
    Topic,
    /// `topic_level:N`: level N of the topic, counted from 1. Topics with fewer levels have no key.
    TopicLevel(NonZeroUsize),
    /// `client_id`: the publisher's Client Identifier.
    ClientId,
    /// `user_property:NAME`: the first User Property of this name. Messages without it have no key.
    UserProperty(Arc<str>),
}

impl FromStr for OrderingKey {
    type Err = UnknownKey;

    fn from_str(text: &str) -> Result<Self, UnknownKey> {
        let unknown = || UnknownKey(text.to_owned());
        match text.split_once(':') {
            None if text == "topic" => Ok(Self::Topic),
            None if text == "client_id" => Ok(Self::ClientId),
            Some(("topic_level", number)) => number.parse().map(Self::TopicLevel).map_err(|_| unknown()),
            Some(("user_property", name)) if !name.is_empty() && Text::try_from(name).is_ok() => {
                Ok(Self::UserProperty(name.into()))
            }
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for OrderingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topic => f.write_str("topic"),
            Self::TopicLevel(number) => write!(f, "topic_level:{number}"),
            Self::ClientId => f.write_str("client_id"),
            Self::UserProperty(name) => write!(f, "user_property:{name}"),
        }
    }
}

impl<'de> Deserialize<'de> for OrderingKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Error for a text that is no ordering key. The message lists the valid forms.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no ordering key; valid are topic, topic_level:N with N from 1, client_id, user_property:NAME")]
pub struct UnknownKey(String);

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> OrderingKey {
        text.parse().unwrap()
    }

    #[test]
    fn a_key_is_shown_as_it_is_written() {
        for text in
            ["topic", "topic_level:1", "topic_level:12", "client_id", "user_property:order", "user_property:a:b"]
        {
            assert_eq!(key(text).to_string(), text);
        }
        for text in ["", "Topic", "topic:", "topic_level", "topic_level:0", "topic_level:-1", "user_property:", "x:y"] {
            assert!(text.parse::<OrderingKey>().is_err(), "{text}");
        }
    }
}
