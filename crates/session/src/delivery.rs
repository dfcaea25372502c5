use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use tenbin_codec::{PublishTemplate, QoS};

/// One message on its way to one receiver.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// The message, shared by all its receivers.
    pub template: PublishTemplate,
    /// QoS for this receiver: at most what it was granted and what was published `[MQTT-3.8.4-8]`.
    pub qos: QoS,
    /// RETAIN for this receiver.
    pub retain: bool,
    /// QoS at which it was published: what another member of the share group gets it by, see
    /// [`Delivery::as_published`].
    pub published_qos: QoS,
    /// RETAIN as it was published.
    pub published_retain: bool,
    /// Identifiers of all the receiver's subscriptions that match; `None` = none. Boxed once more, so that those who have
    /// none, as most, do not carry a length about.
    pub subscription_identifiers: Option<Arc<Box<[u32]>>>,
    /// When the message becomes worthless; `None` = never.
    pub expires_at: Option<Instant>,
    /// The share group that chose this receiver, by a number of the application's: until it is sent the message
    /// may be given to another member; `None` = meant for this receiver alone.
    pub share: Option<NonZeroU64>,
    /// By what the group chose, for when it chooses again: a hash of the application's; `None` = by nothing of the
    /// message's.
    pub share_key: Option<NonZeroU64>,
    /// Where it is stored for this receiver, by a number of the application's: it outlives the application, which is told
    /// of each step; `None` = it does not.
    pub stored: Option<NonZeroU64>,
    /// Number of the message in its publisher's batch, by the application's count; 0 = nobody waits for its acknowledgement.
    /// Meaningless once a queue has taken it.
    pub message: u32,
}

/// A delivery that a share group chose its receiver for, once it is sent: what the group wants to know when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedDelivery {
    /// Bytes of its [`PublishTemplate`].
    pub template_bytes: usize,
    /// When its PUBLISH was last written.
    pub sent_at: Instant,
    /// [`Delivery::share`].
    pub share: NonZeroU64,
    /// [`Delivery::share_key`].
    pub share_key: Option<NonZeroU64>,
}

impl Delivery {
    /// A message as it was published, without subscription identifiers and expiry.
    pub fn new(template: PublishTemplate, qos: QoS, retain: bool) -> Self {
        Self {
            template,
            qos,
            retain,
            published_qos: qos,
            published_retain: retain,
            subscription_identifiers: None,
            expires_at: None,
            share: None,
            share_key: None,
            stored: None,
            message: 0,
        }
    }

    /// The message without anything that one receiver's subscription has made of it.
    #[must_use]
    pub fn as_published(self) -> Self {
        Self { qos: self.published_qos, retain: self.published_retain, subscription_identifiers: None, ..self }
    }

    /// Whether its time is over, so that it is not sent any more `[MQTT-3.3.2-5]`.
    pub fn is_expired(&self, now: Instant) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    /// Bytes of memory it stands for in a queue.
    pub fn queued_bytes(&self) -> usize {
        self.template.len() + size_of::<Self>() + self.identifiers().len() * IDENTIFIER_BYTES
    }

    /// A copy for whoever keeps it long: it no longer keeps the memory alive that small messages are encoded into
    /// together. A large payload stays shared with the message's other receivers.
    #[must_use]
    pub fn detach(&self) -> Self {
        Self { template: self.template.detach_head(), ..self.clone() }
    }

    /// What is left of it for its share group when it is sent at `sent_at`.
    pub(crate) fn shared(&self, sent_at: Instant) -> Option<SharedDelivery> {
        let (template_bytes, share_key) = (self.template.len(), self.share_key);
        self.share.map(|share| SharedDelivery { template_bytes, sent_at, share, share_key })
    }

    /// Identifiers of the receiver's subscriptions that match.
    pub fn identifiers(&self) -> &[u32] {
        self.subscription_identifiers.as_deref().map_or(&[], |identifiers| identifiers)
    }

    /// Seconds left, rounded up so that a live message never says 0 `[MQTT-3.3.2-6]`.
    pub(crate) fn remaining_expiry(&self, now: Instant) -> Option<u32> {
        let left = self.expires_at?.saturating_duration_since(now);
        let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
        Some(u32::try_from(seconds).unwrap_or(u32::MAX))
    }
}

/// Bytes that a Subscription Identifier takes on the wire at most.
const IDENTIFIER_BYTES: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    /// There is one for each receiver of each message, in queues that hold many.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn a_delivery_stays_within_two_cache_lines() {
        assert_eq!(size_of::<Delivery>(), 128);
    }
}
