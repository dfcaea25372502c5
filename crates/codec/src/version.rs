use std::fmt;

/// Protocol version of a Network Connection, known from its CONNECT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProtocolVersion {
    /// MQTT 3.1, protocol level 3, "MQIsdp": treated like 3.1.1, except for an empty Client Identifier.
    V31,
    /// MQTT 3.1.1, protocol level 4.
    V311,
    /// MQTT 5.0, protocol level 5.
    V5,
}

impl ProtocolVersion {
    /// The version's byte in CONNECT.
    pub fn level(self) -> u8 {
        match self {
            Self::V31 => 3,
            Self::V311 => 4,
            Self::V5 => 5,
        }
    }

    /// The protocol's name in CONNECT.
    pub(crate) fn name(self) -> &'static [u8] {
        match self {
            Self::V31 => b"MQIsdp",
            Self::V311 | Self::V5 => b"MQTT",
        }
    }

    /// Whether this is MQTT 5.0.
    pub fn is_v5(self) -> bool {
        self == Self::V5
    }
}

impl fmt::Display for ProtocolVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V31 => "3.1",
            Self::V311 => "3.1.1",
            Self::V5 => "5.0",
        })
    }
}
