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
    /// What few deliveries have; `None` if this one has nothing of it.
    pub extras: Option<Arc<Extras>>,
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

/// Parts of a [`Delivery`] that most have not.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Extras {
    /// Identifiers of the receiver's matching subscriptions.
    pub identifiers: Box<[u32]>,
    /// Deliveries of the message before this one, which its share group has taken back.
    pub deliveries: u32,
    /// The application's number of the receiver that had the last of them; 0 if it is unknown.
    pub last_receiver: u64,
    /// The application delivers the message to no receiver before this time; `None` = at any time.
    pub due: Option<Instant>,
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

/// Result of [`crate::Connection::take_ack`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakenAck {
    /// As [`crate::Event::Handled`].
    Handled,
    /// As [`crate::Event::Delivered`] with success.
    Delivered {
        /// Present if a share group chose the peer.
        shared: Option<SharedDelivery>,
        /// [`Delivery::stored`]: the copy is not needed any more.
        stored: Option<Stored>,
    },
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
            extras: None,
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
        let extras = self.extras.as_ref().and_then(|extras| extras.of_receiver(None));
        Self { qos: self.published_qos, retain: self.published_retain, extras, ..self }
    }

    /// Addresses the message to a receiver with these Subscription Identifiers, in place of earlier ones.
    #[must_use]
    pub fn with_identifiers(self, identifiers: Option<&Arc<Extras>>) -> Self {
        let extras = match &self.extras {
            Some(extras) => extras.of_receiver(identifiers),
            None => identifiers.cloned(),
        };
        Self { extras, ..self }
    }

    /// Counts a delivery that its share group has taken back from `receiver`. The message may be delivered again once it is
    /// `due`. It is new to each session ([`Delivery::WITHDRAWN`]).
    #[must_use]
    pub fn taken_back(self, receiver: u64, due: Option<Instant>) -> Self {
        let (deliveries, last_receiver) = (self.deliveries().saturating_add(1), receiver);
        let extras = Extras { identifiers: Box::default(), deliveries, last_receiver, due };
        Self { extras: Some(Arc::new(extras)), message: 0, ..self.as_published() }
    }

    /// Notes which receiver had the last delivery of a message that was read from the disk. The message is due.
    #[must_use]
    pub fn taken_from(mut self, last_receiver: u64) -> Self {
        if let Some(extras) = &mut self.extras {
            let extras = Arc::make_mut(extras);
            (extras.last_receiver, extras.due) = (last_receiver, None);
        }
        self
    }

    /// Deliveries of the message before this one: see [`Extras::deliveries`].
    #[inline]
    pub fn deliveries(&self) -> u32 {
        self.extras.as_ref().map_or(0, |extras| extras.deliveries)
    }

    /// [`Extras::last_receiver`]; `None` if it is unknown.
    #[inline]
    pub fn last_receiver(&self) -> Option<u64> {
        self.extras.as_ref().map(|extras| extras.last_receiver).filter(|&receiver| receiver != 0)
    }

    /// [`Extras::due`].
    #[inline]
    pub fn due(&self) -> Option<Instant> {
        self.extras.as_ref()?.due
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
        self.extras.as_deref().map_or(&[], |extras| &extras.identifiers)
    }

    /// Remaining seconds, rounded up so that an unexpired message never has 0 `[MQTT-3.3.2-6]`.
    pub fn remaining_expiry(&self, now: Instant) -> Option<u32> {
        let left = self.expires_at?.saturating_duration_since(now);
        let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
        Some(u32::try_from(seconds).unwrap_or(u32::MAX))
    }
}

impl Extras {
    /// Subscription Identifiers alone; `None` if there are none.
    pub fn identifiers(identifiers: impl Into<Box<[u32]>>) -> Option<Arc<Self>> {
        let identifiers = identifiers.into();
        (!identifiers.is_empty()).then(|| Arc::new(Self { identifiers, ..Self::default() }))
    }

    /// The part that belongs to the message, with the identifiers of another receiver.
    fn of_receiver(&self, identifiers: Option<&Arc<Self>>) -> Option<Arc<Self>> {
        if self.deliveries == 0 {
            return identifiers.cloned();
        }
        let identifiers = identifiers.map(|extras| extras.identifiers.clone()).unwrap_or_default();
        Some(Arc::new(Self { identifiers, ..self.clone() }))
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
    fn deliveries_of_a_message_stay_with_it_and_identifiers_do_not() {
        let topic = tenbin_codec::TopicName::try_from("t").unwrap();
        let template = PublishTemplate::new(&topic, None, &bytes::Bytes::new(), &mut bytes::BytesMut::new());
        let (one, other) = (Extras::identifiers([1]), Extras::identifiers([2, 3]));
        let first = Delivery { message: 5, ..Delivery::new(template, QoS::AtLeastOnce, false) };
        let first = first.with_identifiers(one.as_ref());
        assert_eq!((first.identifiers(), first.deliveries(), first.last_receiver()), (&[1][..], 0, None));
        assert!(first.clone().as_published().extras.is_none());
        let second = first.taken_back(9, None).with_identifiers(other.as_ref());
        assert_eq!((second.identifiers(), second.deliveries(), second.last_receiver()), (&[2, 3][..], 1, Some(9)));
        assert_eq!(second.message, 0);
        let third = second.as_published().taken_back(4, None).with_identifiers(None);
        assert_eq!((third.identifiers(), third.deliveries(), third.last_receiver()), (&[][..], 2, Some(4)));
        assert!(Extras::identifiers([]).is_none());
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
