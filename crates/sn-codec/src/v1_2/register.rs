use alloc::vec::Vec;

use super::ReturnCode;
use super::ids::{MessageId, put_id};
use crate::DecodeError;
use crate::reader::Reader;

/// REGISTER (§5.4.10): a client asks for the id of a topic, or the gateway tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Register<'a> {
    /// The assigned id from a gateway; 0 from a client.
    pub topic_id: u16,
    /// Repeated in REGACK. Absent (0) is tolerated, since no MQTT packet carries it.
    pub message_id: Option<MessageId>,
    /// At least one character.
    pub topic: &'a str,
}

/// REGACK (§5.4.11): the answer to REGISTER.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegAck {
    /// The id of the topic.
    pub topic_id: u16,
    /// MsgId of the REGISTER.
    pub message_id: Option<MessageId>,
    /// Result.
    pub code: ReturnCode,
}

impl<'a> Register<'a> {
    pub(super) fn decode(mut body: Reader<'a>) -> Result<Self, DecodeError> {
        let topic_id = body.u16()?;
        let message_id = MessageId::new(body.u16()?);
        if body.is_empty() {
            return Err(DecodeError::TopicEmpty);
        }
        Ok(Self { topic_id, message_id, topic: body.rest_text()? })
    }

    pub(super) fn len(&self) -> usize {
        4 + self.topic.len()
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.topic_id.to_be_bytes());
        put_id(self.message_id, out);
        out.extend_from_slice(self.topic.as_bytes());
    }
}

impl RegAck {
    pub(super) fn decode(mut body: Reader<'_>) -> Result<Self, DecodeError> {
        let topic_id = body.u16()?;
        let message_id = MessageId::new(body.u16()?);
        let code = ReturnCode::decode(&mut body)?;
        body.finish()?;
        Ok(Self { topic_id, message_id, code })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.topic_id.to_be_bytes());
        put_id(self.message_id, out);
        out.push(self.code as u8);
    }
}
