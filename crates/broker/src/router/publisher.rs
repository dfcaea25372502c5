//! The publishing side of the router: routes the messages of one connection to their receivers, in order.

mod room;

use std::hash::{BuildHasher as _, RandomState};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHashSet;
use tenbin_balancer::{Dispatch, Rng};
use tenbin_codec::{PlainPublish, QoS, ReasonCode, Text, TopicName};
use tenbin_session::{PendingAck, Publication};

use super::choice::{Choice, Question, Source};
use super::delivered::{Delivered, Numbered};
use super::fanout::{Collector, Fanout};
use super::group_backlog::Refused;
use super::held_key;
use super::matches::{MatchSet, Route, Target, Terms};
use super::message::{RoutedMessage, Share, To};
use super::published::{Flushed, Published};
use super::route_cache::{KnownRoute, RouteCache};
use super::share_group::{GroupMember, dispatch};
use super::{NotRetained, Receiver, Router};
use crate::durable::{CommitPoint, PLACE_BYTES, PublisherId, RECORD_BYTES, StoredQueue, as_refused};
use crate::outbox::Outbox;
use crate::values::Moment;

/// A publisher's handle to the router, with its cache of routes.
///
/// A batch begins with a [`Collector`] and ends with [`Publisher::flush`].
#[derive(Debug)]
pub(crate) struct Publisher {
    /// Allocated with the first message: most clients publish nothing, or nothing yet.
    routes: Option<Box<RouteCache>>,
    origin: Origin,
}

/// Identity and state of a publisher.
#[derive(Debug)]
struct Origin {
    /// Number of the publishing session; 0 = the broker itself.
    number: u64,
    /// Hash of the Client Identifier.
    client: u64,
    /// The publisher's own queue; `None` if it is no client.
    own: Option<Arc<Outbox>>,
    /// The publisher can be informed of a refusal (MQTT 5.0), or no client waits for the acknowledgement.
    tells_refusals: bool,
    /// The publisher was among the receivers since the last [`Publisher::take_reached_itself`].
    reached_itself: bool,
    rng: Rng,
}

impl Publisher {
    /// Creates the publisher of a connection. `tells_refusals`: its acknowledgements have Reason Codes.
    pub(crate) fn of(router: &Router, receiver: &Receiver, client_id: &Text, tells_refusals: bool) -> Self {
        let mut publisher = Self::new(router, receiver.number, client_id);
        publisher.origin.tells_refusals = tells_refusals;
        publisher.origin.own = Some(Arc::clone(&receiver.outbox));
        publisher
    }

    /// Creates a publisher for messages that no connection publishes.
    pub(crate) fn new(router: &Router, number: u64, client_id: &Text) -> Self {
        let client = held_key::of_client(router.hash(client_id.as_bytes()));
        // `RandomState` has random keys, which differ from call to call.
        let rng = Rng::new(RandomState::new().hash_one(number));
        Self {
            routes: None,
            origin: Origin { number, client, own: None, tells_refusals: true, reached_itself: false, rng },
        }
    }

    /// Routes one message to all its receivers; they get it with [`Publisher::flush`].
    ///
    /// If the message cannot be retained, or some receivers have no room for it, the others still get it. Only
    /// [`Publisher::flush`] knows for sure which receivers have no room.
    pub(crate) fn publish(
        &mut self,
        router: &Router,
        collector: &mut Collector,
        publication: &Publication,
        now: Moment,
    ) -> Published {
        // Retain before routing, so that a concurrent SUBSCRIBE sees the message exactly once: as a retained message,
        // or as a delivery. A page that holds the topic's previous retained message is also sent before this message
        // leaves a queue.
        let (mut commit_point, mut is_store_full, mut is_unseen) = (CommitPoint::NOW, false, false);
        if publication.retain {
            match router.retain(publication, self.origin.own.is_none(), now.at) {
                Ok(at) => commit_point = at,
                // A publisher that cannot be informed sends the message again, so no receiver may get it now.
                Err(NotRetained::DiskBehind) if !self.origin.tells_refusals && publication.qos.is_acknowledged() => {
                    return refuse_at_once(publication, collector.fanout());
                }
                // At this limit, a second attempt would not help.
                Err(NotRetained::AtLimit(at)) => {
                    (commit_point, is_store_full) = (at, self.origin.tells_refusals);
                    is_unseen = !is_store_full;
                }
                Err(NotRetained::DiskBehind) => is_store_full = true,
            }
        }
        let matches = self.origin.routes(&mut self.routes).find(router, &publication.topic);
        let bytes = publication.topic.as_bytes().len() + publication.payload.len();
        if self.origin.may_wait_for_disk(router, matches, publication.qos, bytes) && self.origin.is_kept_by_any(matches)
        {
            return refuse_at_once(publication, collector.fanout());
        }
        // The store of retained messages counts as a receiver without room.
        let refusals = u32::from(is_store_full);
        let delivered = Delivered { is_wanted: publication.retain, receivers: refusals, refusals };
        let fanout = collector.fanout();
        // QoS 0 messages mostly need no number. One that a hook has made of a QoS 2 message needs it for its identifier.
        let is_held = publication.ack.is_some_and(|ack| ack.qos == QoS::ExactlyOnce);
        let number = if publication.qos.is_acknowledged() || is_held { fanout.begin_message() } else { 0 };
        let may_be_kept = router.durable.is_some();
        let routed = || RoutedMessage::new(publication, matches.topic, may_be_kept, number, now);
        let numbered = Numbered { ack: publication.ack, number, now: now.at };
        let delivered = self.origin.publish(router, matches, numbered, routed, fanout, delivered);
        delivered.published(number, commit_point, is_unseen)
    }

    /// Publishes a plain message of QoS 1 or 2 whose topic is in the route cache, if `is_allowed` permits the topic and
    /// `is_taken` the message.
    ///
    /// Returns `None`, without any effect, if the topic is not cached or not allowed, or the message is not taken or may have
    /// to be refused.
    pub(crate) fn publish_acknowledged(
        &mut self,
        router: &Router,
        collector: &mut Collector,
        (plain, ack): (PlainPublish<'_>, PendingAck),
        is_allowed: impl FnOnce(&TopicName) -> bool,
        is_taken: impl FnOnce() -> bool,
        now: Moment,
    ) -> Option<Published> {
        let routes = self.routes.as_mut()?;
        let KnownRoute { topic: name, matches, .. } = routes.find_known(router, plain.topic())?;
        let bytes = plain.topic().len() + plain.payload().len();
        if !is_allowed(name) || self.origin.may_wait_for_disk(router, matches, ack.qos, bytes) || !is_taken() {
            return None;
        }
        let fanout = collector.fanout();
        let number = fanout.begin_message();
        let may_be_kept = router.durable.is_some();
        let routed = || RoutedMessage::acknowledged((plain, ack.qos), name, matches.topic, may_be_kept, number, now);
        let numbered = Numbered { ack: Some(ack), number, now: now.at };
        let delivered = self.origin.publish(router, matches, numbered, routed, fanout, Delivered::default());
        Some(delivered.published(number, CommitPoint::NOW, false))
    }

    /// Publishes a message whose topic is in the route cache, if `is_allowed` permits the topic.
    ///
    /// Returns `false`, without any effect, if the topic is not cached or not allowed.
    #[inline]
    pub(crate) fn publish_plain(
        &mut self,
        router: &Router,
        collector: &mut Collector,
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
            let mut message = RoutedMessage::plain(plain, name, matches.topic, now);
            let fanout = collector.fanout();
            self.origin.deliver(router, matches, &mut message, fanout, &mut Delivered::default());
            if fanout.is_full() {
                self.origin.hand_over(router, fanout, now.at);
            }
        }
        true
    }

    /// Hands the collected messages to their receivers, each of which is woken once.
    #[inline] // one caller, once for each batch
    pub(crate) fn flush(&mut self, router: &Router, collector: &mut Collector, now: Instant) -> Flushed {
        let Some(fanout) = collector.begun() else { return Flushed::NOTHING };
        self.origin.hand_over(router, fanout, now);
        Flushed {
            pressure: fanout.take_pressure(),
            commit_point: fanout.take_safe_at(),
            refused: fanout.take_refused(),
            holding: fanout.take_holding(),
        }
    }

    /// Returns whether a client's subscription matches the topic.
    pub(crate) fn is_wanted(&mut self, router: &Router, topic: &TopicName) -> bool {
        !self.origin.routes(&mut self.routes).find(router, topic).is_empty()
    }

    /// Returns whether the publisher received one of its messages since the last call.
    pub(crate) fn take_reached_itself(&mut self) -> bool {
        std::mem::take(&mut self.origin.reached_itself)
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

    /// Routes a message to its receivers.
    #[inline(always)] // called in two places
    fn publish<'a>(
        &mut self,
        router: &Router,
        matches: &MatchSet,
        Numbered { ack, number, now }: Numbered,
        routed: impl FnOnce() -> RoutedMessage<'a>,
        fanout: &mut Fanout,
        mut delivered: Delivered,
    ) -> Delivered {
        let held = if router.durable.is_some() { self.hold(ack, fanout) } else { None };
        if !matches.is_empty() {
            self.deliver(router, matches, &mut routed(), fanout, &mut delivered);
        }
        if delivered.refusals > 0 && number != 0 {
            let has_reached_some = delivered.refusals < delivered.receivers;
            self.refuse(delivered.refusals, has_reached_some, held, fanout);
        }
        if fanout.is_full() {
            self.hand_over(router, fanout, now);
        }
        delivered
    }

    /// Hands over the collected deliveries. Only between messages: the entries of one message are appended together.
    fn hand_over(&mut self, router: &Router, fanout: &mut Fanout, now: Instant) {
        fanout.flush(router.durable(), now);
        if fanout.has_left() {
            self.give_what_is_left(router, fanout, now);
        }
    }

    /// Redelivers messages that members returned, then adds waiting messages to their group backlogs.
    #[cold]
    fn give_what_is_left(&mut self, router: &Router, fanout: &mut Fanout, now: Instant) {
        let (returned, waiting) = (fanout.take_returned(), fanout.take_waiting());
        let mut refused = Refused::of(self.client);
        if !returned.is_empty() {
            router.choose_again(returned, now, &mut refused, &mut self.rng);
        }
        for (group, delivery) in waiting {
            group.wait(std::iter::once(delivery), router.clock.moment(now), &mut refused, &mut self.rng);
        }
        refused.messages.into_iter().for_each(|message| fanout.refuse(message));
        fanout.hold_by(refused.holding);
        // A message chosen for a member without a stored queue may have been stored now.
        if let Some(durable) = router.durable() {
            fanout.append_until(durable.all_messages());
        }
    }

    /// Stores the Packet Identifier of a QoS 2 message `[MQTT-4.3.3-10]`, if the publisher's session survives a
    /// restart.
    fn hold(&self, ack: Option<PendingAck>, fanout: &mut Fanout) -> Option<PublisherId> {
        let ack = ack.filter(|ack| ack.qos == QoS::ExactlyOnce);
        let queue = ack.and_then(|_| self.own.as_ref()?.keeps_in());
        let held = ack.zip(queue).map(|(ack, queue)| queue.publishes(ack.packet_id));
        held.into_iter().for_each(|held| fanout.hold(held));
        held
    }

    /// Records that `refusals` receivers refuse the message.
    ///
    /// A publisher that can be informed keeps no Packet Identifier `[MQTT-4.3.3-9]`. If other receivers got the
    /// message, a record of the refusal survives a restart.
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

    #[inline(always)] // for plain messages, a call costs 2 % of the message
    fn deliver(
        &mut self,
        router: &Router,
        matches: &MatchSet,
        message: &mut RoutedMessage<'_>,
        fanout: &mut Fanout,
        delivered: &mut Delivered,
    ) {
        if !matches.targets.is_empty() {
            delivered.is_wanted = true; // a subscription that No Local leaves out matches all the same
            match message.qos.is_acknowledged() {
                true => self.deliver_to_targets::<true>(router, matches, message, fanout, delivered),
                false => self.deliver_to_targets::<false>(router, matches, message, fanout, delivered),
            }
        }
        if !matches.groups.is_empty() {
            self.deliver_to_groups(router, matches, message, fanout, delivered);
        }
    }

    /// `MAY_BE_ACKNOWLEDGED`: the message has QoS 1 or 2. The loop without that asks little of each receiver.
    fn deliver_to_targets<const MAY_BE_ACKNOWLEDGED: bool>(
        &mut self,
        router: &Router,
        matches: &MatchSet,
        message: &mut RoutedMessage<'_>,
        fanout: &mut Fanout,
        delivered: &mut Delivered,
    ) {
        let may_be_kept = message.may_be_kept();
        let mut targets = matches.targets.iter();
        while let Some(target) = targets.next() {
            let is_last = targets.as_slice().is_empty() && matches.groups.is_empty();
            if let Some(terms) = target.terms_for(self.number) {
                if target.number == self.number {
                    self.reached_itself = true;
                }
                let is_acknowledged = MAY_BE_ACKNOWLEDGED && terms.qos.is_acknowledged();
                let kept = if is_acknowledged && may_be_kept { target.outbox.collects_in(true) } else { None };
                delivered.receivers += 1;
                if is_acknowledged
                    && (target.outbox.is_over_quota(message.now.at)
                        || (kept.is_some() && !self.takes_room(router, matches, message, fanout)))
                {
                    target.outbox.refuse(target.number);
                    delivered.refusals += 1;
                } else {
                    let to = To { number: target.number, outbox: &target.outbox, kept };
                    message.add_to(fanout, to, terms, Share::NONE, is_last);
                }
            }
        }
    }

    fn deliver_to_groups(
        &mut self,
        router: &Router,
        matches: &MatchSet,
        message: &mut RoutedMessage<'_>,
        fanout: &mut Fanout,
        delivered: &mut Delivered,
    ) {
        let mut ended = false;
        let mut following = matches.groups.len();
        for route in &matches.groups {
            following -= 1;
            let is_over_quota = message.qos.is_acknowledged() && route.group.backlog.is_over_quota();
            let kept = if message.may_be_kept() { route.group.stored() } else { None };
            if (is_over_quota && route.group.is_still_over_quota(self.client, message.now, &mut self.rng))
                || (kept.is_some() && !self.takes_room(router, matches, message, fanout))
            {
                delivered.refused_by(&route.group);
                continue;
            }
            let is_taken = self.deliver_to_group(router, (route, kept), message, fanout, following == 0 && !ended);
            delivered.taken_by_group(is_taken);
            ended |= !is_taken;
        }
        if ended {
            // A group that ended after the match was made may have been created again.
            let known = matches.groups.iter().map(|route| Arc::as_ptr(&route.group)).collect::<FxHashSet<_>>();
            for route in &router.matches(message.name).groups {
                if !known.contains(&Arc::as_ptr(&route.group)) {
                    let kept = if message.may_be_kept() { route.group.stored() } else { None };
                    if kept.is_some() && !self.takes_room(router, matches, message, fanout) {
                        delivered.refused_by(&route.group);
                        continue;
                    }
                    let is_taken = self.deliver_to_group(router, (route, kept), message, fanout, false);
                    delivered.taken_by_group(is_taken);
                }
            }
        }
    }

    /// Delivers the message to one group. `kept`: the group's stored queue, if this message may be stored.
    ///
    /// Returns `false` if the group has ended. The message's template is still there then, even if `is_last`.
    fn deliver_to_group(
        &mut self,
        router: &Router,
        (Route { group, key }, kept): (&Route, Option<Arc<StoredQueue>>),
        message: &mut RoutedMessage<'_>,
        fanout: &mut Fanout,
        is_last: bool,
    ) -> bool {
        let key = key.of(message.properties(), self.client, router.index.keys()).map(held_key::of_key);
        // If a member has left in between, this publisher's messages for it will come back and must go before this one.
        let since = key.filter(|_| message.qos.is_acknowledged()).map(|_| group.backlog.membership_epoch());
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
        let question = Question {
            group,
            members: &members,
            dispatch: &dispatch,
            source: Source::Client,
            topic,
            #[cfg(feature = "otel")]
            template: message.with_properties(),
        };
        let choice = match has_missed || follows_waiting {
            true if question.has_ended() => Choice::Ended,
            true => Choice::Nobody,
            false => question.choose_for_new(since, fanout.burst(), &mut self.rng),
        };
        #[cfg(feature = "otel")]
        if question.template.is_some() && matches!(choice, Choice::Nobody) {
            question.note_waiting();
        }
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
                // The member that gets it later applies its own terms.
                let any = Terms { qos: message.qos, retain_as_published: true, identifiers: None };
                let delivery = message.delivery(&any, share, is_last);
                fanout.add_waiting(group, delivery);
                true
            }
            Choice::Nobody => {
                group.drop_unacknowledged();
                true
            }
            Choice::Ended => false,
        }
    }
}

/// Refuses a message for all receivers: there is no room for it now, and its publisher sends it again.
#[cold]
fn refuse_at_once(publication: &Publication, fanout: &mut Fanout) -> Published {
    let reason = ReasonCode::QuotaExceeded;
    let is_acknowledged = publication.qos.is_acknowledged();
    let message = is_acknowledged.then(|| fanout.begin_message()).inspect(|_| fanout.refuse_this()).unwrap_or(0);
    Published { reason, commit_point: CommitPoint::NOW, message, receivers: 1, refusals: 1, is_unseen: false }
}
