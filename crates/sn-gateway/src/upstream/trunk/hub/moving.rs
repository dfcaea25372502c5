//! A member that moves to a connection of its own.
//!
//! Both connections have the member's subscriptions for a moment, so that no message is lost. The trunk wins: a QoS 2
//! message that it has passed on is not taken from the other connection. At QoS 0 and 1 the client may get both copies.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use rustc_hash::FxBuildHasher;
use tenbin_codec::{PacketId, Publish, QoS, TopicFilter, TopicName};

use super::{Hub, Key, Ping};

/// A move under way.
#[derive(Default)]
pub(super) struct Moving {
    delivered: Delivered,
    /// The member has no subscriptions on the trunk any more.
    is_unsubscribed: bool,
}

/// QoS 2 messages that a member got from the trunk during its move, with the number of equal ones.
#[derive(Default)]
pub(in crate::upstream::trunk) struct Delivered(HashMap<(TopicName, Bytes), usize, FxBuildHasher>);

/// Remains of a member that has moved.
#[derive(Default)]
pub(in crate::upstream::trunk) struct Moved {
    pub(in crate::upstream::trunk) delivered: Delivered,
    /// QoS 2 messages that the broker has, and that the client will release.
    pub(in crate::upstream::trunk) unreleased: HashSet<PacketId, FxBuildHasher>,
}

impl Moving {
    pub(super) fn note_delivered(&mut self, publish: &Publish) {
        let message = (publish.topic.detach(), Bytes::copy_from_slice(&publish.payload));
        *self.delivered.0.entry(message).or_default() += 1;
    }
}

impl Delivered {
    /// Takes a message that is the other connection's copy of one of the trunk.
    pub(in crate::upstream::trunk) fn take(&mut self, publish: &Publish) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let message = (publish.topic.clone(), publish.payload.clone());
        let Some(count) = self.0.get_mut(&message) else { return false };
        *count -= 1;
        if *count == 0 {
            self.0.remove(&message);
        }
        true
    }
}

impl Hub {
    /// Begins a move. Returns the member's filters.
    pub(in crate::upstream::trunk) fn begin_move(&mut self, key: Key) -> Vec<(TopicFilter, QoS)> {
        let Some(member) = self.member(key) else { return Vec::new() };
        member.moving = Some(Box::default());
        member.filters.clone()
    }

    /// The other connection has the subscriptions: those of the trunk end behind the messages that the broker has for
    /// it already, which come before the answer to PINGREQ.
    pub(in crate::upstream::trunk) fn leave_behind(&mut self, key: Key) {
        self.ping(Ping::Move(key));
    }

    /// The other connection was refused: the member stays.
    pub(in crate::upstream::trunk) fn cancel_move(&mut self, key: Key) {
        if let Some(member) = self.member(key) {
            member.moving = None;
        }
    }

    pub(super) fn end_subscriptions(&mut self, key: Key) {
        self.detach(key);
        if let Some(member) = self.member(key) {
            if let Some(moving) = &mut member.moving {
                moving.is_unsubscribed = true;
            }
            member.wake();
        }
    }

    /// Removes a member that has moved, once neither it nor the broker owes the other an answer.
    pub(in crate::upstream::trunk) fn finish_move(&mut self, key: Key) -> Option<Moved> {
        let member = self.member(key)?;
        let is_idle = member.unacknowledged.is_empty() && member.unanswered == 0 && member.inbound.is_empty();
        let moving = member.moving.take_if(|moving| moving.is_unsubscribed && is_idle)?;
        let moved = Moved { delivered: moving.delivered, unreleased: std::mem::take(&mut member.unreleased) };
        self.leave(key, false);
        Some(moved)
    }

    /// The Will is the other connection's from now on.
    pub(in crate::upstream::trunk) fn forget_will(&mut self, key: Key) {
        if let Some(member) = self.member(key) {
            member.will = None;
        }
    }

    /// The client has forgotten a message that it had yet to release.
    pub(in crate::upstream::trunk) fn forget_unreleased(&mut self, key: Key, id: PacketId) {
        if let Some(member) = self.member(key) {
            member.unreleased.remove(&id);
        }
    }

    /// Whether a client has yet to release this message, which it has published on the trunk.
    pub(in crate::upstream::trunk) fn is_unreleased(&mut self, key: Key, id: PacketId) -> bool {
        self.member(key).is_some_and(|member| member.unreleased.contains(&id))
    }
}
