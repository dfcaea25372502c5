use std::net::{IpAddr, Ipv6Addr};

/// Key of an address: for IPv6 the /64 network, which one customer controls as a whole. Loopback stays as it is.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let network = u128::from_be_bytes(address.octets()) >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from(network))
        }
        whole => whole,
    }
}
