//! A client whose messages are kept on disk: what becomes of them is kept too, and what must not be said before that is
//! safe waits.
//!
//! | | may be sent when this is safe |
//! |---|---|
//! | PUBLISH of QoS 1 | nothing: it may come again |
//! | PUBLISH of QoS 2 | its Packet Identifier: the client knows the message by it `[MQTT-4.3.3-4]` |
//! | PUBREL | that PUBREC came: no PUBLISH may follow `[MQTT-4.3.3-6]` |
//! | PUBCOMP | that PUBREL came: the identifier may be another message's |

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
use crate::auth::enforcement;
use crate::durable::{Durable, Outcomes, Page, Place, Room, SafeAt, Stored, StoredQueue, place, read_again_after};
use crate::registry::Client;
use crate::shared::Shared;

/// Boxed, and there from the first stored message on.
#[derive(Debug, Default)]
pub(super) struct Storing {
    /// To be kept at the end of this batch.
    outcomes: Outcomes,
    /// To be said when they are.
    next_steps: Vec<Step>,
    steps: VecDeque<(SafeAt, Step)>,
    /// PUBLISHes that wait, in order.
    output: VecDeque<(SafeAt, WriteBuffer)>,
    /// Of them.
    held_bytes: usize,
    /// When all is safe that has been kept so far of what has become of messages.
    last: SafeAt,
    /// What is being read from disk.
    page: Option<oneshot::Receiver<Page>>,
    /// What cannot be read now.
    unread: Option<Unread>,
    /// The disk had no room for retained messages: it is asked again then.
    retained_rest: Option<Pin<Box<Sleep>>>,
    /// The share group that was asked for last, and where its messages are.
    group: Option<(NonZeroU64, Option<Arc<StoredQueue>>)>,
}

/// Messages that cannot be read: they stay where they are, and it is tried again.
#[derive(Debug)]
struct Unread {
    pause: Duration,
    /// `None`: the pause is over.
    timer: Option<Pin<Box<Sleep>>>,
}

/// Acknowledgements that wait of one connection, before it is read no more while the disk is behind.
const HELD_BEHIND: usize = 256;

/// Bytes of messages whose acknowledgement waits of one connection, likewise.
const HELD_BYTES_BEHIND: usize = 1 << 20;

/// PUBRELs and PUBCOMPs that wait of one connection, before it is read no more: all that one client can need.
const STEPS_MAX: usize = 2 * 65_536;

/// After the disk had no room for retained messages: the log looks as often whether there is some.
const RETAINED_AGAIN: Duration = Duration::from_secs(1);

/// A packet of a QoS 2 handshake.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// PUBREL.
    Release(PacketId),
    /// PUBCOMP.
    Complete(PacketId),
}

/// Reads what waits for a client that has just come back, so that it comes before whatever the client says next: as much
/// as is read at once.
pub(super) async fn read_first_page(shared: &Shared, client: &Client) {
    let Some(durable) = &shared.durable else { return };
    let Some(page) = client.outbox.next_page() else { return };
    if let Ok(page) = durable.read(page).await {
        take_page(shared, client, page, durable);
    }
}

/// Takes messages that were read into the client's queue.
fn take_page(shared: &Shared, client: &Client, mut page: Page, durable: &Durable) {
    for (_, delivery) in &mut page.messages {
        delivery.take_if(|delivery| enforcement::is_forbidden(&client.rights, delivery));
    }
    let over = client.outbox.refill(page);
    if over.is_empty() {
        return;
    }
    shared.metrics.dropped_expired.add(over.len() as u64);
    let Some(queue) = client.outbox.stored() else { return };
    durable.done(over.into_iter().map(|stored| place(queue.id(), stored.sequence())));
}

impl Storing {
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    pub(super) fn last(&self) -> SafeAt {
        self.last
    }

    /// Whether a PUBLISH waits.
    pub(super) fn holds_output(&self) -> bool {
        !self.output.is_empty()
    }
}

impl<S: Stream> ConnectionTask<S> {
    /// A stored message is done with.
    pub(super) fn done(&mut self, stored: NonZeroU64, share: Option<NonZeroU64>) {
        if let Some(place) = self.place_of(stored, share) {
            self.storing().outcomes.done.push(place);
        }
    }

    /// PUBREC has come of a stored message.
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

    /// PUBREL has come of a message of the client's.
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

    /// Whether the client may not say more because the disk is behind with much that it has said. A little more may come:
    /// what has nothing to do with the disk goes on.
    pub(super) fn waits_for_disk(&self) -> bool {
        let held = self.held_back.as_ref().map_or(0, |held| held.len());
        let steps = self.storing.as_ref().map_or(0, |storing| storing.steps.len());
        let is_behind = || self.shared.durable.as_ref().is_some_and(|durable| durable.is_behind());
        // Steps have no other bound: a PUBREC may come again and again.
        let bytes = self.held_back.as_ref().map_or(0, |held| held.unsafe_bytes());
        let is_over_limit = self.held_back.as_ref().is_some_and(|held| held.is_over_limit());
        steps >= STEPS_MAX || is_over_limit || ((held >= HELD_BEHIND || bytes >= HELD_BYTES_BEHIND) && is_behind())
    }

    /// Keeps what has become of messages.
    #[inline]
    pub(super) fn settle(&mut self) {
        if self.storing.as_ref().is_some_and(|storing| !storing.outcomes.is_empty()) {
            self.settle_now();
        }
    }

    #[cold]
    fn settle_now(&mut self) -> SafeAt {
        let (Some(durable), Some(storing)) = (&self.shared.durable, &mut self.storing) else { return SafeAt::NOW };
        storing.outcomes.are_waited_for |= !storing.next_steps.is_empty();
        let safe_at = durable.settle(&mut storing.outcomes);
        storing.last = safe_at;
        storing.steps.extend(storing.next_steps.drain(..).map(|step| (safe_at, step)));
        safe_at
    }

    /// Says what may be said by now, and has us woken for the rest; whether there was any.
    pub(super) fn release_stored(&mut self, context: &mut Context<'_>) -> bool {
        let Some(durable) = self.shared.durable.as_ref().map(Arc::clone) else { return false };
        let Some(storing) = &mut self.storing else { return false };
        let mut is_released = false;
        let now = Instant::now();
        while let Some((_, step)) = storing.steps.pop_front_if(|(safe_at, _)| durable.is_safe(*safe_at)) {
            match step {
                Step::Release(id) => self.connection.release(id, now, &mut self.transport.out),
                Step::Complete(id) => self.connection.complete(id, now, &mut self.transport.out),
            }
            is_released = true;
        }
        while let Some((_, packets)) = storing.output.pop_front_if(|(safe_at, _)| durable.is_safe(*safe_at)) {
            storing.held_bytes -= packets.len();
            self.transport.out.append(packets);
            is_released = true;
        }
        self.watch_stored(context);
        is_released
    }

    /// Has us woken when more may be said.
    pub(super) fn watch_stored(&self, context: &mut Context<'_>) {
        let (Some(durable), Some(storing)) = (&self.shared.durable, &self.storing) else { return };
        let first = [storing.steps.front().map(|(at, _)| *at), storing.output.front().map(|(at, _)| *at)];
        // These wait for messages alone, of which nothing has to be kept.
        first.into_iter().flatten().for_each(|at| drop(durable.wake_when_safe(at, context.waker())));
    }

    /// Reads what waits on disk alone, as the queue in memory runs out; whether there is more in it now.
    pub(super) fn read_on(&mut self, context: &mut Context<'_>) -> bool {
        let Some(durable) = self.shared.durable.as_ref().map(Arc::clone) else { return false };
        let mut has_read = false;
        while !self.rests_from_reading(context) {
            if self.storing().page.is_none() {
                let Some(page) = self.lease.client.outbox.next_page() else { break };
                self.storing().page = Some(durable.read(page));
            }
            let Some(page) = &mut self.storing().page else { break };
            let Poll::Ready(page) = Pin::new(page).poll(context) else { break };
            self.storing().page = None;
            let Ok(page) = page else { break }; // the broker ends
            self.refill(page, &durable);
            has_read = true;
        }
        has_read
    }

    fn refill(&mut self, page: Page, durable: &Durable) {
        self.rested_at = None;
        if !page.is_broken {
            self.storing().unread = None;
        } else if page.messages.is_empty() {
            self.rest_from_reading();
        }
        take_page(&self.shared, &self.lease.client, page, durable);
    }

    /// The next messages cannot be read. That may pass: where no file could be opened, say.
    #[cold]
    fn rest_from_reading(&mut self) {
        let before = self.storing().unread.take().map(|unread| unread.pause);
        if before.is_none() {
            tracing::error!(client = ?self.lease.client.id, "messages of the session cannot be read: they stay where they are");
        }
        let pause = read_again_after(before);
        self.storing().unread = Some(Unread { pause, timer: Some(Box::pin(tokio::time::sleep(pause))) });
    }

    /// Whether it is too early to read again; if so, has us woken.
    fn rests_from_reading(&mut self, context: &mut Context<'_>) -> bool {
        let Some(unread) = self.storing.as_mut().and_then(|storing| storing.unread.as_mut()) else { return false };
        if unread.timer.as_mut().is_some_and(|timer| timer.as_mut().poll(context).is_pending()) {
            return true;
        }
        unread.timer = None;
        false
    }

    /// Another task has us now: it tries at once.
    pub(super) fn forget_rest_from_reading(&mut self) {
        let Some(storing) = &mut self.storing else { return };
        storing.retained_rest = None;
        if let Some(unread) = &mut storing.unread {
            unread.timer = None;
        }
    }

    /// Retained messages that the client is going to be sent are under way from now on, as any other. `room` is booked for
    /// them; without it none of them is to be kept.
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

    /// The disk has no room for the next retained messages: they stay where they are.
    #[cold]
    pub(super) fn rest_from_retained(&mut self) {
        self.storing().retained_rest = Some(Box::pin(tokio::time::sleep(RETAINED_AGAIN)));
    }

    /// Whether it is too early to ask the disk again for room; if so, has us woken.
    pub(super) fn rests_from_retained(&mut self, context: &mut Context<'_>) -> bool {
        let Some(storing) = &mut self.storing else { return false };
        if storing.retained_rest.as_mut().is_some_and(|rest| rest.as_mut().poll(context).is_pending()) {
            return true;
        }
        storing.retained_rest = None;
        false
    }

    /// Sends a message that is stored, or has its packet wait in `aside`.
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
        // What ends with the connection has nothing to wait for, and some of it is in memory alone: all goes one way.
        if is_exactly_once && self.connection.send_quota() == 0 {
            return Sent::Blocked(delivery);
        }
        let mut goes_to = None;
        if is_exactly_once
            && let Stored::InGroup(_) = Stored::of(stored)
            && let Some((durable, own)) = self.shared.durable.as_ref().zip(self.lease.client.outbox.keeps_in())
        {
            goes_to = durable.own_place(&own, &mut delivery); // with whom it stays [MQTT-4.8.2-4]
        }
        let at_least_once_in_group = !is_exactly_once && matches!(Stored::of(stored), Stored::InGroup(_));
        let goes_aside = is_exactly_once || self.has_to_follow(aside.is_some());
        let out = if goes_aside { aside.get_or_insert_default() } else { &mut self.transport.out };
        let sent = self.connection.send(delivery, now, out);
        match sent {
            // Others may be sent it if it is not acknowledged.
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

    /// Whether a PUBLISH may not go before those that wait.
    #[inline]
    pub(super) fn has_to_follow(&self, has_aside: bool) -> bool {
        let Some(storing) = &self.storing else { return false }; // nor is there anything aside
        (has_aside || storing.holds_output()) && self.connection.uses_aliases()
    }

    /// What was sent is kept; `aside` waits for it.
    pub(super) fn end_sending(&mut self, aside: Option<WriteBuffer>) {
        let Some(storing) = &mut self.storing else { return };
        let aside = aside.filter(|packets| !packets.is_empty());
        storing.outcomes.are_waited_for |= aside.is_some();
        let safe_at = if storing.outcomes.is_empty() { SafeAt::NOW } else { self.settle_now() };
        if let Some(aside) = aside {
            let storing = self.storing();
            // What has nothing to wait for of its own waits for what is before it.
            let safe_at = storing.output.back().map_or(safe_at, |(before, _)| before.and(safe_at));
            storing.held_bytes += aside.len();
            storing.output.push_back((safe_at, aside));
        }
    }

    /// Where a message is stored; `None`: nowhere any more.
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
