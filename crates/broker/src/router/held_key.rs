use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use tenbin_balancer::{MemberId, Rng};
use tenbin_session::{Delivery, SharedDelivery};

use super::{Router, SharedGroup};

/// The ordering key of an acknowledged message in an ordered share group, held by the member that has the message. The
/// group gives the key to another member only after all such messages are completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldKey {
    group: NonZeroU64,
    key: u64,
}

impl HeldKey {
    /// Returns the key of a delivery in a member's queue.
    #[inline]
    pub(crate) fn of(delivery: &Delivery) -> Option<Self> {
        let key = ordering_key(delivery.share_key).filter(|_| delivery.published_qos.is_acknowledged())?;
        Some(Self { group: delivery.share?, key })
    }

    /// Returns the key of a delivery that was sent.
    #[inline]
    pub(crate) fn of_sent(delivery: &SharedDelivery) -> Option<Self> {
        Some(Self { group: delivery.share, key: ordering_key(delivery.share_key)? })
    }
}

impl Router {
    /// Reports messages as completed by this session, or no longer assigned to it. If a report is missing, the key
    /// stays pinned a little longer (see [`tenbin_balancer::Members::key_done`]).
    ///
    /// Messages that wait for a key of a former member may go to others now.
    #[inline]
    pub(crate) fn keys_done(&self, held: impl IntoIterator<Item = HeldKey>, number: u64) {
        for held in held {
            if let Some(left) = self.key_done(held, number) {
                self.key_released(&left, number);
            }
        }
    }

    /// As [`Router::keys_done`]. Returns the group if the session is a former member of it. The caller then calls
    /// [`Router::key_released`], after the balancer knows of the completed message.
    pub(crate) fn key_done(&self, HeldKey { group, key }: HeldKey, number: u64) -> Option<Arc<SharedGroup>> {
        let group = self.index.group_by_number(group)?;
        let members = group.members.members();
        members.key_done(key, MemberId(number));
        let is_left = members.has_departed(MemberId(number));
        drop(members);
        is_left.then_some(group)
    }

    /// Gives messages that waited for a key of a former member to others.
    #[cold]
    pub(crate) fn key_released(&self, group: &Arc<SharedGroup>, number: u64) {
        group.may_begin(self.clock.moment(Instant::now()), &mut Rng::new(number));
    }
}

/// Marks the hash of an ordering key, as [`Delivery::share_key`] holds it.
pub(super) fn of_key(hash: u64) -> u64 {
    hash | IS_ORDERING_KEY
}

/// Marks the hash of a Client Identifier.
pub(super) fn of_client(hash: u64) -> u64 {
    hash & !IS_ORDERING_KEY
}

/// Returns the ordering key, if the group chose by one.
pub(super) fn ordering_key(share_key: Option<NonZeroU64>) -> Option<u64> {
    share_key.map(NonZeroU64::get).filter(|key| key & IS_ORDERING_KEY != 0)
}

/// The lowest bit of a hash tells the two kinds apart; enough bits remain.
const IS_ORDERING_KEY: u64 = 1;

#[cfg(test)]
mod tests {
    use bytes::{Bytes, BytesMut};
    use tenbin_codec::{QoS, TopicName};
    use tenbin_session::Publication;

    use super::*;

    #[test]
    fn only_acknowledged_deliveries_hold_keys() {
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
