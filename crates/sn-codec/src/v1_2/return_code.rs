use core::fmt;

use crate::DecodeError;
use crate::reader::Reader;

/// ReturnCode of an acknowledgement (§5.3.10).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReturnCode {
    /// Accepted.
    Accepted = 0,
    /// Rejected: congestion. The sender may try again later.
    Congestion = 1,
    /// Rejected: invalid topic id.
    InvalidTopicId = 2,
    /// Rejected: not supported.
    NotSupported = 3,
}

impl ReturnCode {
    pub(super) fn decode(body: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match body.u8()? {
            0 => Ok(Self::Accepted),
            1 => Ok(Self::Congestion),
            2 => Ok(Self::InvalidTopicId),
            3 => Ok(Self::NotSupported),
            code => Err(DecodeError::ReturnCode(code)),
        }
    }

    /// Reads a body of nothing but a ReturnCode.
    pub(super) fn decode_alone(mut body: Reader<'_>) -> Result<Self, DecodeError> {
        let code = Self::decode(&mut body)?;
        body.finish()?;
        Ok(code)
    }
}

impl fmt::Display for ReturnCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Accepted => "accepted",
            Self::Congestion => "congestion",
            Self::InvalidTopicId => "invalid topic id",
            Self::NotSupported => "not supported",
        })
    }
}
