use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use tenbin_codec::{PublishTemplate, QoS};

/// A message on its way to one receiver.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// The message, shared by all its receivers.
    pub template: PublishTemplate,
    /// QoS for this receiver: at most the granted and the published QoS `[MQTT-3.8.4-8]`.
    pub qos: QoS,
    /// RETAIN for this receiver.
    pub retain: bool,
    /// QoS of the publication. Another member of the share group gets the message by it, see
    /// [`Delivery::as_published`].
    pub published_qos: QoS,
    /// RETAIN of the publication.
    pub published_retain: bool,
    /// Identifiers of the receiver's matching subscriptions; `None` if there are none.
    ///
    /// The second box saves a length field in the usual case without identifiers.
    pub subscription_identifiers: Option<Arc<Box<[u32]>>>,
    /// Expiry time; `None` = never.
    pub expires_at: Option<Instant>,
    /// Number of the share group that chose this receiver; `None` if no group did.
    ///
    /// The application assigns the number. Until the message is sent, it may be given to another member.
    pub share: Option<NonZeroU64>,
    /// Hash of the ordering key, by which the group can choose again; `None` if the choice did not depend on the
    /// message.
    pub share_key: Option<NonZeroU64>,
    /// The stored copy for this receiver, assigned by the application; `None` if the message is not stored.
    ///
    /// A stored message survives the application, which receives events about each step.
    pub stored: Option<Stored>,
    /// Number of the message in its publisher's batch, assigned by the application; 0 if no acknowledgement depends on
    /// it.
    ///
    /// Meaningless once the message is in a queue. From [`Delivery::WITHDRAWN`] on it is the number that
    /// [`Session::withdraw`](crate::Session::withdraw) assigned: the session that had sent the message knows it by that.
    pub message: u32,
}

/// A stored copy of a message: its [`Location`] in eight bytes, as queues hold one for each message.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stored(NonZeroU64);

/// Where a stored copy is: the queue, and its offset there, below [`Location::OFFSETS_END`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Location {
    /// In the receiver's own queue, on disk until it is done.
    Own(u64),
    /// In the queue of the share group that the delivery is for, on disk until it is done.
    Group(u64),
    /// In the receiver's own queue on disk while it is not in memory. A session sees no such copy.
    Transient(u64),
}

/// Data about a sent delivery that its share group needs when the delivery ends.
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
    /// Lowest number of withdrawn messages.
    pub const WITHDRAWN: u32 = 1 << 31;

    /// A message as published, without Subscription Identifiers and expiry.
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

    /// Where the stored copy is; `None` if the message is not stored.
    #[inline]
    pub fn location(&self) -> Option<Location> {
        self.stored.map(Stored::location)
    }

    /// Removes everything that one receiver's subscription determined.
    #[must_use]
    pub fn as_published(self) -> Self {
        Self { qos: self.published_qos, retain: self.published_retain, subscription_identifiers: None, ..self }
    }

    /// Whether the message has expired and must not be sent `[MQTT-3.3.2-5]`.
    pub fn is_expired(&self, now: Instant) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    /// Bytes of memory that it accounts for in a queue.
    pub fn queued_bytes(&self) -> usize {
        self.template.len() + size_of::<Self>() + self.identifiers().len() * IDENTIFIER_BYTES
    }

    /// Copies the delivery for long storage, so that it does not keep the shared encoding block of small messages
    /// alive.
    ///
    /// A large payload stays shared with the other receivers.
    #[must_use]
    pub fn detach(&self) -> Self {
        Self { template: self.template.detach_head(), ..self.clone() }
    }

    /// Returns the data for its share group, given the time of sending.
    pub(crate) fn shared(&self, sent_at: Instant) -> Option<SharedDelivery> {
        let (template_bytes, share_key) = (self.template.len(), self.share_key);
        self.share.map(|share| SharedDelivery { template_bytes, sent_at, share, share_key })
    }

    /// Identifiers of the receiver's matching subscriptions.
    pub fn identifiers(&self) -> &[u32] {
        self.subscription_identifiers.as_deref().map_or(&[], |identifiers| identifiers)
    }

    /// Remaining seconds, rounded up so that an unexpired message never has 0 `[MQTT-3.3.2-6]`.
    pub fn remaining_expiry(&self, now: Instant) -> Option<u32> {
        let left = self.expires_at?.saturating_duration_since(now);
        let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
        Some(u32::try_from(seconds).unwrap_or(u32::MAX))
    }
}

impl Stored {
    /// Where the copy is.
    #[inline]
    pub const fn location(self) -> Location {
        let offset = self.0.get() % Location::OFFSETS_END;
        match self.0.get() / Location::OFFSETS_END {
            Self::OWN => Location::Own(offset),
            Self::GROUP => Location::Group(offset),
            _ => Location::Transient(offset),
        }
    }

    const OWN: u64 = 1;
    const GROUP: u64 = 2;
    const TRANSIENT: u64 = 3;
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.location().fmt(f)
    }
}

impl Location {
    /// Every offset is below this bound.
    pub const OFFSETS_END: u64 = 1 << 62;

    /// The copy at this location.
    #[inline]
    pub const fn to_stored(self) -> Stored {
        let (kind, offset) = match self {
            Self::Own(offset) => (Stored::OWN, offset),
            Self::Group(offset) => (Stored::GROUP, offset),
            Self::Transient(offset) => (Stored::TRANSIENT, offset),
        };
        debug_assert!(offset < Self::OFFSETS_END);
        Stored(NonZeroU64::new((kind * Self::OFFSETS_END) | offset).expect("no kind is 0"))
    }
}

/// Longest encoding of a Subscription Identifier, in bytes.
const IDENTIFIER_BYTES: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    /// Queues hold one delivery for each receiver of each message.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn a_delivery_stays_within_two_cache_lines() {
        assert_eq!(size_of::<Delivery>(), 128);
    }

    #[test]
    fn location_survives_its_encoding_in_a_delivery() {
        for offset in [0, 1, 7, Location::OFFSETS_END - 1] {
            for location in [Location::Own, Location::Group, Location::Transient].map(|location| location(offset)) {
                assert_eq!(location.to_stored().location(), location);
            }
        }
    }
}
