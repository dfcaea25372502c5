use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::time::Instant;

use tenbin_codec::{PacketId, QoS};

use crate::outbound::{Outbound, SentId, Stage};
use crate::withdrawn::{self, Withdrawn};
use crate::{Delivery, SharedDelivery, Stored};

/// In-flight messages of one side: the part of the Session State (MQTT 5.0 §4.1) that outlives a Network Connection.
///
/// The router keeps subscriptions and queued messages.
#[derive(Debug, Default)]
pub struct Session {
    /// QoS 1 and 2 messages sent by this side and not completely acknowledged.
    pub(crate) outbound: Outbound,
    /// Withdrawn messages that are sent again with their Packet Identifiers if they come back; `None` = none.
    pub(crate) withdrawn: Option<Box<Withdrawn>>,
    /// QoS 2 messages received by this side and not released by the peer.
    pub(crate) awaiting_release: BTreeSet<PacketId>,
    /// Highest Receive Maximum granted on an earlier connection; 0 if there was none.
    pub(crate) receive_maximum: u16,
    /// Whether the application stores the session. If so, it must confirm before the peer may forget anything.
    pub(crate) is_stored: bool,
}

/// An in-flight message from the application's storage.
#[derive(Debug)]
pub enum Restored {
    /// Sent, without PUBACK or PUBREC: it is sent again.
    Published(Delivery),
    /// PUBREC was received. Holds [`Delivery::stored`].
    Released(Stored),
}

impl Session {
    /// A new session.
    pub fn new() -> Self {
        Self::default()
    }

    /// A session that the application stores. [`crate::Event::Received`] and [`crate::Event::Released`] ask the
    /// application to store a step before the peer may forget it.
    pub fn stored() -> Self {
        Self { is_stored: true, ..Self::default() }
    }

    /// Restores a sent message of an earlier run under its Packet Identifier `[MQTT-4.4.0-1]`.
    ///
    /// Call it in sending order ([`SentId::sort`]). `false` if another message has the identifier.
    pub fn restore_sent(&mut self, id: SentId, restored: Restored, now: Instant) -> bool {
        let stage = match restored {
            Restored::Published(delivery) => Stage::Published(delivery, now),
            Restored::Released(stored) => Stage::Released { shared: None, stored: Some(stored) },
        };
        self.outbound.restore(id, stage)
    }

    /// Restores a received QoS 2 message of an earlier run that the peer has not released.
    pub fn restore_received(&mut self, id: PacketId) {
        self.awaiting_release.insert(id);
        self.receive_maximum = self.receive_maximum.max(1);
    }

    /// Number of sent messages that are not completely acknowledged.
    pub fn in_flight(&self) -> usize {
        self.outbound.messages()
    }

    /// Packet Identifiers of sent messages that are not completely acknowledged, oldest first, and whether
    /// [`Session::withdraw`] could give the message to another member of its share group.
    pub fn packet_ids(&self) -> impl Iterator<Item = (PacketId, bool)> {
        let open = std::iter::successors(self.outbound.next_open(0), |(at, _)| self.outbound.next_open(at + 1));
        open.map(|(_, id)| (id, self.outbound.stage(id).is_some_and(Stage::may_be_withdrawn)))
    }

    /// Bytes of memory of sent messages that may have to be sent again.
    pub fn in_flight_bytes(&self) -> usize {
        self.outbound.bytes()
    }

    /// Returns the in-flight messages whose receiver a share group chose.
    pub fn shared_in_flight(&self) -> impl Iterator<Item = SharedDelivery> {
        self.outbound.shared()
    }

    /// Returns the stored copies of in-flight messages, with their share groups.
    pub fn stored_in_flight(&self) -> impl Iterator<Item = (Stored, Option<NonZeroU64>)> {
        self.outbound.stored()
    }

    /// Forgets the in-flight messages if all are QoS 1, stored by the application, and not from a share group.
    ///
    /// True if there were any. The application restores them with [`Session::restore_sent`].
    pub fn forget_stored(&mut self) -> bool {
        self.outbound.forget_stored()
    }

    /// Copies in-flight messages out of their shared encoding blocks, for a session that waits long for its client.
    ///
    /// Messages that fill much of a block stay there, since other sessions may share them.
    pub fn detach(&mut self) {
        self.outbound.detach();
    }

    /// Whether the payload of a sent message is elsewhere ([`tenbin_codec::PublishTemplate::external`]). Such a message
    /// cannot be sent again before [`Session::complete`].
    pub fn has_external(&self) -> bool {
        self.in_flight() > 0 && self.outbound.has_external()
    }

    /// Gives sent messages their payloads. `find` returns the whole message by its [`Delivery::stored`]. Returns the stored
    /// copies of messages that it does not find, which end.
    pub fn complete(&mut self, find: impl FnMut(Stored) -> Option<Delivery>) -> Vec<Stored> {
        self.outbound.complete(find)
    }

    /// Ends the messages that [`crate::Connection::take_late`] took, and returns their data. Call it when the connection has
    /// ended: no acknowledgement of them can come any more.
    pub fn end_late(&mut self) -> Vec<SharedDelivery> {
        self.outbound.end_late()
    }

    /// Number of received QoS 2 messages that are not released.
    pub fn awaiting_release(&self) -> usize {
        self.awaiting_release.len()
    }

    /// Removes and returns the unacknowledged QoS 1 messages that `wanted` selects, oldest first, for redelivery.
    ///
    /// The peer may already have them: QoS 1 allows that. QoS 2 messages stay with their receiver `[MQTT-4.8.2-4]`.
    /// Only for a session without a connection.
    ///
    /// A message that comes back to this session before another session has sent it is sent again, with DUP and its
    /// Packet Identifier `[MQTT-4.4.0-1]`, unless another message has that by then. `numbers` reserves as many
    /// consecutive numbers and returns the first. Sessions whose messages may meet use the same source.
    pub fn withdraw(&mut self, wanted: impl Fn(&Delivery) -> bool, numbers: impl FnOnce(u32) -> u32) -> Vec<Delivery> {
        let withdrawn = self.outbound.withdraw(wanted);
        if withdrawn.is_empty() {
            return Vec::new();
        }
        let known = self.withdrawn.get_or_insert_default();
        let first = numbers(withdrawn.len() as u32);
        let number = |(place, (id, delivery)): (u32, (PacketId, Delivery))| {
            let message = withdrawn::number(first, place);
            known.add(message, id);
            Delivery { message, ..delivery }
        };
        (0..).zip(withdrawn).map(number).collect()
    }

    /// Returns the Packet Identifier under which this session has sent a withdrawn message; `None` if it is new here.
    pub(crate) fn withdrawn_id(&self, delivery: &Delivery) -> Option<PacketId> {
        let withdrawn = self.withdrawn.as_ref().filter(|_| delivery.qos == QoS::AtLeastOnce)?;
        withdrawn.id_of(delivery)
    }

    /// Whether messages were withdrawn and others are in flight. Otherwise the order of redelivery is the order of sending.
    pub fn is_withdrawn_in_part(&self) -> bool {
        self.withdrawn.is_some() && self.in_flight() > 0
    }

    /// Whether [`Session::put_back`] may take this message.
    pub fn may_put_back(&self, delivery: &Delivery) -> bool {
        self.is_withdrawn_in_part() && self.withdrawn_id(delivery).is_some()
    }

    /// Puts a withdrawn message back in flight, so that [`crate::Connection::resume`] sends it at its place in the order
    /// of sending `[MQTT-4.6.0-1]`.
    ///
    /// Returns the message if another one has its Packet Identifier, or if it is new here. Only for a session without a
    /// connection.
    pub fn put_back(&mut self, delivery: Delivery, now: Instant) -> Option<Delivery> {
        let Some(id) = self.withdrawn_id(&delivery).filter(|&id| self.outbound.stage(id).is_none()) else {
            return Some(delivery);
        };
        self.outbound.reopen(id, Stage::Published(delivery, now));
        None
    }

    /// Whether nothing is in flight in either direction.
    pub fn is_empty(&self) -> bool {
        self.in_flight() == 0 && self.awaiting_release.is_empty()
    }
}
