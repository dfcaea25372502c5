//! Sending to the client: from its queue and the retained messages for its subscriptions to its socket.

use std::cell::RefCell;
use std::task::{Context, Poll};
use std::time::Instant;

use tenbin_codec::WriteBuffer;
use tenbin_session::{Delivery, Sent};

use super::connection::{ConnectionTask, Ready};
use super::read_probe::{ReadProbe, Reading};
use super::stream::Stream;
use super::tcp_state::Ends;
use crate::durable::{Room, bytes_of};
use crate::lifecycle;
use crate::outbox::{Batch, Booked, Control, Entry, Run, Taken};
use crate::router::{HeldKey, Paged};
use crate::values::Moment;

impl<S: Stream> ConnectionTask<S> {
    /// Sends queued and retained messages, unless a control request comes first, which it returns.
    pub(super) fn send_waiting(
        &mut self,
        context: &mut Context<'_>,
        quota: usize,
        room: usize,
        ready: &mut Ready,
    ) -> Option<Control> {
        if self.is_at_rest(quota) {
            return None;
        }
        BATCH.with_borrow_mut(|batch| {
            batch.clear(); // a panic may have left messages
            let outbox = &self.lease.client.outbox;
            match outbox.poll_take(context, quota, room.min(TAKE), batch) {
                Poll::Ready(Taken::Control(control)) => return Some(control),
                Poll::Ready(Taken::Deliveries) => {}
                Poll::Pending => self.rested_at = u16::try_from(quota).ok(),
            }
            if outbox.take_room_again() {
                lifecycle::takes_messages(&self.shared, &self.lease, Instant::now());
            }
            ready.more_retained = room > 0 && self.take_retained(context, quota, room.min(TAKE), batch);
            if !batch.is_empty() {
                self.send(batch, Instant::now());
                ready.sent = true;
            }
            None
        })
    }

    /// Whether nothing has arrived since the last look, which found nothing to send.
    ///
    /// A changed quota needs another look, so that the queue learns of it, unless both values are above
    /// [`QUOTA_THAT_MATTERS`].
    fn is_at_rest(&self, quota: usize) -> bool {
        let is_known = |told: usize| quota == told || quota.min(told) >= QUOTA_THAT_MATTERS;
        self.rested_at.map(usize::from).is_some_and(is_known)
            && self.lease.client.outbox.is_at_rest()
            && self.lease.state.retained_pages.is_empty()
    }

    /// Takes a page of retained messages for new subscriptions; returns whether there may be more.
    fn take_retained(&mut self, context: &mut Context<'_>, quota: usize, bytes: usize, into: &mut Batch) -> bool {
        if self.lease.state.retained_pages.is_empty() {
            return false;
        }
        let quota = if self.rests_from_retained(context) { 0 } else { quota };
        let keeps = self.shared.durable.as_ref().filter(|_| self.lease.client.outbox.stored().is_some());
        let mut booked: Option<Room> = None;
        let has_room = |page: &[Delivery]| {
            let Some(durable) = keeps else { return true };
            let acknowledged = page.iter().filter(|delivery| delivery.qos.is_acknowledged());
            let bytes = acknowledged.map(bytes_of).sum();
            if bytes == 0 {
                return true;
            }
            let Some(room) = durable.take_room(bytes, false) else { return false };
            match &mut booked {
                Some(booked) => booked.join(room),
                None => booked = Some(room),
            }
            true
        };
        let taken = into.deliveries().iter().filter(|delivery| delivery.qos.is_acknowledged()).count();
        let mut page = Vec::new();
        let quota = quota.saturating_sub(taken);
        let pages = &mut self.lease.state.retained_pages;
        let paged = pages.take(&self.shared.router, quota, bytes, Instant::now(), &mut page, has_room);
        let rights = &self.lease.client.rights;
        let found = page.len();
        page.retain(|delivery| rights.may_receive_encoded(delivery.template.topic()));
        // Messages that the client may not receive leave their quota to others.
        let has_more = paged != Paged::Enough || page.len() < found;
        self.keep_retained(&mut page, booked);
        if paged == Paged::NoRoom {
            self.rest_from_retained(); // QoS 0 messages go on
        }
        page.into_iter().for_each(|delivery| into.add(delivery));
        has_more
    }

    /// Number of QoS 1 and 2 messages that may be sent now.
    ///
    /// In-flight messages are bounded by the same number of bytes as the queue.
    pub(super) fn quota(&self) -> usize {
        let in_flight_full = self.connection.session().in_flight_bytes() >= self.shared.config.queue_bytes_maximum();
        if in_flight_full { 0 } else { usize::from(self.connection.send_quota()) }
    }

    /// Sends queued messages as far as quota and socket permit.
    pub(super) fn send_own(&mut self, now: Instant) {
        let room = OUT_FULL.saturating_sub(self.transport.out.len());
        let quota = self.quota();
        BATCH.with_borrow_mut(|batch| {
            batch.clear();
            self.lease.client.outbox.take_now(quota, room.min(TAKE), batch);
            self.send(batch, now);
        });
    }

    fn send(&mut self, batch: &mut Batch, now: Instant) {
        let mut tally = SentTally::default();
        let mut blocked = Vec::new();
        // Packets deferred until the disk is done.
        let mut aside = None;
        if batch.len() >= BURST {
            self.transport.expect_burst();
        }
        if batch.deliveries().is_empty() {
            batch.runs().for_each(|run| tally.run(run));
            let count = tally.sent;
            self.connection.send_plain(batch.packets(), count, now, &mut self.transport.out);
            batch.clear();
        } else {
            batch.drain(|entry| match entry {
                Entry::Single(delivery) => blocked.extend(self.send_single(delivery, &mut tally, now, &mut aside)),
                Entry::Run(run, packets) => {
                    tally.run(&run);
                    self.connection.append_plain(packets, run.messages.into(), now, &mut self.transport.out);
                }
            });
        }
        batch.shrink(KEPT_BYTES);
        if self.storing.is_some() {
            self.end_sending(aside);
        }
        if !blocked.is_empty() {
            self.lease.client.outbox.put_back(blocked.into_iter());
        }
        let SentTally { sent, expired, too_large, unacknowledged, given_up } = tally;
        self.unwritten.push(unacknowledged, self.transport.end_of_output());
        if !given_up.is_nothing() {
            given_up.take_back(&self.lease.client.load, self.shared.clock.nanos(now));
        }
        let metrics = &self.shared.metrics;
        metrics.messages_sent.add(sent);
        metrics.dropped_expired.add(expired);
        metrics.dropped_too_large.add(too_large);
    }

    /// Sends one message; returns it if it is blocked.
    #[inline]
    fn send_single(
        &mut self,
        delivery: Delivery,
        tally: &mut SentTally,
        now: Instant,
        aside: &mut Option<WriteBuffer>,
    ) -> Option<Delivery> {
        let booked = Booked::of(&delivery);
        let held_key = HeldKey::of(&delivery);
        let sent = if delivery.stored.is_some() || self.has_to_follow(aside.is_some()) {
            self.send_stored(delivery, now, aside)
        } else {
            self.connection.send(delivery, now, &mut self.transport.out)
        };
        match sent {
            Sent::Written(None) => {
                tally.sent += 1;
                tally.unacknowledged += booked;
                self.keys_done(held_key);
            }
            Sent::Written(Some(_)) => tally.sent += 1, // its acknowledgement ends the booking
            Sent::Expired => {
                tally.expired += 1;
                tally.given_up += booked;
                self.keys_done(held_key);
            }
            Sent::TooLarge => {
                tally.too_large += 1;
                tally.given_up += booked;
                self.keys_done(held_key);
            }
            Sent::Blocked(delivery) => return Some(delivery),
        }
        None
    }

    fn keys_done(&self, held_key: Option<HeldKey>) {
        self.shared.router.keys_done(held_key, self.lease.client.number);
    }

    pub(super) fn tell_socket_blocked(&mut self, blocked: bool) {
        if blocked != self.socket_blocked {
            self.socket_blocked = blocked;
            self.lease.client.outbox.set_socket_blocked(blocked, self.transport.out.len());
        }
    }

    /// Handles progress of the socket; `is_backlogged`: it has not taken all output.
    pub(super) fn tell_written(&mut self, is_backlogged: bool) {
        let booked = self.unwritten.take_written(self.transport.written());
        if !booked.is_nothing() {
            let now = self.shared.clock.moment(Instant::now());
            self.lease.client.load.written(booked.messages, booked.bytes, is_backlogged, now.nanos);
            self.tell_lag(booked.messages, now);
        }
    }

    /// Probes now and then whether the client reads shared messages that its socket has taken.
    fn tell_lag(&mut self, messages: u32, now: Moment) {
        let (written, load) = (self.transport.written(), &self.lease.client.load);
        let read_probe = self.read_probe.get_or_insert_with(|| {
            let ends = Ends { peer: self.shared.peer, local: self.transport.stream().local_address() };
            Box::new(ReadProbe::new(ends, written))
        });
        match read_probe.wrote(messages, written, now.at) {
            Some(Reading::Lags { read, span, unread }) => load.lags(read, span, unread, now.nanos),
            Some(Reading::CaughtUp { read, span }) => load.caught_up(read, span, now.nanos),
            None => {}
        }
    }
}

/// Totals of a sent batch.
#[derive(Default)]
struct SentTally {
    sent: u64,
    expired: u64,
    too_large: u64,
    /// BrokerState QoS 0 messages sent; their bookings end once the socket has taken them.
    unacknowledged: Booked,
    /// BrokerState messages that will not be sent.
    given_up: Booked,
}

impl SentTally {
    fn run(&mut self, run: &Run) {
        self.sent += u64::from(run.messages);
        self.unacknowledged += run.booked();
    }
}

thread_local! {
    /// The batch being written: one a thread, since it is written before anything else.
    static BATCH: RefCell<Batch> = RefCell::default();
}

/// Bytes of packet memory that a thread keeps between two batches.
const KEPT_BYTES: usize = 256 * 1024;
/// Unwritten bytes at which the connection takes no more messages and reads no more input.
pub(super) const OUT_FULL: usize = 256 * 1024;
/// Maximum bytes of messages taken from the queue at once.
const TAKE: usize = 128 * 1024;
/// Quota above which the exact value no longer matters: rebalancing never moves more messages at once.
///
/// The queue's value may be too high, if retained messages have used some of it since. Messages in excess of it wait.
const QUOTA_THAT_MATTERS: usize = 256;
/// Messages that together probably need more memory than a connection keeps.
const BURST: usize = 16;
