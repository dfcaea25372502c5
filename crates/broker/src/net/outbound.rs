//! Output: from the client's queue and the retained messages for its subscriptions to its socket.

use std::cell::RefCell;
use std::task::{Context, Poll};
use std::time::Instant;

use tenbin_balancer::Rng;
use tenbin_codec::QoS;
use tenbin_session::{Delivery, Sent};

use super::core::Core;
use super::gate::DurabilityGate;
use super::output::OUT_FULL;
use super::refill::Refill;
use super::retained;
use super::unwritten::Unwritten;
use crate::metrics::PerQoS;
use crate::outbox::{Batch, Booked, Control, Entry, Run, Taken};
use crate::router::HeldKey;

/// Sending of one connection.
#[derive(Debug, Default)]
pub(super) struct Outbound {
    /// QoS 0 messages of share groups that are not in the socket yet.
    unwritten: Unwritten,
    /// Reads of the on-disk backlog.
    refill: Refill,
    /// Send quota at the last look that found nothing to send; `None` = no look yet on this thread.
    rested_at: Option<u16>,
    socket_blocked: bool,
    /// Lower half of the number of sent packets that the metrics include.
    counted_sent: u32,
    /// A measured message that the socket has not taken; boxed, since mostly there is none.
    measured: Option<Box<Measured>>,
}

/// An encoded message whose delivery is measured.
#[derive(Debug)]
struct Measured {
    came_at: Instant,
    /// Bytes of the connection once it is written.
    end: u64,
}

/// What [`Outbound::poll_send`] has done in a lap.
#[derive(Default)]
pub(super) struct Progress {
    pub(super) sent: bool,
    /// There may be more retained messages to send.
    pub(super) more_retained: bool,
}

impl Outbound {
    /// Sends queued and retained messages, unless a SUBACK has to come before them or a control request comes first,
    /// which is returned.
    pub(super) fn poll_send(
        &mut self,
        core: &mut Core,
        gate: &mut DurabilityGate,
        quota: usize,
        room: usize,
        context: &mut Context<'_>,
        progress: &mut Progress,
    ) -> Option<Control> {
        let room = if gate.owes_suback() && waits_for_suback(core) { 0 } else { room };
        BATCH.with_borrow_mut(|batch| {
            batch.clear(); // a panic may have left messages
            let outbox = &core.lease.client.outbox;
            let are_rights_other =
                |withholds: bool| (withholds || core.connection.held_bytes() > 0) && core.has_stale_rights();
            match outbox.poll_take_unless(context, quota, room.min(TAKE), batch, are_rights_other) {
                Poll::Ready(Taken::Control(control)) => return Some(control),
                Poll::Ready(Taken::Deliveries) => {}
                Poll::Pending => self.rested_at = u16::try_from(quota).ok(),
            }
            if outbox.take_room_again() {
                serve_backlogs(core);
            }
            progress.more_retained = !core.lease.state.retained_pages.is_empty()
                && room > 0
                && !gate.owes_suback()
                && retained::take(core, &mut self.refill, context, quota, room.min(TAKE), batch);
            if !batch.is_empty() {
                progress.sent = true;
                self.send(core, gate, batch, Instant::now());
            }
            None
        })
    }

    /// Whether nothing has arrived since the last look, which found nothing to send.
    ///
    /// A changed quota needs another look, so that the queue learns of it, unless both values are above
    /// [`QUOTA_THAT_MATTERS`].
    #[inline]
    pub(super) fn is_at_rest(&self, core: &Core, quota: usize) -> bool {
        let is_known = |told: usize| quota == told || quota.min(told) >= QUOTA_THAT_MATTERS;
        self.rested_at.map(usize::from).is_some_and(is_known)
            && core.lease.client.outbox.is_at_rest()
            && core.lease.state.retained_pages.is_empty()
    }

    /// Sends queued messages as far as quota and socket permit, unless a SUBACK has to come first.
    pub(super) fn send_own(&mut self, core: &mut Core, gate: &mut DurabilityGate, now: Instant) {
        if gate.owes_suback() {
            return;
        }
        let withholds = || core.connection.held_bytes() > 0 || core.lease.client.outbox.withholds();
        if core.has_stale_rights() && withholds() {
            return; // older messages may have to come first
        }
        let room = OUT_FULL.saturating_sub(core.out.len());
        let quota = core.quota();
        BATCH.with_borrow_mut(|batch| {
            batch.clear();
            core.lease.client.outbox.take_now(quota, room.min(TAKE), batch);
            self.send(core, gate, batch, now);
        });
    }

    fn send(&mut self, core: &mut Core, gate: &mut DurabilityGate, batch: &mut Batch, now: Instant) {
        let mut tally = SentTally::default();
        let mut blocked = Vec::new();
        let measured = batch.take_measured();
        if batch.len() >= BURST {
            core.out.expect_burst();
        }
        if batch.deliveries().is_empty() {
            batch.runs().for_each(|run| tally.run(run));
            core.connection.send_plain(batch.packets(), tally.sent[QoS::AtMostOnce as usize], now, &mut core.out);
            batch.clear();
        } else {
            batch.drain(|entry| match entry {
                Entry::Single(delivery) => blocked.extend(send_single(core, gate, delivery, &mut tally, now)),
                Entry::Run(run, packets) => {
                    tally.run(&run);
                    core.connection.append_plain(packets, run.messages.into(), now, &mut core.out);
                }
            });
        }
        batch.shrink(KEPT_BYTES);
        gate.end_sending(core);
        if !blocked.is_empty() {
            core.lease.client.outbox.put_back(blocked.into_iter());
        }
        let SentTally { sent, expired, too_large, unacknowledged, given_up } = tally;
        core.show_output();
        self.unwritten.push(unacknowledged, core.out.end());
        if let Some(came_at) = measured {
            self.measured = Some(Box::new(Measured { came_at, end: core.out.end() }));
        }
        if let Some(hooks) = &mut core.hooks {
            hooks.has_quota(core.connection.send_quota());
        }
        if !given_up.is_nothing() {
            given_up.take_back(&core.lease.client.load, core.open.shared.clock.nanos(now));
            core.may_begin(now);
        }
        let metrics = &core.open.shared.operations.metrics;
        metrics.messages_sent.add(sent);
        metrics.dropped_expired.add(expired);
        metrics.dropped_too_large.add(too_large);
    }

    /// Reads the on-disk backlog while the in-memory head runs out; returns whether the queue has got more messages.
    pub(super) fn poll_refill(&mut self, core: &Core, context: &mut Context<'_>) -> bool {
        let has_more = self.refill.poll(core, context);
        if has_more {
            self.rested_at = None;
        }
        has_more
    }

    /// Tells the queue whether the socket is full. Then messages stay in the queue, where they are bounded and visible
    /// to other tasks.
    #[inline]
    pub(super) fn tell_socket_blocked(&mut self, core: &Core, blocked: bool) {
        if blocked != self.socket_blocked {
            self.socket_blocked = blocked;
            core.lease.client.outbox.set_socket_blocked(blocked, core.out.len());
        }
    }

    /// Registers a slow client with the slow-consumer monitor. `quota`: at the beginning of this lap.
    #[inline(always)] // asked once in each lap, and nearly never true
    pub(super) fn announce_slowness(&self, core: &Core, quota: usize) {
        let outbox = &core.lease.client.outbox;
        // Messages may have used up the quota. Then no event reports further messages.
        let has_no_quota = quota == 0 || self.rested_at == Some(0);
        if self.socket_blocked || has_no_quota || outbox.lags() {
            watch(core);
        }
    }

    /// Returns shared messages of QoS 0 that the socket has taken since the last call, now that it has `written` bytes.
    #[inline]
    pub(super) fn take_written(&mut self, core: &Core, written: u64) -> Booked {
        if let Some(measured) = self.measured.take_if(|measured| measured.end <= written)
            && let Some(timings) = core.open.shared.operations.metrics.timings()
        {
            timings.deliveries.add(measured.came_at.elapsed());
        }
        self.unwritten.take_written(written)
    }

    /// Number of packets sent since the last call.
    pub(super) fn take_packets_sent(&mut self, core: &Core) -> u64 {
        let packets = core.connection.packets_sent() as u32;
        packets.wrapping_sub(std::mem::replace(&mut self.counted_sent, packets)).into()
    }

    /// Lets the next look find all that waits.
    pub(super) fn look_again(&mut self) {
        self.rested_at = None;
    }

    /// Forgets the old task after a migration. The first look finds everything and registers the new waker.
    pub(super) fn migrated(&mut self) {
        self.rested_at = None;
        self.refill.migrated();
    }

    /// Takes back shared messages of QoS 0 that will not be written any more.
    pub(super) fn end(&mut self, core: &Core) {
        let unwritten = self.unwritten.take_all();
        unwritten.take_back(&core.lease.client.load, core.open.shared.clock.nanos(Instant::now()));
    }
}

/// Whether messages wait for a SUBACK that is owed. Those of older subscriptions need not wait for a disk that writes
/// nothing.
#[cold]
fn waits_for_suback(core: &Core) -> bool {
    !core.open.shared.storage.durable.as_ref().is_some_and(|durable| durable.is_failing())
}

/// Gives the client messages from the backlogs of its share groups.
#[cold]
fn serve_backlogs(core: &Core) {
    let client = &core.lease.client;
    core.open.shared.routing.router.serve(&client.outbox, false, Instant::now(), &mut Rng::new(client.number));
}

/// Has the slow-consumer monitor look after the client, unless it does.
#[cold]
fn watch(core: &Core) {
    if core.lease.client.outbox.begin_watch() {
        core.open.shared.routing.slow_receivers.watch(&core.lease.client);
    }
}

/// Sends one message; returns it if it is blocked.
#[inline]
fn send_single(
    core: &mut Core,
    gate: &mut DurabilityGate,
    delivery: Delivery,
    tally: &mut SentTally,
    now: Instant,
) -> Option<Delivery> {
    let booked = Booked::of(&delivery);
    let held_key = HeldKey::of(&delivery);
    let qos = delivery.qos;
    let named = core.hooks.as_ref().and_then(|hooks| hooks.name(&delivery));
    let sent = gate.send(core, delivery, now);
    if let Some((named, hooks)) = named.zip(core.hooks.as_mut()) {
        hooks.sent(named, &sent);
    }
    match sent {
        Sent::Written(None) => {
            tally.sent[QoS::AtMostOnce as usize] += 1;
            tally.unacknowledged += booked;
            core.keys_done(held_key);
        }
        Sent::Written(Some(_)) => tally.sent[qos as usize] += 1, // its acknowledgement ends the booking
        Sent::Expired(delivery) => {
            tally.expired += u64::from(core.expires(delivery));
            tally.given_up += booked;
            core.keys_done(held_key);
        }
        Sent::TooLarge => {
            tally.too_large += 1;
            tally.given_up += booked;
            core.keys_done(held_key);
        }
        Sent::Blocked(delivery) => return Some(delivery),
    }
    None
}

/// Totals of a sent batch.
#[derive(Default)]
struct SentTally {
    sent: PerQoS,
    expired: u64,
    too_large: u64,
    /// Shared QoS 0 messages sent; their bookings end once the socket has taken them.
    unacknowledged: Booked,
    /// Shared messages that will not be sent.
    given_up: Booked,
}

impl SentTally {
    fn run(&mut self, run: &Run) {
        self.sent[QoS::AtMostOnce as usize] += u64::from(run.messages);
        self.unacknowledged += run.booked();
    }
}

thread_local! {
    /// The batch being written: one a thread, since it is written before anything else.
    static BATCH: RefCell<Batch> = RefCell::default();
}

/// Bytes of packet memory that a thread keeps between two batches.
const KEPT_BYTES: usize = 256 * 1024;
/// Maximum bytes of messages taken from the queue at once.
const TAKE: usize = 128 * 1024;
/// Quota above which the exact value no longer matters: rebalancing never moves more messages at once.
///
/// The queue's value may be too high, if retained messages have used some of it since. Messages in excess of it wait.
const QUOTA_THAT_MATTERS: usize = 256;
/// Messages that together probably need more memory than a connection keeps.
const BURST: usize = 16;
