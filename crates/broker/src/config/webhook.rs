//! Receivers of events over HTTP: tables `[[webhook]]`.

use std::path::PathBuf;

use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};
use tenbin_codec::TopicFilter;

use super::range::Ranged;
use super::service_url::ServiceUrl;

/// A service that gets events over HTTP.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Webhook {
    /// URL of the service.
    pub url: ServiceUrl,
    /// Events that it gets.
    #[serde(deserialize_with = "events")]
    pub events: Vec<WebhookEvent>,
    /// Topic Filter for events of messages; `None` = all topics.
    #[serde(default, deserialize_with = "filter")]
    pub filter: Option<String>,
    #[serde(default = "no_payload")]
    payload_bytes_maximum: Ranged<0, 1_048_576>,
    /// File with the key of the signatures; `None` = requests have no signature.
    pub secret_file: Option<PathBuf>,
}

/// An event that a webhook may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WebhookEvent {
    /// A client is connected.
    Connected,
    /// A connection has ended.
    Disconnected,
    /// A session has begun.
    SessionCreated,
    /// A session has expired.
    SessionExpired,
    /// A subscription was granted.
    Subscribed,
    /// A subscription has ended by UNSUBSCRIBE.
    Unsubscribed,
    /// A client's message is in the queues of its receivers.
    Published,
    /// A client has acknowledged a message of QoS 1 or 2.
    Acknowledged,
    /// A message was dropped on the way to a receiver.
    Dropped,
    /// A client became slow.
    SlowBegun,
    /// A client is no longer slow.
    SlowEnded,
    /// The backlog of a share group has become too long, or is so no longer.
    GroupBacklog,
    /// A message of a share group has become a dead letter.
    DeadLetter,
    /// Rules have denied an action of a client.
    Denied,
    /// The node of this broker leads its cluster now.
    LeaderChanged,
    /// Another number of the cluster's nodes has all acknowledged messages.
    CopiesChanged,
}

impl Webhook {
    /// Size of payloads above which an event has none, in bytes.
    pub fn payload_bytes_maximum(&self) -> usize {
        self.payload_bytes_maximum.get() as usize
    }
}

fn events<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<WebhookEvent>, D::Error> {
    let events = Vec::deserialize(deserializer)?;
    if events.is_empty() { Err(D::Error::custom("needs at least one event")) } else { Ok(events) }
}

fn filter<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let filter = String::deserialize(deserializer)?;
    match TopicFilter::try_from(&filter[..]) {
        Ok(legal) if !legal.is_shared() => Ok(Some(filter)),
        _ => Err(D::Error::custom(format!("{filter:?} is no Topic Filter"))),
    }
}

fn no_payload() -> Ranged<0, 1_048_576> {
    Ranged(0)
}

#[cfg(test)]
mod tests {
    use crate::Config;

    #[test]
    fn errors_in_webhooks_name_key_and_line() {
        let url = "url = \"http://127.0.0.1/\"\n";
        let events = "events = [\"connected\"]\n";
        for (text, line, word) in [
            (events.to_owned(), 1, "url"),
            (url.to_owned(), 1, "events"),
            (format!("url = \"ftp://host/\"\n{events}"), 2, "url: needs to be an URL"),
            (format!("url = \"https:///path\"\n{events}"), 2, "url: needs to be an URL"),
            (format!("url = \"http://a b/\"\n{events}"), 2, "url: needs to be an URL"),
            (format!("{url}events = []\n"), 3, "at least one event"),
            (format!("{url}events = [\"connect\"]\n"), 3, "session_created"),
            (format!("{url}{events}filter = \"a#\"\n"), 4, "\"a#\" is no Topic Filter"),
            (format!("{url}{events}filter = \"$share/g/a\"\n"), 4, "is no Topic Filter"),
            (format!("{url}{events}payload_bytes_maximum = -1\n"), 4, "0 to 1048576"),
            (format!("{url}{events}secret = \"s\"\n"), 4, "secret"),
        ] {
            let error = Config::parse(&format!("[[webhook]]\n{text}")).unwrap_err().to_string();
            assert!(error.contains(&format!("line {line}")) && error.contains(word), "{text}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        let config = Config::parse(&format!("[[webhook]]\n{url}{events}")).unwrap();
        assert_eq!((config.webhook.len(), config.webhook[0].payload_bytes_maximum()), (1, 0));
    }
}
