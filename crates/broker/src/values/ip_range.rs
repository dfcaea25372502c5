use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// Addresses with a common prefix, such as 10.0.0.0/8.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct IpRange {
    address: IpAddr,
    bits: u8,
}

impl IpRange {
    /// Parses `ADDRESS/BITS`, or `ADDRESS` for a single one.
    ///
    /// # Errors
    /// The text is neither, or the address has bits behind the prefix.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let wrong = || format!("{text:?} is no network, such as 10.0.0.0/8");
        let address = address.parse::<IpAddr>().map_err(|_| wrong())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(width), str::parse).ok().filter(|&bits| bits <= width).ok_or_else(wrong)?;
        let first = masked(address, bits);
        if first != address {
            return Err(format!("{text:?} has bits behind the prefix; the network is {first}/{bits}"));
        }
        Ok(Self { address, bits })
    }

    /// Whether `address` is in the range. An IPv4 address in IPv6 form counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4() && masked(address, self.bits) == self.address
    }
}

fn masked(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or_default();
            IpAddr::V4((u32::from(v4) & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or_default();
            IpAddr::V6(Ipv6Addr::from(u128::from(v6) & mask))
        }
    }
}

impl<'de> serde::Deserialize<'de> for IpRange {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl fmt::Debug for IpRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for IpRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_contains_its_addresses_and_no_others() {
        for (range, address, is_in) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.0.0.1", true),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("2001:db8::/32", "2001:db8:ffff::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
            ("::/0", "::1", true),
        ] {
            let range = IpRange::parse(range).unwrap();
            assert_eq!(range.contains(address.parse().unwrap()), is_in, "{range} {address}");
        }
    }
}
