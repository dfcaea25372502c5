//! Checked values of the configuration.

use std::net::IpAddr;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error, Unexpected};
use tenbin_codec::ProtocolVersion;

/// Reads seconds from 0.1 to 3,600, such as `0.2` or `10`.
pub(super) fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Number {
        Whole(u32),
        Fraction(f64),
    }
    let number = Number::deserialize(deserializer).map_err(|_| D::Error::custom("needs a number of seconds"))?;
    let seconds = match number {
        Number::Whole(seconds) => seconds.into(),
        Number::Fraction(seconds) => seconds,
    };
    if (0.1..=3600.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(D::Error::invalid_value(Unexpected::Float(seconds), &"seconds from 0.1 to 3600"))
    }
}

/// Reads `"5.0"` or `"3.1.1"`.
pub(super) fn version<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ProtocolVersion, D::Error> {
    parse_version(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// Parses a version of MQTT: `5`, `5.0` or `3.1.1`.
///
/// # Errors
/// Any other text.
pub fn parse_version(text: &str) -> Result<ProtocolVersion, String> {
    match text {
        "5" | "5.0" => Ok(ProtocolVersion::V5),
        "3.1.1" => Ok(ProtocolVersion::V311),
        _ => Err(format!("{text:?} is no version of MQTT that the gateway speaks: 5.0 and 3.1.1")),
    }
}

/// From which addresses a sleeping client may come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rebind {
    /// From the IP address of its CONNECT alone, also from another port.
    #[serde(alias = "never")]
    Address,
    /// From addresses of the same network: the first 24 bits of an IPv4 address, 48 of an IPv6 address.
    Network,
    /// From any address.
    Any,
}

impl Rebind {
    pub(crate) fn allows(self, old: IpAddr, new: IpAddr) -> bool {
        match self {
            Self::Address => old == new,
            Self::Network => match (old, new) {
                (IpAddr::V4(old), IpAddr::V4(new)) => old.octets()[..3] == new.octets()[..3],
                (IpAddr::V6(old), IpAddr::V6(new)) => old.octets()[..6] == new.octets()[..6],
                _ => false,
            },
            Self::Any => true,
        }
    }
}
