use crate::DecodeError;

/// Reads fields from the front of a message's body.
#[derive(Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(body: &'a [u8]) -> Self {
        Self(body)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        let (&first, rest) = self.0.split_first().ok_or(DecodeError::Truncated)?;
        self.0 = rest;
        Ok(first)
    }

    pub(crate) fn pair(&mut self) -> Result<[u8; 2], DecodeError> {
        let (&first, rest) = self.0.split_first_chunk().ok_or(DecodeError::Truncated)?;
        self.0 = rest;
        Ok(first)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.pair().map(u16::from_be_bytes)
    }

    /// Returns a text of a known size.
    pub(crate) fn text(&mut self, size: usize) -> Result<&'a str, DecodeError> {
        let (first, rest) = self.0.split_at_checked(size).ok_or(DecodeError::Truncated)?;
        self.0 = rest;
        text(first)
    }

    /// Returns the remaining bytes.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Returns the remaining bytes as a text, which may be empty.
    pub(crate) fn rest_text(self) -> Result<&'a str, DecodeError> {
        text(self.0)
    }

    /// Checks that no bytes remain.
    pub(crate) fn finish(self) -> Result<(), DecodeError> {
        if self.0.is_empty() { Ok(()) } else { Err(DecodeError::SurplusBytes) }
    }
}

/// Checks that `bytes` are a text of the protocol.
pub(crate) fn text(bytes: &[u8]) -> Result<&str, DecodeError> {
    let text = core::str::from_utf8(bytes).map_err(|_| DecodeError::InvalidUtf8)?; // [SN-FRAME-4]
    if bytes.contains(&0) {
        return Err(DecodeError::NulCharacter); // [SN-FRAME-5]
    }
    Ok(text)
}
