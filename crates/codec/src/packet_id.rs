use std::fmt;
use std::num::NonZeroU16;

/// Packet Identifier, 1 to 65,535: pairs a packet with its acknowledgement. Zero cannot be expressed
/// `[MQTT-2.2.1-3]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PacketId(NonZeroU16);

impl PacketId {
    /// `None` for 0.
    pub fn new(id: u16) -> Option<Self> {
        NonZeroU16::new(id).map(Self)
    }

    /// The value on the wire.
    pub fn get(self) -> u16 {
        self.0.get()
    }
}

impl From<NonZeroU16> for PacketId {
    fn from(id: NonZeroU16) -> Self {
        Self(id)
    }
}

impl fmt::Display for PacketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
