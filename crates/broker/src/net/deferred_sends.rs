//! Messages on disk for this client: records delivery updates and defers packets until these are durable.
//!
//! | | packet may be sent when this is durable |
//! |---|---|
//! | PUBLISH of QoS 1 | nothing: it may be sent again |
//! | PUBLISH of QoS 2 | its Packet Identifier, by which the client recognizes the message `[MQTT-4.3.3-4]` |
//! | PUBREL | receipt of PUBREC: no PUBLISH may follow `[MQTT-4.3.3-6]` |
//! | PUBCOMP | receipt of PUBREL: another message may use the identifier |

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::task::Context;
use std::time::Instant;

use tenbin_codec::{PacketId, QoS, WriteBuffer};
use tenbin_session::{Delivery, Sent, Stored};

use super::core::Core;
use super::output::OUT_FULL;
use super::references;
use crate::durable::{CommitPoint, Durable, Ended, Location, Outcomes, Place, StoredQueue};

/// Delivery updates and deferred packets of one connection with messages on disk.
#[derive(Debug, Default)]
pub(super) struct DeferredSends {
    /// Delivery updates to be recorded at the end of this batch.
    outcomes: Outcomes,
    /// Packets to be sent once `outcomes` are durable.
    next_steps: Vec<Step>,
    steps: VecDeque<(CommitPoint, Step)>,
    /// PUBLISH packets of this batch that join `output` at its end.
    aside: WriteBuffer,
    /// Deferred PUBLISH packets, in order.
    output: VecDeque<(CommitPoint, WriteBuffer)>,
    /// Total bytes of `output`.
    held_bytes: usize,
    /// Commit point that covers every delivery update recorded so far.
    last: CommitPoint,
    /// The share group looked up last, and its queue on disk.
    group: Option<(NonZeroU64, Option<Arc<StoredQueue>>)>,
}

/// A deferred packet of a QoS 2 handshake.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// PUBREL.
    Release(PacketId),
    /// PUBCOMP.
    Complete(PacketId),
}

impl DeferredSends {
    /// Bytes of deferred PUBLISH packets.
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Commit point that covers every delivery update recorded so far.
    pub(super) fn last(&self) -> CommitPoint {
        self.last
    }

    /// Whether to stop reading, because packets for a full output are deferred, or more steps of QoS 2 than a client can
    /// need. Steps have no other bound: a PUBREC may be repeated any number of times.
    pub(super) fn are_too_many(&self) -> bool {
        self.held_bytes >= OUT_FULL || self.steps.len() >= STEPS_MAX
    }

    /// Whether PUBRELs or PUBCOMPs are deferred.
    pub(super) fn owes_steps(&self) -> bool {
        !self.steps.is_empty()
    }

    /// Ends a stored message.
    pub(super) fn end(&mut self, cause: Ended, core: &Core, stored: Stored, share: Option<NonZeroU64>) {
        if let Some(place) = self.place_of(core, stored, share) {
            self.outcomes.end(cause, place);
        }
    }

    /// Handles PUBREC of a stored message.
    pub(super) fn received(
        &mut self,
        core: &mut Core,
        packet_id: PacketId,
        stored: Stored,
        share: Option<NonZeroU64>,
        now: Instant,
    ) {
        match self.place_of(core, stored, share).zip(core.connection.sent_id(packet_id)) {
            Some(received) => {
                self.outcomes.received.push(received);
                self.next_steps.push(Step::Release(packet_id));
            }
            None => core.connection.release(packet_id, now, &mut core.out),
        }
    }

    /// Handles PUBREL of a message from the client, whose session is stored in `queue`.
    pub(super) fn released(&mut self, queue: &StoredQueue, packet_id: PacketId) {
        self.outcomes.released.push(queue.publishes(packet_id));
        self.next_steps.push(Step::Complete(packet_id));
    }

    /// Records delivery updates.
    #[inline]
    pub(super) fn settle(&mut self, core: &Core) {
        if !self.outcomes.is_empty() {
            self.settle_now(core);
        }
    }

    #[cold]
    fn settle_now(&mut self, core: &Core) -> CommitPoint {
        let Some(durable) = &core.open.shared.storage.durable else { return CommitPoint::NOW };
        self.outcomes.are_waited_for |= !self.next_steps.is_empty();
        let commit_point = durable.settle(&mut self.outcomes);
        self.last = commit_point;
        self.steps.extend(self.next_steps.drain(..).map(|step| (commit_point, step)));
        commit_point
    }

    /// Sends a stored message, or defers its packet.
    pub(super) fn send(&mut self, core: &mut Core, mut delivery: Delivery, now: Instant) -> Sent {
        let (Some(stored), share) = (delivery.stored, delivery.share) else {
            return self.send_unstored(core, delivery, now);
        };
        let Some(from) = self.place_of(core, stored, share) else {
            delivery.stored = None; // the group has ended
            return self.send_unstored(core, delivery, now);
        };
        let is_exactly_once = delivery.qos == QoS::ExactlyOnce;
        // A session that ends with its connection needs no deferral, and has messages in memory only; all take one
        // path.
        if is_exactly_once && core.connection.send_quota() == 0 {
            return Sent::Blocked(delivery);
        }
        let is_in_group = matches!(stored.location(), Location::Group(_));
        let mut goes_to = None;
        if is_exactly_once
            && is_in_group
            && let Some((durable, own)) =
                core.open.shared.storage.durable.as_ref().zip(core.lease.client.outbox.keeps_in())
        {
            goes_to = durable.own_place(&own, &mut delivery); // the message stays with this session [MQTT-4.8.2-4]
        }
        let goes_aside = is_exactly_once || self.has_to_follow(core);
        let out = if goes_aside { &mut self.aside } else { &mut *core.out };
        let sent = if delivery.template.is_external() {
            debug_assert!(core.open.references().is_some(), "no relay would take the reference");
            let sent = references::send(&mut core.connection, delivery, now, out);
            core.open.shared.operations.metrics.messages_by_reference.add(u64::from(matches!(sent, Sent::Written(_))));
            sent
        } else {
            core.connection.send(delivery, now, out)
        };
        match sent {
            // Another member may get it if it is not acknowledged.
            Sent::Written(Some(_)) if is_in_group && !is_exactly_once => {}
            Sent::Written(Some(id)) => {
                let to = goes_to.map_or(from, |(to, tag)| {
                    self.outcomes.moved.push((from, to, tag));
                    to
                });
                self.outcomes.sent.extend(core.connection.sent_id(id).map(|id| (to, id)));
            }
            Sent::Written(None) => self.outcomes.end(Ended::Delivered, from),
            // The original ends once its dead letter is durable.
            Sent::Expired(delivery) if dooms_expired(core, &delivery) => {
                return Sent::Expired(Delivery { stored: Some(stored), ..delivery });
            }
            Sent::Expired(_) => self.outcomes.end(Ended::Expired, from),
            Sent::TooLarge => self.outcomes.end(Ended::TooLarge, from),
            Sent::Blocked(delivery) => return Sent::Blocked(Delivery { stored: Some(stored), ..delivery }),
        }
        sent
    }

    /// Sends a message that is not stored, or defers its packet if it must not overtake deferred ones.
    pub(super) fn send_unstored(&mut self, core: &mut Core, delivery: Delivery, now: Instant) -> Sent {
        let out = if self.has_to_follow(core) { &mut self.aside } else { &mut *core.out };
        core.connection.send(delivery, now, out)
    }

    /// Whether a PUBLISH must not overtake deferred ones.
    #[inline]
    fn has_to_follow(&self, core: &Core) -> bool {
        !(self.aside.is_empty() && self.output.is_empty()) && core.connection.uses_aliases()
    }

    /// Records messages sent in this batch; defers packets put aside until they are durable.
    pub(super) fn end_sending(&mut self, core: &Core) {
        let aside = Some(std::mem::take(&mut self.aside)).filter(|packets| !packets.is_empty());
        self.outcomes.are_waited_for |= aside.is_some();
        let commit_point = if self.outcomes.is_empty() { CommitPoint::NOW } else { self.settle_now(core) };
        if let Some(aside) = aside {
            // Packets without a separate commit point wait for the packets before them.
            let commit_point = self.output.back().map_or(commit_point, |(before, _)| before.and(commit_point));
            self.held_bytes += aside.len();
            self.output.push_back((commit_point, aside));
        }
    }

    /// Sends packets whose commit point is durable and registers for the rest; returns whether it sent any.
    pub(super) fn release(&mut self, core: &mut Core, durable: &Arc<Durable>, context: &mut Context<'_>) -> bool {
        let mut is_released = false;
        let now = Instant::now();
        while let Some((_, step)) = self.steps.pop_front_if(|(commit_point, _)| durable.is_safe(*commit_point)) {
            match step {
                Step::Release(id) => core.connection.release(id, now, &mut core.out),
                Step::Complete(id) => core.connection.complete(id, now, &mut core.out),
            }
            is_released = true;
        }
        while let Some((_, packets)) = self.output.pop_front_if(|(commit_point, _)| durable.is_safe(*commit_point)) {
            self.held_bytes -= packets.len();
            core.out.append(packets);
            is_released = true;
        }
        self.register(durable, context);
        is_released
    }

    /// Wakes the task when more packets may be sent.
    pub(super) fn register(&self, durable: &Arc<Durable>, context: &mut Context<'_>) {
        let first = [self.steps.front().map(|(at, _)| *at), self.output.front().map(|(at, _)| *at)];
        // These commit points concern the message log only, whose wake-ups need no handle.
        first.into_iter().flatten().for_each(|at| drop(durable.wake_when_safe(at, context.waker())));
    }

    /// Log position of a stored message; `None` if its queue is gone.
    pub(super) fn place_of(&mut self, core: &Core, stored: Stored, share: Option<NonZeroU64>) -> Option<Place> {
        if !matches!(stored.location(), Location::Group(_)) {
            return core.lease.client.outbox.stored()?.place_of(stored);
        }
        let share = share?;
        let known = self.group.take().filter(|(number, _)| *number == share);
        let (_, queue) = known.unwrap_or_else(|| (share, core.open.shared.routing.router.queue_of_group(share)));
        let place = queue.as_ref().and_then(|queue| queue.place_of(stored));
        self.group = Some((share, queue));
        place
    }
}

/// Whether a message of a share group, which has expired, becomes a dead letter.
#[cold]
fn dooms_expired(core: &Core, delivery: &Delivery) -> bool {
    let found = delivery.share.and_then(|share| core.open.shared.routing.router.work_queue(share));
    found.is_some_and(|(group, _)| group.dooms_expired())
}

/// Deferred PUBRELs and PUBCOMPs of one connection at which it is not read any more: all that a client can need.
const STEPS_MAX: usize = 2 * 65_536;
