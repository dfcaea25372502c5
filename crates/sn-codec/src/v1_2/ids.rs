use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroU16;

use crate::DecodeError;
use crate::reader::Reader;

/// MsgId, 1 to 65,535: pairs a message with its acknowledgement. On the wire 0 stands for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(NonZeroU16);

impl MessageId {
    /// `None` for 0.
    pub fn new(id: u16) -> Option<Self> {
        NonZeroU16::new(id).map(Self)
    }

    /// The value on the wire.
    pub fn get(self) -> u16 {
        self.0.get()
    }

    pub(super) fn decode(body: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Self::new(body.u16()?).ok_or(DecodeError::MessageIdZero)
    }

    /// Reads a body of nothing but a MsgId.
    pub(super) fn decode_alone(mut body: Reader<'_>) -> Result<Self, DecodeError> {
        let id = Self::decode(&mut body)?;
        body.finish()?;
        Ok(id)
    }

    pub(super) fn encode(self, out: &mut Vec<u8>) {
        put_id(Some(self), out);
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Appends a MsgId, or 0 for none.
pub(super) fn put_id(id: Option<MessageId>, out: &mut Vec<u8>) {
    out.extend_from_slice(&id.map_or(0, MessageId::get).to_be_bytes());
}
