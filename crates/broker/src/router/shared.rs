use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenbin_balancer::{Availability, Group, Member, MemberId, Members, Nanos, Policy, Rng};
use tenbin_codec::{QoS, ShareName};
use tenbin_session::Delivery;

use super::Receiver;
use super::matches::Terms;
use crate::clock::Moment;
use crate::metrics::Metrics;
use crate::outbox::{Budget, Outbox, OutboxLimits, Queue, Reader};

/// The sessions that share one subscription, named by share name and filter (MQTT 5.0 §4.8.2).
///
/// A message goes to one connected member. While nobody is connected the messages wait in the group's own queue,
/// and the first member that comes back gets them: no member's queue holds what another could do meanwhile.
#[derive(Debug)]
pub(crate) struct SharedGroup {
    pub(super) share_name: ShareName,
    pub(super) members: Group<GroupMember>,
    /// What [`Delivery::share`] says of this group's messages.
    number: NonZeroU64,
    waiting: Mutex<Queue>,
    queues: Arc<GroupQueues>,
}

/// What all groups have in common.
#[derive(Debug)]
pub(crate) struct GroupQueues {
    pub(crate) limits: OutboxLimits,
    pub(crate) budget: Arc<Budget>,
    pub(crate) metrics: Arc<Metrics>,
}

/// What a delivery to a member needs.
#[derive(Debug)]
pub(super) struct GroupMember {
    pub(super) outbox: Arc<Outbox>,
    /// Each member has its own QoS `[MQTT-4.8.2-3]`.
    pub(super) terms: Terms,
}

/// Who gets a message.
pub(super) enum Choice<'a> {
    Member(&'a GroupMember),
    /// There are members, and none is connected.
    NobodyConnected,
    /// The group has ended.
    NoMember,
}

impl SharedGroup {
    pub(super) fn new(share_name: ShareName, policy: Policy, number: NonZeroU64, queues: Arc<GroupQueues>) -> Self {
        Self { share_name, members: Group::new(policy), number, waiting: Mutex::default(), queues }
    }

    pub(super) fn number(&self) -> NonZeroU64 {
        self.number
    }

    /// Adds a member, or replaces what is known of it.
    pub(super) fn join(&self, receiver: &Receiver, member: GroupMember, now: Nanos) {
        member.outbox.join_group(self.number); // first: whom the members show may be chosen
        self.members.join(MemberId(receiver.number), Arc::clone(&receiver.load), member, now);
    }

    /// Takes a member out. A publisher that has chosen it already gets its message back from the member's queue.
    pub(super) fn leave(&self, number: u64) {
        let members = self.members.members();
        if let Some(member) = members.iter().find(|member| member.id() == MemberId(number)) {
            self.members.leave(member.id());
            member.value().outbox.leave_group(self.number);
        }
    }

    /// Chooses a member for a packet of about so many bytes.
    #[inline]
    pub(super) fn choose<'a>(
        members: &'a Members<'_, GroupMember>,
        packet_bytes: usize,
        now: Nanos,
        rng: &mut Rng,
    ) -> Choice<'a> {
        let is_connected = |member: &Member<GroupMember>| member.load().availability() != Availability::Offline;
        let Some(member) = members.pick(now, rng) else { return Choice::NoMember };
        if !is_connected(member) {
            return Choice::NobodyConnected;
        }
        if member.value().outbox.takes(packet_bytes) {
            return Choice::Member(member.value());
        }
        // Another one may take larger packets; if none does, the chosen one drops it by the rule.
        let able = |other: &Member<GroupMember>| is_connected(other) && other.value().outbox.takes(packet_bytes);
        Choice::Member(members.pick_where(now, able).unwrap_or(member).value())
    }

    /// Keeps a message until a member is connected and has room. QoS 0 does not wait.
    pub(super) fn wait(&self, delivery: Delivery, now: Moment, rng: &mut Rng) {
        if !delivery.qos.is_acknowledged() {
            self.queues.metrics.dropped_offline.add(1);
            return;
        }
        let GroupQueues { limits, budget, .. } = &*self.queues;
        let mut waiting = self.waiting();
        let dropped = waiting.push(delivery, Reader::Absent, limits, budget, now.at);
        waiting.settle(budget);
        drop(waiting);
        self.queues.metrics.dropped_queue_full.add(dropped);
        // Whoever connected since the choice may have looked before the message was here.
        self.dispatch_waiting(now, rng);
    }

    /// Gives what waits to the members that are connected, as far as they have room. To be called when one has
    /// connected or joined, or has room again.
    pub(super) fn dispatch_waiting(&self, now: Moment, rng: &mut Rng) {
        // The lock keeps two dispatchers from mixing up the order; outboxes are the only locks taken under it.
        let mut waiting = self.waiting();
        let mut next = Vec::new();
        loop {
            waiting.take(1, 1, &mut next, &self.queues.budget);
            let Some(delivery) = next.pop() else { return };
            if let Err(delivery) = self.place(delivery, now, rng) {
                waiting.push_front(delivery, &self.queues.budget);
                return;
            }
        }
    }

    /// Gives one message, taken back from a member or from the queue, to a connected member. `Err` where there is
    /// none, or none with room.
    pub(super) fn place(&self, mut delivery: Delivery, now: Moment, rng: &mut Rng) -> Result<(), Delivery> {
        let mut returned = Vec::new();
        // One that has just left or filled up is not chosen again while another is there.
        for _ in 0..=self.members.len() {
            let members = self.members.members();
            let packet_bytes = delivery.template.len() + PACKET_OVERHEAD;
            let GroupMember { outbox, terms } = match Self::choose(&members, packet_bytes, now.nanos, rng) {
                Choice::Member(member) => member,
                Choice::NobodyConnected | Choice::NoMember => return Err(delivery),
            };
            let mut batch = vec![readdressed(delivery, terms)];
            outbox.push(&mut batch, &mut returned, now.at);
            match returned.pop() {
                Some(back) => delivery = back,
                None => return Ok(()),
            }
        }
        Err(delivery)
    }

    fn waiting(&self) -> MutexGuard<'_, Queue> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SharedGroup {
    fn drop(&mut self) {
        let dropped = self.waiting().clear(&self.queues.budget);
        self.queues.metrics.dropped_offline.add(dropped);
    }
}

/// A delivery as another member gets it.
fn readdressed(delivery: Delivery, terms: &Terms) -> Delivery {
    Delivery {
        qos: QoS::min(delivery.qos, terms.qos),
        retain: delivery.retain && terms.retain_as_published,
        subscription_identifiers: terms.identifiers.clone(),
        ..delivery
    }
}

/// What headers, identifiers and expiry add to a message at most, nearly always, in bytes.
pub(super) const PACKET_OVERHEAD: usize = 32;
