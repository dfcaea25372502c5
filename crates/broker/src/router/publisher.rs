use std::cell::RefCell;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use rustc_hash::FxHashMap;
use tenbin_balancer::{Nanos, Rng};
use tenbin_codec::{PublishTemplate, QoS, ReasonCode, TopicName};
use tenbin_session::{Delivery, Publication};

use super::fanout::Fanout;
use super::matches::{MatchSet, Terms};
use super::shared::GroupMember;
use super::{Receiver, Router};

/// One publisher's way into the router: what it remembers and collects between two flushes.
#[derive(Debug)]
pub(crate) struct Publisher {
    /// Of the session that publishes; 0 = the broker itself.
    number: u64,
    routes: RouteCache,
    fanout: Fanout,
    rng: Rng,
}

impl Publisher {
    /// For the connection of `receiver`.
    pub(crate) fn of(receiver: &Receiver) -> Self {
        let mut publisher = Self::new(receiver.number);
        publisher.fanout = Fanout::of(&receiver.outbox);
        publisher
    }

    /// For what is not published by a connection.
    pub(crate) fn new(number: u64) -> Self {
        Self {
            number,
            routes: RouteCache::default(),
            fanout: Fanout::default(),
            // The hasher's keys are random, and differ from call to call.
            rng: Rng::new(RandomState::new().hash_one(number)),
        }
    }

    /// Routes one message to everybody who wants it. The receivers have it after [`Publisher::flush`].
    ///
    /// Returns what its acknowledgement is to say: success, that nobody wants it, or why it was refused.
    pub(crate) fn publish(&mut self, router: &Router, publication: &Publication, now: Instant) -> ReasonCode {
        let nanos = router.clock.nanos(now);
        let matches = self.routes.find(router, &publication.topic);
        let mut delivered = false;
        if !matches.targets.is_empty() || !matches.groups.is_empty() {
            let template = BLOCK.with_borrow_mut(|block| publication.template(block));
            delivered = self.deliver(&matches, &template, publication, nanos);
        }
        if publication.retain
            && let Err(reason) = router.retain(publication, now)
        {
            return reason;
        }
        if delivered || publication.retain { ReasonCode::Success } else { ReasonCode::NoMatchingSubscribers }
    }

    /// Hands the collected messages to their receivers, each of whom is woken once. Tells whether a receiver
    /// wants processor time.
    pub(crate) fn flush(&mut self) -> bool {
        self.fanout.flush();
        self.fanout.take_pressure()
    }

    /// Whether what was published since the last call came back to the publisher itself.
    pub(crate) fn take_reached_itself(&mut self) -> bool {
        self.fanout.take_reached_own()
    }

    fn deliver(
        &mut self,
        matches: &MatchSet,
        template: &PublishTemplate,
        publication: &Publication,
        now: Nanos,
    ) -> bool {
        let mut delivered = false;
        for target in &matches.targets {
            if let Some(terms) = target.terms_for(self.number) {
                self.fanout.add(&target.outbox, delivery(template, publication, terms));
            }
            delivered = true; // one that No Local leaves out matches all the same
        }
        for group in &matches.groups {
            let members = group.members.members();
            if let Some(member) = members.pick(now, &mut self.rng) {
                let GroupMember { outbox, terms } = member.value();
                self.fanout.add(outbox, delivery(template, publication, terms));
                delivered = true;
            }
        }
        delivered
    }
}

thread_local! {
    /// Memory that templates are carved out of: one block a thread, not one a connection, most of which are idle.
    static BLOCK: RefCell<BytesMut> = RefCell::default();
}

fn delivery(template: &PublishTemplate, publication: &Publication, terms: &Terms) -> Delivery {
    Delivery {
        template: template.clone(),
        qos: QoS::min(publication.qos, terms.qos), // [MQTT-3.8.4-8]
        retain: publication.retain && terms.retain_as_published, // [MQTT-3.3.1-12], [MQTT-3.3.1-13]
        subscription_identifiers: terms.identifiers.clone(),
        expires_at: publication.expires_at,
    }
}

/// Matches of the topics that a connection published to lately, good while no subscription changes.
#[derive(Debug, Default)]
struct RouteCache {
    version: u64,
    routes: FxHashMap<Box<[u8]>, Arc<MatchSet>>,
}

impl RouteCache {
    fn find(&mut self, router: &Router, topic: &TopicName) -> Arc<MatchSet> {
        let version = router.version();
        if version != self.version {
            self.routes.clear();
            self.version = version;
        }
        if let Some(matches) = self.routes.get(topic.as_bytes()) {
            return Arc::clone(matches);
        }
        let matches = Arc::new(router.matches(topic));
        if self.routes.len() >= ROUTES_MAX {
            self.routes.clear();
        }
        self.routes.insert(topic.as_bytes().into(), Arc::clone(&matches));
        matches
    }
}

/// Topics that one connection remembers.
const ROUTES_MAX: usize = 256;
