use alloc::vec::Vec;
use core::fmt;

use crate::DecodeError;
use crate::reader::{Reader, text};

/// Meaning of a topic field, in two bits of the flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum TopicIdType {
    /// A topic id that was registered; in SUBSCRIBE and UNSUBSCRIBE a topic name.
    Normal = 0,
    /// A topic id that client and gateway know beforehand.
    Predefined = 1,
    /// A topic name of two bytes.
    Short = 2,
    Reserved = 3,
}

impl TopicIdType {
    pub(super) fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Normal,
            1 => Self::Predefined,
            2 => Self::Short,
            _ => Self::Reserved,
        }
    }
}

/// Topic of a PUBLISH: an id, or a name of two bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Topic {
    /// A registered id.
    Normal(u16),
    /// An id that client and gateway know beforehand.
    Predefined(u16),
    /// The name itself.
    Short(ShortName),
    /// TopicIdType 3. The gateway answers "invalid topic id".
    Reserved(u16),
}

impl Topic {
    pub(super) fn id_type(self) -> TopicIdType {
        match self {
            Self::Normal(_) => TopicIdType::Normal,
            Self::Predefined(_) => TopicIdType::Predefined,
            Self::Short(_) => TopicIdType::Short,
            Self::Reserved(_) => TopicIdType::Reserved,
        }
    }

    pub(super) fn decode(kind: TopicIdType, bytes: [u8; 2]) -> Result<Self, DecodeError> {
        let id = u16::from_be_bytes(bytes);
        Ok(match kind {
            TopicIdType::Normal => Self::Normal(id),
            TopicIdType::Predefined => Self::Predefined(id),
            TopicIdType::Short => Self::Short(ShortName::decode(bytes)?),
            TopicIdType::Reserved => Self::Reserved(id),
        })
    }

    /// The two bytes of the topic field, which PUBACK repeats.
    pub fn field(self) -> u16 {
        match self {
            Self::Normal(id) | Self::Predefined(id) | Self::Reserved(id) => id,
            Self::Short(name) => u16::from_be_bytes(name.0),
        }
    }
}

/// Topic of a SUBSCRIBE or UNSUBSCRIBE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Subscribed<'a> {
    /// A topic filter of at least one character.
    Name(&'a str),
    /// An id that client and gateway know beforehand.
    Predefined(u16),
    /// The filter itself.
    Short(ShortName),
}

impl<'a> Subscribed<'a> {
    pub(super) fn id_type(self) -> TopicIdType {
        match self {
            Self::Name(_) => TopicIdType::Normal,
            Self::Predefined(_) => TopicIdType::Predefined,
            Self::Short(_) => TopicIdType::Short,
        }
    }

    /// Reads the rest of a message.
    pub(super) fn decode(kind: TopicIdType, mut body: Reader<'a>) -> Result<Self, DecodeError> {
        let subscribed = match kind {
            TopicIdType::Normal if body.is_empty() => return Err(DecodeError::TopicEmpty),
            TopicIdType::Normal => return body.rest_text().map(Self::Name),
            TopicIdType::Predefined => Self::Predefined(body.u16()?),
            TopicIdType::Short => Self::Short(ShortName::decode(body.pair()?)?),
            TopicIdType::Reserved => return Err(DecodeError::TopicIdTypeReserved),
        };
        body.finish()?;
        Ok(subscribed)
    }

    pub(super) fn len(self) -> usize {
        match self {
            Self::Name(name) => name.len(),
            Self::Predefined(_) | Self::Short(_) => 2,
        }
    }

    pub(super) fn encode(self, out: &mut Vec<u8>) {
        match self {
            Self::Name(name) => out.extend_from_slice(name.as_bytes()),
            Self::Predefined(id) => out.extend_from_slice(&id.to_be_bytes()),
            Self::Short(name) => out.extend_from_slice(&name.0),
        }
    }
}

/// A topic name of exactly two bytes, which stands in place of a topic id.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ShortName(
    // INVARIANT: UTF-8 without NUL.
    [u8; 2],
);

impl ShortName {
    /// `None` if the name has another length than two bytes, or holds U+0000.
    pub fn new(name: &str) -> Option<Self> {
        Self::decode(name.as_bytes().try_into().ok()?).ok()
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.0).expect("INVARIANT: checked by every constructor")
    }

    fn decode(bytes: [u8; 2]) -> Result<Self, DecodeError> {
        text(&bytes)?;
        Ok(Self(bytes))
    }
}

impl fmt::Debug for ShortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}
