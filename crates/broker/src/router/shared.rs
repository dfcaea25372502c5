use std::hash::{BuildHasher as _, RandomState};
use std::num::{NonZeroU16, NonZeroU64};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwapOption;
use tenbin_balancer::{Availability, Dispatch, Explanation, Group, Member, MemberId, Members, Nanos, Rng, Standing};
use tenbin_codec::{QoS, SharedFilter, Text, TopicName};
use tenbin_session::Delivery;

use super::decisions::{Decision, DecisionLimits, Decisions};
use super::held_key;
use super::matches::Terms;
use super::ordering_key::{OrderingKey, TopicKey};
use super::share_rules::GroupRules;
use super::{Grant, Receiver};
use crate::clock::Moment;
use crate::metrics::Metrics;
use crate::outbox::{Booked, Budget, Outbox, OutboxLimits, Queue, Reader, Tally};

/// The sessions that share one subscription, named by share name and filter (MQTT 5.0 §4.8.2).
///
/// A message goes to one connected member. While nobody is connected, or all who are drain, the messages wait in the
/// group's own queue, and the first member that comes back gets them: no member's queue holds what another could do meanwhile.
#[derive(Debug)]
pub(crate) struct SharedGroup {
    /// What names it.
    name: SharedFilter,
    pub(super) members: Group<GroupMember>,
    /// By what its messages keep their order; `None` = not at all. Stored with the rules of `members`, loaded when a
    /// route is made and when a message is given to another member.
    key: ArcSwapOption<OrderingKey>,
    /// What [`Delivery::share`] says of this group's messages.
    number: NonZeroU64,
    waiting: Mutex<Queue>,
    pub(super) decisions: Decisions,
    /// Messages that went to members who have left. Added to by whoever takes one out; relaxed.
    given_to_others: AtomicU64,
    queues: Arc<GroupQueues>,
}

/// What all groups have in common.
#[derive(Debug)]
pub(crate) struct GroupQueues {
    /// Of the keys and names that a group may choose by.
    pub(crate) hasher: RandomState,
    pub(crate) limits: OutboxLimits,
    pub(crate) budget: Arc<Budget>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) decisions: Arc<DecisionLimits>,
}

/// What a delivery to a member needs.
#[derive(Debug)]
pub(super) struct GroupMember {
    pub(super) outbox: Arc<Outbox>,
    /// Each member has its own QoS `[MQTT-4.8.2-3]`.
    pub(super) terms: Terms,
    weight: NonZeroU16,
    pub(super) client_id: Text,
    /// What it has got of this group.
    pub(super) tally: Arc<Tally>,
}

/// Who gets a message.
pub(super) enum Choice<'a> {
    Member(&'a GroupMember),
    /// There are members, and none is connected, or none that does not drain.
    Nobody,
    /// The group has ended.
    NoMember,
}

impl SharedGroup {
    pub(super) fn new(name: SharedFilter, rules: GroupRules, number: NonZeroU64, queues: Arc<GroupQueues>) -> Self {
        let key = ArcSwapOption::from_pointee(rules.key);
        Self {
            name,
            members: Group::new(rules.rules),
            key,
            number,
            waiting: Mutex::default(),
            decisions: Decisions::new(Arc::clone(&queues.decisions)),
            given_to_others: AtomicU64::new(0),
            queues,
        }
    }

    /// What names it.
    pub(super) fn name(&self) -> &SharedFilter {
        &self.name
    }

    /// Chooses by `rules` from now on; whether that is a change. Routes that were made before go by the old key.
    pub(super) fn set_rules(&self, GroupRules { rules, key }: GroupRules) -> bool {
        let is_changed = self.members.rules() != rules || self.key.load().as_deref() != key.as_ref();
        if is_changed {
            self.key.store(key.map(Arc::new));
            self.members.set_rules(rules);
        }
        is_changed
    }

    /// By what messages to `topic` keep their order in this group.
    pub(super) fn key_of_topic(&self, topic: &TopicName) -> TopicKey {
        self.key.load().as_ref().map_or(TopicKey::None, |key| key.of_topic(topic, &self.queues.hasher))
    }

    pub(crate) fn number(&self) -> NonZeroU64 {
        self.number
    }

    /// Adds a member, or replaces what is known of it.
    pub(super) fn join(&self, receiver: &Receiver, mut member: GroupMember, now: Nanos) {
        if let Some(known) = self.members.members().iter().find(|known| known.id() == MemberId(receiver.number)) {
            member.tally = Arc::clone(&known.value().tally);
        }
        // First: whom the members show may be chosen.
        member.outbox.join_group(self.number, Arc::clone(&member.tally));
        // The session's number changes when a session ends; what is hashed stays with the client all the same.
        let identity = self.queues.hasher.hash_one(member.client_id.as_bytes());
        let standing = Standing { weight: member.weight.get().into(), identity };
        self.members.join_with(MemberId(receiver.number), standing, Arc::clone(&receiver.load), member, now);
    }

    /// Takes a member out. A publisher that has chosen it already gets its message back from the member's queue.
    pub(super) fn leave(&self, number: u64) {
        let members = self.members.members();
        if let Some(member) = members.iter().find(|member| member.id() == MemberId(number)) {
            self.members.leave(member.id());
            member.value().outbox.leave_group(self.number);
            self.given_to_others.fetch_add(member.value().tally.get(), Ordering::Relaxed);
        }
    }

    /// Messages that members have got, those who have left included.
    pub(super) fn given(&self, members: &Members<'_, GroupMember>) -> u64 {
        let given: u64 = members.iter().map(|member| member.value().tally.get()).sum();
        given + self.given_to_others.load(Ordering::Relaxed)
    }

    /// Messages that wait because no member takes anything new.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Chooses a member for a message to `topic`.
    #[inline]
    pub(super) fn choose<'a>(
        &self,
        members: &'a Members<'_, GroupMember>,
        dispatch: &Dispatch,
        topic: &[u8],
        rng: &mut Rng,
    ) -> Choice<'a> {
        if self.decisions.is_due(dispatch.at) && self.decisions.claim(dispatch.at, members.len()) {
            let Some((member, explanation)) = members.pick_explained(dispatch, rng) else { return Choice::NoMember };
            let choice = Self::settle(members, member, dispatch);
            self.tell(members, dispatch, topic, (member, explanation), &choice);
            return choice;
        }
        match members.pick(dispatch, rng) {
            Some(member) => Self::settle(members, member, dispatch),
            None => Choice::NoMember,
        }
    }

    /// Keeps how the balancer came to pick a member, and what became of that.
    #[cold]
    fn tell(
        &self,
        members: &Members<'_, GroupMember>,
        dispatch: &Dispatch,
        topic: &[u8],
        (member, explanation): (&Member<GroupMember>, Explanation),
        choice: &Choice<'_>,
    ) {
        let (chosen, reason) = match choice {
            Choice::Member(chosen) if std::ptr::eq(*chosen, member.value()) => {
                (Some(&chosen.client_id), explanation.reason.name())
            }
            Choice::Member(chosen) => (Some(&chosen.client_id), "packet_size"),
            Choice::Nobody | Choice::NoMember => (None, "nobody"),
        };
        // Both are in join order.
        let mut known = members.iter();
        let named = explanation.candidates.iter().filter_map(|candidate| {
            let member = known.find(|member| member.id() == candidate.member)?;
            Some((member.value().client_id.clone(), *candidate))
        });
        let decision = Decision {
            number: 0,
            at: dispatch.at,
            topic: beginning(&String::from_utf8_lossy(topic)).into(),
            bytes: dispatch.bytes,
            policy: members.rules().policy,
            chosen: chosen.cloned(),
            reason,
            members: explanation.members,
            candidates: named.collect(),
            unrecorded: 0,
        };
        self.decisions.keep(decision, self.given(members));
    }

    /// Who gets a message that a pick has booked on `member`.
    fn settle<'a>(
        members: &'a Members<'_, GroupMember>,
        member: &'a Member<GroupMember>,
        dispatch: &Dispatch,
    ) -> Choice<'a> {
        // Who drains wants nothing new; QoS 0, which does not wait for better times, is better off there than lost.
        let takes_new = |member: &Member<GroupMember>| {
            let load = member.load();
            load.availability() != Availability::Offline && !(dispatch.is_acknowledged && load.is_draining())
        };
        let packet_bytes = dispatch.bytes as usize;
        if !takes_new(member) {
            Self::take_back(members, member, dispatch);
            return Choice::Nobody;
        }
        if member.value().outbox.takes(packet_bytes) {
            return Choice::Member(member.value());
        }
        // Another one may take larger packets; if none does, the chosen one drops it by the rule.
        let able = |other: &Member<GroupMember>| takes_new(other) && other.value().outbox.takes(packet_bytes);
        let Some(able) = members.pick_where(dispatch, able) else { return Choice::Member(member.value()) };
        Self::take_back(members, member, dispatch);
        Choice::Member(able.value())
    }

    /// A pick has booked a message on a member who does not get it.
    fn take_back(members: &Members<'_, GroupMember>, member: &Member<GroupMember>, dispatch: &Dispatch) {
        member.load().taken_back(1, dispatch.bytes.into(), dispatch.at);
        if let Some(key) = dispatch.key.filter(|_| dispatch.is_acknowledged) {
            members.key_done(key, member.id());
        }
    }

    /// Keeps a message until a member is connected and has room, as it was published: whoever gets it has terms of its
    /// own. QoS 0 does not wait.
    pub(super) fn wait(&self, delivery: Delivery, now: Moment, rng: &mut Rng) {
        let delivery = delivery.as_published();
        if !delivery.qos.is_acknowledged() {
            self.queues.metrics.dropped_offline.add(1);
            return;
        }
        let GroupQueues { limits, budget, .. } = &*self.queues;
        let (dropped, expired) = self.change_waiting(|waiting| {
            let dropped = waiting.push(delivery, Reader::Absent, limits, budget, now.at);
            (dropped, waiting.take_expired())
        });
        // What waits here is booked on nobody.
        self.queues.metrics.dropped_queue_full.add(dropped.messages);
        self.queues.metrics.dropped_expired.add(expired.messages);
        // Whoever connected since the choice may have looked before the message was here.
        self.dispatch_waiting(now, rng);
    }

    /// Gives what waits to the members that are connected, as far as they have room. To be called when one has
    /// connected or joined, or has room again.
    pub(super) fn dispatch_waiting(&self, now: Moment, rng: &mut Rng) {
        // The lock keeps two dispatchers from mixing up the order; outboxes are the only locks taken under it.
        self.change_waiting(|waiting| {
            let mut next = Vec::new();
            loop {
                waiting.take(1, 1, &mut next, &self.queues.budget);
                let Some(delivery) = next.pop() else { return };
                if let Some(delivery) = self.place(delivery, now, rng) {
                    waiting.push_front(delivery.as_published(), &self.queues.budget);
                    return;
                }
            }
        });
    }

    /// Gives one message, taken back from a member or from the queue, to a connected member. It comes back where there
    /// is none, or none with room.
    pub(super) fn place(&self, mut delivery: Delivery, now: Moment, rng: &mut Rng) -> Option<Delivery> {
        // One that has just left or filled up is not chosen again while another is there.
        for _ in 0..=self.members.len() {
            let members = self.members.members();
            let dispatch = self.dispatch_again(&delivery, now.nanos);
            let member = match self.choose(&members, &dispatch, delivery.template.topic(), rng) {
                Choice::Member(member) => member,
                Choice::Nobody | Choice::NoMember => return Some(delivery),
            };
            delivery = Self::hand_to(member, delivery, now)?;
        }
        Some(delivery)
    }

    /// Puts a message that another one had into this member's queue. It comes back where that has no room, or is no
    /// member's any more.
    pub(super) fn hand_to(member: &GroupMember, delivery: Delivery, now: Moment) -> Option<Delivery> {
        let mut returned = Vec::new();
        member.outbox.push(&mut vec![readdressed(delivery, &member.terms)], &mut returned, now.at);
        returned.pop()
    }

    /// What the balancer gets to know of a message that it chose a member for before.
    pub(super) fn dispatch_again(&self, delivery: &Delivery, at: Nanos) -> Dispatch {
        let chosen_by = delivery.share_key.map(NonZeroU64::get);
        Dispatch {
            publisher: chosen_by.unwrap_or_default(),
            topic: self.queues.hasher.hash_one(delivery.template.topic()),
            key: held_key::ordering_key(delivery.share_key),
            ..dispatch(Booked::packet_bytes(&delivery.template), delivery.published_qos, at)
        }
    }

    /// Changes what waits, and tells the budget of all queues.
    fn change_waiting<R>(&self, change: impl FnOnce(&mut Queue) -> R) -> R {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut waiting);
        waiting.settle(&self.queues.budget);
        result
    }
}

impl Drop for SharedGroup {
    fn drop(&mut self) {
        let dropped = self.change_waiting(|waiting| waiting.clear(&self.queues.budget));
        self.queues.metrics.dropped_offline.add(dropped.messages);
    }
}

impl GroupMember {
    pub(super) fn new(receiver: &Receiver, grant: Grant) -> Self {
        let client_id = receiver.rights.principal().client_id.clone();
        let (terms, weight) = (grant.terms(), grant.weight);
        Self { outbox: Arc::clone(&receiver.outbox), terms, weight, client_id, tally: Arc::default() }
    }
}

/// As much of a name as is told of it.
pub(super) fn beginning(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME_BYTES_MAX)]
}

/// What the balancer gets to know of a message of `bytes`, see [`Booked::packet_bytes`].
pub(super) fn dispatch(bytes: u32, qos: QoS, at: Nanos) -> Dispatch {
    Dispatch { at, bytes, is_acknowledged: qos.is_acknowledged(), ..Dispatch::default() }
}

/// A delivery as another member gets it: by what was published, not by what the member before was granted.
fn readdressed(delivery: Delivery, terms: &Terms) -> Delivery {
    Delivery {
        qos: QoS::min(delivery.published_qos, terms.qos), // [MQTT-3.8.4-8]
        retain: delivery.published_retain && terms.retain_as_published, // [MQTT-3.3.1-12], [MQTT-3.3.1-13]
        subscription_identifiers: terms.identifiers.clone(),
        ..delivery
    }
}

/// Of topics and Client Identifiers in what is told of a group, which may be as long as 65,535 bytes.
const NAME_BYTES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use bytes::{Bytes, BytesMut};
    use tenbin_balancer::{MemberLoad, Policy};
    use tenbin_codec::{SubscriptionOptions, TopicFilter};
    use tenbin_session::Publication;

    use super::*;
    use crate::auth::Rights;
    use crate::clock::Clock;
    use crate::outbox::WhenFull;

    struct Stage {
        group: SharedGroup,
        now: Moment,
    }

    impl Stage {
        fn new() -> Self {
            let limits = OutboxLimits { messages: 100, bytes: 1 << 20, when_full: WhenFull::DropOldest };
            let (budget, metrics) = (Arc::new(Budget::new(1 << 20)), Arc::<Metrics>::default());
            let queues = Arc::new(GroupQueues {
                hasher: RandomState::new(),
                limits,
                budget,
                metrics,
                decisions: Arc::new(DecisionLimits::new(8, Duration::ZERO)),
            });
            let name = TopicFilter::try_from("$share/g/t").unwrap().shared().unwrap();
            let rules = GroupRules { rules: Policy::RoundRobin.into(), key: None };
            let group = SharedGroup::new(name, rules, NonZeroU64::MIN, queues);
            Self { group, now: Clock::new().moment(Instant::now()) }
        }

        fn member(&self, number: u64, qos: QoS, retain_as_published: bool) -> Arc<Outbox> {
            let GroupQueues { limits, budget, metrics, .. } = &*self.group.queues;
            let load = Arc::new(MemberLoad::new(Nanos(0)));
            let (budget, metrics) = (Arc::clone(budget), Arc::clone(metrics));
            let outbox = Arc::new(Outbox::new(*limits, Arc::clone(&load), budget, metrics, Clock::new()));
            let rights = Arc::new(Rights::unlimited());
            let receiver = Receiver { number, outbox: Arc::clone(&outbox), load, rights };
            let options = SubscriptionOptions { retain_as_published, ..SubscriptionOptions::at(qos) };
            let grant = Grant { options, identifier: Some(number as u32), weight: NonZeroU16::MIN };
            self.group.join(&receiver, GroupMember::new(&receiver, grant), Nanos(0));
            outbox
        }

        fn published(&self, qos: QoS) -> Delivery {
            let topic = TopicName::try_from("t").unwrap();
            let template = Publication::new(topic, Bytes::from_static(b"x")).template(&mut BytesMut::new());
            Delivery { share: Some(self.group.number), ..Delivery::new(template, qos, true) }
        }
    }

    /// QoS, RETAIN and the Subscription Identifier of what waits.
    fn taken(outbox: &Outbox) -> Vec<(QoS, bool, u32)> {
        let mut taken = Vec::new();
        outbox.take_now(100, 10_000, &mut taken);
        let identifier = |delivery: &Delivery| delivery.subscription_identifiers.as_deref().unwrap()[0];
        taken.iter().map(|delivery| (delivery.qos, delivery.retain, identifier(delivery))).collect()
    }

    #[test]
    fn what_waits_with_a_group_is_counted_among_what_waits() {
        let stage = Stage::new();
        let (now, rng, budget) = (stage.now, &mut Rng::new(1), Arc::clone(&stage.group.queues.budget));
        let member = stage.member(1, QoS::AtLeastOnce, false);
        (0..3).for_each(|_| stage.group.wait(stage.published(QoS::AtLeastOnce), now, rng));
        assert_eq!(budget.messages(), 3);
        member.attach(u32::MAX);
        stage.group.dispatch_waiting(now, rng);
        assert_eq!(budget.messages(), 3, "they wait with the member now");
        assert_eq!(taken(&member).len(), 3);
        assert_eq!(budget.messages(), 0);
        member.detach();
        stage.group.wait(stage.published(QoS::AtLeastOnce), now, rng);
        assert_eq!(budget.messages(), 1);
        drop(stage);
        assert_eq!((budget.messages(), budget.used()), (0, 0));
    }

    #[test]
    fn mqtt_3_8_4_8_who_gets_a_message_after_another_gets_it_by_its_own_terms() {
        for waits_between in [false, true] {
            let stage = Stage::new();
            let (now, rng) = (stage.now, &mut Rng::new(1));
            let first = stage.member(1, QoS::AtMostOnce, false);
            first.attach(u32::MAX);
            for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
                assert!(stage.group.place(stage.published(qos), now, rng).is_none());
            }
            let second = stage.member(2, QoS::AtLeastOnce, true);
            if !waits_between {
                second.attach(u32::MAX);
            }
            for delivery in first.detach() {
                if let Some(delivery) = stage.group.place(delivery, now, rng) {
                    stage.group.wait(delivery, now, rng);
                }
            }
            second.attach(u32::MAX);
            stage.group.dispatch_waiting(now, rng);
            let own = |qos| (qos, true, 2);
            let mut expected = vec![own(QoS::AtMostOnce), own(QoS::AtLeastOnce), own(QoS::AtLeastOnce)];
            if waits_between {
                expected.remove(0); // QoS 0 does not wait
            }
            assert_eq!(taken(&second), expected);
        }
    }
}
