use bytes::{Buf, Bytes};

use crate::varint::peek_varint;
use crate::{DecodeError, PacketId, Text};

/// Reads fields from the front of a packet's body. Strings and binary data are slices of it.
#[derive(Debug)]
pub(crate) struct Reader {
    bytes: Bytes,
    limits: Limits,
}

/// Limits on the content of one packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// User Properties in one list of properties.
    pub(crate) user_properties: u32,
    /// Topic Filters of one SUBSCRIBE or UNSUBSCRIBE.
    pub(crate) filters: u32,
}

impl Limits {
    pub(crate) const NONE: Self = Self { user_properties: u32::MAX, filters: u32::MAX };
}

impl Reader {
    pub(crate) fn new(bytes: Bytes, limits: Limits) -> Self {
        Self { bytes, limits }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Splits off the next `len` bytes as a separate reader.
    pub(crate) fn part(&mut self, len: usize) -> Result<Self, DecodeError> {
        Ok(Self { bytes: self.take(len)?, ..*self })
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// Consumes a Property Length of 0 and returns true, or consumes nothing.
    pub(crate) fn skip_no_properties(&mut self) -> bool {
        let is_none = self.bytes.first() == Some(&0);
        if is_none {
            self.bytes.advance(1);
        }
        is_none
    }

    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.bytes.try_get_u8().map_err(|_| DecodeError::Truncated)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.bytes.try_get_u16().map_err(|_| DecodeError::Truncated)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.bytes.try_get_u32().map_err(|_| DecodeError::Truncated)
    }

    pub(crate) fn varint(&mut self) -> Result<u32, DecodeError> {
        let (value, width) = peek_varint(&self.bytes)?.ok_or(DecodeError::Truncated)?;
        self.bytes.advance(width);
        Ok(value)
    }

    /// Packet Identifier; 0 is an error `[MQTT-2.2.1-3]`.
    pub(crate) fn packet_id(&mut self) -> Result<PacketId, DecodeError> {
        PacketId::new(self.u16()?).ok_or(DecodeError::PacketIdZero)
    }

    /// UTF-8 Encoded String.
    pub(crate) fn text(&mut self) -> Result<Text, DecodeError> {
        Ok(Text::new(self.binary()?)?)
    }

    /// Binary Data: two bytes of length, then the bytes.
    pub(crate) fn binary(&mut self) -> Result<Bytes, DecodeError> {
        let len = usize::from(self.u16()?);
        self.take(len)
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<Bytes, DecodeError> {
        if len > self.bytes.len() {
            return Err(DecodeError::Truncated);
        }
        Ok(self.bytes.split_to(len))
    }

    /// Returns the remaining bytes.
    pub(crate) fn rest(self) -> Bytes {
        self.bytes
    }

    /// Checks that no bytes remain.
    ///
    /// # Errors
    /// [`DecodeError::SurplusBytes`] if bytes remain.
    pub(crate) fn finish(self) -> Result<(), DecodeError> {
        if self.bytes.is_empty() { Ok(()) } else { Err(DecodeError::SurplusBytes) }
    }
}
