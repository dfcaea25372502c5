//! The broker's routing without connections, for `benches/subscription_index` and `benches/hot_group`.
//!
//! A client cannot measure the cost of a match or a choice separately from the other work on a message. Not part of the
//! public interface.

use std::num::NonZeroU16;
use std::task::{Context, Waker};
use std::time::Instant;

use tenbin_codec::{ProtocolVersion, QoS, SubscriptionOptions, Text, TopicFilter, TopicName};
use tenbin_session::Publication;

use crate::Config;
use crate::auth::{Access, AccessError, Identity, Principal, Settings};
use crate::lifecycle::BrokerState;
use crate::outbox::{Batch, Booked, Run};
use crate::router::{self, Collector, Receiver};
use crate::values::Grant;

/// A broker with the default configuration and without connections.
#[derive(Debug)]
pub struct Subscriptions {
    shared: BrokerState,
    sessions: u64,
}

/// A session that subscribes.
#[derive(Debug)]
pub struct Session(Receiver);

/// A publisher.
#[derive(Debug)]
pub struct Publisher(router::Publisher);

/// Messages of one batch between [`Subscriptions::publish`] and [`Subscriptions::flush`].
///
/// Its memory belongs to the thread, so a task cannot await in between:
///
/// ```
/// # use tenbin_broker::bench::Subscriptions;
/// fn spawn(_: impl Future<Output = ()> + Send) {}
/// spawn(async {
///     drop(Subscriptions::batch());
///     std::future::ready(()).await;
/// });
/// ```
///
/// ```compile_fail
/// # use tenbin_broker::bench::Subscriptions;
/// fn spawn(_: impl Future<Output = ()> + Send) {}
/// spawn(async {
///     let batch = Subscriptions::batch();
///     std::future::ready(()).await;
///     drop(batch);
/// });
/// ```
#[derive(Debug)]
pub struct PublishBatch(Collector);

/// Reusable buffer for messages that leave a queue.
#[derive(Debug, Default)]
pub struct Drained(Batch);

impl Session {
    /// Begins an MQTT 5.0 connection without a packet size limit.
    pub fn attach(&self) {
        self.0.outbox.attach(u32::MAX, Some(ProtocolVersion::V5));
    }
}

impl Subscriptions {
    /// Creates a broker without sessions.
    ///
    /// # Errors
    /// None with the default configuration.
    pub fn new() -> Result<Self, AccessError> {
        let config = Config::default();
        let access = Access::new(Settings::load(&config, true)?, [0; 32], None, None);
        Ok(Self { shared: BrokerState::new(config, access, true, None, None, std::sync::Arc::default()), sessions: 0 })
    }

    /// Creates a session with its own queue.
    pub fn session(&mut self) -> Session {
        self.sessions += 1;
        let principal = Principal { client_id: Text::EMPTY, identity: Identity::anonymous(), listener: "bench".into() };
        Session(self.shared.new_client(&principal, self.sessions, Instant::now()).receiver())
    }

    /// Creates a publisher for use on one thread.
    pub fn publisher(&self) -> Publisher {
        Publisher(router::Publisher::new(&self.shared.routing.router, 0, &Text::EMPTY))
    }

    /// Begins a batch.
    #[must_use]
    pub fn batch() -> PublishBatch {
        PublishBatch(Collector::new())
    }

    /// Routes a message; [`Subscriptions::flush`] hands it to its receivers' queues.
    pub fn publish(
        &self,
        publisher: &mut Publisher,
        batch: &mut PublishBatch,
        publication: &Publication,
        now: Instant,
    ) {
        publisher.0.publish(&self.shared.routing.router, &mut batch.0, publication, self.shared.clock.moment(now));
    }

    /// Hands the batch's messages to the queues.
    pub fn flush(&self, publisher: &mut Publisher, mut batch: PublishBatch, now: Instant) {
        publisher.0.flush(&self.shared.routing.router, &mut batch.0, now);
    }

    /// Takes all queued QoS 0 messages of a session, as if its socket took them. Returns their number.
    pub fn drain(&self, session: &Session, Drained(batch): &mut Drained, now: Instant) -> usize {
        let Receiver { outbox, load, .. } = &session.0;
        let mut task = Context::from_waker(Waker::noop());
        let mut taken = 0;
        // Until the queue is empty, like the session's task, so that the next message wakes it.
        while outbox.poll_take(&mut task, 0, usize::MAX, batch).is_ready() {
            let runs: Booked = batch.runs().map(Run::booked).sum();
            let booked = runs + batch.deliveries().iter().map(Booked::of).sum();
            batch.clear();
            load.written(booked.messages, booked.bytes, false, self.shared.clock.nanos(now));
            taken += booked.messages as usize;
        }
        taken
    }

    /// Adds a subscription at QoS 1.
    pub fn subscribe(&self, session: &Session, filter: &TopicFilter, now: Instant) {
        let options = SubscriptionOptions::at(QoS::AtLeastOnce);
        let grant = Grant { options, identifier: None, weight: NonZeroU16::MIN };
        self.shared.routing.router.subscribe(filter, &session.0, grant, now);
    }

    /// Removes a subscription.
    pub fn unsubscribe(&self, session: &Session, filter: &TopicFilter) {
        self.shared.routing.router.unsubscribe(filter, session.0.number);
    }

    /// Returns the number of sessions that receive messages with `topic`, without a publisher's cached route.
    pub fn receivers(&self, topic: &TopicName) -> usize {
        self.shared.routing.router.matches(topic).receivers()
    }
}
