use std::time::Instant;

use bytes::{Bytes, BytesMut};
use tenbin_balancer::{Burst, MemberLoad, Policy};
use tenbin_codec::{SubscriptionOptions, TopicFilter};
use tenbin_session::Publication;

use super::*;
use crate::auth::Rights;
use crate::outbox::{Batch, FORGOTTEN_AFTER, OutboxCommon};

pub(in super::super) struct Stage {
    pub(in super::super) group: Arc<SharedGroup>,
    pub(in super::super) now: Moment,
}

impl Stage {
    fn new() -> Self {
        Self::with(None)
    }

    /// With a store, sessions outlive their connections.
    pub(in super::super) fn with(durable: Option<Arc<Durable>>) -> Self {
        let queues = Arc::new(GroupQueues::for_tests(100, 1 << 20, durable));
        let name = TopicFilter::try_from("$share/g/t").unwrap().shared().unwrap();
        let group = Arc::new(SharedGroup::new(name, Policy::RoundRobin.into(), NonZeroU64::MIN, queues));
        Self { group, now: Clock::new().moment(Instant::now()) }
    }

    pub(in super::super) fn member(&self, number: u64, qos: QoS, retain_as_published: bool) -> Arc<Outbox> {
        let GroupQueues { limits, budget, metrics, .. } = &*self.group.queues;
        let load = Arc::new(MemberLoad::new(Nanos(0)));
        let common = OutboxCommon::for_tests(*limits, Arc::clone(budget));
        let common = OutboxCommon { metrics: Arc::clone(metrics), ..common };
        let outbox = Arc::new(Outbox::new(Arc::new(common), Arc::clone(&load)));
        outbox.store_in(self.group.queues.durable.is_some().then(|| StoredQueue::numbered(1)));
        let rights = Arc::new(Rights::unlimited());
        let receiver = Receiver { number, outbox: Arc::clone(&outbox), load, rights };
        let options = SubscriptionOptions { retain_as_published, ..SubscriptionOptions::at(qos) };
        let grant = Grant { options, identifier: Some(number as u32), weight: NonZeroU16::MIN };
        self.group.join(&receiver, GroupMember::new(&receiver, grant), Nanos(0));
        outbox
    }

    pub(in super::super) fn waits(&self, delivery: Delivery) {
        self.group.wait(std::iter::once(delivery), self.now, &mut Default::default(), &mut Rng::new(1));
    }

    /// Returns the member chosen for a new message, and cancels the booking.
    fn chosen(&self, qos: QoS) -> Option<u64> {
        let members = self.group.members.members();
        let dispatch = dispatch(100, qos, self.now.nanos);
        let question = Question {
            group: &self.group,
            members: &members,
            dispatch: &dispatch,
            source: Source::Client,
            topic: b"t",
            #[cfg(feature = "otel")]
            template: None,
        };
        match question.choose_for_new(None, &mut Burst::default(), &mut Rng::new(1)) {
            Choice::Member(member) => {
                member.load().taken_back(1, 100, self.now.nanos);
                Some(member.id().0)
            }
            Choice::Nobody | Choice::Ended => None,
        }
    }

    fn published(&self, qos: QoS) -> Delivery {
        self.published_as("x", qos)
    }

    pub(in super::super) fn published_as(&self, payload: impl Into<Bytes>, qos: QoS) -> Delivery {
        let topic = TopicName::try_from("t").unwrap();
        let template = Publication::new(topic, payload.into()).template(&mut BytesMut::new());
        Delivery { share: Some(self.group.number), ..Delivery::new(template, qos, true) }
    }
}

/// Returns QoS, RETAIN and the Subscription Identifier of the queued messages.
fn taken(outbox: &Outbox) -> Vec<(QoS, bool, u32)> {
    let mut taken = Batch::default();
    outbox.take_now(100, 10_000, &mut taken);
    let taken = taken.into_singles();
    let identifier = |delivery: &Delivery| delivery.identifiers()[0];
    taken.iter().map(|delivery| (delivery.qos, delivery.retain, identifier(delivery))).collect()
}

#[test]
fn group_backlog_counts_against_the_budget() {
    let stage = Stage::new();
    let (now, rng, budget) = (stage.now, &mut Rng::new(1), Arc::clone(&stage.group.queues.budget));
    let member = stage.member(1, QoS::AtLeastOnce, false);
    (0..3).for_each(|_| stage.waits(stage.published(QoS::AtLeastOnce)));
    assert_eq!(budget.messages(), 3);
    member.attach(u32::MAX, None);
    stage.group.dispatch_waiting(now, rng);
    assert_eq!(budget.messages(), 3, "they wait with the member now");
    assert_eq!(taken(&member).len(), 3);
    assert_eq!(budget.messages(), 0);
    member.detach_all();
    stage.waits(stage.published(QoS::AtLeastOnce));
    assert_eq!(budget.messages(), 1);
    drop(stage);
    assert_eq!((budget.messages(), budget.used()), (0, 0));
}

#[test]
fn member_knows_of_backlogs_until_it_forgets_and_is_told_again() {
    let stage = Stage::new();
    let (now, rng, number) = (stage.now, &mut Rng::new(1), stage.group.number());
    let member = stage.member(1, QoS::AtLeastOnce, false);
    assert_eq!(member.known_backlogs(), []);
    stage.waits(stage.published(QoS::AtLeastOnce));
    assert_eq!(member.known_backlogs(), [number]);
    member.attach(u32::MAX, None);
    assert!(!stage.group.serve_member(&member, false, now, rng));
    assert_eq!(taken(&member).len(), 1);
    stage.group.serve_member(&member, false, now, rng);
    assert_eq!(member.known_backlogs(), [number], "it has few");
    for _ in 1..FORGOTTEN_AFTER {
        stage.group.serve_member(&member, true, now, rng);
        assert_eq!(member.known_backlogs(), [number], "it may soon have one again");
    }
    assert!(member.may_have_backlogs());
    stage.group.serve_member(&member, true, now, rng);
    assert_eq!((member.known_backlogs(), member.may_have_backlogs()), (Vec::new(), false));
    member.detach_all();
    stage.waits(stage.published(QoS::AtLeastOnce));
    let newcomer = stage.member(2, QoS::AtLeastOnce, false);
    assert_eq!([&member, &newcomer].map(|member| member.known_backlogs()), [[number], [number]]);
    stage.group.leave(2);
    assert_eq!((newcomer.known_backlogs(), newcomer.next_backlog(true)), (Vec::new(), None));
}

pub(in super::super) fn payloads(outbox: &Outbox) -> Vec<String> {
    let mut taken = Batch::default();
    outbox.take_now(100, 10_000, &mut taken);
    let taken = taken.into_singles();
    taken.iter().map(|delivery| String::from_utf8_lossy(delivery.template.payload()).into_owned()).collect()
}

#[test]
fn new_messages_go_behind_the_group_backlog() {
    let stage = Stage::new();
    let (now, rng) = (stage.now, &mut Rng::new(1));
    let member = stage.member(1, QoS::AtLeastOnce, false);
    stage.waits(stage.published_as("first", QoS::AtLeastOnce));
    member.attach(u32::MAX, None);
    // The member is connected, but the group has not been notified yet.
    assert_eq!([QoS::AtLeastOnce, QoS::AtMostOnce].map(|qos| stage.chosen(qos)), [None, Some(1)]);
    assert_eq!(stage.group.members.members().iter().map(|member| member.load().snapshot().sent).sum::<u64>(), 0);
    stage.waits(stage.published_as("second", QoS::AtLeastOnce));
    assert_eq!(payloads(&member), ["first", "second"]);
    assert_eq!((stage.chosen(QoS::AtLeastOnce), stage.group.waiting()), (Some(1), 0));
    stage.group.dispatch_waiting(now, rng);
}

#[test]
fn messages_published_during_redelivery_go_after_it() {
    let stage = Stage::new();
    let (now, rng) = (stage.now, &mut Rng::new(1));
    let [first, second] = [1, 2].map(|number| stage.member(number, QoS::AtLeastOnce, false));
    first.attach(u32::MAX, None);
    let place = |payload| {
        stage.group.place(stage.published_as(payload, QoS::AtLeastOnce), Source::Client, now, &mut Rng::new(1))
    };
    assert!(["first", "second"].map(place).iter().all(|placed| matches!(placed, Placed::Given)));
    second.attach(u32::MAX, None);
    stage.group.begin_redelivery();
    let taken = first.detach_all();
    assert_eq!(stage.chosen(QoS::AtLeastOnce), None);
    stage.waits(stage.published_as("third", QoS::AtLeastOnce));
    stage.group.dispatch_waiting(now, rng);
    assert_eq!(payloads(&second), [""; 0], "though it has room");
    stage.group.give_to_others(taken.into_iter(), now, rng);
    stage.group.end_redelivery(now, rng);
    assert_eq!(payloads(&second), ["first", "second", "third"]);
    assert_eq!((stage.chosen(QoS::AtLeastOnce), stage.group.waiting()), (Some(2), 0));
}

#[test]
fn redelivered_messages_wait_before_newer_ones() {
    let stage = Stage::new();
    let (now, rng) = (stage.now, &mut Rng::new(1));
    let member = stage.member(1, QoS::AtLeastOnce, false);
    stage.waits(stage.published_as("third", QoS::AtLeastOnce));
    let older = ["first", "unacknowledged", "second"].map(|payload| {
        let qos = if payload == "unacknowledged" { QoS::AtMostOnce } else { QoS::AtLeastOnce };
        stage.published_as(payload, qos)
    });
    stage.group.give_to_others(older.into_iter(), now, rng);
    assert_eq!((stage.group.waiting(), stage.group.queues.budget.messages()), (3, 3));
    member.attach(u32::MAX, None);
    stage.group.dispatch_waiting(now, rng);
    assert_eq!(payloads(&member), ["first", "second", "third"]);
}

#[test]
fn mqtt_3_8_4_8_redelivery_uses_terms_of_the_new_member() {
    for waits_between in [false, true] {
        let stage = Stage::new();
        let (now, rng) = (stage.now, &mut Rng::new(1));
        let first = stage.member(1, QoS::AtMostOnce, false);
        first.attach(u32::MAX, None);
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
            assert!(matches!(stage.group.place(stage.published(qos), Source::Client, now, rng), Placed::Given));
        }
        let second = stage.member(2, QoS::AtLeastOnce, true);
        if !waits_between {
            second.attach(u32::MAX, None);
        }
        stage.group.give_to_others(first.detach_all().into_iter(), now, rng);
        second.attach(u32::MAX, None);
        stage.group.dispatch_waiting(now, rng);
        let own = |qos| (qos, true, 2);
        let mut expected = vec![own(QoS::AtMostOnce), own(QoS::AtLeastOnce), own(QoS::AtLeastOnce)];
        if waits_between {
            expected.remove(0); // QoS 0 does not wait
        }
        assert_eq!(taken(&second), expected);
    }
}
