use alloc::vec::Vec;

use super::flags::Flags;
use super::ids::MessageId;
use super::topic::Subscribed;
use crate::DecodeError;
use crate::reader::Reader;

/// UNSUBSCRIBE (§5.4.17).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unsubscribe<'a> {
    /// Repeated in UNSUBACK.
    pub message_id: MessageId,
    /// The filter.
    pub topic: Subscribed<'a>,
}

impl<'a> Unsubscribe<'a> {
    pub(super) fn decode(mut body: Reader<'a>) -> Result<Self, DecodeError> {
        let flags = Flags(body.u8()?);
        let message_id = MessageId::decode(&mut body)?;
        Ok(Self { message_id, topic: Subscribed::decode(flags.topic_id_type(), body)? })
    }

    pub(super) fn len(&self) -> usize {
        3 + self.topic.len()
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.push(Flags::default().with_topic_id_type(self.topic.id_type()).0);
        self.message_id.encode(out);
        self.topic.encode(out);
    }
}
