//! A receiver in the embedding program: a queue as of any session, emptied by the program itself.

use std::collections::VecDeque;
use std::num::NonZeroU16;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::BytesMut;
use tenbin_balancer::{Acknowledged, Rng};
use tenbin_codec::{
    Decoded, Decoder, Packet, PacketId, ProtocolVersion, PublishHeader, QoS, SubscriptionOptions, TopicFilter,
    WriteBuffer,
};
use tenbin_session::Delivery;

use super::{BrokerState, Routing};
use crate::durable::Ended;
use crate::hooks::{self, Received};
use crate::outbox::{Batch, Booked, Taken};
use crate::router::{Detached, HeldKey, Receiver, RetainedPages};
use crate::values::Grant;

/// Messages of one subscription. Its session ends when it is dropped.
pub(crate) struct Inbox {
    shared: Weak<BrokerState>,
    receiver: Receiver,
    filter: TopicFilter,
    retained: RetainedPages,
    /// Retained messages that were read and not yet taken.
    page: VecDeque<Delivery>,
    /// The message that the program has taken last, until it asks for the next one.
    open: Option<OpenMessage>,
    /// Ends when the broker stops.
    stopped: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// A message of a share group that the program works on.
struct OpenMessage {
    booked: Booked,
    held_key: Option<HeldKey>,
    taken_at: Instant,
    is_acknowledged: bool,
}

impl Inbox {
    /// Subscribes to `filter`.
    pub(crate) fn new(shared: &Arc<BrokerState>, filter: &TopicFilter, qos: QoS, now: Instant) -> Self {
        let receiver = shared.embedded_receiver(now);
        let options = SubscriptionOptions { qos, ..SubscriptionOptions::default() };
        let grant = Grant { options, identifier: None, weight: NonZeroU16::MIN };
        let filter = filter.detach();
        let mut retained = RetainedPages::default();
        receiver.load.connected(shared.clock.nanos(now));
        receiver.outbox.attach(u32::MAX, None);
        shared.routing.router.subscribe(&filter, &receiver, grant, now);
        if !filter.is_shared() {
            retained.begin(&filter, grant);
        }
        let mut inbox = Self {
            shared: Arc::downgrade(shared),
            receiver,
            filter,
            retained,
            page: VecDeque::new(),
            open: None,
            stopped: Box::pin(shared.operations.stopped()),
        };
        inbox.takes_messages(&shared.routing, true, now);
        inbox
    }

    /// Dispatches the backlog of the subscription's share group. `begins`: from now on.
    fn takes_messages(&mut self, routing: &Routing, begins: bool, now: Instant) {
        routing.router.serve(&self.receiver.outbox, begins, now, &mut Rng::new(self.receiver.number));
    }

    /// Ends the message that the program has taken last.
    fn complete(&mut self, shared: &BrokerState, now: Instant) {
        let Some(OpenMessage { booked, held_key, taken_at, is_acknowledged }) = self.open.take() else { return };
        let at = shared.clock.nanos(now);
        if is_acknowledged {
            let mut acknowledged = Acknowledged::new(at);
            acknowledged.add(shared.clock.nanos(taken_at), booked.bytes);
            self.receiver.load.acknowledged(&acknowledged);
        } else {
            self.receiver.load.written(booked.messages, booked.bytes, false, at);
        }
        shared.routing.router.keys_done(held_key, self.receiver.number);
        self.may_begin(&shared.routing, now);
    }

    /// Takes messages that waited until the program had fewer.
    fn may_begin(&mut self, routing: &Routing, now: Instant) {
        if self.receiver.outbox.may_have_backlogs() {
            self.takes_messages(routing, true, now);
        }
    }

    /// Hands a message to the program, unless it has expired.
    fn give(&mut self, shared: &BrokerState, delivery: Delivery, now: Instant) -> Option<Received> {
        let booked = Booked::of(&delivery);
        let held_key = HeldKey::of(&delivery);
        if let Some((stored, durable)) = delivery.stored.zip(shared.storage.durable.as_ref()) {
            let queue = delivery.share.and_then(|group| shared.routing.router.queue_of_group(group));
            durable.end(Ended::Delivered, queue.and_then(|queue| queue.place_of(stored)));
        }
        if delivery.is_expired(now) {
            shared.operations.metrics.dropped_expired.add(1);
            booked.take_back(&self.receiver.load, shared.clock.nanos(now));
            shared.routing.router.keys_done(held_key, self.receiver.number);
            self.may_begin(&shared.routing, now);
            return None;
        }
        if !booked.is_nothing() {
            let is_acknowledged = delivery.qos.is_acknowledged();
            self.open = Some(OpenMessage { booked, held_key, taken_at: now, is_acknowledged });
        }
        shared.operations.metrics.messages_sent.add_one(delivery.qos);
        Some(Received { retained: delivery.retain && delivery.share.is_none(), message: message(&delivery, now)? })
    }

    /// Takes the next retained message.
    fn next_retained(&mut self, routing: &Routing, now: Instant) -> Option<Delivery> {
        if self.page.is_empty() && !self.retained.is_empty() {
            let mut page = Vec::new();
            self.retained.take(&routing.router, usize::MAX, PAGE_BYTES, now, &mut page, |_| true);
            self.page.extend(page);
        }
        self.page.pop_front()
    }
}

impl hooks::Inbox for Inbox {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Received>> {
        let Some(shared) = self.shared.upgrade().filter(|shared| !shared.operations.is_stopping()) else {
            return Poll::Ready(None);
        };
        if self.stopped.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        let now = Instant::now();
        self.complete(&shared, now);
        loop {
            let next = match self.next_retained(&shared.routing, now) {
                Some(retained) => Some(retained),
                None if !self.retained.is_empty() => continue, // a page without messages
                None => None,
            };
            if let Some(delivery) = next {
                if let Some(received) = self.give(&shared, delivery, now) {
                    return Poll::Ready(Some(received));
                }
                continue;
            }
            // One message: the others stay where the broker sees them.
            let mut batch = Batch::default();
            match self.receiver.outbox.poll_take(context, usize::MAX, 1, &mut batch) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Taken::Control(_)) => return Poll::Ready(None),
                Poll::Ready(Taken::Deliveries) => {}
            }
            if self.receiver.outbox.take_room_again() {
                self.takes_messages(&shared.routing, false, now);
            }
            // There are no runs, since the queue takes no ready-made packets.
            let taken = std::mem::take(batch.singles()).into_iter();
            for delivery in taken {
                if let Some(received) = self.give(&shared, delivery, now) {
                    return Poll::Ready(Some(received));
                }
            }
        }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let now = Instant::now();
        self.complete(&shared, now);
        let Receiver { number, outbox, .. } = &self.receiver;
        let Detached { redelivery, taken, waiting } = shared.routing.router.detach(*number, outbox, std::iter::empty());
        let rng = &mut Rng::new(*number);
        shared.routing.router.keys_done(taken.iter().filter_map(HeldKey::of), *number);
        redelivery.finish(taken, now, rng);
        waiting.into_iter().for_each(|group| shared.routing.router.dispatch(group, now, rng));
        shared.routing.router.unsubscribe(&self.filter, *number);
        outbox.close();
    }
}

/// A delivery as the program sees it.
fn message(delivery: &Delivery, now: Instant) -> Option<hooks::Message> {
    let header = PublishHeader {
        qos: delivery.qos,
        retain: delivery.retain,
        packet_id: PacketId::new(1).filter(|_| delivery.qos.is_acknowledged()),
        message_expiry_interval: delivery.remaining_expiry(now),
        ..PublishHeader::default()
    };
    let mut out = WriteBuffer::new();
    delivery.template.encode(&header, ProtocolVersion::V5, &mut out);
    let mut input = BytesMut::from(&out.to_bytes()[..]);
    match Decoder::client(ProtocolVersion::V5, u32::MAX).decode(&mut input) {
        Ok(Decoded::Packet(Packet::Publish(publish))) => Some(hooks::Message {
            topic: publish.topic,
            payload: publish.payload,
            qos: publish.qos,
            retain: publish.retain,
            properties: publish.properties,
        }),
        _ => None, // impossible: the packet is our own
    }
}

/// Bytes of retained messages read at once.
const PAGE_BYTES: usize = 64 * 1024;
