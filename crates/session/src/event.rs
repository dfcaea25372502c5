use std::num::NonZeroU64;

use tenbin_codec::{Auth, Disconnect, PacketId, PingReq, ReasonCode, SubAck, Subscribe, UnsubAck, Unsubscribe};

use crate::{PendingAck, Publication, SharedDelivery, Stored};

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
