use alloc::vec::Vec;

use super::flags::{Flags, QoS};
use super::ids::{MessageId, put_id};
use super::topic::Topic;
use crate::DecodeError;
use crate::reader::Reader;

/// PUBLISH (§5.4.12): a message of an application.
///
/// ```text
///   Flags: DUP, QoS, Retain, TopicIdType | topic id or short name (2) | MsgId (2) | data
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Publish<'a> {
    /// The message may have been sent before.
    pub dup: bool,
    /// `None` is QoS −1: a message without a connection.
    pub qos: Option<QoS>,
    /// From a client: whether to retain the message. From a gateway: whether it is a retained message.
    pub retain: bool,
    /// The topic.
    pub topic: Topic,
    /// Always present at QoS 1 and 2, meaningless below.
    pub message_id: Option<MessageId>,
    /// The payload.
    pub data: &'a [u8],
}

impl<'a> Publish<'a> {
    #[inline]
    pub(super) fn decode(mut body: Reader<'a>) -> Result<Self, DecodeError> {
        let flags = Flags(body.u8()?);
        let topic = Topic::decode(flags.topic_id_type(), body.pair()?)?;
        let message_id = MessageId::new(body.u16()?);
        let qos = flags.any_qos();
        if qos.is_some_and(QoS::is_acknowledged) && message_id.is_none() {
            return Err(DecodeError::MessageIdZero);
        }
        Ok(Self { dup: flags.dup(), qos, retain: flags.retain(), topic, message_id, data: body.rest() })
    }

    /// Sets DUP in an encoded PUBLISH, before it is sent again. Leaves all other bytes as they are.
    pub fn mark_dup(datagram: &mut [u8]) {
        let header = if datagram.first() == Some(&1) { 4 } else { 2 };
        if let Some(flags) = datagram.get_mut(header) {
            *flags = Flags(*flags).with_dup(true).0;
        }
    }

    pub(super) fn len(&self) -> usize {
        5 + self.data.len()
    }

    #[inline]
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let flags = Flags::default().with_dup(self.dup).with_qos(self.qos).with_retain(self.retain);
        out.push(flags.with_topic_id_type(self.topic.id_type()).0);
        out.extend_from_slice(&self.topic.field().to_be_bytes());
        put_id(self.message_id, out);
        out.extend_from_slice(self.data);
    }
}
