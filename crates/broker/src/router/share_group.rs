use std::collections::BTreeSet;
use std::num::{NonZeroU16, NonZeroU64};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwapOption;
use tenbin_balancer::{Availability, Dispatch, Group, MemberId, Members, Nanos, Rng, Standing};
use tenbin_codec::{QoS, SharedFilter, Text, TopicName};
use tenbin_session::{Delivery, Stored};

use self::standing::Drain;
use super::Receiver;
use super::choice::{self, Choice, Question, Source};
use super::dead_letters::{DeadLetters, WorkFigures};
use super::decisions::{DecisionBudget, Decisions};
use super::due_groups::DueGroups;
use super::group_backlog::GroupBacklog;
use super::held_key;
use super::key_hasher::KeyHasher;
use super::matches::Terms;
use super::ordering_key::TopicKey;
use crate::durable::{Durable, Ended, StoredQueue, bytes_of};
use crate::hooks::HookSet;
use crate::memory::Account;
use crate::metrics::Metrics;
use crate::outbox::{Booked, Budget, Concerns, Limits, Outbox, Tally};
use crate::values::{Clock, Grant, GroupRules, Moment, OrderingKey, WorkQueue};

/// The sessions that share one subscription, named by share name and filter (MQTT 5.0 §4.8.2).
///
/// A message goes to one connected member. While all members are disconnected, draining or full, messages wait in the
/// group's own backlog. The first member with room gets them, so that no message waits in a busy member's queue while
/// another is idle. New messages go behind the backlog. Without members only a [standing] group exists.
#[derive(Debug)]
pub(crate) struct SharedGroup {
    name: SharedFilter,
    pub(super) members: Group<GroupMember>,
    /// The rule that gives messages their ordering key; `None` = no order. Stored with the rules of `members`, loaded
    /// when a route is made and when a message is redelivered.
    key: ArcSwapOption<OrderingKey>,
    /// Rules about messages that members do not process; `None` = there are none.
    pub(super) work: ArcSwapOption<WorkQueue>,
    pub(super) figures: Arc<WorkFigures>,
    /// Identifies the group in [`Delivery::share`].
    number: NonZeroU64,
    pub(super) backlog: GroupBacklog,
    pub(super) decisions: Decisions,
    /// Messages given to former members. Raised by the caller that removes a member; relaxed.
    given_to_others: AtomicU64,
    pub(super) queues: Arc<GroupQueues>,
    /// Stored queue of the group, from the first member with a stored session on, or while the group stands.
    stored: ArcSwapOption<StoredQueue>,
    /// Account of the longest-standing member, or of all standing groups: charged for the entries of the on-disk backlog.
    pub(super) payer: ArcSwapOption<Account>,
    /// Seconds for which messages wait with the group, by its rule or by the last one with which it stood; 0 = it never
    /// stood. Written under the lock of the index's writers, as is the last member's departure; relaxed.
    keep_seconds: AtomicU32,
    /// A rule makes the group stand. Written as `keep_seconds`.
    stands: AtomicBool,
    /// Sessions that are members without the right to receive the group's messages.
    suspended: Mutex<BTreeSet<u64>>,
    /// Sessions that left the group, and may have messages in flight. Of a group that stood, or has rules of a work queue.
    drains: Mutex<Vec<Drain>>,
}

/// State common to all groups.
#[derive(Debug)]
pub(crate) struct GroupQueues {
    /// Hasher of the keys and names by which groups choose.
    pub(crate) keys: KeyHasher,
    pub(crate) limits: Limits,
    pub(crate) budget: Arc<Budget>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) concerns: Arc<Concerns>,
    pub(crate) durable: Option<Arc<Durable>>,
    pub(crate) hooks: Arc<HookSet>,
    pub(crate) decisions: Arc<DecisionBudget>,
    pub(crate) clock: Clock,
    /// Groups that are to be looked at later.
    pub(crate) due: DueGroups,
    /// Messages that are to become dead letters.
    pub(crate) dead_letters: DeadLetters,
    /// Account of the standing groups, which pays for their entries.
    pub(crate) standing: Arc<Account>,
    /// Bound of one owner's groups that a topic matches; 0 = none.
    pub(crate) groups_per_topic: usize,
}

#[cfg(test)]
impl GroupQueues {
    /// Queues with room for `messages` messages and `bytes` bytes.
    pub(super) fn for_tests(messages: usize, bytes: usize, durable: Option<Arc<Durable>>) -> Self {
        use crate::values::{DecisionLimits, WhenFull};
        Self {
            keys: KeyHasher::new(&[7; 16]),
            limits: Limits::for_tests(messages, WhenFull::DropOldest),
            budget: Arc::new(Budget::new(bytes)),
            metrics: Arc::default(),
            concerns: Arc::default(),
            durable,
            hooks: Arc::default(),
            decisions: Arc::new(DecisionBudget::new(DecisionLimits { maximum: 8, pause: std::time::Duration::ZERO })),
            clock: Clock::new(),
            due: DueGroups::default(),
            dead_letters: DeadLetters::default(),
            standing: crate::memory::Memory::unlimited().account(crate::memory::Owner::StandingGroups),
            groups_per_topic: 0,
        }
    }
}

/// The outcome of giving a message to a member.
#[derive(Debug)]
pub(super) enum Placed {
    /// A member has the message.
    Given,
    /// No member takes the message now.
    Nobody(Delivery),
    /// This member holds the message's key, and has no room or has left the group.
    Kept(MemberId, Delivery),
}

/// A member's data for deliveries.
#[derive(Debug)]
pub(super) struct GroupMember {
    pub(super) outbox: Arc<Outbox>,
    /// Each member has its own QoS `[MQTT-4.8.2-3]`.
    pub(super) terms: Terms,
    weight: NonZeroU16,
    pub(super) client_id: Text,
    /// Counts the messages that the member got from this group.
    pub(super) tally: Arc<Tally>,
    /// The account in which the group counts as one of the client's owner, since the client joined.
    owner: Option<Arc<Account>>,
}

impl SharedGroup {
    pub(super) fn new(name: SharedFilter, rules: GroupRules, number: NonZeroU64, queues: Arc<GroupQueues>) -> Self {
        let GroupRules { rules, key, fair_by, hold_beyond, keep_seconds, work } = rules;
        let group = Self {
            name,
            members: Group::with_choosers(rules, Arc::clone(queues.hooks.choosers())),
            key: ArcSwapOption::from_pointee(key),
            work: ArcSwapOption::new(work),
            figures: Arc::default(),
            number,
            backlog: GroupBacklog::new(fair_by, hold_beyond),
            decisions: Decisions::new(Arc::clone(&queues.decisions)),
            given_to_others: AtomicU64::new(0),
            queues,
            stored: ArcSwapOption::empty(),
            payer: ArcSwapOption::empty(),
            keep_seconds: AtomicU32::new(0),
            stands: AtomicBool::new(false),
            suspended: Mutex::default(),
            drains: Mutex::default(),
        };
        group.set_standing(keep_seconds);
        group
    }

    /// The share name and filter of the group.
    pub(super) fn name(&self) -> &SharedFilter {
        &self.name
    }

    /// The group as its subscriptions name it.
    pub(crate) fn full_name(&self) -> String {
        format!("$share/{}/{}", self.name.share_name, self.name.filter)
    }

    /// Replaces the rules, and returns whether they differ. Routes made before still use the old key.
    pub(super) fn set_rules(&self, rules: GroupRules) -> bool {
        let GroupRules { rules, key, fair_by, hold_beyond, keep_seconds, work } = rules;
        let is_other_backlog = self.set_fair_by(fair_by) | self.set_hold_beyond(hold_beyond);
        let is_other_backlog = self.set_standing(keep_seconds) | is_other_backlog;
        let is_changed = self.members.rules() != rules || self.key.load().as_deref() != key.as_ref();
        if is_changed {
            self.key.store(key.map(Arc::new));
            self.members.set_rules(rules);
        }
        let is_other_work = self.work.load().as_deref() != work.as_deref();
        if is_other_work {
            self.work.store(work);
        }
        is_changed || is_other_backlog || is_other_work
    }

    /// Returns the ordering key of messages to `topic` in this group.
    pub(super) fn key_of_topic(&self, topic: &TopicName) -> TopicKey {
        self.key.load().as_ref().map_or(TopicKey::None, |key| key.of_topic(topic, &self.queues.keys))
    }

    pub(crate) fn number(&self) -> NonZeroU64 {
        self.number
    }

    /// Adds a member, or replaces its data.
    pub(super) fn join(&self, receiver: &Receiver, mut member: GroupMember, now: Nanos) {
        if let Some(known) = self.members.members().iter().find(|known| known.id() == MemberId(receiver.number)) {
            member.tally = Arc::clone(&known.value().tally);
            member.owner.clone_from(&known.value().owner);
        } else if let Some(owner) = member.owner.as_ref().filter(|owner| !self.has_member_of(owner)) {
            owner.add_group(&self.name.filter);
        }
        if member.outbox.keeps_in().is_some() {
            self.store_messages();
        }
        if self.payer.load().is_none() {
            self.payer.store(member.outbox.account());
        }
        // Join the outbox first: the member may be chosen as soon as it is in `members`.
        member.outbox.join_group(self.number, Arc::clone(&member.tally));
        // A session's number changes when the session ends, but the hash must stay with the client.
        let identity = self.queues.keys.hash(member.client_id.as_bytes());
        let standing = Standing { weight: member.weight.get().into(), identity };
        self.members.join_with(MemberId(receiver.number), standing, Arc::clone(&receiver.load), member, now);
        self.tell_new_member(&receiver.outbox);
    }

    /// Removes a member. If a publisher has already chosen it, the member's queue returns the message.
    pub(super) fn leave(&self, number: u64) {
        let members = self.members.members();
        if let Some(member) = members.iter().find(|member| member.id() == MemberId(number)) {
            self.departs();
            self.note_drain(member.load(), &member.value().outbox);
            self.members.leave(member.id());
            let GroupMember { outbox, tally, owner, .. } = member.value();
            outbox.leave_group(self.number);
            self.given_to_others.fetch_add(tally.get(), Ordering::Relaxed);
            if let Some(owner) = owner.as_ref().filter(|owner| !self.has_member_of(owner)) {
                owner.remove_group(&self.name.filter);
            }
        }
        drop(members);
        self.recheck_hold();
        self.find_payer();
    }

    /// Stores the group's messages from now on, if there is a store.
    fn store_messages(&self) {
        if let Some(durable) = &self.queues.durable
            && self.stored.load().is_none()
        {
            let (queue, wait) = durable.queue_of_group(&self.name);
            self.restore_wait(wait);
            self.stored.store(Some(queue));
        }
    }

    /// Moves the charge to a member's account, unless a member pays or the group stands.
    fn find_payer(&self) {
        if self.stands() {
            return;
        }
        let members = self.members.members();
        let mut accounts = members.iter().filter_map(|member| member.value().outbox.account());
        let Some(first) = accounts.next() else { return };
        let payer = self.payer.load_full();
        let stays = |account: &Arc<Account>| payer.as_ref().is_some_and(|payer| Arc::ptr_eq(account, payer));
        if !stays(&first) && !accounts.any(|account| stays(&account)) {
            self.payer.store(Some(Arc::clone(&first)));
            self.pays(&first);
        }
    }

    /// Returns whether clients of this owner are members.
    pub(super) fn has_member_of(&self, owner: &Arc<Account>) -> bool {
        let is_theirs = |member: &GroupMember| member.owner.as_ref().is_some_and(|known| Arc::ptr_eq(known, owner));
        self.members.members().iter().any(|member| is_theirs(member.value()))
    }

    /// Returns whether the group has a stored queue.
    #[inline]
    pub(super) fn is_stored(&self) -> bool {
        self.stored.load().is_some()
    }

    /// Returns the group's stored queue, if there is one.
    #[inline]
    pub(super) fn stored(&self) -> Option<Arc<StoredQueue>> {
        self.stored.load_full()
    }

    /// Ends the group: drops its messages, counts them, and returns their number.
    pub(super) fn end(&self) -> u64 {
        if let Some((durable, queue)) = self.queues.durable.as_ref().zip(self.stored()) {
            durable.forget_group(&self.name, &queue);
        }
        self.drop_waiting()
    }

    /// Returns the number of messages given to members, including former ones.
    pub(super) fn given(&self, members: &Members<'_, GroupMember>) -> u64 {
        let given: u64 = members.iter().map(|member| member.value().tally.get()).sum();
        given + self.given_to_others.load(Ordering::Relaxed)
    }

    /// Gives one message, taken back from a member or from the backlog, to a connected member.
    pub(super) fn place(&self, mut delivery: Delivery, source: Source, now: Moment, rng: &mut Rng) -> Placed {
        let mut wants_another_look = true;
        let mut refused_by = None;
        // A member that has just left or filled up is not chosen again while there is another.
        for _ in 0..=self.members.len() + 1 {
            let members = self.members.members();
            let dispatch = self.dispatch_again(&delivery, now.nanos);
            let topic = delivery.template.topic();
            let question = Question {
                group: self,
                members: &members,
                dispatch: &dispatch,
                source,
                topic,
                #[cfg(feature = "otel")]
                template: Some(&delivery.template),
            };
            let member = match question.choose(rng) {
                Choice::Member(member) if delivery.last_receiver() == Some(member.id().0) => {
                    question.another_than(member)
                }
                Choice::Member(member) => member,
                // A draining member may just have completed the messages that pinned the key.
                Choice::Nobody if dispatch.key.is_some() && std::mem::take(&mut wants_another_look) => continue,
                Choice::Nobody => {
                    return match members.held_by(&dispatch) {
                        Some(former) => Placed::Kept(former, delivery),
                        None => Placed::Nobody(delivery),
                    };
                }
                Choice::Ended => return Placed::Nobody(delivery),
            };
            let is_chosen_again = refused_by == Some(member.id()) && dispatch.key.is_some();
            // Keep it if the key is pinned to this member, or if the message is too large for the others.
            let is_for_others = || {
                let mut others = members.iter().filter(|other| other.id() != member.id());
                others.any(|other| other.load().availability() == Availability::Ready && !other.load().is_draining())
            };
            let is_its = || members.follows_others(member.id(), &dispatch) || is_for_others();
            if is_chosen_again && !members.rules().may_break_order && is_its() {
                question.take_back(member);
                return Placed::Kept(member.id(), delivery);
            }
            refused_by = Some(member.id());
            let Some(returned) = self.hand_to(member.value(), delivery, now) else { return Placed::Given };
            delivery = returned;
            choice::not_given(&members, &dispatch, member);
        }
        Placed::Nobody(delivery)
    }

    /// Puts a redelivered message into a member's queue. Returns it if the queue has no room, or its session is no
    /// member any more.
    pub(super) fn hand_to(&self, member: &GroupMember, delivery: Delivery, now: Moment) -> Option<Delivery> {
        let mut returned = Vec::new();
        let delivery = if member.terms.qos.is_acknowledged() { self.kept(delivery) } else { delivery };
        let stored = delivery.stored;
        member.outbox.push(&mut vec![readdressed(delivery, &member.terms)], &mut returned, now.at);
        if returned.is_empty() && !member.terms.qos.is_acknowledged() {
            self.end_stored(Ended::Delivered, stored); // the member will not acknowledge it
        }
        returned.pop().map(|delivery| Delivery { stored, ..delivery })
    }

    /// Returns whether a new message must be stored for the group and the disk has no room.
    pub(super) fn lacks_disk_room(&self, delivery: &Delivery) -> bool {
        let is_new = delivery.stored.is_none() && delivery.published_qos.is_acknowledged();
        is_new
            && self.stored().is_some_and(|queue| !queue.is_over())
            && self.queues.durable.as_ref().is_some_and(|durable| !durable.has_room(bytes_of(delivery)))
    }

    /// Stores a message that is not stored yet in the group's queue: it was chosen for a member at QoS 0, and did not
    /// reach it. If the disk has no room, the message stays in memory.
    pub(super) fn kept(&self, mut delivery: Delivery) -> Delivery {
        if delivery.stored.is_none()
            && delivery.published_qos.is_acknowledged()
            && let Some((durable, queue)) = self.queues.durable.as_ref().zip(self.stored())
            && let Some(room) = durable.take_room(bytes_of(&delivery), true)
        {
            let mut log = durable.append();
            log.place(&queue, &mut delivery, &room);
            log.close(None);
            drop(log);
            durable.give_room(room);
        }
        delivery
    }

    /// Ends a message in the stored queue.
    pub(super) fn end_stored(&self, cause: Ended, stored: Option<Stored>) {
        if let Some((durable, queue)) = self.queues.durable.as_ref().zip(self.stored()) {
            durable.end(cause, queue.place_of(stored));
        }
    }

    /// Returns the balancer's description of a message that is given to another member.
    pub(super) fn dispatch_again(&self, delivery: &Delivery, at: Nanos) -> Dispatch {
        let chosen_by = delivery.share_key.map(NonZeroU64::get);
        Dispatch {
            publisher: chosen_by.unwrap_or_default(),
            topic: self.queues.keys.hash(delivery.template.topic()),
            key: held_key::ordering_key(delivery.share_key),
            ..dispatch(Booked::packet_bytes(delivery.template.len()), delivery.published_qos, at)
        }
    }
}

impl Drop for SharedGroup {
    fn drop(&mut self) {
        self.drop_waiting();
    }
}

impl GroupMember {
    pub(super) fn new(receiver: &Receiver, grant: Grant) -> Self {
        let client_id = receiver.rights.principal().client_id.clone();
        let (terms, weight) = (grant.terms(), grant.weight);
        let (outbox, owner) = (Arc::clone(&receiver.outbox), receiver.outbox.account());
        Self { outbox, terms, weight, client_id, tally: Arc::default(), owner }
    }
}

/// Returns the beginning of a name, for logs and reports.
pub(super) fn beginning(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME_BYTES_MAX)]
}

/// Returns the balancer's description of a message of `bytes`, see [`Booked::packet_bytes`].
pub(super) fn dispatch(bytes: u32, qos: QoS, at: Nanos) -> Dispatch {
    Dispatch { at, bytes, is_acknowledged: qos.is_acknowledged(), ..Dispatch::default() }
}

/// Adapts a delivery to another member's terms. It starts from the published QoS and RETAIN, not from the previous
/// member's grant.
fn readdressed(delivery: Delivery, terms: &Terms) -> Delivery {
    Delivery {
        stored: delivery.stored.filter(|_| terms.qos.is_acknowledged()),
        qos: QoS::min(delivery.published_qos, terms.qos), // [MQTT-3.8.4-8]
        retain: delivery.published_retain && terms.retain_as_published, // [MQTT-3.3.1-12], [MQTT-3.3.1-13]
        ..delivery.with_identifiers(terms.identifiers.as_ref())
    }
}

pub(super) mod load;
mod standing;

/// Length limit for topics, names and Client Identifiers in reports on a group. They may have 65,535 bytes.
const NAME_BYTES_MAX: usize = 256;

#[cfg(test)]
pub(super) mod tests;
