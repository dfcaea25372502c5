//! The broker's routing without its connections, for `benches/subscription_index` and `benches/hot_group`: no client can
//! tell what a match or a choice costs from what else is done for a message. No part of the interface.

use std::num::NonZeroU16;
use std::task::{Context, Waker};
use std::time::Instant;

use tenbin_codec::{ProtocolVersion, QoS, SubscriptionOptions, Text, TopicFilter, TopicName};
use tenbin_session::Publication;

use crate::Config;
use crate::auth::{Access, AccessError, Identity, Principal, Settings};
use crate::outbox::{Batch, Booked, Run};
use crate::router::{self, Grant, Receiver};
use crate::shared::Shared;

/// A broker that nobody connects to, of the default configuration.
#[derive(Debug)]
pub struct Subscriptions {
    shared: Shared,
    sessions: u64,
}

/// Whoever subscribes.
#[derive(Debug)]
pub struct Session(Receiver);

/// Whoever publishes.
#[derive(Debug)]
pub struct Publisher(router::Publisher);

/// Memory of what is taken out of queues.
#[derive(Debug, Default)]
pub struct Drained(Batch);

impl Session {
    /// A connection begins, of version 5, and takes what comes.
    pub fn attach(&self) {
        self.0.outbox.attach(u32::MAX, Some(ProtocolVersion::V5));
    }
}

impl Subscriptions {
    /// No session and no subscription.
    ///
    /// # Errors
    /// None that the default configuration leads to.
    pub fn new() -> Result<Self, AccessError> {
        let config = Config::default();
        let access = Access::new(Settings::load(&config, true)?, [0; 32], None, None);
        Ok(Self { shared: Shared::new(config, access, true, None, None), sessions: 0 })
    }

    /// A session with a queue of its own.
    pub fn session(&mut self) -> Session {
        self.sessions += 1;
        let principal = Principal { client_id: Text::EMPTY, identity: Identity::anonymous(), listener: "bench".into() };
        Session(self.shared.new_client(&principal, self.sessions, Instant::now()).receiver())
    }

    /// Whoever publishes, on one thread.
    pub fn publisher(&self) -> Publisher {
        Publisher(router::Publisher::new(&self.shared.router, 0, &Text::EMPTY))
    }

    /// What each message goes to its receivers' queues by; they have it after [`Subscriptions::flush`].
    pub fn publish(&self, publisher: &mut Publisher, publication: &Publication, now: Instant) {
        publisher.0.publish(&self.shared.router, publication, self.shared.clock.moment(now));
    }

    /// Hands over what was published on this thread.
    pub fn flush(&self, publisher: &mut Publisher, now: Instant) {
        publisher.0.flush(&self.shared.router, now);
    }

    /// Takes all QoS 0 messages that wait for a session, as if its socket took them; how many.
    pub fn drain(&self, session: &Session, Drained(batch): &mut Drained, now: Instant) -> usize {
        let Receiver { outbox, load, .. } = &session.0;
        let mut task = Context::from_waker(Waker::noop());
        let mut taken = 0;
        // Until nothing is left, as its task does, so that it is woken by what comes next.
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
        self.shared.router.subscribe(filter, &session.0, grant, now);
    }

    /// Takes one away.
    pub fn unsubscribe(&self, session: &Session, filter: &TopicFilter) {
        self.shared.router.unsubscribe(filter, session.0.number);
    }

    /// How many sessions receive what is published to `topic`: found as for a publisher that has not published there
    /// before.
    pub fn receivers(&self, topic: &TopicName) -> usize {
        self.shared.router.matches(topic).receivers()
    }
}
