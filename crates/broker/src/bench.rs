//! The broker's subscriptions without its connections, for `benches/subscription_index`: no client can tell what a match
//! costs from what else is done for a message. No part of the interface.

use std::num::NonZeroU16;
use std::time::Instant;

use tenbin_codec::{QoS, SubscriptionOptions, Text, TopicFilter, TopicName};

use crate::Config;
use crate::auth::{Access, AccessError, Identity, Principal, Settings};
use crate::router::{Grant, Receiver};
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

impl Subscriptions {
    /// No session and no subscription.
    ///
    /// # Errors
    /// None that the default configuration leads to.
    pub fn new() -> Result<Self, AccessError> {
        let config = Config::default();
        let access = Access::new(Settings::load(&config, true)?, None, None);
        Ok(Self { shared: Shared::new(config, access, true, None), sessions: 0 })
    }

    /// A session with a queue of its own.
    pub fn session(&mut self) -> Session {
        self.sessions += 1;
        let principal = Principal { client_id: Text::EMPTY, identity: Identity::anonymous(), listener: "bench".into() };
        Session(self.shared.new_client(&principal, self.sessions, Instant::now()).receiver())
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
