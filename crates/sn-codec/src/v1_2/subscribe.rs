use alloc::vec::Vec;

use super::ReturnCode;
use super::flags::{Flags, QoS};
use super::ids::MessageId;
use super::topic::Subscribed;
use crate::DecodeError;
use crate::reader::Reader;

/// SUBSCRIBE (§5.4.15).
///
/// ```text
///   Flags: DUP, QoS, TopicIdType | MsgId (2) | topic name, or topic id (2), or short name (2)
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subscribe<'a> {
    /// The message may have been sent before.
    pub dup: bool,
    /// Highest QoS of deliveries.
    pub qos: QoS,
    /// Repeated in SUBACK.
    pub message_id: MessageId,
    /// The filter.
    pub topic: Subscribed<'a>,
}

/// SUBACK (§5.4.16): the answer to SUBSCRIBE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubAck {
    /// Granted QoS.
    pub qos: QoS,
    /// Id under which messages arrive; 0 if the filter has wildcards or is a short name.
    pub topic_id: u16,
    /// MsgId of the SUBSCRIBE.
    pub message_id: MessageId,
    /// Result.
    pub code: ReturnCode,
}

impl<'a> Subscribe<'a> {
    pub(super) fn decode(mut body: Reader<'a>) -> Result<Self, DecodeError> {
        let flags = Flags(body.u8()?);
        let message_id = MessageId::decode(&mut body)?;
        let topic = Subscribed::decode(flags.topic_id_type(), body)?;
        Ok(Self { dup: flags.dup(), qos: flags.qos()?, message_id, topic })
    }

    pub(super) fn len(&self) -> usize {
        3 + self.topic.len()
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let flags = Flags::default().with_dup(self.dup).with_qos(Some(self.qos));
        out.push(flags.with_topic_id_type(self.topic.id_type()).0);
        self.message_id.encode(out);
        self.topic.encode(out);
    }
}

impl SubAck {
    pub(super) fn decode(mut body: Reader<'_>) -> Result<Self, DecodeError> {
        let qos = Flags(body.u8()?).qos()?;
        let topic_id = body.u16()?;
        let message_id = MessageId::decode(&mut body)?;
        let code = ReturnCode::decode(&mut body)?;
        body.finish()?;
        Ok(Self { qos, topic_id, message_id, code })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.push(Flags::default().with_qos(Some(self.qos)).0);
        out.extend_from_slice(&self.topic_id.to_be_bytes());
        self.message_id.encode(out);
        out.push(self.code as u8);
    }
}
