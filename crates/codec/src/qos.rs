use std::fmt;

/// Quality of Service of a message or the maximum that a subscription grants (MQTT 5.0 §4.3).
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
    /// From the two bits on the wire; `None` for the reserved value 3 `[MQTT-3.3.1-4]`.
    pub fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(Self::AtMostOnce),
            1 => Some(Self::AtLeastOnce),
            2 => Some(Self::ExactlyOnce),
            _ => None,
        }
    }

    /// The value on the wire, 0 to 2.
    pub const fn bits(self) -> u8 {
        self as u8
    }

    /// Whether the receiver acknowledges, which requires a Packet Identifier.
    pub fn is_acknowledged(self) -> bool {
        self != Self::AtMostOnce
    }
}

impl fmt::Display for QoS {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bits())
    }
}
