use bytes::Bytes;
use tenbin_sn_codec::v1_2::QoS;

use crate::Topic;
use crate::topic::DATAGRAM_BYTES_MAX;

/// A message to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutgoingMessage {
    /// The topic.
    pub topic: Topic,
    /// The payload, at most 65,498 bytes. Gateways usually take no more than fits an Ethernet frame.
    pub payload: Bytes,
    /// Quality of Service. For QoS −1 see [`publish_unconnected`](crate::publish_unconnected).
    pub qos: QoS,
    /// Whether the broker retains the message.
    pub retain: bool,
}

/// A received message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The topic.
    pub topic: Topic,
    /// The payload.
    pub payload: Bytes,
    /// QoS of this delivery. At QoS 1 the message may come twice.
    pub qos: QoS,
    /// Whether it is a retained message.
    pub retain: bool,
}

/// Largest payload beside the other fields of a PUBLISH.
const PAYLOAD_BYTES_MAX: usize = DATAGRAM_BYTES_MAX - 9;

impl OutgoingMessage {
    /// A QoS 0 message, not retained.
    pub fn new(topic: impl Into<Topic>, payload: impl Into<Bytes>) -> Self {
        Self { topic: topic.into(), payload: payload.into(), qos: QoS::AtMostOnce, retain: false }
    }

    /// Sets the QoS.
    #[must_use]
    pub fn at(mut self, qos: QoS) -> Self {
        self.qos = qos;
        self
    }

    /// Checks topic and payload.
    ///
    /// # Errors
    /// A description of the fault.
    pub(crate) fn check(&self) -> Result<(), String> {
        check_payload(&self.payload)?;
        self.topic.check_name()
    }
}

pub(crate) fn check_payload(payload: &[u8]) -> Result<(), String> {
    if payload.len() > PAYLOAD_BYTES_MAX {
        return Err(format!("the payload has {} bytes; a datagram carries {PAYLOAD_BYTES_MAX}", payload.len()));
    }
    Ok(())
}
