use std::iter::Sum;
use std::ops::{Add, AddAssign};

use tenbin_balancer::{MemberLoad, Nanos};
use tenbin_session::{Delivery, SharedDelivery};

/// Messages of share groups that the balancer has booked on one member: so many, of so many bytes as it was told.
///
/// Every booking ends once: the message is written, acknowledged, or taken back. Whoever has a message last, its
/// queue, its connection or its session, says which; so what the balancer counts as outstanding is exact.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[must_use = "what is booked has to end"]
pub(crate) struct Booked {
    pub(crate) messages: u32,
    pub(crate) bytes: u64,
}

impl Booked {
    pub(crate) const NOTHING: Self = Self { messages: 0, bytes: 0 };

    /// Bytes that the balancer is told of a message whose template has so many: about those of its packet.
    pub(crate) fn packet_bytes(template_bytes: usize) -> u32 {
        packet_bytes(template_bytes)
    }

    /// What one delivery stands for: nothing if no share group has sent it.
    pub(crate) fn of(delivery: &Delivery) -> Self {
        match delivery.share {
            Some(_) => Self::one(delivery.template.len()),
            None => Self::NOTHING,
        }
    }

    /// What one that has been sent stands for.
    pub(crate) fn of_sent(delivery: &SharedDelivery) -> Self {
        Self::one(delivery.template_bytes)
    }

    /// So many messages, whose templates have so many bytes together.
    pub(super) fn plain(messages: u32, template_bytes: u64) -> Self {
        Self { messages, bytes: template_bytes + u64::from(messages) * PACKET_OVERHEAD as u64 }
    }

    pub(crate) fn is_nothing(self) -> bool {
        self.messages == 0
    }

    /// These messages will not be sent to the member.
    pub(crate) fn take_back(self, load: &MemberLoad, now: Nanos) {
        if !self.is_nothing() {
            load.taken_back(self.messages, self.bytes, now);
        }
    }

    /// The member refused these messages.
    pub(crate) fn refuse(self, load: &MemberLoad, now: Nanos) {
        if !self.is_nothing() {
            load.refused(self.messages, self.bytes, now);
        }
    }

    fn one(template_bytes: usize) -> Self {
        Self { messages: 1, bytes: packet_bytes(template_bytes).into() }
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

fn packet_bytes(template_bytes: usize) -> u32 {
    u32::try_from(template_bytes + PACKET_OVERHEAD).unwrap_or(u32::MAX)
}

/// What headers, identifiers and expiry add to a message at most, nearly always, in bytes.
const PACKET_OVERHEAD: usize = 32;
