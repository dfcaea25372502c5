//! What a connection publishes: who gets it, and in what order.

use std::cell::RefCell;
use std::hash::{BuildHasher as _, RandomState};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHashSet;
use tenbin_balancer::{Dispatch, Rng};
use tenbin_codec::{PlainPublish, QoS, ReasonCode, Text, TopicName};
use tenbin_session::Publication;

use super::choice::{Choice, Question};
use super::fanout::Fanout;
use super::held_key;
use super::matches::{MatchSet, Route, Target, Terms};
use super::message::{Message, Share, To};
use super::route_cache::{KnownRoute, RouteCache};
use super::shared::{GroupMember, dispatch};
use super::waiting::Refused;
use super::{NotRetained, Receiver, Router};
use crate::clock::Moment;
use crate::durable::{Durable, PLACE_BYTES, PublisherId, RECORD_BYTES, SafeAt, StoredQueue, as_refused};
use crate::outbox::Outbox;

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
    /// Its number in the batch, by which [`Flushed::refused`] names it; 0 at QoS 0.
    pub(crate) message: u32,
    /// Who was to have it, those included that are known to refuse it.
    pub(crate) receivers: u32,
    /// So many of them refuse it, as far as is known.
    pub(crate) refusals: u32,
}

/// What became of a batch.
#[derive(Debug)]
pub(crate) struct Flushed {
    /// A receiver wants processor time.
    pub(crate) pressure: bool,
    /// When its messages may be acknowledged.
    pub(crate) safe_at: SafeAt,
    /// QoS 1 and 2 messages that a receiver had no room for, by [`Published::message`]: one entry for each such receiver.
    pub(crate) refused: Vec<u32>,
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
    /// The publisher can be told of a refusal (MQTT 5.0), or nobody asks.
    tells_refusals: bool,
    /// It was among the receivers since the last [`Publisher::take_reached_itself`].
    reached_itself: bool,
    rng: Rng,
}

impl Publisher {
    /// For the connection of `receiver`, whose Client Identifier is `client_id`. `tells_refusals`: its acknowledgements have
    /// Reason Codes.
    pub(crate) fn of(router: &Router, receiver: &Receiver, client_id: &Text, tells_refusals: bool) -> Self {
        let mut publisher = Self::new(router, receiver.number, client_id);
        publisher.origin.tells_refusals = tells_refusals;
        publisher.origin.own = Some(Arc::clone(&receiver.outbox));
        publisher
    }

    /// For what is not published by a connection.
    pub(crate) fn new(router: &Router, number: u64, client_id: &Text) -> Self {
        let client = held_key::of_client(router.hash(client_id.as_bytes()));
        // The hasher's keys are random, and differ from call to call.
        let rng = Rng::new(RandomState::new().hash_one(number));
        Self {
            routes: None,
            origin: Origin { number, client, own: None, tells_refusals: true, reached_itself: false, rng },
        }
    }

    /// Routes one message to everybody who wants it. The receivers have it after [`Publisher::flush`].
    ///
    /// A message that cannot be retained, or that some of its receivers have no room for, goes to the others. Who has no room
    /// is known for sure only after [`Publisher::flush`].
    pub(crate) fn publish(&mut self, router: &Router, publication: &Publication, now: Moment) -> Published {
        // First: whoever subscribes from here on gets it as a retained message, whoever has, by what follows; and a
        // page of retained messages that holds the one before goes out before this one is taken from a queue.
        let (mut safe_at, mut is_store_full) = (SafeAt::NOW, false);
        if publication.retain {
            match router.retain(publication, self.origin.own.is_none(), now.at) {
                Ok(at) => safe_at = at,
                // Who is not told sends it again: then nobody has got it before.
                Err(NotRetained::DiskBehind) if !self.origin.tells_refusals && publication.qos.is_acknowledged() => {
                    return refuse_at_once(publication);
                }
                // Sending it again would not help.
                Err(NotRetained::AtLimit(at)) => (safe_at, is_store_full) = (at, self.origin.tells_refusals),
                Err(NotRetained::DiskBehind) => is_store_full = true,
            }
        }
        let matches = self.origin.routes(&mut self.routes).find(router, &publication.topic);
        if !self.origin.tells_refusals && self.origin.waits_for_disk(router, matches, publication) {
            return refuse_at_once(publication);
        }
        // The store of retained messages counts as one that has no room.
        let refusals = u32::from(is_store_full);
        let mut delivered = Delivered { is_wanted: publication.retain, receivers: refusals, refusals };
        let (is_full, message) = FANOUT.with_borrow_mut(|fanout| {
            // Messages of QoS 0 mostly do without.
            let number = if publication.qos.is_acknowledged() { fanout.begin_message() } else { 0 };
            let held = if router.durable.is_some() { self.origin.hold(publication, fanout) } else { None };
            if !matches.is_empty() {
                let may_be_kept = router.durable.is_some();
                let mut message = Message::new(publication, matches.topic, may_be_kept, number, now);
                self.origin.deliver(router, matches, &mut message, fanout, &mut delivered);
            }
            if delivered.refusals > 0 && number != 0 {
                let has_reached_some = delivered.refusals < delivered.receivers;
                self.origin.refuse(delivered.refusals, has_reached_some, held, fanout);
            }
            (fanout.is_full(), number)
        });
        if is_full {
            self.origin.hand_over(router, now.at);
        }
        let Delivered { receivers, refusals, .. } = delivered;
        Published { reason: delivered.reason(), safe_at, message, receivers, refusals }
    }

    /// As [`Publisher::publish`], for a message to a topic that was published to lately, and may be again: if it may,
    /// asks `is_allowed`. `false`, and nothing is done, for every other.
    #[inline]
    pub(crate) fn publish_plain(
        &mut self,
        router: &Router,
        plain: PlainPublish<'_>,
        is_allowed: impl FnOnce(&TopicName) -> bool,
        now: Moment,
    ) -> bool {
        let Some(KnownRoute { topic: name, matches, .. }) =
            self.routes.as_mut().and_then(|routes| routes.find_known(router, plain.topic()))
        else {
            return false;
        };
        if !is_allowed(name) {
            return false;
        }
        if !matches.is_empty() {
            let mut message = Message::plain(plain, name, matches.topic, now);
            let is_full = FANOUT.with_borrow_mut(|fanout| {
                self.origin.deliver(router, matches, &mut message, fanout, &mut Delivered::default());
                fanout.is_full()
            });
            if is_full {
                self.origin.hand_over(router, now.at);
            }
        }
        true
    }

    /// Hands the collected messages to their receivers, each of whom is woken once.
    pub(crate) fn flush(&mut self, router: &Router, now: Instant) -> Flushed {
        self.origin.hand_over(router, now);
        FANOUT.with_borrow_mut(|fanout| Flushed {
            pressure: fanout.take_pressure(),
            safe_at: fanout.take_safe_at(),
            refused: fanout.take_refused(),
        })
    }

    /// Whether a subscription of a client matches the topic.
    pub(crate) fn is_wanted(&mut self, router: &Router, topic: &TopicName) -> bool {
        !self.origin.routes(&mut self.routes).find(router, topic).is_empty()
    }

    /// Whether what was published since the last call came back to the publisher itself.
    pub(crate) fn take_reached_itself(&mut self) -> bool {
        std::mem::take(&mut self.origin.reached_itself)
    }
}

/// Whether a message goes to anybody.
#[derive(Debug, Default, Clone, Copy)]
struct Delivered {
    /// Somebody has subscribed to it, or will.
    is_wanted: bool,
    /// Sessions, share groups, and the store of retained messages where that refuses it.
    receivers: u32,
    /// So many of them have no room.
    refusals: u32,
}

impl Delivered {
    /// What the publisher is told.
    fn reason(self) -> ReasonCode {
        match self {
            Self { refusals: 1.., .. } => ReasonCode::QuotaExceeded,
            Self { is_wanted: true, .. } => ReasonCode::Success,
            Self { is_wanted: false, .. } => ReasonCode::NoMatchingSubscribers,
        }
    }
}

impl Origin {
    /// The route cache, charged to the publisher's account.
    #[inline]
    fn routes<'a>(&self, routes: &'a mut Option<Box<RouteCache>>) -> &'a mut RouteCache {
        routes.get_or_insert_with(|| self.no_routes())
    }

    #[cold]
    fn no_routes(&self) -> Box<RouteCache> {
        Box::new(RouteCache::new(self.own.as_ref().and_then(|own| own.account())))
    }

    /// What is collected goes to its receivers: never within a message, whose places are appended together.
    fn hand_over(&mut self, router: &Router, now: Instant) {
        let has_left = FANOUT.with_borrow_mut(|fanout| {
            fanout.flush(router.durable(), now);
            fanout.has_left()
        });
        if has_left {
            self.give_what_is_left(router, now);
        }
    }

    /// What members do not take any more goes to others, and then what waits with groups goes there.
    #[cold]
    fn give_what_is_left(&mut self, router: &Router, now: Instant) {
        let (returned, waiting) = FANOUT.with_borrow_mut(|fanout| (fanout.take_returned(), fanout.take_waiting()));
        let mut refused = Refused::default();
        if !returned.is_empty() {
            router.choose_again(returned, now, &mut refused, &mut self.rng);
        }
        for (group, delivery) in waiting {
            group.wait(std::iter::once(delivery), router.clock.moment(now), &mut refused, &mut self.rng);
        }
        FANOUT.with_borrow_mut(|fanout| refused.messages.into_iter().for_each(|message| fanout.refuse(message)));
        // What was meant for a member that keeps nothing may be kept now.
        if let Some(durable) = router.durable() {
            FANOUT.with_borrow_mut(|fanout| fanout.append_until(durable.all_messages()));
        }
    }

    /// Keeps the Packet Identifier of a QoS 2 message whose publisher is known after a restart `[MQTT-4.3.3-10]`, if it is.
    fn hold(&self, publication: &Publication, fanout: &mut Fanout) -> Option<PublisherId> {
        let ack = publication.ack.filter(|ack| ack.qos == QoS::ExactlyOnce);
        let queue = ack.and_then(|_| self.own.as_ref()?.keeps_in());
        let held = ack.zip(queue).map(|(ack, queue)| queue.publishes(ack.packet_id));
        held.into_iter().for_each(|held| fanout.hold(held));
        held
    }

    /// So many receivers refuse the message. Whoever can be told keeps no Packet Identifier `[MQTT-4.3.3-9]`, but where others
    /// have got the message that is known after a restart too.
    #[cold]
    fn refuse(&self, refusals: u32, has_reached_some: bool, held: Option<PublisherId>, fanout: &mut Fanout) {
        if self.tells_refusals || !has_reached_some {
            fanout.release();
        }
        if let Some(held) = held.filter(|_| self.tells_refusals && has_reached_some) {
            fanout.hold(as_refused(held));
        }
        (0..refusals).for_each(|_| fanout.refuse_this());
    }

    fn deliver(
        &mut self,
        router: &Router,
        matches: &MatchSet,
        message: &mut Message<'_>,
        fanout: &mut Fanout,
        delivered: &mut Delivered,
    ) {
        self.deliver_to_targets(router, matches, message, fanout, delivered);
        if !matches.groups.is_empty() {
            self.deliver_to_groups(router, matches, message, fanout, delivered);
        }
    }

    fn deliver_to_targets(
        &mut self,
        router: &Router,
        matches: &MatchSet,
        message: &mut Message<'_>,
        fanout: &mut Fanout,
        delivered: &mut Delivered,
    ) {
        let mut following = matches.targets.len() + matches.groups.len();
        for target in &matches.targets {
            following -= 1;
            if let Some(terms) = target.terms_for(self.number) {
                self.reached_itself |= target.number == self.number;
                let is_acknowledged = message.is_acknowledged_by(terms);
                let kept = if message.is_kept_for(terms) { target.outbox.collects_in() } else { None };
                delivered.receivers += 1;
                if is_acknowledged
                    && (target.outbox.is_over_quota(message.now.at)
                        || (kept.is_some() && !self.takes_room(router, matches, message, fanout)))
                {
                    target.outbox.refuse(target.number);
                    delivered.refusals += 1;
                } else {
                    let to = To { number: target.number, outbox: &target.outbox, kept };
                    message.add_to(fanout, to, terms, Share::NONE, following == 0);
                }
            }
            delivered.is_wanted = true; // one that No Local leaves out matches all the same
        }
    }

    /// Whether the disk has room for a message that has to be kept. A Will was accepted with its client's CONNECT, so it goes
    /// before what clients publish.
    fn takes_room(&self, router: &Router, matches: &MatchSet, message: &Message<'_>, fanout: &mut Fanout) -> bool {
        let places = matches.targets.len() + matches.groups.len();
        let bytes = RECORD_BYTES + message.packet_bytes as usize + PLACE_BYTES * places;
        fanout.take_room(router.durable(), bytes, self.own.is_none())
    }

    /// Whether a message has to be kept for somebody, and the disk has no room. To be asked for a publisher that is not told:
    /// it sends the message again, so nobody gets it before.
    fn waits_for_disk(&self, router: &Router, matches: &MatchSet, publication: &Publication) -> bool {
        let places = matches.targets.len() + matches.groups.len();
        let topic = publication.topic.as_bytes().len();
        let bytes = RECORD_BYTES + topic + publication.payload.len() + PLACE_BYTES * places;
        let has_room = |durable: &Durable| durable.has_room(bytes);
        if !publication.qos.is_acknowledged() || router.durable().is_none_or(has_room) {
            return false;
        }
        let is_kept = |target: &Target| {
            let is_wanted = target.terms_for(self.number).is_some_and(|terms| terms.qos.is_acknowledged());
            is_wanted && target.outbox.collects_in().is_some()
        };
        let mut targets = matches.targets.iter().filter(|target| is_kept(target));
        let target = targets.next().inspect(|target| target.outbox.refuse(target.number));
        let mut groups = matches.groups.iter().filter(|route| route.group.stored().is_some());
        let group = groups.next().inspect(|route| route.group.refuse());
        target.is_some() || group.is_some()
    }

    fn deliver_to_groups(
        &mut self,
        router: &Router,
        matches: &MatchSet,
        message: &mut Message<'_>,
        fanout: &mut Fanout,
        delivered: &mut Delivered,
    ) {
        let mut ended = false;
        let mut following = matches.groups.len();
        for route in &matches.groups {
            following -= 1;
            let is_over_quota = message.qos.is_acknowledged() && route.group.waiting.is_over_quota();
            let kept = if message.may_be_kept() { route.group.stored() } else { None };
            if (is_over_quota && route.group.is_still_over_quota(message.now.at))
                || (kept.is_some() && !self.takes_room(router, matches, message, fanout))
            {
                route.group.refuse();
                delivered.is_wanted = true;
                delivered.receivers += 1;
                delivered.refusals += 1;
                continue;
            }
            match self.deliver_to_group(router, (route, kept), message, fanout, following == 0 && !ended) {
                true => {
                    delivered.is_wanted = true;
                    delivered.receivers += 1;
                }
                false => ended = true,
            }
        }
        if ended {
            // A group that ended since the match was made may have been founded anew.
            let known = matches.groups.iter().map(|route| Arc::as_ptr(&route.group)).collect::<FxHashSet<_>>();
            for route in &router.matches(message.name).groups {
                if !known.contains(&Arc::as_ptr(&route.group)) {
                    let kept = if message.may_be_kept() { route.group.stored() } else { None };
                    if kept.is_some() && !self.takes_room(router, matches, message, fanout) {
                        route.group.refuse();
                        delivered.is_wanted = true;
                        delivered.receivers += 1;
                        delivered.refusals += 1;
                        continue;
                    }
                    let is_taken = self.deliver_to_group(router, (route, kept), message, fanout, false);
                    delivered.is_wanted |= is_taken;
                    delivered.receivers += u32::from(is_taken);
                }
            }
        }
    }

    /// `kept`: where messages of the group are kept, if this one may be.
    ///
    /// `false`: the group has no member any more; then the message is still there, even if this is the last.
    fn deliver_to_group(
        &mut self,
        router: &Router,
        (Route { group, key }, kept): (&Route, Option<Arc<StoredQueue>>),
        message: &mut Message<'_>,
        fanout: &mut Fanout,
        is_last: bool,
    ) -> bool {
        let key = key.of(message.properties(), self.client, router.index.keys()).map(held_key::of_key);
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
                let kept = kept.filter(|_| message.is_acknowledged_by(terms));
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

/// A message for which there is no room for now, and whose publisher sends it again: nobody gets it.
#[cold]
fn refuse_at_once(publication: &Publication) -> Published {
    let reason = ReasonCode::QuotaExceeded;
    let message = FANOUT.with_borrow_mut(|fanout| {
        let is_acknowledged = publication.qos.is_acknowledged();
        is_acknowledged.then(|| fanout.begin_message()).inspect(|_| fanout.refuse_this()).unwrap_or(0)
    });
    Published { reason, safe_at: SafeAt::NOW, message, receivers: 1, refusals: 1 }
}

thread_local! {
    /// Collects a batch: one a thread, not one a connection, most of which are idle. A batch is published and flushed
    /// without a wait point between.
    static FANOUT: RefCell<Fanout> = RefCell::default();
}

/// Deliveries that this thread has collected and not handed over.
#[cfg(test)]
pub(crate) fn collected() -> usize {
    FANOUT.with_borrow(Fanout::collected)
}
