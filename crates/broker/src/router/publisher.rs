use std::cell::RefCell;
use std::hash::{BuildHasher as _, RandomState};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use rustc_hash::{FxHashMap, FxHashSet};
use tenbin_balancer::{Dispatch, Rng};
use tenbin_codec::{MessageProperties, PlainPublish, PublishTemplate, QoS, ReasonCode, Text, TopicName};
use tenbin_session::{Delivery, Publication};

use super::choice::{Choice, Question};
use super::fanout::Fanout;
use super::held_key;
use super::matches::{MatchSet, Route, Terms};
use super::shared::{GroupMember, dispatch};
use super::{NotRetained, Receiver, Router};
use crate::clock::Moment;
use crate::durable::{SafeAt, StoredQueue};
use crate::outbox::{Booked, Outbox};

/// One publisher's way into the router, and what it remembers of it.
///
/// Between [`Publisher::publish`] and [`Publisher::flush`] the caller must not wait: what is collected belongs to
/// the thread.
#[derive(Debug)]
pub(crate) struct Publisher {
    /// From the first message on: most clients publish nothing, or nothing yet.
    routes: Option<Box<RouteCache>>,
    origin: Origin,
}

/// What became of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Published {
    /// What its acknowledgement is to say: success, that nobody wants it, or why it was refused.
    pub(crate) reason: ReasonCode,
    /// When that may be said, if not later: see [`Flushed`].
    pub(crate) safe_at: SafeAt,
}

/// What became of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flushed {
    /// A receiver wants processor time.
    pub(crate) pressure: bool,
    /// When its messages may be acknowledged.
    pub(crate) safe_at: SafeAt,
}

/// Who publishes.
#[derive(Debug)]
struct Origin {
    /// Of the session that publishes; 0 = the broker itself.
    number: u64,
    /// Hash of its Client Identifier.
    client: u64,
    /// The publisher's own queue, if it is a client.
    own: Option<Arc<Outbox>>,
    /// It was among the receivers since the last [`Publisher::take_reached_itself`].
    reached_itself: bool,
    rng: Rng,
}

impl Publisher {
    /// For the connection of `receiver`, whose Client Identifier is `client_id`.
    pub(crate) fn of(router: &Router, receiver: &Receiver, client_id: &Text) -> Self {
        let mut publisher = Self::new(router, receiver.number, client_id);
        publisher.origin.own = Some(Arc::clone(&receiver.outbox));
        publisher
    }

    /// For what is not published by a connection.
    pub(crate) fn new(router: &Router, number: u64, client_id: &Text) -> Self {
        let client = held_key::of_client(router.hash(client_id.as_bytes()));
        // The hasher's keys are random, and differ from call to call.
        let rng = Rng::new(RandomState::new().hash_one(number));
        Self { routes: None, origin: Origin { number, client, own: None, reached_itself: false, rng } }
    }

    /// Routes one message to everybody who wants it. The receivers have it after [`Publisher::flush`].
    ///
    /// A refused message reaches nobody, but for one that cannot be retained for want of a disk, or that some of its receivers
    /// have no room for: the others get it.
    pub(crate) fn publish(&mut self, router: &Router, publication: &Publication, now: Instant) -> Published {
        // First: whoever subscribes from here on gets it as a retained message, whoever has, by what follows; and a
        // page of retained messages that holds the one before goes out before this one is taken from a queue.
        let (mut safe_at, mut is_disk_behind) = (SafeAt::NOW, false);
        if publication.retain {
            match router.retain(publication, self.origin.own.is_none(), now) {
                Ok(at) => safe_at = at,
                Err(NotRetained::Refused(reason)) => return Published { reason, safe_at },
                Err(NotRetained::DiskBehind) => is_disk_behind = true,
            }
        }
        let matches = self.routes.get_or_insert_default().find(router, &publication.topic);
        let is_kept = router.durable.is_some() && publication.qos.is_acknowledged();
        let is_held = is_kept && self.origin.hold(router, publication, now);
        let mut delivered = Delivered::default();
        if !matches.is_empty() {
            let message = Message::new(publication, matches.topic, router.clock.moment(now));
            delivered = self.origin.deliver_to_all(router, matches, message);
        }
        let reason = match delivered {
            Delivered { is_over_quota: true, .. } => ReasonCode::QuotaExceeded,
            _ if is_disk_behind => ReasonCode::QuotaExceeded,
            Delivered { is_wanted: false, .. } if !publication.retain => ReasonCode::NoMatchingSubscribers,
            _ => ReasonCode::Success,
        };
        if is_held && reason.is_error() {
            FANOUT.with_borrow_mut(Fanout::release); // [MQTT-4.3.3-9]
        }
        Published { reason, safe_at }
    }

    /// As [`Publisher::publish`], for a message to a topic that was published to lately, and may be again: if it may,
    /// asks `is_allowed`. `false`, and nothing is done, for every other.
    #[inline]
    pub(crate) fn publish_plain(
        &mut self,
        router: &Router,
        plain: PlainPublish<'_>,
        is_allowed: impl FnOnce(&TopicName) -> bool,
        now: Instant,
    ) -> bool {
        let Some((name, matches)) = self.routes.as_mut().and_then(|routes| routes.find_known(router, plain.topic()))
        else {
            return false;
        };
        if !is_allowed(name) {
            return false;
        }
        if !matches.is_empty() {
            let message = Message::plain(plain, name, matches.topic, router.clock.moment(now));
            self.origin.deliver_to_all(router, matches, message);
        }
        true
    }

    /// Hands the collected messages to their receivers, each of whom is woken once.
    pub(crate) fn flush(&mut self, router: &Router, now: Instant) -> Flushed {
        let (flushed, has_left) = FANOUT.with_borrow_mut(|fanout| {
            fanout.flush(router.durable(), now);
            (Flushed { pressure: fanout.take_pressure(), safe_at: fanout.take_safe_at() }, fanout.has_left())
        });
        if has_left {
            self.origin.give_what_is_left(router, now);
        }
        flushed
    }

    /// Whether a subscription of a client matches the topic.
    pub(crate) fn is_wanted(&mut self, router: &Router, topic: &TopicName) -> bool {
        !self.routes.get_or_insert_default().find(router, topic).is_empty()
    }

    /// Whether what was published since the last call came back to the publisher itself.
    pub(crate) fn take_reached_itself(&mut self) -> bool {
        std::mem::take(&mut self.origin.reached_itself)
    }
}

/// Whether a message goes to anybody.
#[derive(Debug, Default, Clone, Copy)]
struct Delivered {
    /// Somebody has subscribed to it.
    is_wanted: bool,
    /// One of them can be kept no more for.
    is_over_quota: bool,
}

impl Origin {
    /// What members do not take any more goes to others, and then what waits with groups goes there.
    #[cold]
    fn give_what_is_left(&mut self, router: &Router, now: Instant) {
        let (returned, waiting) = FANOUT.with_borrow_mut(|fanout| (fanout.take_returned(), fanout.take_waiting()));
        if !returned.is_empty() {
            router.choose_again(returned, now, &mut self.rng);
        }
        for (group, delivery) in waiting {
            group.wait(std::iter::once(delivery), router.clock.moment(now), &mut self.rng);
        }
    }

    /// Begins a message. Keeps the Packet Identifier of one of QoS 2 whose publisher is known after a restart
    /// `[MQTT-4.3.3-10]`; whether that is so.
    fn hold(&mut self, router: &Router, publication: &Publication, now: Instant) -> bool {
        // Before another message is begun: those of one are appended together.
        let is_flushed = FANOUT.with_borrow_mut(|fanout| {
            let is_full = fanout.is_full();
            if is_full {
                fanout.flush(router.durable(), now);
            }
            is_full
        });
        if is_flushed {
            self.give_what_is_left(router, now);
        }
        let ack = publication.ack.filter(|ack| ack.qos == QoS::ExactlyOnce);
        let queue = ack.and_then(|_| self.own.as_ref()?.keeps_in());
        let held = ack.zip(queue).map(|(ack, queue)| queue.publishes(ack.packet_id));
        FANOUT.with_borrow_mut(|fanout| {
            fanout.begin_message();
            held.into_iter().for_each(|held| fanout.hold(held));
        });
        held.is_some()
    }

    fn deliver_to_all(&mut self, router: &Router, matches: &MatchSet, mut message: Message<'_>) -> Delivered {
        FANOUT.with_borrow_mut(|fanout| {
            // One that is kept was begun, which looks after this.
            if !message.qos.is_acknowledged() && fanout.is_full() {
                fanout.flush(router.durable(), message.now.at);
            }
            let to_targets = self.deliver(matches, &mut message, fanout);
            let to_groups = self.deliver_to_groups(router, matches, &mut message, fanout);
            Delivered {
                is_wanted: to_targets.is_wanted || to_groups.is_wanted,
                is_over_quota: to_targets.is_over_quota || to_groups.is_over_quota,
            }
        })
    }

    fn deliver(&mut self, matches: &MatchSet, message: &mut Message<'_>, fanout: &mut Fanout) -> Delivered {
        let mut delivered = Delivered::default();
        let mut following = matches.targets.len() + matches.groups.len();
        for target in &matches.targets {
            following -= 1;
            if let Some(terms) = target.terms_for(self.number) {
                self.reached_itself |= target.number == self.number;
                let is_acknowledged = message.kept_at(terms);
                if is_acknowledged && target.outbox.is_over_quota(message.now.at) {
                    target.outbox.refuse(target.number);
                    delivered.is_over_quota = true;
                } else {
                    let kept = if is_acknowledged { target.outbox.keeps_in() } else { None };
                    let to = To { number: target.number, outbox: &target.outbox, kept };
                    message.add_to(fanout, to, terms, Share::NONE, following == 0);
                }
            }
            delivered.is_wanted = true; // one that No Local leaves out matches all the same
        }
        delivered
    }

    fn deliver_to_groups(
        &mut self,
        router: &Router,
        matches: &MatchSet,
        message: &mut Message<'_>,
        fanout: &mut Fanout,
    ) -> Delivered {
        let mut delivered = Delivered::default();
        let mut ended = false;
        let mut following = matches.groups.len();
        for route in &matches.groups {
            following -= 1;
            if message.qos.is_acknowledged() && route.group.waiting.is_over_quota() {
                route.group.refuse();
                delivered = Delivered { is_wanted: true, is_over_quota: true };
                continue;
            }
            match self.deliver_to_group(router, route, message, fanout, following == 0 && !ended) {
                true => delivered.is_wanted = true,
                false => ended = true,
            }
        }
        if ended {
            // A group that ended since the match was made may have been founded anew.
            let known = matches.groups.iter().map(|route| Arc::as_ptr(&route.group)).collect::<FxHashSet<_>>();
            for route in &router.matches(message.name).groups {
                if !known.contains(&Arc::as_ptr(&route.group)) {
                    delivered.is_wanted |= self.deliver_to_group(router, route, message, fanout, false);
                }
            }
        }
        delivered
    }

    /// `false`: the group has no member any more; then the message is still there, even if this is the last.
    fn deliver_to_group(
        &mut self,
        router: &Router,
        Route { group, key }: &Route,
        message: &mut Message<'_>,
        fanout: &mut Fanout,
        is_last: bool,
    ) -> bool {
        let key = key.of(message.properties(), self.client, router.index.hasher()).map(held_key::of_key);
        // What this publisher has for a member that has departed meanwhile will come back, and go before this one.
        let since = key.filter(|_| message.qos.is_acknowledged()).map(|_| group.waiting.departures());
        let has_missed = since.is_some_and(|since| fanout.has_missed(group.number(), since));
        let follows_waiting = message.qos.is_acknowledged() && (fanout.waits_with(group) || fanout.has_returned());
        let members = group.members.members();
        let dispatch = Dispatch {
            publisher: self.client,
            topic: message.topic,
            key,
            ..dispatch(message.packet_bytes, message.qos, message.now.nanos)
        };
        let share = Share { group: Some(group.number()), key: NonZeroU64::new(key.unwrap_or(self.client)) };
        let topic = message.name.as_bytes();
        let question = Question { group, members: &members, dispatch: &dispatch, topic };
        let choice = match has_missed || follows_waiting {
            true if members.is_empty() => Choice::NoMember,
            true => Choice::Nobody,
            false => question.choose_for_new(since, &mut self.rng),
        };
        match choice {
            Choice::Member(member) => {
                let GroupMember { outbox, terms, .. } = member.value();
                self.reached_itself |= self.own.as_ref().is_some_and(|own| Arc::ptr_eq(own, outbox));
                let kept = message.kept_at(terms).then(|| group.stored()).flatten();
                message.add_to(fanout, To { number: member.id().0, outbox, kept }, terms, share, is_last);
                since.into_iter().for_each(|since| fanout.picked_at(group.number(), since));
                true
            }
            Choice::Nobody if dispatch.is_acknowledged => {
                // Whoever gets it later has terms of its own.
                let any = Terms { qos: message.qos, retain_as_published: true, identifiers: None };
                let delivery = message.delivery(&any, share, is_last);
                fanout.add_waiting(group, delivery);
                true
            }
            Choice::Nobody => {
                group.drop_unacknowledged();
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

/// One receiver.
struct To<'a> {
    number: u64,
    outbox: &'a Arc<Outbox>,
    /// Where the message is kept for it, if it is.
    kept: Option<Arc<StoredQueue>>,
}

/// One publication on its way to its receivers.
struct Message<'a> {
    /// `None`: it has no more than `plain`.
    publication: Option<&'a Publication>,
    name: &'a TopicName,
    qos: QoS,
    /// As the packet that every receiver gets who takes it so.
    plain: Option<PlainPublish<'a>>,
    /// Once a receiver needs it, and until the last has it.
    template: Option<PublishTemplate>,
    /// What the balancer is told of its size.
    packet_bytes: u32,
    /// Hash of its topic.
    topic: u64,
    /// It is a message of its own to the log.
    is_begun: bool,
    now: Moment,
}

impl<'a> Message<'a> {
    fn new(publication: &'a Publication, topic: u64, now: Moment) -> Self {
        let Publication { topic: name, qos, retain, properties, expires_at, .. } = publication;
        let has_more = qos.is_acknowledged() || *retain || properties.is_some() || expires_at.is_some();
        let plain = PlainPublish::new(name, &publication.payload).filter(|_| !has_more);
        if let Some(plain) = plain {
            return Self::plain(plain, name, topic, now);
        }
        let template = BLOCK.with_borrow_mut(|block| publication.template(block));
        let packet_bytes = Booked::packet_bytes(template.len());
        let (publication, template) = (Some(publication), Some(template));
        Self {
            publication,
            name,
            qos: *qos,
            plain: None,
            template,
            packet_bytes,
            topic,
            is_begun: qos.is_acknowledged(),
            now,
        }
    }

    #[inline]
    fn plain(plain: PlainPublish<'a>, name: &'a TopicName, topic: u64, now: Moment) -> Self {
        let packet_bytes = Booked::packet_bytes(plain.template_len());
        let (plain, qos) = (Some(plain), QoS::AtMostOnce);
        Self { publication: None, name, qos, plain, template: None, packet_bytes, topic, is_begun: false, now }
    }

    fn properties(&self) -> Option<&MessageProperties> {
        self.publication?.properties.as_deref()
    }

    /// Whether a receiver who has these terms acknowledges it: then it is kept, for one who is.
    #[inline]
    fn kept_at(&self, terms: &Terms) -> bool {
        self.qos.is_acknowledged() && terms.qos.is_acknowledged()
    }

    /// For one receiver.
    #[inline]
    fn add_to(&mut self, fanout: &mut Fanout, to: To<'_>, terms: &Terms, share: Share, is_last: bool) {
        let To { number, outbox, kept } = to;
        if let Some(plain) = self.plain.filter(|_| terms.identifiers.is_none())
            && let Some(wire) = outbox.wire()
            && outbox.takes(plain.encoded_len(wire.version))
        {
            fanout.add_plain((number, outbox, wire), (share.group, share.key), &plain, self.now.at);
        } else if outbox.keeps_unacknowledged() && kept.is_none() && share.group.is_none() {
            self.add_slowly(fanout, (number, outbox), terms, is_last);
        } else {
            fanout.add(number, outbox, self.delivery(terms, share, is_last), kept, self.now.at);
        }
    }

    /// For a slow receiver for whom QoS 0 waits on disk too.
    #[cold]
    fn add_slowly(&mut self, fanout: &mut Fanout, (number, outbox): (u64, &Arc<Outbox>), terms: &Terms, is_last: bool) {
        if outbox.is_over_quota(self.now.at) {
            outbox.drop_newest();
            return;
        }
        if !std::mem::replace(&mut self.is_begun, true) {
            fanout.begin_message(); // messages of QoS 0 mostly do without
        }
        let delivery = self.delivery(terms, Share::NONE, is_last);
        fanout.add(number, outbox, delivery, outbox.keeps_in(), self.now.at);
    }

    /// For one receiver. The last one gets the template itself: a clone less that counts references.
    #[inline(always)] // called once for each delivery: a call would move it once more
    fn delivery(&mut self, terms: &Terms, share: Share, is_last: bool) -> Delivery {
        if let (None, Some(plain)) = (&self.template, &self.plain) {
            self.template = Some(BLOCK.with_borrow_mut(|block| plain.template(block)));
        }
        let template = if is_last { self.template.take() } else { self.template.clone() };
        let retain = self.publication.is_some_and(|publication| publication.retain);
        Delivery {
            template: template.expect("nobody comes after the last"),
            qos: QoS::min(self.qos, terms.qos),          // [MQTT-3.8.4-8]
            retain: retain && terms.retain_as_published, // [MQTT-3.3.1-12], [MQTT-3.3.1-13]
            published_qos: self.qos,
            published_retain: retain,
            subscription_identifiers: terms.identifiers.clone(),
            stored: None,
            expires_at: self.publication.and_then(|publication| publication.expires_at),
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
    /// Where each topic's matches are in `routes`.
    places: FxHashMap<Box<[u8]>, usize>,
    routes: Vec<(TopicName, MatchSet)>,
    /// The place that was found last: mostly it is the next one too.
    last: usize,
    /// Targets in all routes together: what they weigh.
    targets: usize,
}

impl RouteCache {
    fn find(&mut self, router: &Router, topic: &TopicName) -> &MatchSet {
        let place = match self.place_of(router, topic.as_bytes()) {
            Some(place) => place,
            None => self.remember(topic, router.matches(topic)),
        };
        &self.routes[place].1
    }

    /// Only what is remembered.
    #[inline]
    fn find_known(&mut self, router: &Router, topic: &[u8]) -> Option<&(TopicName, MatchSet)> {
        let place = self.place_of(router, topic)?;
        Some(&self.routes[place])
    }

    #[inline]
    fn place_of(&mut self, router: &Router, topic: &[u8]) -> Option<usize> {
        let version = router.version();
        if version != self.version {
            self.clear();
            self.version = version;
        }
        if self.routes.get(self.last).is_none_or(|(name, _)| name.as_bytes() != topic) {
            self.last = *self.places.get(topic)?;
        }
        Some(self.last)
    }

    fn remember(&mut self, topic: &TopicName, matches: MatchSet) -> usize {
        if self.routes.len() >= ROUTES_MAX || self.targets + matches.targets.len() > TARGETS_MAX {
            self.clear();
        }
        let place = self.routes.len();
        self.targets += matches.targets.len();
        self.places.insert(topic.as_bytes().into(), place);
        self.routes.push((topic.detach(), matches));
        place
    }

    fn clear(&mut self) {
        self.places.clear();
        self.routes.clear();
        self.targets = 0;
    }
}

/// Topics that one connection remembers, and targets in all of them together unless one topic alone has more.
const ROUTES_MAX: usize = 256;
const TARGETS_MAX: usize = 4096;
