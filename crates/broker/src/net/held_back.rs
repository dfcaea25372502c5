//! Answers that wait until what they acknowledge is safe. PUBACKs and PUBRECs wait in one line, so that they keep their
//! order `[MQTT-4.6.0-2]`, `[MQTT-4.6.0-3]`; SUBACKs and UNSUBACKs in another, so that neither waits for the other.

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
use crate::durable::{AskedWake, Durable, SafeAt};
use crate::memory::{Account, Charge, Kind};

/// Boxed, and there only while something waits: most connections wait for nothing.
#[derive(Debug, Default)]
pub(super) struct HeldBack {
    acks: Line<(PendingAck, ReasonCode)>,
    answers: Line<Box<Packet>>,
    /// When everything of the batch that is being applied is safe.
    batch: SafeAt,
    /// Bytes of the messages of batches that are not safe, with when they are.
    unsafe_bytes: VecDeque<(SafeAt, usize)>,
    /// For these messages.
    charge: Option<Charge>,
    /// The connection ends then, since a message stays unanswered: its client cannot be told of the refusal.
    end: Option<Pin<Box<Sleep>>>,
}

type Woken = (SafeAt, Waker, Option<AskedWake>);

/// Each behind those that came before it.
#[derive(Debug)]
struct Line<T> {
    waiting: VecDeque<(SafeAt, T)>,
    /// Who is woken for the head of the line, and when that is safe; as long as we are.
    woken: Option<Woken>,
}

impl<S: Stream> ConnectionTask<S> {
    /// Acknowledgements of the batch that is being applied wait for this.
    #[inline]
    pub(super) fn hold_batch_until(&mut self, safe_at: SafeAt) {
        if safe_at != SafeAt::NOW {
            self.hold_batch(safe_at);
        }
    }

    #[inline(never)]
    fn hold_batch(&mut self, safe_at: SafeAt) {
        let held = self.held_back.get_or_insert_default();
        held.batch = held.batch.and(safe_at);
    }

    /// Writes an acknowledgement of this batch when the batch is safe, at once if it is.
    #[inline]
    pub(super) fn acknowledge_when_safe(&mut self, ack: PendingAck, reason: ReasonCode, now: Instant) {
        match &mut self.held_back {
            Some(held) if !held.acks.may_pass(held.batch, self.shared.durable.as_deref()) => {
                held.acks.waiting.push_back((held.batch, (ack, reason)));
            }
            _ => self.acknowledge(ack, reason, now),
        }
    }

    /// A message is left unanswered: nothing more is read, and the connection ends after a pause, so that a client that
    /// comes back at once and sends it again does so once a second at most.
    pub(super) fn end_unanswered(&mut self) {
        let end = || Box::pin(tokio::time::sleep(UNANSWERED));
        self.held_back.get_or_insert_default().end.get_or_insert_with(end);
    }

    #[inline]
    pub(super) fn is_ending_unanswered(&self) -> bool {
        self.held_back.as_ref().is_some_and(|held| held.end.is_some())
    }

    /// Whether that pause is over, and all that was taken is acknowledged.
    pub(super) fn poll_unanswered(&mut self, context: &mut Context<'_>) -> bool {
        let Some(held) = &mut self.held_back else { return false };
        let is_due = held.end.as_mut().is_some_and(|end| end.as_mut().poll(context).is_ready());
        is_due && held.acks.waiting.is_empty() && held.answers.waiting.is_empty()
    }

    /// The acknowledgements of a batch have been written or wait.
    #[inline]
    pub(super) fn end_held_batch(&mut self) {
        let bytes = std::mem::take(&mut self.batch_bytes);
        self.held_back.take_if(|held| held.is_empty());
        if let Some(held) = &mut self.held_back {
            if bytes > 0 && held.batch != SafeAt::NOW {
                let account = self.lease.client.outbox.account();
                held.charge(account, bytes as usize);
            }
            held.batch = SafeAt::NOW;
        }
    }

    /// Sends what the client waits for, when that is safe.
    pub(super) fn answer_when_safe(&mut self, safe_at: SafeAt, packet: Packet, now: Instant) -> Result<(), End> {
        let durable = self.shared.durable.as_deref();
        let may_pass = match &self.held_back {
            Some(held) => held.answers.may_pass(safe_at, durable),
            None => is_safe(safe_at, durable),
        };
        if may_pass {
            return self.answer(packet, now);
        }
        self.held_back.get_or_insert_default().answers.waiting.push_back((safe_at, Box::new(packet)));
        Ok(())
    }

    /// Whether the client has to wait before it may ask for more. What it publishes is bounded by our Receive Maximum.
    pub(super) fn holds_much_back(&self) -> bool {
        self.held_back.as_ref().is_some_and(|held| {
            held.answers.waiting.len() >= ANSWERS_MAX || held.acks.waiting.len() > RECEIVE_MAXIMUM_MAX
        })
    }

    /// The connection ends. A message whose refusal the client has not been told is none that we have: if it comes again it is
    /// judged again.
    pub(super) fn forget_held_back(&mut self) {
        let Some(held) = self.held_back.take() else { return };
        for (_, (ack, reason)) in held.acks.waiting {
            if reason.is_error() {
                self.connection.forget_refused(ack, reason);
            }
        }
    }

    /// Writes what is safe by now, and has us woken for the rest; whether anything was written.
    pub(super) fn release_held_back(&mut self, context: &mut Context<'_>) -> bool {
        let Some(durable) = self.shared.durable.as_ref().map(Arc::clone) else { return false };
        let Some(mut held) = self.held_back.take() else { return false };
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
        self.held_back = Some(held).filter(|held| !held.is_empty());
        is_released
    }

    /// Another task has us now, which nobody would wake.
    pub(super) fn forget_who_is_woken(&mut self) {
        if let Some(held) = &mut self.held_back {
            (held.acks.woken, held.answers.woken) = (None, None);
            held.end = held.end.take().map(|end| Box::pin(tokio::time::sleep_until(end.deadline())));
        }
    }
}

impl HeldBack {
    /// Bytes of messages of this batch are in memory until they are safe.
    fn charge(&mut self, account: Option<Arc<Account>>, bytes: usize) {
        self.unsafe_bytes.push_back((self.batch, bytes));
        if self.charge.is_none() {
            self.charge = account.map(|account| Charge::nothing(&account, Kind::Unacknowledged));
        }
        self.charge.iter_mut().for_each(|charge| charge.set(charge.bytes() + bytes));
    }

    /// What is safe by now is no longer charged.
    fn release(&mut self, durable: &Durable) {
        while let Some((_, bytes)) = self.unsafe_bytes.pop_front_if(|(safe_at, _)| durable.is_safe(*safe_at)) {
            self.charge.iter_mut().for_each(|charge| charge.set(charge.bytes().saturating_sub(bytes)));
        }
    }

    /// Bytes of messages that are not safe.
    pub(super) fn unsafe_bytes(&self) -> usize {
        self.charge.as_ref().map_or(0, Charge::bytes)
    }

    /// Whether such messages and all else that is kept for their owner are as much as may be.
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
    /// Whether what is safe then may go out now.
    fn may_pass(&self, safe_at: SafeAt, durable: Option<&Durable>) -> bool {
        self.waiting.is_empty() && is_safe(safe_at, durable)
    }

    /// The head of the line if it is safe; else `waker` is woken when it is: once, however often it is looked at.
    fn next(&mut self, waker: &Waker, durable: &Arc<Durable>) -> Option<T> {
        let &(safe_at, _) = self.waiting.front()?;
        if durable.is_safe(safe_at) {
            return self.waiting.pop_front().map(|(_, next)| next);
        }
        let is_known = |(at, woken, _): &Woken| *at == safe_at && woken.will_wake(waker);
        // The log of messages wants to be asked again each time.
        if !durable.waits_for_state(safe_at) || !self.woken.as_ref().is_some_and(is_known) {
            self.woken = Some((safe_at, waker.clone(), durable.wake_when_safe(safe_at, waker)));
        }
        None
    }
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), woken: None }
    }
}

fn is_safe(safe_at: SafeAt, durable: Option<&Durable>) -> bool {
    durable.is_none_or(|durable| durable.is_safe(safe_at))
}

/// For how long a client that cannot be told of a refusal is not read from before its connection ends.
const UNANSWERED: Duration = Duration::from_secs(1);
/// Answers that wait of one connection, before it is read from again.
const ANSWERS_MAX: usize = 1024;
/// Of any broker. More can only be of one message that comes again and again.
const RECEIVE_MAXIMUM_MAX: usize = u16::MAX as usize;
