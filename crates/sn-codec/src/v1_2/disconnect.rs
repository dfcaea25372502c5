use alloc::vec::Vec;

use crate::DecodeError;
use crate::reader::Reader;

/// DISCONNECT (§5.4.21): the end of a connection, or the begin of a client's sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disconnect {
    /// Seconds of sleep; `None` ends the connection.
    pub duration: Option<u16>,
}

impl Disconnect {
    pub(super) fn decode(mut body: Reader<'_>) -> Result<Self, DecodeError> {
        let duration = if body.is_empty() { None } else { Some(body.u16()?) };
        body.finish()?;
        Ok(Self { duration })
    }

    pub(super) fn len(self) -> usize {
        if self.duration.is_some() { 2 } else { 0 }
    }

    pub(super) fn encode(self, out: &mut Vec<u8>) {
        if let Some(duration) = self.duration {
            out.extend_from_slice(&duration.to_be_bytes());
        }
    }
}
