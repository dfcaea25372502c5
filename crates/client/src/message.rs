use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use bytes::Bytes;
use tenbin_codec::{MessageProperties, PacketId, QoS, TopicName};

use crate::options::BINARY_MAX;

/// A message to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutgoingMessage {
    /// Where to.
    pub topic: TopicName,
    /// Any bytes; shared, not copied, when they are many.
    pub payload: Bytes,
    /// Quality of Service.
    pub qos: QoS,
    /// Whether the broker keeps it for the topic.
    pub retain: bool,
    /// Properties; left out at 3.1.1, but for the Message Expiry Interval, which also counts at the client: it
    /// begins when the message is given to [`Client::publish`](crate::Client::publish).
    pub properties: Option<Box<MessageProperties>>,
}

impl OutgoingMessage {
    /// A QoS 0 message, not retained, without properties.
    pub fn new(topic: TopicName, payload: impl Into<Bytes>) -> Self {
        Self { topic, payload: payload.into(), qos: QoS::AtMostOnce, retain: false, properties: None }
    }

    /// The same message at another QoS.
    #[must_use]
    pub fn at(mut self, qos: QoS) -> Self {
        self.qos = qos;
        self
    }

    /// Why it cannot be put into a packet; `None` = it can.
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
    /// Where it was published.
    pub topic: TopicName,
    /// Any bytes.
    pub payload: Bytes,
    /// QoS of this delivery.
    pub qos: QoS,
    /// Whether it comes from the retained messages (or as published, where the subscription asks for it).
    pub retain: bool,
    /// Whether the broker says that it may have sent the message before (DUP).
    pub dup: bool,
    /// Properties; `None` when there are none, as nearly always.
    pub properties: Option<Box<MessageProperties>>,
    /// Identifiers of the subscriptions that it matches.
    pub subscription_identifiers: Vec<u32>,
    /// When it was read from the socket.
    pub received_at: Instant,
    /// Only where the application has to acknowledge.
    pub(crate) acknowledgement: Option<Arc<Acknowledgement>>,
}

/// The acknowledgement that one delivery waits for; clones of the message share it.
#[derive(Debug)]
pub(crate) struct Acknowledgement {
    pub(crate) packet_id: PacketId,
    pub(crate) qos: QoS,
    /// Connection and session that it came on, counted by the task.
    pub(crate) connection: u64,
    pub(crate) session: u64,
    /// Given by the first caller of [`Client::acknowledge`](crate::Client::acknowledge).
    pub(crate) given: AtomicBool,
}
