use std::num::NonZeroU64;

use tenbin_codec::{Auth, Disconnect, PacketId, PingReq, ReasonCode, SubAck, Subscribe, UnsubAck, Unsubscribe};

use crate::{PendingAck, Publication, SharedDelivery};

/// What a packet asks of the application.
#[derive(Debug)]
pub enum Event {
    /// Nothing: the packet was handled.
    Handled,
    /// A new message. If it has an `ack`, give it to [`crate::Connection::acknowledge`] once the message is
    /// safe, in the order of the events `[MQTT-4.6.0-2]`.
    Publish(Publication),
    /// A QoS 2 message that came again and is known: acknowledge it again in its turn, do nothing else
    /// `[MQTT-4.3.3-10]`.
    Duplicate(PendingAck),
    /// The peer owns a QoS 1 or 2 message of ours (PUBACK, PUBCOMP), or refused it.
    Delivered {
        /// That of the PUBLISH.
        packet_id: PacketId,
        /// Success, or why it was refused.
        reason: ReasonCode,
        /// Where a share group chose the peer for it.
        shared: Option<SharedDelivery>,
        /// [`crate::Delivery::stored`]: it need not be stored any more.
        stored: Option<NonZeroU64>,
    },
    /// The peer has a stored QoS 2 message of ours (PUBREC), or says so again. Once that is stored too:
    /// [`crate::Connection::release`].
    Received {
        /// That of the PUBLISH.
        packet_id: PacketId,
        /// [`crate::Delivery::stored`].
        stored: NonZeroU64,
        /// [`crate::Delivery::share`].
        share: Option<NonZeroU64>,
    },
    /// The peer knows that we have its QoS 2 message (PUBREL), in a session that is stored. Once that is stored too:
    /// [`crate::Connection::complete`].
    Released(PacketId),
    /// Server: a SUBSCRIBE to be answered by SUBACK `[MQTT-3.8.4-1]`.
    Subscribe(Subscribe),
    /// Server: an UNSUBSCRIBE to be answered by UNSUBACK `[MQTT-3.10.4-4]`.
    Unsubscribe(Unsubscribe),
    /// Server: a PINGREQ, already answered; its body may be a load report.
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
