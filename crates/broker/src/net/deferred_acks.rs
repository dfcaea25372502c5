//! Deferred answers: acknowledgements that wait for their commit point, or that a share group holds.
//!
//! PUBACKs and PUBRECs share one queue, so that they keep their order `[MQTT-4.6.0-2]`, `[MQTT-4.6.0-3]`. SUBACKs and
//! UNSUBACKs have another, so that neither delays the other.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use tenbin_codec::{Packet, PacketType, ReasonCode};
use tenbin_session::{Connection, PendingAck};
use tokio::time::Sleep;

use super::core::Core;
use crate::durable::{AskedWake, CommitPoint, Durable};
use crate::memory::{Account, Charge, Kind};
use crate::router::HoldingGroup;

/// Deferred answers of one connection.
#[derive(Debug, Default)]
pub(super) struct DeferredAcks {
    pub(super) acks: CommitQueue<(PendingAck, ReasonCode)>,
    /// SUBACKs and UNSUBACKs.
    answers: CommitQueue<Box<Packet>>,
    /// SUBACKs in `answers`.
    subacks: u16,
    /// The filters of a SUBSCRIBE are being applied, some at a time.
    is_subscribing: bool,
    /// Bytes of messages in batches that are not durable yet, with their commit points.
    unsafe_bytes: VecDeque<(CommitPoint, usize)>,
    /// Charge for these messages.
    charge: Option<Charge>,
    /// Ends the connection after a message without acknowledgement, because the client's version has no refusal.
    end: Option<Pin<Box<Sleep>>>,
    /// Share groups that hold `acks`: their backlogs are too long.
    holding: Vec<HoldingGroup>,
}

type Woken = (CommitPoint, Waker, Option<AskedWake>);

/// A FIFO of answers, each with its commit point.
#[derive(Debug)]
pub(super) struct CommitQueue<T> {
    waiting: VecDeque<(CommitPoint, T)>,
    /// Commit point of the front and the waker registered for it, with its registration.
    woken: Option<Woken>,
}

impl DeferredAcks {
    /// Leaves a message unacknowledged: stops reading, and ends the connection after a pause.
    ///
    /// The pause limits a client that reconnects and resends at once to about one attempt a second.
    pub(super) fn end_unanswered(&mut self) {
        self.end.get_or_insert_with(|| Box::pin(tokio::time::sleep(UNANSWERED)));
    }

    pub(super) fn is_ending_unanswered(&self) -> bool {
        self.end.is_some()
    }

    /// Whether that pause is over and nothing is owed.
    pub(super) fn poll_unanswered(&mut self, context: &mut Context<'_>) -> bool {
        let is_due = self.end.as_mut().is_some_and(|end| end.as_mut().poll(context).is_ready());
        is_due && !self.owes_answers()
    }

    /// Whether answers wait for the disk alone. A share group could hold them for ever: the client may be the member
    /// whose acknowledgements it waits for, and is not read.
    pub(super) fn owes_answers(&self) -> bool {
        !(self.acks.waiting.is_empty() || self.is_held()) || !self.answers.waiting.is_empty()
    }

    /// Holds acknowledgements until none of these groups holds them any more.
    #[cold]
    pub(super) fn hold(&mut self, holding: Box<[HoldingGroup]>) {
        for group in holding {
            if !self.holding.iter().any(|other| other.is_same_group(&group)) {
                self.holding.push(group);
            }
        }
    }

    /// Whether a share group holds acknowledgements.
    pub(super) fn is_held(&self) -> bool {
        !self.holding.is_empty()
    }

    /// SUBACKs and UNSUBACKs that are deferred.
    pub(super) fn answers(&self) -> &CommitQueue<Box<Packet>> {
        &self.answers
    }

    /// Defers a SUBACK or UNSUBACK.
    pub(super) fn defer_answer(&mut self, commit_point: CommitPoint, packet: Packet) {
        self.subacks += u16::from(packet.packet_type() == PacketType::SubAck);
        self.answers.defer(commit_point, Box::new(packet));
    }

    /// Records whether the filters of a SUBSCRIBE are being applied.
    pub(super) fn set_subscribing(&mut self, is_subscribing: bool) {
        self.is_subscribing = is_subscribing;
    }

    /// Whether a SUBSCRIBE is not answered yet that has been applied, at least in part.
    pub(super) fn owes_suback(&self) -> bool {
        self.subacks > 0 || self.is_subscribing
    }

    /// Charges messages, which stay in memory until `commit_point` is durable.
    pub(super) fn charge(&mut self, commit_point: CommitPoint, account: Option<Arc<Account>>, bytes: usize) {
        self.unsafe_bytes.push_back((commit_point, bytes));
        if self.charge.is_none() {
            self.charge = account.map(|account| Charge::nothing(&account, Kind::Unacknowledged));
        }
        self.charge.iter_mut().for_each(|charge| charge.set(charge.bytes() + bytes));
    }

    /// Whether to stop reading, because the connection is ending or many answers wait.
    ///
    /// Below these bounds reading goes on, since other packets do not depend on the disk.
    pub(super) fn are_too_many(&self, durable: Option<&Durable>) -> bool {
        // The Receive Maximum bounds answers to PUBLISH.
        let are_many = self.answers.waiting.len() >= ANSWERS_MAX || self.acks.waiting.len() > RECEIVE_MAXIMUM_MAX;
        let bytes = self.charge.as_ref().map_or(0, Charge::bytes);
        let is_over_limit =
            self.charge.as_ref().is_some_and(|charge| charge.bytes() > 0 && !charge.may_become(charge.bytes() + 1));
        self.is_ending_unanswered()
            || are_many
            || is_over_limit
            || (self.len() >= HELD_BEHIND || bytes >= HELD_BYTES_BEHIND) && durable.is_some_and(Durable::is_behind)
    }

    /// Writes answers that may leave and registers for the rest; returns whether it wrote any.
    pub(super) fn release(
        &mut self,
        core: &mut Core,
        durable: Option<&Arc<Durable>>,
        context: &mut Context<'_>,
    ) -> bool {
        let (before, now) = (self.len(), Instant::now());
        self.holding.retain(|group| group.still_holds(context.waker()));
        while !self.is_held()
            && let Some((ack, reason)) = self.acks.next(context.waker(), durable)
        {
            core.acknowledge(ack, reason, now);
        }
        while let Some(packet) = self.answers.next(context.waker(), durable) {
            self.subacks -= u16::from(packet.packet_type() == PacketType::SubAck);
            let is_written = core.connection.write_in_words(*packet, now, &mut core.out);
            debug_assert!(is_written, "it was asked before whether the client takes it");
        }
        while let Some((_, bytes)) =
            self.unsafe_bytes.pop_front_if(|(at, _)| durable.is_none_or(|durable| durable.is_safe(*at)))
        {
            self.charge.iter_mut().for_each(|charge| charge.set(charge.bytes().saturating_sub(bytes)));
        }
        self.len() < before
    }

    /// Drops all answers; `connection` forgets refused messages.
    pub(super) fn forget(self, connection: &mut Connection) {
        for (_, (ack, reason)) in self.acks.waiting {
            if reason.is_error() {
                connection.forget_refused(ack, reason);
            }
        }
    }

    /// Drops registered wakers and moves the timer to the current runtime.
    pub(super) fn migrated(&mut self) {
        (self.acks.woken, self.answers.woken) = (None, None);
        self.end = self.end.take().map(|end| Box::pin(tokio::time::sleep_until(end.deadline())));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0 && self.end.is_none() && !self.is_held() && !self.is_subscribing
    }

    fn len(&self) -> usize {
        self.acks.waiting.len() + self.answers.waiting.len()
    }
}

impl<T> CommitQueue<T> {
    /// Whether an answer may go now. `queue`: those deferred before it, if there are any.
    pub(super) fn may_pass(queue: Option<&Self>, commit_point: CommitPoint, durable: Option<&Durable>) -> bool {
        queue.is_none_or(|queue| queue.waiting.is_empty())
            && durable.is_none_or(|durable| durable.is_safe(commit_point))
    }

    pub(super) fn defer(&mut self, commit_point: CommitPoint, answer: T) {
        self.waiting.push_back((commit_point, answer));
    }

    /// Takes the front if it is durable; otherwise registers `waker` for it, once for each commit point and waker.
    fn next(&mut self, waker: &Waker, durable: Option<&Arc<Durable>>) -> Option<T> {
        let &(commit_point, _) = self.waiting.front()?;
        let Some(durable) = durable.filter(|durable| !durable.is_safe(commit_point)) else {
            return self.waiting.pop_front().map(|(_, next)| next);
        };
        let is_known = |(at, woken, _): &Woken| *at == commit_point && woken.will_wake(waker);
        // The message log needs the registration again each time.
        if !durable.waits_for_state(commit_point) || !self.woken.as_ref().is_some_and(is_known) {
            self.woken = Some((commit_point, waker.clone(), durable.wake_when_safe(commit_point, waker)));
        }
        None
    }
}

impl<T> Default for CommitQueue<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), woken: None }
    }
}

/// Pause before the end of a connection whose client cannot receive a refusal.
const UNANSWERED: Duration = Duration::from_secs(1);
/// Deferred answers of one connection at which the broker stops reading from it.
const ANSWERS_MAX: usize = 1024;
/// Largest Receive Maximum of any broker. More acknowledgements can only belong to one message resent again and again.
const RECEIVE_MAXIMUM_MAX: usize = u16::MAX as usize;
/// Deferred answers of one connection at which it is not read any more while the disk is congested.
const HELD_BEHIND: usize = 256;
/// Bytes of messages with deferred acknowledgement, likewise.
const HELD_BYTES_BEHIND: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// So the client is not read from, and a packet of it is not overdue.
    #[tokio::test]
    async fn ending_unanswered_counts_as_waiting_for_the_disk() {
        let mut acks = DeferredAcks::default();
        assert!(acks.is_empty() && !acks.are_too_many(None));
        acks.end_unanswered();
        assert!(!acks.is_empty() && acks.are_too_many(None));
    }
}
