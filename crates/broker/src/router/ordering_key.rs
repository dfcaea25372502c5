use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use tenbin_codec::{MessageProperties, Text, TopicName};

use super::key_hasher::KeyHasher;

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

/// The part of an ordering key that follows from the topic alone.
#[derive(Debug, Clone)]
pub(super) enum TopicKey {
    /// The messages have no key.
    None,
    /// The hash of the key.
    Hash(u64),
    /// The key is the publisher.
    ClientId,
    /// The key is the value of this User Property.
    UserProperty(Arc<str>),
}

impl OrderingKey {
    /// Evaluates the key for messages to `topic`.
    pub(super) fn of_topic(&self, topic: &TopicName, keys: &KeyHasher) -> TopicKey {
        match self {
            Self::Topic => TopicKey::Hash(keys.hash(topic.as_bytes())),
            Self::TopicLevel(number) => {
                let level = topic.as_bytes().split(|&byte| byte == b'/').nth(number.get() - 1);
                level.map_or(TopicKey::None, |level| TopicKey::Hash(keys.hash(level)))
            }
            Self::ClientId => TopicKey::ClientId,
            Self::UserProperty(name) => TopicKey::UserProperty(Arc::clone(name)),
        }
    }
}

impl TopicKey {
    /// Returns the key of one message, from its properties and the publisher's hash `client`.
    pub(super) fn of(&self, properties: Option<&MessageProperties>, client: u64, keys: &KeyHasher) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Hash(hash) => Some(*hash),
            Self::ClientId => Some(client),
            Self::UserProperty(name) => {
                let properties = &properties?.user_properties;
                let property = properties.iter().find(|property| property.name.as_bytes() == name.as_bytes())?;
                Some(keys.hash(property.value.as_bytes()))
            }
        }
    }
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKey(String);

impl fmt::Display for UnknownKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let forms = "topic, topic_level:N with N from 1, client_id, user_property:NAME";
        write!(f, "{:?} is no ordering key; valid are {forms}", self.0)
    }
}

impl std::error::Error for UnknownKey {}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tenbin_codec::{MessageProperties, UserProperty};

    use super::*;
    use tenbin_session::Publication;

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

    #[test]
    fn keys_are_equal_exactly_if_the_named_parts_are() {
        let keys = KeyHasher::new(&[7; 16]);
        let message = |topic: &str, user_properties: &[(&str, &str)]| {
            let text = |text: &str| Text::try_from(text).unwrap();
            let property = |&(name, value): &(&str, &str)| UserProperty { name: text(name), value: text(value) };
            let user_properties = user_properties.iter().map(property).collect();
            let properties = MessageProperties { user_properties, ..MessageProperties::default() };
            let topic = TopicName::try_from(topic).unwrap();
            Publication { properties: properties.boxed(), ..Publication::new(topic, Bytes::new()) }
        };
        let of = |text: &str, message: &Publication, client| {
            key(text).of_topic(&message.topic, &keys).of(message.properties.as_deref(), client, &keys)
        };
        let one = message("a/b/c", &[("order", "7"), ("order", "8")]);
        for (text, same, other) in [
            ("topic", message("a/b/c", &[]), message("a/b/d", &[])),
            ("topic_level:2", message("x/b", &[]), message("a/c/c", &[])),
            ("user_property:order", message("x", &[("x", "y"), ("order", "7")]), message("a/b/c", &[("order", "8")])),
        ] {
            assert!(of(text, &one, 1).is_some());
            assert_eq!(of(text, &one, 1), of(text, &same, 2), "{text}");
            assert_ne!(of(text, &one, 1), of(text, &other, 1), "{text}");
        }
        assert_eq!(of("client_id", &one, 5), Some(5));
        assert_eq!(of("topic_level:4", &one, 1), None);
        assert_eq!(of("user_property:x", &one, 1), None);
        assert_eq!(of("user_property:order", &message("a", &[]), 1), None);
    }
}
