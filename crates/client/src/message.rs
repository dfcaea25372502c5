use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tenbin_codec::{MessageProperties, PacketId, QoS, ReasonCode, Text, TopicName, UserProperty};

use crate::options::BINARY_MAX;

/// A message to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutgoingMessage {
    /// The topic.
    pub topic: TopicName,
    /// The payload. Large payloads are shared, not copied.
    pub payload: Bytes,
    /// Quality of Service.
    pub qos: QoS,
    /// Whether the broker retains the message.
    pub retain: bool,
    /// Properties; not sent in 3.1.1.
    ///
    /// The Message Expiry Interval also applies within the client, in 3.1.1 too: it starts at
    /// [`Client::publish`](crate::Client::publish).
    pub properties: Option<Box<MessageProperties>>,
}

impl OutgoingMessage {
    /// A QoS 0 message, not retained, without properties.
    pub fn new(topic: TopicName, payload: impl Into<Bytes>) -> Self {
        Self { topic, payload: payload.into(), qos: QoS::AtMostOnce, retain: false, properties: None }
    }

    /// Sets the QoS.
    #[must_use]
    pub fn at(mut self, qos: QoS) -> Self {
        self.qos = qos;
        self
    }

    /// Why the message cannot be encoded; `None` if it can.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        let properties = self.properties.as_deref();
        let response_topic = properties.and_then(|properties| properties.response_topic.clone());
        if self.topic.is_empty() {
            Some("the message has no topic [MQTT-4.7.3-1]")
        } else if response_topic.is_some_and(|text| TopicName::new(text).is_err()) {
            Some("the response topic is no topic name [MQTT-3.3.2-14]")
        } else if properties.and_then(|p| p.correlation_data.as_ref()).is_some_and(|data| data.len() > BINARY_MAX) {
            Some("correlation data of more than 65,535 bytes")
        } else {
            None
        }
    }
}

/// A received message. Topic and payload are slices of the connection's read buffer, which they keep alive.
#[derive(Debug, Clone)]
pub struct Message {
    /// The topic.
    pub topic: TopicName,
    /// The payload.
    pub payload: Bytes,
    /// QoS of this delivery.
    pub qos: QoS,
    /// Whether it is a retained message, or was published with RETAIN if the subscription has Retain As Published.
    pub retain: bool,
    /// Whether the broker may have sent the message before (DUP).
    pub dup: bool,
    /// Properties; usually `None`.
    pub properties: Option<Box<MessageProperties>>,
    /// Identifiers of the matching subscriptions.
    pub subscription_identifiers: Vec<u32>,
    /// When it was read from the socket.
    pub received_at: Instant,
    /// Present only if the application must acknowledge the message.
    pub(crate) acknowledgement: Option<Arc<Acknowledgement>>,
}

/// How a message is rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// Reason Code of PUBACK or PUBREC: 0x80 or more. A smaller one would be an acceptance, and counts as 0x80.
    pub reason: ReasonCode,
    /// Pause before the message is delivered again, if the broker's work queue retries; `None` = as the broker's rule says.
    pub retry_after: Option<Duration>,
    /// The message becomes a dead letter for this reason, and is not delivered again.
    pub dead_letter: Option<Text>,
}

impl Default for Rejection {
    fn default() -> Self {
        Self { reason: ReasonCode::UnspecifiedError, retry_after: None, dead_letter: None }
    }
}

impl Rejection {
    /// User Properties that tell a broker with work queues what to do: `retry-after-ms` and `dead-letter`.
    pub(crate) fn properties(&self) -> impl Iterator<Item = UserProperty> + use<> {
        let pause = self.retry_after.map(|pause| pause.as_millis().to_string());
        let pause = pause.map(|text| ("retry-after-ms", Text::try_from(text).expect("digits are a legal text")));
        let letter = self.dead_letter.clone().map(|reason| ("dead-letter", reason));
        pause.into_iter().chain(letter).map(|(name, value)| UserProperty::new(Text::from_static(name), value))
    }
}

/// Acknowledgement of one delivery; clones of the message share it.
#[derive(Debug)]
pub(crate) struct Acknowledgement {
    pub(crate) packet_id: PacketId,
    pub(crate) qos: QoS,
    /// Numbers of the connection and the session of the delivery.
    pub(crate) connection: u64,
    pub(crate) session: u64,
    /// Set by the first call of [`Client::acknowledge`](crate::Client::acknowledge).
    pub(crate) given: AtomicBool,
    /// MQTT 5.0 has Reason Codes.
    pub(crate) can_reject: bool,
    /// Set before it is given; unset: success.
    pub(crate) rejection: OnceLock<Box<Rejection>>,
}
