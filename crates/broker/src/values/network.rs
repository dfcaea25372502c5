use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};

/// Network: an address and the length of its prefix, or one address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

/// A text that is no network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no network: valid are addresses and prefixes, as in 192.0.2.0/24")]
pub struct WrongNetwork(String);

impl Network {
    /// Whether the address belongs to the network. IPv4 addresses within IPv6 are the same as IPv4 addresses.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let is_alike = address.is_ipv4() == self.address.is_ipv4();
        is_alike && masked(address, self.prefix) == masked(self.address, self.prefix)
    }

    /// The network as it is usually written: without bits behind the prefix.
    pub(crate) fn plain(&self) -> Self {
        Self { address: masked(self.address, self.prefix), prefix: self.prefix }
    }
}

fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            IpAddr::V4((v4.to_bits() & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            IpAddr::V6((v6.to_bits() & mask).into())
        }
    }
}

impl FromStr for Network {
    type Err = WrongNetwork;

    fn from_str(text: &str) -> Result<Self, WrongNetwork> {
        let wrong = || WrongNetwork(text.to_owned());
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address = address.parse::<IpAddr>().map_err(|_| wrong())?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(bits), str::parse).map_err(|_| wrong())?;
        match address.to_canonical() {
            _ if prefix > bits => Err(wrong()),
            // Addresses of clients are made canonical too.
            IpAddr::V4(v4) if address.is_ipv6() && prefix >= 96 => Ok(Self { address: v4.into(), prefix: prefix - 96 }),
            _ => Ok(Self { address, prefix }),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_their_addresses() {
        for (network, address, contains) in [
            ("192.0.2.0/24", "192.0.2.255", true),
            ("192.0.2.0/24", "192.0.3.0", false),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.6", false),
            ("192.0.2.7/24", "::ffff:192.0.2.1", true),
            ("0.0.0.0/0", "203.0.113.1", true),
            ("0.0.0.0/0", "::1", false),
            ("2001:db8::/32", "2001:db8:ffff::1", true),
            ("2001:db8::/32", "2001:db9::", false),
            ("::/0", "::1", true),
            ("::1", "::1", true),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("2001:db8::/32", "2001:db9::1", false),
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.0.0.1", true),
            ("::ffff:10.0.0.0/104", "10.1.2.3", true),
            ("::ffff:10.0.0.0/104", "11.1.2.3", false),
        ] {
            let parsed = network.parse::<Network>().unwrap();
            assert_eq!(parsed.contains(address.parse().unwrap()), contains, "{network} {address}");
            assert_eq!(parsed.to_string().parse(), Ok(parsed));
        }
        for wrong in ["", "host", "192.0.2.0/33", "::/129", "192.0.2.0/", "192.0.2/24", "192.0.2.0/-1"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }
}
