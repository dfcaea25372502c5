//! Deferred answers: acknowledgements that wait for their commit point.
//!
//! PUBACKs and PUBRECs share one queue, so that they keep their order `[MQTT-4.6.0-2]`, `[MQTT-4.6.0-3]`. SUBACKs and
//! UNSUBACKs have another, so that neither delays the other.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use tenbin_codec::{Packet, ReasonCode};
use tenbin_session::PendingAck;
use tokio::time::Sleep;

use super::connection::ConnectionTask;
use super::ending::End;
use super::stream::Stream;
use crate::durable::{AskedWake, CommitPoint, Durable};
use crate::memory::{Account, Charge, Kind};

/// Deferred answers of one connection. Boxed, and present only while there are some: most connections have none.
#[derive(Debug, Default)]
pub(super) struct DeferredAcks {
    acks: Line<(PendingAck, ReasonCode)>,
    answers: Line<Box<Packet>>,
    /// Commit point of the batch being applied.
    batch: CommitPoint,
    /// Bytes of messages in batches that are not durable yet, with their commit points.
    unsafe_bytes: VecDeque<(CommitPoint, usize)>,
    /// Charge for these messages.
    charge: Option<Charge>,
    /// Ends the connection after a message without acknowledgement, because the client's version has no refusal.
    end: Option<Pin<Box<Sleep>>>,
}

type Woken = (CommitPoint, Waker, Option<AskedWake>);

/// A FIFO of answers, each with its commit point.
#[derive(Debug)]
struct Line<T> {
    waiting: VecDeque<(CommitPoint, T)>,
    /// Commit point of the front and the waker registered for it, with its registration.
    woken: Option<Woken>,
}

impl<S: Stream> ConnectionTask<S> {
    /// Defers acknowledgements of the current batch until `commit_point`.
    #[inline]
    pub(super) fn hold_batch_until(&mut self, commit_point: CommitPoint) {
        if commit_point != CommitPoint::NOW {
            self.hold_batch(commit_point);
        }
    }

    #[inline(never)]
    fn hold_batch(&mut self, commit_point: CommitPoint) {
        let held = self.deferred_acks.get_or_insert_default();
        held.batch = held.batch.and(commit_point);
    }

    /// Writes an acknowledgement of this batch once the batch is durable, possibly at once.
    #[inline]
    pub(super) fn acknowledge_when_safe(&mut self, ack: PendingAck, reason: ReasonCode, now: Instant) {
        match &mut self.deferred_acks {
            Some(held) if !held.acks.may_pass(held.batch, self.shared.durable.as_deref()) => {
                held.acks.waiting.push_back((held.batch, (ack, reason)));
            }
            _ => self.acknowledge(ack, reason, now),
        }
    }

    /// Leaves a message unacknowledged: stops reading, and ends the connection after a pause.
    ///
    /// The pause limits a client that reconnects and resends at once to about one attempt a second.
    pub(super) fn end_unanswered(&mut self) {
        let end = || Box::pin(tokio::time::sleep(UNANSWERED));
        self.deferred_acks.get_or_insert_default().end.get_or_insert_with(end);
    }

    #[inline]
    pub(super) fn is_ending_unanswered(&self) -> bool {
        self.deferred_acks.as_ref().is_some_and(|held| held.end.is_some())
    }

    /// Whether that pause is over and all accepted messages are acknowledged.
    pub(super) fn poll_unanswered(&mut self, context: &mut Context<'_>) -> bool {
        let Some(held) = &mut self.deferred_acks else { return false };
        let is_due = held.end.as_mut().is_some_and(|end| end.as_mut().poll(context).is_ready());
        is_due && held.acks.waiting.is_empty() && held.answers.waiting.is_empty()
    }

    /// Ends a batch after its acknowledgements were written or deferred.
    #[inline]
    pub(super) fn end_held_batch(&mut self) {
        let bytes = std::mem::take(&mut self.batch_bytes);
        self.deferred_acks.take_if(|held| held.is_empty());
        if let Some(held) = &mut self.deferred_acks {
            if bytes > 0 && held.batch != CommitPoint::NOW {
                let account = self.lease.client.outbox.account();
                held.charge(account, bytes as usize);
            }
            held.batch = CommitPoint::NOW;
        }
    }

    /// Sends an answer once `commit_point` is durable.
    pub(super) fn answer_when_safe(
        &mut self,
        commit_point: CommitPoint,
        packet: Packet,
        now: Instant,
    ) -> Result<(), End> {
        let durable = self.shared.durable.as_deref();
        let may_pass = match &self.deferred_acks {
            Some(held) => held.answers.may_pass(commit_point, durable),
            None => is_safe(commit_point, durable),
        };
        if may_pass {
            return self.answer(packet, now);
        }
        self.deferred_acks.get_or_insert_default().answers.waiting.push_back((commit_point, Box::new(packet)));
        Ok(())
    }

    /// Whether to stop reading because of many deferred answers. The Receive Maximum bounds those to PUBLISH.
    pub(super) fn holds_much_back(&self) -> bool {
        self.deferred_acks.as_ref().is_some_and(|held| {
            held.answers.waiting.len() >= ANSWERS_MAX || held.acks.waiting.len() > RECEIVE_MAXIMUM_MAX
        })
    }

    /// Drops deferred answers at the end of the connection.
    ///
    /// A refused message whose refusal was not sent is forgotten, so that the broker judges it again if it comes again.
    pub(super) fn forget_held_back(&mut self) {
        let Some(held) = self.deferred_acks.take() else { return };
        for (_, (ack, reason)) in held.acks.waiting {
            if reason.is_error() {
                self.connection.forget_refused(ack, reason);
            }
        }
    }

    /// Writes answers that are durable and registers for the rest; returns whether it wrote any.
    pub(super) fn release_held_back(&mut self, context: &mut Context<'_>) -> bool {
        let Some(durable) = self.shared.durable.as_ref().map(Arc::clone) else { return false };
        let Some(mut held) = self.deferred_acks.take() else { return false };
        let (before, now) = (held.len(), Instant::now());
        while let Some((ack, reason)) = held.acks.next(context.waker(), &durable) {
            self.acknowledge(ack, reason, now);
        }
        while let Some(packet) = held.answers.next(context.waker(), &durable) {
            let is_written = self.connection.write_in_words(*packet, now, &mut self.transport.out);
            debug_assert!(is_written, "it was asked before whether the client takes it");
        }
        held.release(&durable);
        let is_released = held.len() < before;
        self.deferred_acks = Some(held).filter(|held| !held.is_empty());
        is_released
    }

    /// Drops registered wakers after a migration, since they would wake the old task.
    pub(super) fn forget_who_is_woken(&mut self) {
        if let Some(held) = &mut self.deferred_acks {
            (held.acks.woken, held.answers.woken) = (None, None);
            held.end = held.end.take().map(|end| Box::pin(tokio::time::sleep_until(end.deadline())));
        }
    }
}

impl DeferredAcks {
    /// Charges messages of this batch, which stay in memory until they are durable.
    fn charge(&mut self, account: Option<Arc<Account>>, bytes: usize) {
        self.unsafe_bytes.push_back((self.batch, bytes));
        if self.charge.is_none() {
            self.charge = account.map(|account| Charge::nothing(&account, Kind::Unacknowledged));
        }
        self.charge.iter_mut().for_each(|charge| charge.set(charge.bytes() + bytes));
    }

    /// Ends the charge for messages that are durable.
    fn release(&mut self, durable: &Durable) {
        while let Some((_, bytes)) = self.unsafe_bytes.pop_front_if(|(commit_point, _)| durable.is_safe(*commit_point))
        {
            self.charge.iter_mut().for_each(|charge| charge.set(charge.bytes().saturating_sub(bytes)));
        }
    }

    /// Bytes of messages that are not durable.
    pub(super) fn unsafe_bytes(&self) -> usize {
        self.charge.as_ref().map_or(0, Charge::bytes)
    }

    /// Whether the account of such messages has reached its limit.
    pub(super) fn is_over_limit(&self) -> bool {
        self.charge.as_ref().is_some_and(|charge| charge.bytes() > 0 && !charge.may_become(charge.bytes() + 1))
    }

    pub(super) fn len(&self) -> usize {
        self.acks.waiting.len() + self.answers.waiting.len()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0 && self.end.is_none()
    }
}

impl<T> Line<T> {
    /// Whether an answer with this commit point may go now.
    fn may_pass(&self, commit_point: CommitPoint, durable: Option<&Durable>) -> bool {
        self.waiting.is_empty() && is_safe(commit_point, durable)
    }

    /// Takes the front if it is durable; otherwise registers `waker` for it, once for each commit point and waker.
    fn next(&mut self, waker: &Waker, durable: &Arc<Durable>) -> Option<T> {
        let &(commit_point, _) = self.waiting.front()?;
        if durable.is_safe(commit_point) {
            return self.waiting.pop_front().map(|(_, next)| next);
        }
        let is_known = |(at, woken, _): &Woken| *at == commit_point && woken.will_wake(waker);
        // The message log needs the registration again each time.
        if !durable.waits_for_state(commit_point) || !self.woken.as_ref().is_some_and(is_known) {
            self.woken = Some((commit_point, waker.clone(), durable.wake_when_safe(commit_point, waker)));
        }
        None
    }
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), woken: None }
    }
}

fn is_safe(commit_point: CommitPoint, durable: Option<&Durable>) -> bool {
    durable.is_none_or(|durable| durable.is_safe(commit_point))
}

/// Pause before the end of a connection whose client cannot receive a refusal.
const UNANSWERED: Duration = Duration::from_secs(1);
/// Deferred answers of one connection at which the broker stops reading from it.
const ANSWERS_MAX: usize = 1024;
/// Largest Receive Maximum of any broker. More acknowledgements can only belong to one message resent again and again.
const RECEIVE_MAXIMUM_MAX: usize = u16::MAX as usize;
