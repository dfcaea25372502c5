//! Queue operations when a client connects or disconnects, and when its session ends.

use std::collections::HashSet;
use std::num::NonZeroU64;
use std::sync::atomic::Ordering;

use tenbin_balancer::Availability;
use tenbin_codec::ProtocolVersion;
use tenbin_session::Delivery;

use super::hints::Hint;
use super::{Booked, Outbox, State, Wire};
use crate::backlog::Usage;
use crate::durable::{Ended, Location, Sequence};

impl Outbox {
    /// Begins a connection; voids requests to an earlier one.
    ///
    /// `plain`: the version if every small message has the same packet for this client; `None` otherwise.
    pub(crate) fn attach(&self, packet_bytes_maximum: u32, plain: Option<ProtocolVersion>) {
        self.packet_bytes_maximum.store(packet_bytes_maximum, Ordering::Relaxed);
        let mut guard = self.state();
        let state = &mut *guard;
        state.queue.split_runs();
        state.consumer.attach(plain);
        state.quota_left = 0;
        state.unsent_bytes = 0;
        self.set_under_way(state, 0);
        state.control = None;
        state.is_alarmed = false;
        self.publish(state);
        self.hints.put(Hint::AT_REST, false);
        let is_full = self.common.limits.is_nearly_full(&state.queue) || state.spill.is_some();
        self.load.set_availability(if is_full { Availability::Full } else { Availability::Ready });
    }

    /// Number of the current or last connection.
    pub(crate) fn connection(&self) -> u32 {
        self.hints.connection()
    }

    /// The connection for which small messages may be queued as ready-made packets.
    #[inline]
    pub(crate) fn wire(&self) -> Option<Wire> {
        self.hints.wire()
    }

    /// Whether the client accepts a packet of this size in bytes.
    pub(crate) fn takes(&self, packet_bytes: usize) -> bool {
        let maximum = self.packet_bytes_maximum.load(Ordering::Relaxed);
        maximum == u32::MAX || packet_bytes <= maximum as usize
    }

    /// Ends the connection and returns the queued messages of share groups, for other members.
    ///
    /// Drops other QoS 0 messages. QoS 1 and 2 messages stay for the next connection, detached from read buffers.
    ///
    /// # Errors
    /// Numbers of share groups ([`Delivery::share`]) with queued messages for which `is_known` is false. Then nothing
    /// has changed.
    pub(crate) fn detach(&self, is_known: impl Fn(NonZeroU64) -> bool) -> Result<Vec<Delivery>, HashSet<NonZeroU64>> {
        let mut state = self.state();
        let groups = state.queue.shares().map(|(group, _)| group);
        let unknown: HashSet<_> = groups.filter(|&group| !is_known(group)).collect();
        if !unknown.is_empty() {
            return Err(unknown);
        }
        self.hints.put(Hint::AT_REST, false);
        state.consumer.detach();
        state.control = None;
        state.waker = None;
        self.give_back_withheld(&mut state);
        let (shared, mut dropped) = state.queue.withdraw_shared(&self.common.budget);
        let ended = self.end_temporary(&mut state);
        self.give_head_to_tail(&mut state);
        self.publish(&mut state);
        dropped += state.queue.drop_unacknowledged(&self.common.budget);
        self.load.set_availability(Availability::Offline);
        let names = state.queue.take_names();
        drop(state);
        self.tell_dropped(names);
        if let Some((durable, queue)) = self.common.durable.as_ref().zip(ended) {
            durable.end_queue(Ended::Session, &queue);
        }
        self.common.metrics.dropped_offline.add(dropped.messages);
        self.take_back(shared.iter().map(Booked::of).sum::<Booked>() + dropped.booked);
        Ok(shared)
    }

    /// Counts bytes in flight to a disconnected client in the common budget.
    pub(crate) fn count_under_way(&self, bytes: usize) {
        self.set_under_way(&mut self.state(), bytes);
    }

    fn set_under_way(&self, state: &mut State, bytes: usize) {
        let usage = |bytes| Usage { bytes, messages: 0 };
        self.common.budget.change(usage(state.under_way_bytes), usage(bytes));
        state.under_way_bytes = bytes;
    }

    /// Drops all queued messages for a fresh start of the session.
    pub(crate) fn clear(&self) {
        let (dropped, names) = {
            let mut state = self.state();
            self.give_back_withheld(&mut state);
            state.spill.iter_mut().for_each(|spill| spill.clear());
            state.is_stuffed = false;
            self.publish(&mut state);
            self.set_under_way(&mut state, 0);
            (state.queue.clear(&self.common.budget), state.queue.take_names())
        };
        self.tell_dropped(names);
        self.common.metrics.dropped_offline.add(dropped.messages);
        self.take_back(dropped.booked);
    }

    /// Ends the session: drops its queued messages and those from publishers that still chose it.
    pub(crate) fn close(&self) {
        self.state().consumer.close();
        self.clear();
    }

    /// Moves the session's stored messages from memory to the backlog, as they can stay on disk while the client is away.
    pub(super) fn give_head_to_tail(&self, state: &mut State) {
        let is_own = |delivery: &Delivery| matches!(delivery.location(), Some(Location::Own(_)));
        let stored = state.queue.withdraw(is_own, &self.common.budget);
        state.spill.iter_mut().for_each(|spill| spill.refill.reset()); // the next connection tries at once
        for delivery in &stored {
            if let Some(Location::Own(sequence)) = delivery.location() {
                state.spill.get_or_insert_default().add(Sequence(sequence), delivery);
            }
        }
    }
}
