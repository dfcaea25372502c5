use std::cell::RefCell;
use std::hash::{BuildHasher as _, RandomState};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use rustc_hash::{FxHashMap, FxHashSet};
use tenbin_balancer::{Dispatch, Rng};
use tenbin_codec::{PublishTemplate, QoS, ReasonCode, Text, TopicName};
use tenbin_session::{Delivery, Publication};

use super::fanout::Fanout;
use super::matches::{MatchSet, Route, Terms};
use super::shared::{Choice, GroupMember, dispatch};
use super::{Receiver, Router};
use crate::clock::Moment;
use crate::outbox::Outbox;

/// One publisher's way into the router, and what it remembers of it.
///
/// Between [`Publisher::publish`] and [`Publisher::flush`] the caller must not wait: what is collected belongs to
/// the thread.
#[derive(Debug)]
pub(crate) struct Publisher {
    /// Of the session that publishes; 0 = the broker itself.
    number: u64,
    /// Hash of its Client Identifier.
    client: u64,
    /// The publisher's own queue, if it is a client.
    own: Option<Arc<Outbox>>,
    /// It was among the receivers since the last [`Publisher::take_reached_itself`].
    reached_itself: bool,
    routes: RouteCache,
    rng: Rng,
}

impl Publisher {
    /// For the connection of `receiver`, whose Client Identifier is `client_id`.
    pub(crate) fn of(router: &Router, receiver: &Receiver, client_id: &Text) -> Self {
        Self { own: Some(Arc::clone(&receiver.outbox)), ..Self::new(router, receiver.number, client_id) }
    }

    /// For what is not published by a connection.
    pub(crate) fn new(router: &Router, number: u64, client_id: &Text) -> Self {
        Self {
            number,
            client: router.hash(client_id.as_bytes()),
            own: None,
            reached_itself: false,
            routes: RouteCache::default(),
            // The hasher's keys are random, and differ from call to call.
            rng: Rng::new(RandomState::new().hash_one(number)),
        }
    }

    /// Routes one message to everybody who wants it. The receivers have it after [`Publisher::flush`].
    ///
    /// Returns what its acknowledgement is to say: success, that nobody wants it, or why it was refused; a refused
    /// message reaches nobody.
    pub(crate) fn publish(&mut self, router: &Router, publication: &Publication, now: Instant) -> ReasonCode {
        // First: whoever subscribes from here on gets it as a retained message, whoever has, by what follows; and a
        // page of retained messages that holds the one before goes out before this one is taken from a queue.
        if publication.retain
            && let Err(reason) = router.retain(publication, now)
        {
            return reason;
        }
        let matches = self.routes.find(router, &publication.topic);
        let mut delivered = false;
        if !matches.targets.is_empty() || !matches.groups.is_empty() {
            let template = BLOCK.with_borrow_mut(|block| publication.template(block));
            let message = Message { publication, template, topic: matches.topic, now: router.clock.moment(now) };
            delivered = FANOUT.with_borrow_mut(|fanout| {
                let to_targets = self.deliver(&matches, &message, fanout);
                let to_groups = self.deliver_to_groups(router, &matches, &message, fanout);
                to_targets | to_groups
            });
        }
        if delivered || publication.retain { ReasonCode::Success } else { ReasonCode::NoMatchingSubscribers }
    }

    /// Hands the collected messages to their receivers, each of whom is woken once. Tells whether a receiver
    /// wants processor time.
    pub(crate) fn flush(&mut self, router: &Router, now: Instant) -> bool {
        let (returned, pressure) = FANOUT.with_borrow_mut(|fanout| {
            fanout.flush(now);
            (fanout.take_returned(), fanout.take_pressure())
        });
        if !returned.is_empty() {
            router.redispatch(returned, now, &mut self.rng);
        }
        pressure
    }

    /// Whether a subscription of a client matches the topic.
    pub(crate) fn is_wanted(&mut self, router: &Router, topic: &TopicName) -> bool {
        let matches = self.routes.find(router, topic);
        !matches.targets.is_empty() || !matches.groups.is_empty()
    }

    /// Whether what was published since the last call came back to the publisher itself.
    pub(crate) fn take_reached_itself(&mut self) -> bool {
        std::mem::take(&mut self.reached_itself)
    }

    fn deliver(&mut self, matches: &MatchSet, message: &Message<'_>, fanout: &mut Fanout) -> bool {
        let mut delivered = false;
        for target in &matches.targets {
            if let Some(terms) = target.terms_for(self.number) {
                self.reached_itself |= target.number == self.number;
                fanout.add(&target.outbox, message.delivery(terms, Share::NONE), message.now.at);
            }
            delivered = true; // one that No Local leaves out matches all the same
        }
        delivered
    }

    fn deliver_to_groups(
        &mut self,
        router: &Router,
        matches: &MatchSet,
        message: &Message<'_>,
        fanout: &mut Fanout,
    ) -> bool {
        let mut delivered = false;
        let mut ended = false;
        for route in &matches.groups {
            match self.deliver_to_group(router, route, message, fanout) {
                true => delivered = true,
                false => ended = true,
            }
        }
        if ended {
            // A group that ended since the match was made may have been founded anew.
            let known = matches.groups.iter().map(|route| Arc::as_ptr(&route.group)).collect::<FxHashSet<_>>();
            for route in &router.matches(&message.publication.topic).groups {
                if !known.contains(&Arc::as_ptr(&route.group)) {
                    delivered |= self.deliver_to_group(router, route, message, fanout);
                }
            }
        }
        delivered
    }

    /// `false`: the group has no member any more.
    fn deliver_to_group(
        &mut self,
        router: &Router,
        Route { group, key }: &Route,
        message: &Message<'_>,
        fanout: &mut Fanout,
    ) -> bool {
        let members = group.members.members();
        let key = key.of(message.publication, self.client, router.index.hasher());
        let dispatch = Dispatch {
            publisher: self.client,
            topic: message.topic,
            key,
            ..dispatch(&message.template, message.publication.qos, message.now.nanos)
        };
        let share = Share { group: Some(group.number()), key: NonZeroU64::new(key.unwrap_or(self.client)) };
        match group.choose(&members, &dispatch, message.publication.topic.as_bytes(), &mut self.rng) {
            Choice::Member(GroupMember { outbox, terms, .. }) => {
                self.reached_itself |= self.own.as_ref().is_some_and(|own| Arc::ptr_eq(own, outbox));
                fanout.add(outbox, message.delivery(terms, share), message.now.at);
                true
            }
            Choice::Nobody => {
                // Whoever gets it later has terms of its own.
                let any = Terms { qos: message.publication.qos, retain_as_published: true, identifiers: None };
                group.wait(message.delivery(&any, share), message.now, &mut self.rng);
                true
            }
            Choice::NoMember => false,
        }
    }
}

/// The share group that a delivery is for, and by what it chose.
#[derive(Debug, Clone, Copy)]
struct Share {
    group: Option<NonZeroU64>,
    key: Option<NonZeroU64>,
}

impl Share {
    /// For a receiver that is none's member.
    const NONE: Self = Self { group: None, key: None };
}

/// One publication on its way to its receivers.
struct Message<'a> {
    publication: &'a Publication,
    template: PublishTemplate,
    /// Hash of its topic.
    topic: u64,
    now: Moment,
}

impl Message<'_> {
    fn delivery(&self, terms: &Terms, share: Share) -> Delivery {
        let publication = self.publication;
        Delivery {
            template: self.template.clone(),
            qos: QoS::min(publication.qos, terms.qos), // [MQTT-3.8.4-8]
            retain: publication.retain && terms.retain_as_published, // [MQTT-3.3.1-12], [MQTT-3.3.1-13]
            published_qos: publication.qos,
            published_retain: publication.retain,
            subscription_identifiers: terms.identifiers.clone(),
            expires_at: publication.expires_at,
            share: share.group,
            share_key: share.key,
        }
    }
}

thread_local! {
    /// Memory that templates are carved out of, and that collects a batch: one a thread, not one a connection, most
    /// of which are idle. A batch is published and flushed without a wait point between.
    static BLOCK: RefCell<BytesMut> = RefCell::default();
    static FANOUT: RefCell<Fanout> = RefCell::default();
}

/// Matches of the topics that a connection published to lately, good while no subscription changes.
#[derive(Debug, Default)]
struct RouteCache {
    version: u64,
    routes: FxHashMap<Box<[u8]>, Arc<MatchSet>>,
    /// Targets in all routes together: what they weigh.
    targets: usize,
}

impl RouteCache {
    fn find(&mut self, router: &Router, topic: &TopicName) -> Arc<MatchSet> {
        let version = router.version();
        if version != self.version {
            self.clear();
            self.version = version;
        }
        if let Some(matches) = self.routes.get(topic.as_bytes()) {
            return Arc::clone(matches);
        }
        let matches = Arc::new(router.matches(topic));
        if self.routes.len() >= ROUTES_MAX || self.targets + matches.targets.len() > TARGETS_MAX {
            self.clear();
        }
        self.targets += matches.targets.len();
        self.routes.insert(topic.as_bytes().into(), Arc::clone(&matches));
        matches
    }

    fn clear(&mut self) {
        self.routes.clear();
        self.targets = 0;
    }
}

/// Topics that one connection remembers, and targets in all of them together unless one topic alone has more.
const ROUTES_MAX: usize = 256;
const TARGETS_MAX: usize = 4096;
