//! The 15 control packets.

mod ack;
mod auth;
mod connack;
mod connect;
mod disconnect;
mod external;
mod ping;
mod plain_publish;
mod publish;
mod publish_template;
mod suback;
mod subscribe;
mod unsubscribe;
mod will;

pub use ack::{Ack, AckProperties};
pub use auth::{Auth, AuthProperties};
pub use connack::{ConnAck, ConnAckProperties};
pub use connect::{Connect, ConnectProperties};
pub use disconnect::{Disconnect, DisconnectProperties};
pub use external::{
    BadStream, EXTERNAL_GREETING, ExternalPublish, ExternalScanner, REFERENCE_BYTES, Scanned, write_external,
};
pub use ping::{PingBody, PingReq};
pub use plain_publish::{PlainAcknowledged, PlainPublish};
pub use publish::{MessageProperties, Publish};
pub use publish_template::{PublishHeader, PublishTemplate};
pub use suback::{SubAck, UnsubAck};
pub use subscribe::{RetainHandling, Subscribe, Subscription, SubscriptionOptions};
pub use unsubscribe::Unsubscribe;
pub use will::Will;

use crate::frame::FixedHeader;
use crate::reader::Reader;
use crate::varint::put_counted;
use crate::{DecodeError, PacketId, PacketType, ProtocolVersion, ReasonCode, WriteBuffer};

/// A control packet of either direction and any version. Parts that MQTT 3.1.1 lacks (properties, most Reason Codes)
/// are empty there.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the standard's own names")]
pub enum Packet {
    Connect(Box<Connect>),
    ConnAck(Box<ConnAck>),
    Publish(Publish),
    PubAck(Ack),
    PubRec(Ack),
    PubRel(Ack),
    PubComp(Ack),
    Subscribe(Subscribe),
    SubAck(SubAck),
    Unsubscribe(Unsubscribe),
    UnsubAck(UnsubAck),
    PingReq(PingReq),
    PingResp,
    Disconnect(Disconnect),
    Auth(Box<Auth>),
}

impl Packet {
    /// The packet type.
    pub fn packet_type(&self) -> PacketType {
        match self {
            Self::Connect(_) => PacketType::Connect,
            Self::ConnAck(_) => PacketType::ConnAck,
            Self::Publish(_) => PacketType::Publish,
            Self::PubAck(_) => PacketType::PubAck,
            Self::PubRec(_) => PacketType::PubRec,
            Self::PubRel(_) => PacketType::PubRel,
            Self::PubComp(_) => PacketType::PubComp,
            Self::Subscribe(_) => PacketType::Subscribe,
            Self::SubAck(_) => PacketType::SubAck,
            Self::Unsubscribe(_) => PacketType::Unsubscribe,
            Self::UnsubAck(_) => PacketType::UnsubAck,
            Self::PingReq(_) => PacketType::PingReq,
            Self::PingResp => PacketType::PingResp,
            Self::Disconnect(_) => PacketType::Disconnect,
            Self::Auth(_) => PacketType::Auth,
        }
    }

    /// Appends the packet to `out`.
    ///
    /// Writes nothing if the version cannot express the packet: a CONNACK whose Reason Code has no 3.1.1 return code,
    /// or an AUTH at 3.1.1. Nor does it write a packet larger than [`crate::PACKET_SIZE_MAX`]. CONNECT is written in
    /// its own version.
    pub fn encode(&self, version: ProtocolVersion, out: &mut WriteBuffer) {
        match self {
            Self::Connect(connect) => connect.encode(out),
            Self::ConnAck(connack) => connack.encode(version, out),
            Self::Publish(publish) => publish.encode(version, out),
            Self::PubAck(ack) | Self::PubRec(ack) | Self::PubRel(ack) | Self::PubComp(ack) => {
                ack.encode(self.packet_type(), version, out);
            }
            Self::Subscribe(subscribe) => subscribe.encode(version, out),
            Self::SubAck(suback) => suback.encode(version, out),
            Self::Unsubscribe(unsubscribe) => unsubscribe.encode(version, out),
            Self::UnsubAck(unsuback) => unsuback.encode(version, out),
            Self::PingReq(ping) => ping.encode(version, out),
            Self::PingResp => put_packet(out, PacketType::PingResp, |_| {}),
            Self::Disconnect(disconnect) => disconnect.encode(version, out),
            Self::Auth(auth) => auth.encode(version, out),
        }
    }

    /// A plain acknowledgement, or `None` if `kind` acknowledges neither a PUBLISH nor its PUBREL.
    pub(crate) fn plain_ack(kind: PacketType, packet_id: PacketId) -> Option<Self> {
        let ack = Ack::new(packet_id, ReasonCode::Success);
        Some(match kind {
            PacketType::PubAck => Self::PubAck(ack),
            PacketType::PubRec => Self::PubRec(ack),
            PacketType::PubRel => Self::PubRel(ack),
            PacketType::PubComp => Self::PubComp(ack),
            _ => return None,
        })
    }

    /// Decodes the body that `header` announced.
    pub(crate) fn decode(header: FixedHeader, body: Reader, version: ProtocolVersion) -> Result<Self, DecodeError> {
        let kind = header.packet_type;
        match kind {
            PacketType::Connect => Connect::decode(body).map(Box::new).map(Self::Connect),
            PacketType::ConnAck => ConnAck::decode(body, version).map(Box::new).map(Self::ConnAck),
            PacketType::Publish => Publish::decode(header.flags, body, version).map(Self::Publish),
            PacketType::PubAck => Ack::decode(kind, body, version).map(Self::PubAck),
            PacketType::PubRec => Ack::decode(kind, body, version).map(Self::PubRec),
            PacketType::PubRel => Ack::decode(kind, body, version).map(Self::PubRel),
            PacketType::PubComp => Ack::decode(kind, body, version).map(Self::PubComp),
            PacketType::Subscribe => Subscribe::decode(body, version).map(Self::Subscribe),
            PacketType::SubAck => SubAck::decode(body, version).map(Self::SubAck),
            PacketType::Unsubscribe => Unsubscribe::decode(body, version).map(Self::Unsubscribe),
            PacketType::UnsubAck => UnsubAck::decode(body, version).map(Self::UnsubAck),
            PacketType::PingReq => PingReq::decode(body, version).map(Self::PingReq),
            PacketType::PingResp => body.finish().map(|()| Self::PingResp),
            PacketType::Disconnect => Disconnect::decode(body, version).map(Self::Disconnect),
            PacketType::Auth => Auth::decode(body, version).map(Box::new).map(Self::Auth),
        }
    }
}

/// Writes a packet whose size is known only after its body, or nothing if it exceeds the largest Remaining Length.
///
/// Used for all packets except PUBLISH and plain acknowledgements, which know their size.
pub(crate) fn put_packet(out: &mut WriteBuffer, packet_type: PacketType, fill: impl FnOnce(&mut Vec<u8>)) {
    let block = out.block();
    let start = block.len();
    block.push(packet_type.first_byte());
    if !put_counted(block, fill) {
        block.truncate(start);
    }
}
