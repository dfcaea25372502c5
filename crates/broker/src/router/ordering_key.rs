use std::sync::Arc;

use tenbin_codec::{MessageProperties, TopicName};

use super::key_hasher::KeyHasher;
use crate::values::OrderingKey;

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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tenbin_codec::{MessageProperties, Text, UserProperty};

    use super::*;
    use tenbin_session::Publication;

    fn key(text: &str) -> OrderingKey {
        text.parse().unwrap()
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
