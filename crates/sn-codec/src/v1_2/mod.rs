//! MQTT-SN 1.2 (specification of 14 November 2013).

mod auth;
mod connect;
mod disconnect;
mod discovery;
mod flags;
mod ids;
mod ping;
mod publish;
mod publish_ack;
mod register;
mod return_code;
mod subscribe;
mod topic;
mod unsubscribe;
mod will;

use alloc::vec::Vec;

pub use auth::Auth;
pub use connect::{Connect, PROTOCOL_ID};
pub use disconnect::Disconnect;
pub use discovery::{Advertise, GwInfo, SearchGw};
pub use ids::MessageId;
pub use ping::PingReq;
pub use publish::Publish;
pub use publish_ack::PubAck;
pub use register::{RegAck, Register};
pub use return_code::ReturnCode;
pub use subscribe::{SubAck, Subscribe};
pub use topic::{ShortName, Subscribed, Topic};
pub use unsubscribe::Unsubscribe;
pub use will::WillTopic;

use crate::DecodeError;
use crate::frame::{put_header, split_whole};
use crate::reader::Reader;
pub use flags::QoS;

/// A message of either direction. Its names and payload borrow from the datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the specification's own names")]
pub enum Message<'a> {
    Advertise(Advertise),
    SearchGw(SearchGw),
    GwInfo(GwInfo<'a>),
    /// Of a draft of MQTT-SN 2.0.
    Auth(Auth<'a>),
    Connect(Connect<'a>),
    ConnAck(ReturnCode),
    WillTopicReq,
    /// `None`: the client has no Will.
    WillTopic(Option<WillTopic<'a>>),
    WillMsgReq,
    WillMsg(&'a [u8]),
    Register(Register<'a>),
    RegAck(RegAck),
    Publish(Publish<'a>),
    PubAck(PubAck),
    PubRec(MessageId),
    PubRel(MessageId),
    PubComp(MessageId),
    Subscribe(Subscribe<'a>),
    SubAck(SubAck),
    Unsubscribe(Unsubscribe<'a>),
    UnsubAck(MessageId),
    PingReq(PingReq<'a>),
    PingResp,
    Disconnect(Disconnect),
    /// `None`: the client deletes its Will.
    WillTopicUpd(Option<WillTopic<'a>>),
    WillTopicResp(ReturnCode),
    WillMsgUpd(&'a [u8]),
    WillMsgResp(ReturnCode),
}

/// Message type (§5.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the specification's own names")]
pub enum MessageType {
    Advertise = 0x00,
    SearchGw = 0x01,
    GwInfo = 0x02,
    /// Reserved in MQTT-SN 1.2.
    Auth = 0x03,
    Connect = 0x04,
    ConnAck = 0x05,
    WillTopicReq = 0x06,
    WillTopic = 0x07,
    WillMsgReq = 0x08,
    WillMsg = 0x09,
    Register = 0x0A,
    RegAck = 0x0B,
    Publish = 0x0C,
    PubAck = 0x0D,
    PubComp = 0x0E,
    PubRec = 0x0F,
    PubRel = 0x10,
    Subscribe = 0x12,
    SubAck = 0x13,
    Unsubscribe = 0x14,
    UnsubAck = 0x15,
    PingReq = 0x16,
    PingResp = 0x17,
    Disconnect = 0x18,
    WillTopicUpd = 0x1A,
    WillTopicResp = 0x1B,
    WillMsgUpd = 0x1C,
    WillMsgResp = 0x1D,
}

impl MessageType {
    /// All types, ascending.
    pub const ALL: [Self; 28] = [
        Self::Advertise,
        Self::SearchGw,
        Self::GwInfo,
        Self::Auth,
        Self::Connect,
        Self::ConnAck,
        Self::WillTopicReq,
        Self::WillTopic,
        Self::WillMsgReq,
        Self::WillMsg,
        Self::Register,
        Self::RegAck,
        Self::Publish,
        Self::PubAck,
        Self::PubComp,
        Self::PubRec,
        Self::PubRel,
        Self::Subscribe,
        Self::SubAck,
        Self::Unsubscribe,
        Self::UnsubAck,
        Self::PingReq,
        Self::PingResp,
        Self::Disconnect,
        Self::WillTopicUpd,
        Self::WillTopicResp,
        Self::WillMsgUpd,
        Self::WillMsgResp,
    ];

    /// From the byte on the wire; `None` for a reserved type.
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.binary_search_by_key(&byte, |&kind| kind as u8).ok().map(|index| Self::ALL[index])
    }
}

impl<'a> Message<'a> {
    /// Decodes the one message of a datagram.
    ///
    /// # Errors
    /// Any deviation from the specification. Flags that a message does not use are ignored.
    pub fn decode(datagram: &'a [u8]) -> Result<Self, DecodeError> {
        let (kind, body) = split_whole(datagram)?;
        let kind = MessageType::from_byte(kind).ok_or(DecodeError::ReservedType(kind))?; // [SN-FRAME-3]
        let body = Reader::new(body);
        Ok(match kind {
            MessageType::Publish => Self::Publish(Publish::decode(body)?),
            MessageType::PubAck => Self::PubAck(PubAck::decode(body)?),
            MessageType::PubRec => Self::PubRec(MessageId::decode_alone(body)?),
            MessageType::PubRel => Self::PubRel(MessageId::decode_alone(body)?),
            MessageType::PubComp => Self::PubComp(MessageId::decode_alone(body)?),
            MessageType::PingReq => Self::PingReq(PingReq::decode(body)?),
            MessageType::PingResp => body.finish().map(|()| Self::PingResp)?,
            MessageType::Connect => Self::Connect(Connect::decode(body)?),
            MessageType::ConnAck => Self::ConnAck(ReturnCode::decode_alone(body)?),
            MessageType::Disconnect => Self::Disconnect(Disconnect::decode(body)?),
            MessageType::Register => Self::Register(Register::decode(body)?),
            MessageType::RegAck => Self::RegAck(RegAck::decode(body)?),
            MessageType::Subscribe => Self::Subscribe(Subscribe::decode(body)?),
            MessageType::SubAck => Self::SubAck(SubAck::decode(body)?),
            MessageType::Unsubscribe => Self::Unsubscribe(Unsubscribe::decode(body)?),
            MessageType::UnsubAck => Self::UnsubAck(MessageId::decode_alone(body)?),
            MessageType::WillTopicReq => body.finish().map(|()| Self::WillTopicReq)?,
            MessageType::WillTopic => Self::WillTopic(WillTopic::decode(body)?),
            MessageType::WillMsgReq => body.finish().map(|()| Self::WillMsgReq)?,
            MessageType::WillMsg => Self::WillMsg(body.rest()),
            MessageType::WillTopicUpd => Self::WillTopicUpd(WillTopic::decode(body)?),
            MessageType::WillTopicResp => Self::WillTopicResp(ReturnCode::decode_alone(body)?),
            MessageType::WillMsgUpd => Self::WillMsgUpd(body.rest()),
            MessageType::WillMsgResp => Self::WillMsgResp(ReturnCode::decode_alone(body)?),
            MessageType::Advertise => Self::Advertise(Advertise::decode(body)?),
            MessageType::SearchGw => Self::SearchGw(SearchGw::decode(body)?),
            MessageType::GwInfo => Self::GwInfo(GwInfo::decode(body)?),
            MessageType::Auth => Self::Auth(Auth::decode(body)?),
        })
    }

    /// The message type.
    pub fn message_type(&self) -> MessageType {
        match self {
            Self::Advertise(_) => MessageType::Advertise,
            Self::SearchGw(_) => MessageType::SearchGw,
            Self::GwInfo(_) => MessageType::GwInfo,
            Self::Auth(_) => MessageType::Auth,
            Self::Connect(_) => MessageType::Connect,
            Self::ConnAck(_) => MessageType::ConnAck,
            Self::WillTopicReq => MessageType::WillTopicReq,
            Self::WillTopic(_) => MessageType::WillTopic,
            Self::WillMsgReq => MessageType::WillMsgReq,
            Self::WillMsg(_) => MessageType::WillMsg,
            Self::Register(_) => MessageType::Register,
            Self::RegAck(_) => MessageType::RegAck,
            Self::Publish(_) => MessageType::Publish,
            Self::PubAck(_) => MessageType::PubAck,
            Self::PubRec(_) => MessageType::PubRec,
            Self::PubRel(_) => MessageType::PubRel,
            Self::PubComp(_) => MessageType::PubComp,
            Self::Subscribe(_) => MessageType::Subscribe,
            Self::SubAck(_) => MessageType::SubAck,
            Self::Unsubscribe(_) => MessageType::Unsubscribe,
            Self::UnsubAck(_) => MessageType::UnsubAck,
            Self::PingReq(_) => MessageType::PingReq,
            Self::PingResp => MessageType::PingResp,
            Self::Disconnect(_) => MessageType::Disconnect,
            Self::WillTopicUpd(_) => MessageType::WillTopicUpd,
            Self::WillTopicResp(_) => MessageType::WillTopicResp,
            Self::WillMsgUpd(_) => MessageType::WillMsgUpd,
            Self::WillMsgResp(_) => MessageType::WillMsgResp,
        }
    }

    /// Appends the message, as a whole datagram.
    ///
    /// Appends nothing if it would be larger than [`crate::MESSAGE_SIZE_MAX`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        if !put_header(self.message_type() as u8, self.body_len(), out) {
            return;
        }
        match self {
            Self::Publish(publish) => publish.encode(out),
            Self::PubAck(puback) => puback.encode(out),
            Self::PubRec(id) | Self::PubRel(id) | Self::PubComp(id) | Self::UnsubAck(id) => id.encode(out),
            Self::Connect(connect) => connect.encode(out),
            Self::ConnAck(code) | Self::WillTopicResp(code) | Self::WillMsgResp(code) => out.push(*code as u8),
            Self::Register(register) => register.encode(out),
            Self::RegAck(regack) => regack.encode(out),
            Self::Subscribe(subscribe) => subscribe.encode(out),
            Self::SubAck(suback) => suback.encode(out),
            Self::Unsubscribe(unsubscribe) => unsubscribe.encode(out),
            Self::PingReq(ping) => ping.encode(out),
            Self::Disconnect(disconnect) => disconnect.encode(out),
            Self::WillTopic(will) | Self::WillTopicUpd(will) => {
                if let Some(will) = will {
                    will.encode(out);
                }
            }
            Self::WillMsg(message) | Self::WillMsgUpd(message) => out.extend_from_slice(message),
            Self::Advertise(advertise) => advertise.encode(out),
            Self::SearchGw(search) => search.encode(out),
            Self::GwInfo(info) => info.encode(out),
            Self::Auth(auth) => auth.encode(out),
            Self::PingResp | Self::WillTopicReq | Self::WillMsgReq => {}
        }
    }

    /// Bytes after length and type.
    fn body_len(&self) -> usize {
        match self {
            Self::Publish(publish) => publish.len(),
            Self::PubAck(_) | Self::RegAck(_) => 5,
            Self::PubRec(_) | Self::PubRel(_) | Self::PubComp(_) | Self::UnsubAck(_) => 2,
            Self::Connect(connect) => connect.len(),
            Self::ConnAck(_) | Self::WillTopicResp(_) | Self::WillMsgResp(_) | Self::SearchGw(_) => 1,
            Self::Register(register) => register.len(),
            Self::Subscribe(subscribe) => subscribe.len(),
            Self::SubAck(_) => 6,
            Self::Unsubscribe(unsubscribe) => unsubscribe.len(),
            Self::PingReq(ping) => ping.len(),
            Self::Disconnect(disconnect) => disconnect.len(),
            Self::WillTopic(will) | Self::WillTopicUpd(will) => will.as_ref().map_or(0, WillTopic::len),
            Self::WillMsg(message) | Self::WillMsgUpd(message) => message.len(),
            Self::Advertise(_) => 3,
            Self::GwInfo(info) => info.len(),
            Self::Auth(auth) => auth.len(),
            Self::PingResp | Self::WillTopicReq | Self::WillMsgReq => 0,
        }
    }
}
