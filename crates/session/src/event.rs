use std::num::NonZeroU64;
use std::time::Duration;

use tenbin_codec::{
    Ack, Auth, Disconnect, PacketId, PingReq, ReasonCode, SubAck, Subscribe, Text, UnsubAck, Unsubscribe,
};

use crate::{Delivery, PendingAck, Publication, SharedDelivery, Stored};

/// Result of a packet for the application.
#[derive(Debug)]
pub enum Event {
    /// Nothing to do: the packet was handled.
    Handled,
    /// A new message. If it has an `ack`, pass that to [`crate::Connection::acknowledge`] once the message is durable,
    /// in the order of the events `[MQTT-4.6.0-2]`.
    Publish(Publication),
    /// A known QoS 2 message that was sent again: only acknowledge it again in its turn `[MQTT-4.3.3-10]`.
    Duplicate(PendingAck),
    /// The peer has a QoS 1 or 2 message of this side (PUBACK, PUBCOMP), or refused it.
    Delivered {
        /// Packet Identifier of the PUBLISH.
        packet_id: PacketId,
        /// Success, or the reason for the refusal.
        reason: ReasonCode,
        /// Present if a share group chose the peer.
        shared: Option<SharedDelivery>,
        /// [`crate::Delivery::stored`]: the copy is not needed any more.
        stored: Option<Stored>,
    },
    /// The peer refused a QoS 1 or 2 message of this side whose receiver a share group chose (PUBACK or PUBREC).
    Rejected(Box<Rejected>),
    /// The peer acknowledged or refused a message that [`crate::Connection::take_late`] took from it.
    Late {
        /// Packet Identifier of the PUBLISH, which is unused now.
        packet_id: PacketId,
        /// Success, or the reason for the refusal.
        reason: ReasonCode,
        /// Data for the share group.
        shared: SharedDelivery,
    },
    /// The peer has a stored QoS 2 message of this side (PUBREC, possibly repeated). Store this, then call
    /// [`crate::Connection::release`].
    Received {
        /// Packet Identifier of the PUBLISH.
        packet_id: PacketId,
        /// [`crate::Delivery::stored`].
        stored: Stored,
        /// [`crate::Delivery::share`].
        share: Option<NonZeroU64>,
    },
    /// The peer released its QoS 2 message (PUBREL), in a stored session. Store this, then call
    /// [`crate::Connection::complete`].
    Released(PacketId),
    /// Server: a SUBSCRIBE to answer with SUBACK `[MQTT-3.8.4-1]`.
    Subscribe(Subscribe),
    /// Server: an UNSUBSCRIBE to answer with UNSUBACK `[MQTT-3.10.4-4]`.
    Unsubscribe(Unsubscribe),
    /// Server: a PINGREQ, already answered. Its body may be a load report.
    Ping(PingReq),
    /// Client: the answer to a SUBSCRIBE.
    SubAck(SubAck),
    /// Client: the answer to an UNSUBSCRIBE.
    UnsubAck(UnsubAck),
    /// Client: the answer to a PINGREQ.
    PingResp,
    /// The peer ends the connection.
    Disconnect(Disconnect),
    /// A step of extended authentication.
    Auth(Box<Auth>),
}

/// A message of a share group that the peer refused. It is not in flight any more.
#[derive(Debug)]
pub struct Rejected {
    /// Packet Identifier of the PUBLISH.
    pub packet_id: PacketId,
    /// Reason for the refusal.
    pub reason: ReasonCode,
    /// Data for the share group.
    pub shared: SharedDelivery,
    /// The message.
    pub delivery: Delivery,
    /// Value of the User Property [`Rejected::RETRY_AFTER`]; `None` if it is missing, or no number of milliseconds.
    pub retry_after: Option<Duration>,
    /// Value of the User Property [`Rejected::DEAD_LETTER`].
    pub dead_letter: Option<Text>,
}

impl Rejected {
    /// User Property of an acknowledgement: milliseconds before the message is delivered again.
    pub const RETRY_AFTER: &'static str = "retry-after-ms";
    /// User Property of an acknowledgement: the message is to be delivered to no other receiver, for this reason.
    pub const DEAD_LETTER: &'static str = "dead-letter";

    pub(crate) fn new(ack: &Ack, shared: SharedDelivery, delivery: Delivery) -> Self {
        let property = |name: &str| {
            let properties = ack.properties.as_deref()?;
            properties.user_properties.iter().find(|property| property.name.as_str() == name).map(|found| &found.value)
        };
        let retry_after = property(Self::RETRY_AFTER).and_then(|value| value.as_str().parse().ok());
        let dead_letter = property(Self::DEAD_LETTER).map(Text::detach);
        let retry_after = retry_after.map(Duration::from_millis);
        Self { packet_id: ack.packet_id, reason: ack.reason, shared, delivery, retry_after, dead_letter }
    }
}
