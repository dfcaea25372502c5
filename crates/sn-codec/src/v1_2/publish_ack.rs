use alloc::vec::Vec;

use super::ReturnCode;
use super::ids::{MessageId, put_id};
use crate::DecodeError;
use crate::reader::Reader;

/// PUBACK (§5.4.13): the answer to a PUBLISH at QoS 1, and the refusal of one at any QoS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PubAck {
    /// Topic field of the PUBLISH.
    pub topic_id: u16,
    /// MsgId of the PUBLISH.
    pub message_id: Option<MessageId>,
    /// Result.
    pub code: ReturnCode,
}

impl PubAck {
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
