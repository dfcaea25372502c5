//! Encoding of numbers and texts in a record, one behind the other.

use bytes::Bytes;
use tenbin_codec::Text;

/// Why a record cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordError {
    /// Written by a later version.
    #[error("version {0} is unknown")]
    Version(u8),
    /// It ends too early.
    #[error("it is too short")]
    Short,
    /// Bytes follow its end.
    #[error("it is too long")]
    Long,
    /// This part of it is illegal.
    #[error("its {0} is illegal")]
    Illegal(&'static str),
}

/// Decodes a record, field by field.
#[derive(Debug)]
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// Begins a record of this version.
    pub(super) fn of(record: &'a [u8], version: u8) -> Result<Self, RecordError> {
        Self::of_versions(record, &[version]).map(|(fields, _)| fields)
    }

    /// Begins a record of one of these versions. Returns its version too.
    pub(super) fn of_versions(record: &'a [u8], versions: &[u8]) -> Result<(Self, u8), RecordError> {
        let mut fields = Self(record);
        match fields.u8()? {
            found if versions.contains(&found) => Ok((fields, found)),
            found => Err(RecordError::Version(found)),
        }
    }

    pub(super) fn of_key(key: &'a [u8]) -> Self {
        Self(key)
    }

    pub(super) fn u8(&mut self) -> Result<u8, RecordError> {
        self.array().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, RecordError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, RecordError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, RecordError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], RecordError> {
        let (array, rest) = self.0.split_first_chunk().ok_or(RecordError::Short)?;
        self.0 = rest;
        Ok(*array)
    }

    /// Takes bytes that [`put_bytes`] wrote.
    pub(super) fn bytes(&mut self) -> Result<&'a [u8], RecordError> {
        let len = self.u32()? as usize;
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(RecordError::Short)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// Takes UTF-8 that comes from a configuration.
    pub(super) fn str(&mut self, what: &'static str) -> Result<&'a str, RecordError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| RecordError::Illegal(what))
    }

    pub(super) fn text(&mut self, what: &'static str) -> Result<Text, RecordError> {
        text(self.bytes()?, what)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes that are left.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// Checks that no bytes are left.
    pub(super) fn end(self) -> Result<(), RecordError> {
        if self.0.is_empty() { Ok(()) } else { Err(RecordError::Long) }
    }
}

pub(super) fn text(bytes: &[u8], what: &'static str) -> Result<Text, RecordError> {
    Text::new(Bytes::copy_from_slice(bytes)).map_err(|_| RecordError::Illegal(what))
}

/// Appends the number of bytes, and the bytes.
pub(super) fn put_bytes(record: &mut Vec<u8>, bytes: &[u8]) {
    let len = u32::try_from(bytes.len()).expect("nothing in MQTT or a configuration is so long");
    record.extend_from_slice(&len.to_le_bytes());
    record.extend_from_slice(bytes);
}
