use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::time::Instant;

use tenbin_codec::PacketId;

use crate::outbound::{Outbound, SentId, Stage};
use crate::{Delivery, SharedDelivery};

/// Session State (MQTT 5.0 §4.1) of one side, as far as it is about messages under way: what outlives a
/// Network Connection. Subscriptions and waiting messages are kept by whoever routes.
#[derive(Debug, Default)]
pub struct Session {
    /// QoS 1 and 2 messages that we sent and the peer has not wholly acknowledged.
    pub(crate) outbound: Outbound,
    /// QoS 2 messages that we took and the peer has not released.
    pub(crate) awaiting_release: BTreeSet<PacketId>,
    /// The highest Receive Maximum that we granted on an earlier connection; 0 = there was none.
    pub(crate) receive_maximum: u16,
    /// The application stores it: it is asked before the peer is told to forget anything.
    pub(crate) is_stored: bool,
}

/// A message under way, as the application has stored it.
#[derive(Debug)]
pub enum Restored {
    /// Sent, and neither PUBACK nor PUBREC have come: it is sent again.
    Published(Delivery),
    /// PUBREC has come; [`Delivery::stored`].
    Released(NonZeroU64),
}

impl Session {
    /// A session in which nothing has happened.
    pub fn new() -> Self {
        Self::default()
    }

    /// A session that the application stores: it is asked before the peer is told to forget anything, by
    /// [`crate::Event::Received`] and [`crate::Event::Released`].
    pub fn stored() -> Self {
        Self { is_stored: true, ..Self::default() }
    }

    /// Restores a message that was sent in an earlier run, under the same Packet Identifier `[MQTT-4.4.0-1]`. Messages come in
    /// the order of sending ([`SentId::sort`]). `false`: another message has the identifier.
    pub fn restore_sent(&mut self, id: SentId, restored: Restored, now: Instant) -> bool {
        let stage = match restored {
            Restored::Published(delivery) => Stage::Published(delivery, now),
            Restored::Released(stored) => Stage::Released { shared: None, stored: Some(stored) },
        };
        self.outbound.restore(id, stage)
    }

    /// Goes on with a QoS 2 message that we took in an earlier life and that the peer has not released.
    pub fn restore_received(&mut self, id: PacketId) {
        self.awaiting_release.insert(id);
        self.receive_maximum = self.receive_maximum.max(1);
    }

    /// Messages that we sent and that are not wholly acknowledged.
    pub fn in_flight(&self) -> usize {
        self.outbound.messages()
    }

    /// Bytes of memory that sent messages stand for which may have to be sent again.
    pub fn in_flight_bytes(&self) -> usize {
        self.outbound.bytes()
    }

    /// Messages that we sent, that are not wholly acknowledged, and whose receiver a share group chose.
    pub fn shared_in_flight(&self) -> impl Iterator<Item = SharedDelivery> {
        self.outbound.shared()
    }

    /// Of stored messages that we sent and that are not wholly acknowledged: where they are stored, and the share group.
    pub fn stored_in_flight(&self) -> impl Iterator<Item = (NonZeroU64, Option<NonZeroU64>)> {
        self.outbound.stored()
    }

    /// Forgets the messages that were sent, if all are of QoS 1, the application has stored them, and none is a share group's;
    /// whether there were any. The application gives them back with [`Session::restore_sent`].
    pub fn forget_stored(&mut self) -> bool {
        self.outbound.forget_stored()
    }

    /// Copies the messages under way out of the blocks that they were encoded into, for a session that is kept long. Where
    /// they fill a good part of a block they stay there: other sessions may have the same ones.
    pub fn detach(&mut self) {
        self.outbound.detach();
    }

    /// QoS 2 messages that we took and that are not released.
    pub fn awaiting_release(&self) -> usize {
        self.awaiting_release.len()
    }

    /// Takes back the unacknowledged QoS 1 messages that `wanted` says, oldest first, to give them to somebody
    /// else: the peer may have got them, so this is at least once. Only for a session without a connection. QoS 2
    /// messages stay with whom they were sent to `[MQTT-4.8.2-4]`.
    pub fn withdraw(&mut self, wanted: impl Fn(&Delivery) -> bool) -> Vec<Delivery> {
        self.outbound.withdraw(wanted)
    }

    /// Gives up what is `unwanted` among the messages that would be sent again; how many. Of QoS 2 messages PUBREL is
    /// still sent, so that a peer that has got one already releases its Packet Identifier. Only for a session without
    /// a connection; see [`crate::Connection::give_up_resends`].
    pub fn give_up(&mut self, unwanted: impl Fn(SentId, &Delivery) -> bool) -> usize {
        self.outbound.give_up(0..self.outbound.next_sequence(), unwanted, |_| {})
    }

    /// Whether nothing is under way in either direction.
    pub fn is_empty(&self) -> bool {
        self.in_flight() == 0 && self.awaiting_release.is_empty()
    }
}
