use std::iter::Sum;
use std::ops::{Add, AddAssign};

use tenbin_balancer::{MemberLoad, Nanos};
use tenbin_session::{Delivery, SharedDelivery};

/// Messages of share groups that the balancer has booked on one member: their number and bytes.
///
/// Every booking ends exactly once: the message is written, acknowledged or taken back. The last owner of a message,
/// i.e. queue, connection or session, reports which; so the balancer's count of outstanding messages is exact.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[must_use = "what is booked has to end"]
pub(crate) struct Booked {
    pub(crate) messages: u32,
    pub(crate) bytes: u64,
}

impl Booked {
    pub(crate) const NOTHING: Self = Self { messages: 0, bytes: 0 };

    /// Bytes that the balancer books for a message with such a template: about the size of its packet.
    pub(crate) fn packet_bytes(template_bytes: usize) -> u32 {
        u32::try_from(template_bytes + PACKET_OVERHEAD).unwrap_or(u32::MAX)
    }

    /// Booking of one delivery; nothing if no share group sent it.
    pub(crate) fn of(delivery: &Delivery) -> Self {
        match delivery.share {
            Some(_) => Self::one(delivery.template.len()),
            None => Self::NOTHING,
        }
    }

    /// Booking of one delivery that has been sent.
    pub(crate) fn of_sent(delivery: &SharedDelivery) -> Self {
        Self::one(delivery.template_bytes)
    }

    /// Booking of `messages` messages whose templates have `template_bytes` together.
    pub(crate) fn plain(messages: u32, template_bytes: u64) -> Self {
        Self { messages, bytes: template_bytes + u64::from(messages) * PACKET_OVERHEAD as u64 }
    }

    pub(crate) fn is_nothing(self) -> bool {
        self.messages == 0
    }

    /// Ends the booking of messages that will not be sent to the member.
    pub(crate) fn take_back(self, load: &MemberLoad, now: Nanos) {
        if !self.is_nothing() {
            load.taken_back(self.messages, self.bytes, now);
        }
    }

    /// Ends the booking of messages that the member refused.
    pub(crate) fn refuse(self, load: &MemberLoad, now: Nanos) {
        if !self.is_nothing() {
            load.refused(self.messages, self.bytes, now);
        }
    }

    fn one(template_bytes: usize) -> Self {
        Self { messages: 1, bytes: Self::packet_bytes(template_bytes).into() }
    }
}

impl Add for Booked {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { messages: self.messages.saturating_add(other.messages), bytes: self.bytes.saturating_add(other.bytes) }
    }
}

impl AddAssign for Booked {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for Booked {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::NOTHING, Add::add)
    }
}

/// Bytes that headers, identifiers and expiry add to a message: an upper bound for nearly all messages.
const PACKET_OVERHEAD: usize = 32;
