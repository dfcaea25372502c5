//! The Flags field (§5.3.4).
//!
//! ```text
//!   bit   7     6 5   4        3      2              1 0
//!         DUP   QoS   Retain   Will   CleanSession   TopicIdType
//! ```

use core::fmt;

use super::topic::TopicIdType;
use crate::DecodeError;

/// Quality of Service. The −1 of PUBLISH is `None` in [`super::Publish::qos`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(u8)]
pub enum QoS {
    /// At most once: sent, never repeated.
    #[default]
    AtMostOnce = 0,
    /// At least once: repeated until PUBACK.
    AtLeastOnce = 1,
    /// Exactly once: PUBREC, PUBREL, PUBCOMP.
    ExactlyOnce = 2,
}

impl QoS {
    /// Whether the receiver acknowledges, which requires a MsgId.
    pub fn is_acknowledged(self) -> bool {
        self != Self::AtMostOnce
    }
}

impl fmt::Display for QoS {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", *self as u8)
    }
}

/// A Flags byte. Each message reads the bits that it uses.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Flags(pub(super) u8);

impl Flags {
    const DUP: u8 = 0x80;
    const QOS_MINUS_ONE: u8 = 0x60;
    const RETAIN: u8 = 0x10;
    const WILL: u8 = 0x08;
    const CLEAN_SESSION: u8 = 0x04;

    pub(super) fn dup(self) -> bool {
        self.0 & Self::DUP != 0
    }

    /// `None` for −1.
    pub(super) fn any_qos(self) -> Option<QoS> {
        match self.0 >> 5 & 3 {
            0 => Some(QoS::AtMostOnce),
            1 => Some(QoS::AtLeastOnce),
            2 => Some(QoS::ExactlyOnce),
            _ => None,
        }
    }

    pub(super) fn qos(self) -> Result<QoS, DecodeError> {
        self.any_qos().ok_or(DecodeError::QoSReserved)
    }

    pub(super) fn retain(self) -> bool {
        self.0 & Self::RETAIN != 0
    }

    pub(super) fn will(self) -> bool {
        self.0 & Self::WILL != 0
    }

    pub(super) fn clean_session(self) -> bool {
        self.0 & Self::CLEAN_SESSION != 0
    }

    pub(super) fn topic_id_type(self) -> TopicIdType {
        TopicIdType::from_bits(self.0)
    }

    pub(super) fn with_dup(self, dup: bool) -> Self {
        self.with(Self::DUP, dup)
    }

    pub(super) fn with_qos(self, qos: Option<QoS>) -> Self {
        Self(self.0 | qos.map_or(Self::QOS_MINUS_ONE, |qos| (qos as u8) << 5))
    }

    pub(super) fn with_retain(self, retain: bool) -> Self {
        self.with(Self::RETAIN, retain)
    }

    pub(super) fn with_will(self, will: bool) -> Self {
        self.with(Self::WILL, will)
    }

    pub(super) fn with_clean_session(self, clean_session: bool) -> Self {
        self.with(Self::CLEAN_SESSION, clean_session)
    }

    pub(super) fn with_topic_id_type(self, kind: TopicIdType) -> Self {
        Self(self.0 | kind as u8)
    }

    fn with(self, bit: u8, set: bool) -> Self {
        Self(if set { self.0 | bit } else { self.0 })
    }
}
