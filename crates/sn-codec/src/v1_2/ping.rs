use alloc::vec::Vec;

use crate::DecodeError;
use crate::reader::Reader;

/// PINGREQ (§5.4.19): "are you there?", or a sleeping client's request for its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PingReq<'a> {
    /// Present in the request of a sleeping client; at least one character.
    pub client_id: Option<&'a str>,
}

impl<'a> PingReq<'a> {
    pub(super) fn decode(body: Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self { client_id: Some(body.rest_text()?).filter(|id| !id.is_empty()) })
    }

    pub(super) fn len(&self) -> usize {
        self.client_id.map_or(0, str::len)
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.client_id.unwrap_or_default().as_bytes());
    }
}
