//! Sending to a client with messages on disk: records delivery updates and defers packets until these are durable.
//!
//! | | packet may be sent when this is durable |
//! |---|---|
//! | PUBLISH of QoS 1 | nothing: it may be sent again |
//! | PUBLISH of QoS 2 | its Packet Identifier, by which the client recognizes the message `[MQTT-4.3.3-4]` |
//! | PUBREL | receipt of PUBREC: no PUBLISH may follow `[MQTT-4.3.3-6]` |
//! | PUBCOMP | receipt of PUBREL: another message may use the identifier |

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tenbin_codec::{PacketId, QoS, WriteBuffer};
use tenbin_session::{Delivery, Sent};
use tokio::sync::oneshot;
use tokio::time::Sleep;

use super::connection::ConnectionTask;
use super::stream::Stream;
use crate::backlog::{NextPage, Refilled};
use crate::durable::{CommitPoint, Durable, Outcomes, Page, Place, Room, Stored, StoredQueue, place};
use crate::lifecycle::{BrokerState, enforcement};
use crate::registry::Client;

/// Disk-related state of a connection; boxed, and present from the first stored message on.
#[derive(Debug, Default)]
pub(super) struct Storing {
    /// Delivery updates to be recorded at the end of this batch.
    outcomes: Outcomes,
    /// Packets to be sent once `outcomes` are durable.
    next_steps: Vec<Step>,
    steps: VecDeque<(CommitPoint, Step)>,
    /// Deferred PUBLISH packets, in order.
    output: VecDeque<(CommitPoint, WriteBuffer)>,
    /// Total bytes of `output`.
    held_bytes: usize,
    /// Commit point that covers every delivery update recorded so far.
    last: CommitPoint,
    /// The page being read from disk.
    page: Option<oneshot::Receiver<Page>>,
    /// Pause after a failed read.
    read_rest: Option<Pin<Box<Sleep>>>,
    /// Pause before the next request for disk space for retained messages.
    retained_rest: Option<Pin<Box<Sleep>>>,
    /// The share group looked up last, and its queue on disk.
    group: Option<(NonZeroU64, Option<Arc<StoredQueue>>)>,
}

/// Deferred acknowledgements of one connection at which it is not read any more while the disk is congested.
const HELD_BEHIND: usize = 256;

/// Bytes of messages with deferred acknowledgement, likewise.
const HELD_BYTES_BEHIND: usize = 1 << 20;

/// Deferred PUBRELs and PUBCOMPs of one connection at which it is not read any more: all that one client can need.
const STEPS_MAX: usize = 2 * 65_536;

/// Pause after the disk had no room for retained messages; the log checks its free space as often.
const RETAINED_AGAIN: Duration = Duration::from_secs(1);

/// A deferred packet of a QoS 2 handshake.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// PUBREL.
    Release(PacketId),
    /// PUBCOMP.
    Complete(PacketId),
}

/// Reads the first page of a returning client's backlog, so that its messages precede answers to the client's packets.
pub(super) async fn read_first_page(shared: &BrokerState, client: &Client) {
    let Some(durable) = &shared.durable else { return };
    let NextPage::Read(page) = client.outbox.next_page(Instant::now()) else { return };
    if let Ok(page) = durable.read(page).await {
        take_page(shared, client, page, durable);
    }
}

/// Adds messages that were read to the client's queue.
fn take_page(shared: &BrokerState, client: &Client, mut page: Page, durable: &Durable) {
    for (_, delivery) in &mut page.messages {
        delivery.take_if(|delivery| enforcement::is_forbidden(&client.rights, delivery));
    }
    let Refilled { done, failed } = client.outbox.refill(page, Instant::now());
    if failed.is_some_and(|failed| failed.is_first) {
        tracing::error!(client = ?client.id, "messages of the session cannot be read: they stay where they are");
    }
    shared.metrics.dropped_expired.add(done.len() as u64);
    if let Some(queue) = client.outbox.stored() {
        durable.done(done.into_iter().map(|sequence| place(queue.id(), sequence)));
    }
}

impl Storing {
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    pub(super) fn last(&self) -> CommitPoint {
        self.last
    }

    /// Whether a PUBLISH is deferred.
    pub(super) fn holds_output(&self) -> bool {
        !self.output.is_empty()
    }
}

impl<S: Stream> ConnectionTask<S> {
    /// Completes a stored message.
    pub(super) fn done(&mut self, stored: NonZeroU64, share: Option<NonZeroU64>) {
        if let Some(place) = self.place_of(stored, share) {
            self.storing().outcomes.done.push(place);
        }
    }

    /// Handles PUBREC of a stored message.
    pub(super) fn received(
        &mut self,
        packet_id: PacketId,
        stored: NonZeroU64,
        share: Option<NonZeroU64>,
        now: Instant,
    ) {
        match self.place_of(stored, share).zip(self.connection.sent_id(packet_id)) {
            Some((place, id)) => {
                let storing = self.storing();
                storing.outcomes.received.push((place, id));
                storing.next_steps.push(Step::Release(packet_id));
            }
            None => self.connection.release(packet_id, now, &mut self.transport.out),
        }
    }

    /// Handles PUBREL of a message from the client.
    pub(super) fn released(&mut self, packet_id: PacketId, now: Instant) {
        match self.lease.client.outbox.keeps_in() {
            Some(queue) => {
                let storing = self.storing();
                storing.outcomes.released.push(queue.publishes(packet_id));
                storing.next_steps.push(Step::Complete(packet_id));
            }
            None => self.connection.complete(packet_id, now, &mut self.transport.out),
        }
    }

    /// Whether to stop reading from the client, because the disk is congested and many answers wait for it.
    ///
    /// Below these bounds reading goes on, since other packets do not depend on the disk.
    pub(super) fn waits_for_disk(&self) -> bool {
        let held = self.deferred_acks.as_ref().map_or(0, |held| held.len());
        let steps = self.storing.as_ref().map_or(0, |storing| storing.steps.len());
        let is_behind = || self.shared.durable.as_ref().is_some_and(|durable| durable.is_behind());
        // Steps have no other bound: a PUBREC may be repeated any number of times.
        let bytes = self.deferred_acks.as_ref().map_or(0, |held| held.unsafe_bytes());
        let is_over_limit = self.deferred_acks.as_ref().is_some_and(|held| held.is_over_limit());
        steps >= STEPS_MAX || is_over_limit || ((held >= HELD_BEHIND || bytes >= HELD_BYTES_BEHIND) && is_behind())
    }

    /// Records delivery updates.
    #[inline]
    pub(super) fn settle(&mut self) {
        if self.storing.as_ref().is_some_and(|storing| !storing.outcomes.is_empty()) {
            self.settle_now();
        }
    }

    #[cold]
    fn settle_now(&mut self) -> CommitPoint {
        let (Some(durable), Some(storing)) = (&self.shared.durable, &mut self.storing) else { return CommitPoint::NOW };
        storing.outcomes.are_waited_for |= !storing.next_steps.is_empty();
        let commit_point = durable.settle(&mut storing.outcomes);
        storing.last = commit_point;
        storing.steps.extend(storing.next_steps.drain(..).map(|step| (commit_point, step)));
        commit_point
    }

    /// Sends packets whose commit point is durable and registers for the rest; returns whether it sent any.
    pub(super) fn release_stored(&mut self, context: &mut Context<'_>) -> bool {
        let Some(durable) = self.shared.durable.as_ref().map(Arc::clone) else { return false };
        let Some(storing) = &mut self.storing else { return false };
        let mut is_released = false;
        let now = Instant::now();
        while let Some((_, step)) = storing.steps.pop_front_if(|(commit_point, _)| durable.is_safe(*commit_point)) {
            match step {
                Step::Release(id) => self.connection.release(id, now, &mut self.transport.out),
                Step::Complete(id) => self.connection.complete(id, now, &mut self.transport.out),
            }
            is_released = true;
        }
        while let Some((_, packets)) = storing.output.pop_front_if(|(commit_point, _)| durable.is_safe(*commit_point)) {
            storing.held_bytes -= packets.len();
            self.transport.out.append(packets);
            is_released = true;
        }
        self.watch_stored(context);
        is_released
    }

    /// Wakes the task when more packets may be sent.
    pub(super) fn watch_stored(&self, context: &mut Context<'_>) {
        let (Some(durable), Some(storing)) = (&self.shared.durable, &self.storing) else { return };
        let first = [storing.steps.front().map(|(at, _)| *at), storing.output.front().map(|(at, _)| *at)];
        // These commit points concern the message log only, whose wake-ups need no handle.
        first.into_iter().flatten().for_each(|at| drop(durable.wake_when_safe(at, context.waker())));
    }

    /// Reads the on-disk backlog while the in-memory head runs out; returns whether the queue has got more messages.
    pub(super) fn read_on(&mut self, context: &mut Context<'_>) -> bool {
        let Some(durable) = self.shared.durable.as_ref().map(Arc::clone) else { return false };
        let mut has_read = false;
        while !self.rests_from_reading(context) {
            if self.storing().page.is_none() {
                match self.lease.client.outbox.next_page(Instant::now()) {
                    NextPage::Read(page) => self.storing().page = Some(durable.read(page)),
                    NextPage::At(at) => {
                        self.storing().read_rest = Some(Box::pin(tokio::time::sleep_until(at.into())));
                        continue;
                    }
                    NextPage::None => break,
                }
            }
            let Some(page) = &mut self.storing().page else { break };
            let Poll::Ready(page) = Pin::new(page).poll(context) else { break };
            self.storing().page = None;
            let Ok(page) = page else { break }; // the broker stops
            self.rested_at = None;
            take_page(&self.shared, &self.lease.client, page, &durable);
            has_read = true;
        }
        has_read
    }

    /// Whether the pause after a failed read goes on; if so, registers to be woken.
    fn rests_from_reading(&mut self, context: &mut Context<'_>) -> bool {
        let Some(storing) = &mut self.storing else { return false };
        if storing.read_rest.as_mut().is_some_and(|rest| rest.as_mut().poll(context).is_pending()) {
            return true;
        }
        storing.read_rest = None;
        false
    }

    /// Drops timers after a migration: the new task makes its own.
    pub(super) fn forget_rest_from_reading(&mut self) {
        let Some(storing) = &mut self.storing else { return };
        (storing.retained_rest, storing.read_rest) = (None, None);
    }

    /// Stores retained messages for the client, which are in flight from now on like any other. `room` is booked for
    /// them; `None` if none of them needs storing.
    pub(super) fn keep_retained(&self, page: &mut [Delivery], room: Option<Room>) {
        let Some((durable, room)) = self.shared.durable.as_ref().zip(room) else { return };
        if let Some(queue) = self.lease.client.outbox.stored() {
            let mut log = durable.append();
            for delivery in page.iter_mut().filter(|delivery| delivery.qos.is_acknowledged()) {
                log.place(&queue, delivery, &room);
                log.close(None);
            }
        }
        durable.give_room(room);
    }

    /// Pauses sending of retained messages, because the disk has no room for them.
    #[cold]
    pub(super) fn rest_from_retained(&mut self) {
        self.storing().retained_rest = Some(Box::pin(tokio::time::sleep(RETAINED_AGAIN)));
    }

    /// Whether the pause of retained messages goes on; if so, registers to be woken.
    pub(super) fn rests_from_retained(&mut self, context: &mut Context<'_>) -> bool {
        let Some(storing) = &mut self.storing else { return false };
        if storing.retained_rest.as_mut().is_some_and(|rest| rest.as_mut().poll(context).is_pending()) {
            return true;
        }
        storing.retained_rest = None;
        false
    }

    /// Sends a stored message, or puts its packet into `aside` until it is durable.
    pub(super) fn send_stored(
        &mut self,
        mut delivery: Delivery,
        now: Instant,
        aside: &mut Option<WriteBuffer>,
    ) -> Sent {
        let (Some(stored), share) = (delivery.stored, delivery.share) else {
            return self.connection.send(delivery, now, aside.get_or_insert_default());
        };
        let Some(from) = self.place_of(stored, share) else {
            delivery.stored = None; // the group has ended
            let goes_aside = self.has_to_follow(aside.is_some());
            let out = if goes_aside { aside.get_or_insert_default() } else { &mut self.transport.out };
            return self.connection.send(delivery, now, out);
        };
        let is_exactly_once = delivery.qos == QoS::ExactlyOnce;
        // A session that ends with its connection needs no deferral, and has messages in memory only; all take one
        // path.
        if is_exactly_once && self.connection.send_quota() == 0 {
            return Sent::Blocked(delivery);
        }
        let mut goes_to = None;
        if is_exactly_once
            && let Stored::InGroup(_) = Stored::of(stored)
            && let Some((durable, own)) = self.shared.durable.as_ref().zip(self.lease.client.outbox.keeps_in())
        {
            goes_to = durable.own_place(&own, &mut delivery); // the message stays with this session [MQTT-4.8.2-4]
        }
        let at_least_once_in_group = !is_exactly_once && matches!(Stored::of(stored), Stored::InGroup(_));
        let goes_aside = is_exactly_once || self.has_to_follow(aside.is_some());
        let out = if goes_aside { aside.get_or_insert_default() } else { &mut self.transport.out };
        let sent = self.connection.send(delivery, now, out);
        match sent {
            // Another member may get it if it is not acknowledged.
            Sent::Written(Some(_)) if at_least_once_in_group => {}
            Sent::Written(Some(id)) => {
                let id = self.connection.sent_id(id);
                let outcomes = &mut self.storing().outcomes;
                let to = goes_to.map_or(from, |(to, tag)| {
                    outcomes.moved.push((from, to, tag));
                    to
                });
                outcomes.sent.extend(id.map(|id| (to, id)));
            }
            Sent::Written(None) | Sent::Expired | Sent::TooLarge => self.storing().outcomes.done.push(from),
            Sent::Blocked(delivery) => return Sent::Blocked(Delivery { stored: Some(stored), ..delivery }),
        }
        sent
    }

    /// Whether a PUBLISH must not overtake deferred ones.
    #[inline]
    pub(super) fn has_to_follow(&self, has_aside: bool) -> bool {
        let Some(storing) = &self.storing else { return false }; // then `aside` is empty too
        (has_aside || storing.holds_output()) && self.connection.uses_aliases()
    }

    /// Records messages sent in this batch; defers `aside` until they are durable.
    pub(super) fn end_sending(&mut self, aside: Option<WriteBuffer>) {
        let Some(storing) = &mut self.storing else { return };
        let aside = aside.filter(|packets| !packets.is_empty());
        storing.outcomes.are_waited_for |= aside.is_some();
        let commit_point = if storing.outcomes.is_empty() { CommitPoint::NOW } else { self.settle_now() };
        if let Some(aside) = aside {
            let storing = self.storing();
            // Packets without a commit point of their own wait for those before them.
            let commit_point = storing.output.back().map_or(commit_point, |(before, _)| before.and(commit_point));
            storing.held_bytes += aside.len();
            storing.output.push_back((commit_point, aside));
        }
    }

    /// Log position of a stored message; `None` if its queue is gone.
    fn place_of(&mut self, stored: NonZeroU64, share: Option<NonZeroU64>) -> Option<Place> {
        match Stored::of(stored) {
            Stored::InOwn(sequence) => Some(place(self.lease.client.outbox.stored()?.id(), sequence)),
            Stored::InGroup(sequence) => {
                let share = share?;
                let known = self.storing().group.take().filter(|(number, _)| *number == share);
                let (_, queue) = known.unwrap_or_else(|| (share, self.shared.router.queue_of_group(share)));
                let id = queue.as_ref().map(|queue| queue.id());
                self.storing().group = Some((share, queue));
                Some(place(id?, sequence))
            }
        }
    }

    fn storing(&mut self) -> &mut Storing {
        self.storing.get_or_insert_default()
    }
}
