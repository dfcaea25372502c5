use std::num::NonZeroU64;

use tenbin_balancer::MemberId;
use tenbin_session::{Delivery, SharedDelivery};

use super::Router;

/// What a member of an ordered share group holds: the ordering key of a message that has to be acknowledged. The group
/// gives the key to nobody else before it knows that all such messages are done with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldKey {
    group: NonZeroU64,
    key: u64,
}

impl HeldKey {
    /// That of a message which a share group has given to its receiver.
    #[inline]
    pub(crate) fn of(delivery: &Delivery) -> Option<Self> {
        let key = ordering_key(delivery.share_key).filter(|_| delivery.published_qos.is_acknowledged())?;
        Some(Self { group: delivery.share?, key })
    }

    /// That of one which has been sent.
    #[inline]
    pub(crate) fn of_sent(delivery: &SharedDelivery) -> Option<Self> {
        Some(Self { group: delivery.share, key: ordering_key(delivery.share_key)? })
    }
}

impl Router {
    /// Messages are done with, or will not be done by the session of this number. Where the word is missing, the key
    /// stays with its member a little longer (see [`tenbin_balancer::Members::key_done`]).
    #[inline]
    pub(crate) fn keys_done(&self, held: impl IntoIterator<Item = HeldKey>, number: u64) {
        for HeldKey { group, key } in held {
            if let Some(group) = self.index.group_by_number(group) {
                group.members.members().key_done(key, MemberId(number));
            }
        }
    }
}

/// The hash of an ordering key, as [`Delivery::share_key`] has it.
pub(super) fn of_key(hash: u64) -> u64 {
    hash | IS_ORDERING_KEY
}

/// That of a Client Identifier.
pub(super) fn of_client(hash: u64) -> u64 {
    hash & !IS_ORDERING_KEY
}

/// The ordering key, if a group chose by one.
pub(super) fn ordering_key(share_key: Option<NonZeroU64>) -> Option<u64> {
    share_key.map(NonZeroU64::get).filter(|key| key & IS_ORDERING_KEY != 0)
}

/// The last bit of a hash, of which enough remain, tells the two kinds apart.
const IS_ORDERING_KEY: u64 = 1;

#[cfg(test)]
mod tests {
    use bytes::{Bytes, BytesMut};
    use tenbin_codec::{QoS, TopicName};
    use tenbin_session::Publication;

    use super::*;

    #[test]
    fn keys_are_held_by_what_has_to_be_acknowledged() {
        let topic = TopicName::try_from("t").unwrap();
        let template = Publication::new(topic, Bytes::new()).template(&mut BytesMut::new());
        let group = NonZeroU64::MIN;
        let delivery = |qos, share_key| Delivery {
            share: Some(group),
            share_key: NonZeroU64::new(share_key),
            qos: QoS::AtMostOnce,
            ..Delivery::new(template.clone(), qos, false)
        };
        for hash in [6, 7] {
            let held = HeldKey::of(&delivery(QoS::AtLeastOnce, of_key(hash)));
            assert_eq!(held, Some(HeldKey { group, key: 7 }));
            assert_eq!(HeldKey::of(&delivery(QoS::AtMostOnce, of_key(hash))), None);
            assert_eq!(HeldKey::of(&delivery(QoS::AtLeastOnce, of_client(hash))), None);
        }
        assert_eq!(HeldKey::of(&delivery(QoS::ExactlyOnce, 0)), None);
    }
}
