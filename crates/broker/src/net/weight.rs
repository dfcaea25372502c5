use std::num::NonZeroU16;

use tenbin_codec::UserProperty;

use crate::values::Peer;

/// Returns a client's weight for `weighted_round_robin`: the first User Property `weight` of SUBSCRIBE or CONNECT, 1 to
/// 65,535.
///
/// Other values are logged and ignored: User Properties are free, and a client may use this name for another purpose.
pub(super) fn weight_in(properties: &[UserProperty], peer: Peer) -> Option<NonZeroU16> {
    number_in(properties, "weight", peer)
}

/// Returns how many messages a worker works on at a time: the first User Property `concurrency` of SUBSCRIBE or CONNECT,
/// 1 to 65,535. Other values are treated as for [`weight_in`].
pub(super) fn concurrency_in(properties: &[UserProperty], peer: Peer) -> Option<NonZeroU16> {
    number_in(properties, "concurrency", peer)
}

fn number_in(properties: &[UserProperty], name: &str, peer: Peer) -> Option<NonZeroU16> {
    let value = &properties.iter().find(|property| property.name.as_bytes() == name.as_bytes())?.value;
    let number = std::str::from_utf8(value.as_bytes()).ok().and_then(|value| value.parse().ok());
    if number.is_none() {
        tracing::debug!(%peer, ?value, "{name} is not 1 to 65535, and is ignored");
    }
    number
}

/// Weight without a valid User Property.
pub(super) const DEFAULT_WEIGHT: NonZeroU16 = NonZeroU16::MIN;

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tenbin_codec::Text;

    use super::*;

    #[test]
    fn first_weight_property_counts_if_valid() {
        let property = |(name, value): (&'static str, &'static str)| {
            UserProperty::new(Text::from_static(name), Text::from_static(value))
        };
        let cases = [
            (&[][..], None),
            (&[("Weight", "3")], None),
            (&[("a", "b"), ("weight", "3"), ("weight", "4")], Some(3)),
            (&[("weight", "65535")], Some(65_535)),
            (&[("weight", "65536")], None),
            (&[("weight", "0")], None),
            (&[("weight", "-1")], None),
            (&[("weight", "2.5")], None),
            (&[("weight", "")], None),
            (&[("weight", "heavy"), ("weight", "4")], None),
        ];
        let peer = SocketAddr::from(([127, 0, 0, 1], 1)).into();
        for (properties, weight) in cases {
            let properties: Vec<_> = properties.iter().copied().map(property).collect();
            assert_eq!(weight_in(&properties, peer).map(NonZeroU16::get), weight, "{properties:?}");
        }
    }
}
