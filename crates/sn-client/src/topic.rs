use std::fmt;
use std::sync::Arc;

use tenbin_codec::{TopicFilter, TopicName};
use tenbin_sn::ClientTopic;
use tenbin_sn_codec::v1_2::ShortName;

/// Topic of a message, or filter of a subscription.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Topic {
    /// A name, or in subscriptions a filter. The client registers names by itself.
    Name(Arc<str>),
    /// An id that client and gateway know beforehand.
    Predefined(u16),
    /// A name of two bytes, which needs no registration.
    Short(ShortName),
}

/// Longest name: longer ones fit no datagram, beside the other fields of a REGISTER.
const NAME_BYTES_MAX: usize = DATAGRAM_BYTES_MAX - 9;
/// Largest payload of a UDP datagram over IPv4.
pub(crate) const DATAGRAM_BYTES_MAX: usize = 65_507;

impl Topic {
    /// Checks the topic of a message.
    ///
    /// # Errors
    /// A description of the fault, with the topic.
    pub(crate) fn check_name(&self) -> Result<(), String> {
        self.check(|text| TopicName::try_from(text).map(drop).map_err(|error| format!("topic name {text:?}: {error}")))
    }

    /// Checks the filter of a subscription.
    ///
    /// # Errors
    /// A description of the fault, with the filter.
    pub(crate) fn check_filter(&self) -> Result<(), String> {
        self.check(|text| {
            TopicFilter::try_from(text).map(drop).map_err(|error| format!("topic filter {text:?}: {error}"))
        })
    }

    fn check(&self, check_text: impl Fn(&str) -> Result<(), String>) -> Result<(), String> {
        match self {
            Self::Name(name) if name.is_empty() => Err("the topic is empty".to_owned()),
            Self::Name(name) if name.len() > NAME_BYTES_MAX => {
                Err(format!("the topic has {} bytes; a datagram carries {NAME_BYTES_MAX}", name.len()))
            }
            Self::Name(name) => check_text(name),
            Self::Predefined(id @ (0 | u16::MAX)) => Err(format!("topic id {id} is reserved")),
            Self::Predefined(_) => Ok(()),
            Self::Short(name) => check_text(name.as_str()),
        }
    }
}

impl From<&str> for Topic {
    fn from(name: &str) -> Self {
        Self::Name(name.into())
    }
}

impl From<Topic> for ClientTopic {
    fn from(topic: Topic) -> Self {
        match topic {
            Topic::Name(name) => Self::Name(name),
            Topic::Predefined(id) => Self::Predefined(id),
            Topic::Short(name) => Self::Short(name),
        }
    }
}

impl From<ClientTopic> for Topic {
    fn from(topic: ClientTopic) -> Self {
        match topic {
            ClientTopic::Name(name) => Self::Name(name),
            ClientTopic::Predefined(id) => Self::Predefined(id),
            ClientTopic::Short(name) => Self::Short(name),
        }
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Predefined(id) => write!(f, "predefined:{id}"),
            Self::Short(name) => f.write_str(name.as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn illegal_topics_are_named() {
        let fault = |topic: Topic| topic.check_name().unwrap_err();
        assert!(fault("a/#".into()).contains("a/#"));
        assert!(fault(Topic::Predefined(0)).contains("id 0"));
        assert!(fault(Topic::Short(ShortName::new("+a").expect("two bytes"))).contains("+a"));
        assert!(fault("".into()).contains("empty"));
        assert!(fault("a".repeat(DATAGRAM_BYTES_MAX)[..].into()).contains("65507"));
        assert!(Topic::from("a#").check_filter().unwrap_err().contains("a#"));
        assert_eq!(Topic::from("a/#").check_filter(), Ok(()));
        assert_eq!(Topic::Predefined(7).check_name(), Ok(()));
    }
}
