#[cfg(tenbin_model)]
mod models;
mod pace;
mod shared;
mod tail;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use bytes::BytesMut;
use proptest::prelude::*;
use tenbin_balancer::Nanos;
use tenbin_codec::{PlainPublish, ProtocolVersion, PublishTemplate, QoS, TopicName};

use super::*;
use crate::backlog::Usage;

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn delivery(qos: QoS, mark: u32) -> Delivery {
    sized(qos, mark, 0)
}

/// A message with `bytes` bytes before its mark.
fn sized(qos: QoS, mark: u32, bytes: usize) -> Delivery {
    let topic = TopicName::try_from("t").unwrap();
    let mut payload = vec![0; bytes];
    payload.extend(mark.to_be_bytes());
    Delivery::new(PublishTemplate::new(&topic, None, &payload.into(), &mut BytesMut::new()), qos, false)
}

fn mark(delivery: &Delivery) -> u32 {
    u32::from_be_bytes(*delivery.template.payload().last_chunk().unwrap())
}

fn marks(deliveries: &[Delivery]) -> Vec<u32> {
    deliveries.iter().map(mark).collect()
}

/// A queue without a connection.
fn with_limits(limits: Limits, budget: &Arc<Budget>) -> Outbox {
    let common = OutboxCommon::for_tests(limits, Arc::clone(budget));
    Outbox::new(Arc::new(common), Arc::new(MemberLoad::new(Nanos(0))))
}

fn outbox(messages: usize, when_full: WhenFull) -> Outbox {
    let outbox = with_limits(Limits::for_tests(messages, when_full), &Arc::new(Budget::new(1 << 20)));
    outbox.attach(u32::MAX, None);
    outbox
}

/// Pushes messages, and returns those that come back.
fn push(outbox: &Outbox, deliveries: impl IntoIterator<Item = Delivery>) -> Vec<Delivery> {
    let mut returned = Vec::new();
    outbox.push(&mut deliveries.into_iter().collect(), &mut returned, Instant::now());
    returned
}

/// Takes about `bytes` of messages, without a limit on QoS 1 and 2.
fn taken(outbox: &Outbox, bytes: usize) -> Vec<u32> {
    let mut batch = Batch::default();
    outbox.take_now(usize::MAX, bytes, &mut batch);
    marks(&batch.into_singles())
}

fn take(outbox: &Outbox, quota: usize) -> Vec<u32> {
    let mut taken = Batch::default();
    let waker = Arc::new(Wakes::default()).into();
    let _ = outbox.poll_take(&mut Context::from_waker(&waker), quota, usize::MAX, &mut taken);
    taken.into_singles().iter().map(mark).collect()
}

impl Outbox {
    pub(crate) fn detach_all(&self) -> Vec<Delivery> {
        self.detach(|_| true).unwrap()
    }
}

#[test]
fn withheld_messages_precede_newer_ones_once_allowed() {
    let outbox = outbox(100, WhenFull::DropOldest);
    let waker = Arc::new(Wakes::default()).into();
    let mut taken = Batch::default();
    let mut poll = |outbox: &Outbox| {
        let mut context = Context::from_waker(&waker);
        outbox.poll_take_unless(&mut context, 9, usize::MAX, &mut taken, |withholds| withholds)
    };
    push(&outbox, (1..3).map(|n| delivery(QoS::AtLeastOnce, n)));
    assert_eq!(outbox.withhold(|_| true).1, 2);
    push(&outbox, [delivery(QoS::AtLeastOnce, 3)]);
    assert_eq!(poll(&outbox), Poll::Ready(Taken::Control(Control::RightsChanged)));
    assert_eq!(outbox.withhold(|_| false).1, 0);
    assert_eq!(poll(&outbox), Poll::Ready(Taken::Deliveries));
    assert_eq!(marks(&taken.into_singles()), [1, 2, 3]);
}

#[test]
fn batch_wakes_waiting_receiver_once() {
    let outbox = outbox(100, WhenFull::DropOldest);
    let wakes = Arc::new(Wakes::default());
    let waker = Arc::clone(&wakes).into();
    let mut context = Context::from_waker(&waker);
    let mut taken = Batch::default();
    assert!(outbox.poll_take(&mut context, 9, usize::MAX, &mut taken).is_pending());
    push(&outbox, (0..10).map(|n| delivery(QoS::AtMostOnce, n)));
    push(&outbox, (10..20).map(|n| delivery(QoS::AtMostOnce, n)));
    assert_eq!(wakes.0.load(Ordering::Relaxed), 1, "the second batch finds it awake");
    assert!(outbox.poll_take(&mut context, 9, usize::MAX, &mut taken).is_ready());
    assert_eq!(marks(&taken.into_singles()), (0..20).collect::<Vec<_>>());
    assert_eq!(outbox.common.budget.used(), 0);
}

#[test]
fn blocked_member_is_woken_once_for_its_backlog() {
    let outbox = outbox(100, WhenFull::DropOldest);
    outbox.join_group(GROUP, Arc::default());
    let wakes = Arc::new(Wakes::default());
    let waker = Arc::clone(&wakes).into();
    let mut context = Context::from_waker(&waker);
    let poll = |context: &mut Context<'_>| outbox.poll_take(context, 0, usize::MAX, &mut Batch::default()).is_pending();
    assert!(poll(&mut context) && !outbox.keeps_back());
    for number in 0..3 {
        push(&outbox, [shared(QoS::AtLeastOnce, number)]);
        assert!(poll(&mut context) && outbox.keeps_back());
    }
    assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
    assert_eq!(take(&outbox, 9), [0, 1, 2]);
    assert!(!outbox.keeps_back());
}

#[test]
fn takes_at_once_is_bounded_by_quota_and_socket() {
    let outbox = outbox(100, WhenFull::DropOldest);
    outbox.join_group(GROUP, Arc::default());
    assert_eq!(outbox.takes_at_once(), 0, "nobody has looked");
    take(&outbox, 5);
    assert_eq!(outbox.takes_at_once(), 5);
    push(&outbox, [shared(QoS::AtLeastOnce, 0)]);
    assert_eq!(outbox.takes_at_once(), 4);
    outbox.set_socket_blocked(true, 0);
    assert_eq!(outbox.takes_at_once(), 0);
    outbox.set_socket_blocked(false, 0);
    take(&outbox, 5);
    assert_eq!(outbox.takes_at_once(), 4, "one of five is under way");
    push(&outbox, [shared(QoS::AtLeastOnce, 1)]);
    take(&outbox, 0);
    assert_eq!(outbox.takes_at_once(), 0, "something is kept back");
    outbox.detach_all();
    assert_eq!(outbox.takes_at_once(), 0);
}

#[test]
fn withdraw_newest_of_group_returns_them_in_order() {
    let outbox = outbox(100, WhenFull::DropOldest);
    outbox.join_group(GROUP, Arc::default());
    let qos = |number| if number % 3 == 0 { QoS::AtMostOnce } else { QoS::AtLeastOnce };
    let is_shared = |number| number % 2 == 0;
    let one = |number| if is_shared(number) { shared(qos(number), number) } else { delivery(qos(number), number) };
    push(&outbox, (0..12).map(one));
    assert_eq!(outbox.waiting_by_group(), [(GROUP, 6)]);
    assert_eq!(outbox.line(), Some(NumberSpan { head: 0, next: 12 }));
    assert!(outbox.withdraw_newest(GROUP, 0).is_empty());
    let taken_back = outbox.withdraw_newest(GROUP, 4);
    assert_eq!(marks(&taken_back), [4, 6, 8, 10]);
    assert_eq!(marks(&outbox.withdraw_newest(GROUP, 9)), [0, 2]);
    assert_eq!(take(&outbox, 99), [1, 3, 5, 7, 9, 11]);
    assert_eq!((outbox.common.budget.used(), outbox.common.budget.messages()), (0, 0));
}

#[test]
fn blocked_receiver_is_woken_only_for_control() {
    let outbox = outbox(100, WhenFull::DropOldest);
    let wakes = Arc::new(Wakes::default());
    let waker = Arc::clone(&wakes).into();
    let mut taken = Batch::default();
    outbox.set_socket_blocked(true, 0);
    assert!(outbox.poll_take(&mut Context::from_waker(&waker), 9, 0, &mut taken).is_pending());
    push(&outbox, [delivery(QoS::AtMostOnce, 1)]);
    assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
    outbox.control(Control::TakenOver);
    assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
}

#[test]
fn mqtt_4_9_0_3_qos_0_goes_on_without_send_quota() {
    let outbox = outbox(100, WhenFull::DropOldest);
    let qos = [QoS::AtLeastOnce, QoS::AtMostOnce, QoS::ExactlyOnce, QoS::AtMostOnce];
    push(&outbox, (0..4).map(|n| delivery(qos[n as usize], n)));
    assert_eq!(take(&outbox, 0), [1, 3]);
    push(&outbox, [delivery(QoS::AtMostOnce, 4)]);
    assert_eq!(take(&outbox, 1), [0, 4]);
    assert_eq!(take(&outbox, 9), [2]);
}

#[test]
fn full_queue_drops_qos_0_by_policy_and_returns_qos_1() {
    let full = |when_full| {
        let outbox = outbox(3, when_full);
        let qos = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::AtMostOnce, QoS::AtMostOnce, QoS::AtLeastOnce];
        let returned = push(&outbox, (0..5).map(|n| delivery(qos[n as usize], n)));
        assert_eq!(outbox.load.availability(), Availability::Full);
        assert_eq!(outbox.common.metrics.dropped_queue_full.get(), 1);
        assert_eq!(marks(&returned), [4]);
        let taken = take(&outbox, 9);
        assert_eq!(outbox.load.availability(), Availability::Ready);
        taken
    };
    assert_eq!(full(WhenFull::DropOldest), [1, 2, 3]);
    assert_eq!(full(WhenFull::DropNewest), [0, 1, 2]);
}

#[test]
fn qos_0_is_dropped_for_disconnected_client() {
    let outbox = outbox(100, WhenFull::DropOldest);
    let both = || vec![delivery(QoS::AtMostOnce, 0), delivery(QoS::AtLeastOnce, 1)];
    push(&outbox, both());
    outbox.detach_all();
    push(&outbox, both());
    assert_eq!(outbox.common.metrics.dropped_offline.get(), 2);
    assert_eq!(outbox.load.availability(), Availability::Offline);
    outbox.attach(u32::MAX, None);
    assert_eq!(take(&outbox, 9), [1, 1]);
    assert_eq!(outbox.common.budget.used(), 0);
}

/// Share group of [`shared`] messages.
const GROUP: NonZeroU64 = NonZeroU64::MIN;

fn shared(qos: QoS, mark: u32) -> Delivery {
    Delivery { share: Some(GROUP), ..delivery(qos, mark) }
}

#[test]
fn closed_queue_accepts_no_messages() {
    let outbox = outbox(9, WhenFull::DropOldest);
    push(&outbox, [delivery(QoS::AtLeastOnce, 1)]);
    outbox.detach_all();
    outbox.close();
    push(&outbox, [delivery(QoS::AtLeastOnce, 2)]);
    assert_eq!((outbox.common.budget.used(), outbox.common.metrics.dropped_offline.get()), (0, 2));
}

#[test]
fn mqtt_3_3_2_5_expired_messages_make_room() {
    let outbox = outbox(2, WhenFull::DropNewest);
    let now = Instant::now();
    let expiring = |mark| Delivery { expires_at: Some(now), ..delivery(QoS::AtLeastOnce, mark) };
    let before = now.checked_sub(std::time::Duration::from_secs(1)).expect("the machine is up for a second");
    outbox.push(&mut vec![expiring(1), expiring(2)], &mut Vec::new(), before);
    outbox.push(&mut vec![delivery(QoS::AtLeastOnce, 3)], &mut Vec::new(), now);
    assert_eq!(take(&outbox, 9), [3]);
    assert_eq!(outbox.common.metrics.dropped_queue_full.get(), 0);
}

#[test]
fn connected_client_has_a_floor_beyond_the_budget() {
    let budget = Arc::new(Budget::new(1 << 20));
    let limits = Limits::for_tests(1000, WhenFull::DropNewest);
    let outbox = |attached| {
        let outbox = with_limits(limits, &budget);
        if attached {
            outbox.attach(u32::MAX, None);
        }
        outbox
    };
    let large = |mark| sized(QoS::AtLeastOnce, mark, 50_000);
    let (absent, present) = (outbox(false), outbox(true));
    push(&absent, (0..30).map(large));
    assert!(budget.used() <= (1 << 20) / 4 * 3, "a quarter is left for those who read");
    let others = Usage { bytes: 1 << 20, messages: 1 };
    budget.change(Usage::default(), others);
    assert_eq!(push(&present, [large(1), large(2)]).len(), 1, "the floor is 64 KiB");
    assert_eq!(present.load.availability(), Availability::Ready);
    let mut taken = Batch::default();
    let waker = Arc::new(Wakes::default()).into();
    assert!(present.poll_take(&mut Context::from_waker(&waker), 9, usize::MAX, &mut taken).is_ready());
    assert_eq!(taken.len(), 1);
    budget.change(others, Usage::default());
}

/// Lanes reuse each other's buffers, also while they hold messages and when the contents wrap around.
#[test]
fn bursts_in_reused_buffers_keep_their_order() {
    let (first, second) = (outbox(4000, WhenFull::DropNewest), outbox(4000, WhenFull::DropNewest));
    let push = |outbox: &Outbox, marks: std::ops::Range<u32>| {
        push(outbox, marks.map(|mark| delivery(QoS::AtLeastOnce, mark)));
    };
    let mut at = 0;
    for burst in [300, 1000, 20, 2000, 600] {
        push(&second, at..at + 60);
        assert_eq!(take(&second, 50), (at..at + 50).collect::<Vec<_>>());
        push(&first, at..at + burst);
        assert_eq!(take(&first, 4000), (at..at + burst).collect::<Vec<_>>());
        push(&second, at + 60..at + burst + 60);
        assert_eq!(take(&second, 4000), (at + 50..at + burst + 60).collect::<Vec<_>>());
        at += burst + 60;
    }
    assert_eq!((first.common.budget.used(), second.common.budget.messages()), (0, 0));
}

proptest! {
    /// Compares with a plain list: messages come out in order per kind and within the bounds. 256 cases.
    #[test]
    fn queue_matches_model_of_bounded_lists(
        steps in prop::collection::vec((any::<bool>(), 0usize..6, 0usize..4), 1..80),
        bound in 1usize..12,
    ) {
        let outbox = outbox(bound, WhenFull::DropNewest);
        let mut model: Vec<(QoS, u32)> = Vec::new();
        let mut next = 0;
        for (push, count, quota) in steps {
            if push {
                let batch = (0..count).map(|_| {
                    next += 1;
                    (if next % 3 == 0 { QoS::AtMostOnce } else { QoS::AtLeastOnce }, next)
                }).collect::<Vec<_>>();
                self::push(&outbox, batch.iter().map(|&(qos, mark)| delivery(qos, mark)));
                model.extend(batch.into_iter().take(bound.saturating_sub(model.len())));
            } else {
                let mut quota_left = quota;
                let mut expected = Vec::new();
                model.retain(|&(qos, mark)| {
                    let goes = !qos.is_acknowledged() || quota_left > 0;
                    if goes {
                        quota_left -= usize::from(qos.is_acknowledged());
                        expected.push(mark);
                    }
                    !goes
                });
                prop_assert_eq!(take(&outbox, quota), expected);
            }
            prop_assert_eq!(settled_messages(&outbox), model.len());
        }
        drop(model);
        outbox.clear();
        prop_assert_eq!(outbox.common.budget.used(), 0);
    }
}

/// Messages as ready-made packets, in a batch of one publisher.
fn plain(outbox: &Outbox, share: Option<NonZeroU64>, marks: impl IntoIterator<Item = u32>) -> Batch {
    let topic = TopicName::try_from("a/b").unwrap();
    let wire = outbox.wire().expect("it takes packets");
    let mut batch = Batch::default();
    for mark in marks {
        let payload = mark.to_be_bytes();
        batch.add_plain(wire, share, None, &PlainPublish::new(&topic, &payload).unwrap());
    }
    batch
}

/// Messages in the budget after a settle. Checks that it knew of nearly all before, and that the receiver's task is not
/// at rest while it has work.
fn settled_messages(outbox: &Outbox) -> usize {
    let mut state = outbox.state();
    assert!(state.queue.is_nearly_settled());
    assert!(!outbox.is_at_rest() || state.queue.is_empty() && state.control.is_none() && state.waker.is_some());
    state.queue.settle(&outbox.common.budget);
    outbox.common.budget.messages()
}

#[test]
fn receiver_rests_until_new_messages_or_control() {
    let outbox = takes_packets(100, WhenFull::DropOldest);
    let rests = || {
        let mut batch = Batch::default();
        let mut context = Context::from_waker(Waker::noop());
        while outbox.poll_take(&mut context, 10, usize::MAX, &mut batch).is_ready() {
            batch.clear();
        }
        outbox.is_at_rest()
    };
    assert!(!outbox.is_at_rest(), "it has not looked yet");
    assert!(rests());
    push(&outbox, [delivery(QoS::AtMostOnce, 0)]);
    assert!(!outbox.is_at_rest());
    assert!(rests());
    outbox.control(Control::TakenOver);
    assert!(!outbox.is_at_rest());
    assert!(rests());
    outbox.put_back([delivery(QoS::AtLeastOnce, 1)].into_iter());
    assert!(!outbox.is_at_rest());
    assert!(rests());
    outbox.attach(u32::MAX, None);
    assert!(!outbox.is_at_rest(), "another task");
    assert!(rests());
    outbox.detach_all();
    assert!(!outbox.is_at_rest(), "nobody is woken");
}

fn takes_packets(messages: usize, when_full: WhenFull) -> Outbox {
    let outbox = outbox(messages, when_full);
    outbox.attach(u32::MAX, Some(ProtocolVersion::V5));
    outbox
}

#[test]
fn runs_and_single_messages_keep_their_order() {
    let outbox = takes_packets(100, WhenFull::DropOldest);
    let mut batch = plain(&outbox, None, 0..3);
    batch.add(delivery(QoS::AtMostOnce, 3));
    batch.add(delivery(QoS::AtLeastOnce, 4));
    let topic = TopicName::try_from("a/b").unwrap();
    let payload = 5u32.to_be_bytes();
    batch.add_plain(outbox.wire().unwrap(), None, None, &PlainPublish::new(&topic, &payload).unwrap());
    assert_eq!(batch.runs().map(|run| run.messages).collect::<Vec<_>>(), [3, 1]);
    outbox.push_batch(&mut batch, outbox.connection(), &mut Vec::new(), Instant::now());
    assert!(batch.is_empty());
    assert_eq!(outbox.common.budget.messages(), 6);
    assert_eq!(take(&outbox, 0), [0, 1, 2, 3, 5]);
    assert_eq!(take(&outbox, 1), [4]);
    assert_eq!((outbox.common.budget.used(), outbox.common.budget.messages()), (0, 0));
}

#[test]
fn run_for_earlier_connection_becomes_single_messages() {
    let outbox = takes_packets(100, WhenFull::DropOldest);
    let mut early = plain(&outbox, None, 0..2);
    let mut late = plain(&outbox, None, 2..4);
    outbox.push_batch(&mut early, outbox.connection(), &mut Vec::new(), Instant::now());
    outbox.attach(u32::MAX, Some(ProtocolVersion::V311)); // taken over
    outbox.push_batch(&mut late, outbox.connection(), &mut Vec::new(), Instant::now());
    let mut taken = Batch::default();
    outbox.take_now(0, usize::MAX, &mut taken);
    assert_eq!(taken.runs().count(), 0);
    assert_eq!(marks(taken.deliveries()), [0, 1, 2, 3]);
    assert_eq!(taken.deliveries()[0].template.topic(), b"a/b");
}

#[test]
fn run_is_returned_when_its_member_leaves() {
    let outbox = takes_packets(100, WhenFull::DropOldest);
    let mut returned = Vec::new();
    let mut batch = plain(&outbox, Some(GROUP), 0..3);
    let single = returned_by(&outbox, &mut plain(&outbox, Some(GROUP), 0..3));
    let booked: Booked = single.iter().map(Booked::of).sum();
    assert_eq!(batch.runs().map(Run::booked).collect::<Vec<_>>(), [booked]);
    outbox.join_group(GROUP, Arc::default());
    outbox.push_batch(&mut batch, outbox.connection(), &mut returned, Instant::now());
    assert!(returned.is_empty());
    assert_eq!(outbox.waiting_by_group(), [(GROUP, 3)]);
    assert_eq!(marks(&outbox.withdraw_newest(GROUP, 2)), [1, 2]);
    assert_eq!(marks(&outbox.detach_all()), [0]);
    assert_eq!((outbox.common.budget.used(), outbox.common.budget.messages()), (0, 0));
}

#[test]
fn detach_drops_plain_runs_and_returns_shared_runs() {
    let outbox = takes_packets(100, WhenFull::DropOldest);
    outbox.join_group(GROUP, Arc::default());
    for (share, marks) in [(None, 0..3), (Some(GROUP), 3..5), (None, 5..6), (Some(GROUP), 6..8)] {
        assert_eq!(returned_by(&outbox, &mut plain(&outbox, share, marks)).len(), 0);
    }
    push(&outbox, [delivery(QoS::AtLeastOnce, 8)]);
    assert_eq!(marks(&outbox.detach_all()), [3, 4, 6, 7]);
    assert_eq!(outbox.common.metrics.dropped_offline.get(), 4);
    assert_eq!(outbox.common.budget.messages(), 1, "QoS 1 waits");
}

fn returned_by(outbox: &Outbox, batch: &mut Batch) -> Vec<Delivery> {
    let mut returned = Vec::new();
    outbox.push_batch(batch, outbox.connection(), &mut returned, Instant::now());
    returned
}

proptest! {
    /// Queues that get the same messages as runs and as single messages send, drop and return the same. 256 cases.
    #[test]
    fn runs_behave_like_single_messages(
        steps in prop::collection::vec((0u8..8, 0usize..6, 0usize..4), 1..80),
        bound in 1usize..16,
        drop_oldest in any::<bool>(),
    ) {
        let when_full = if drop_oldest { WhenFull::DropOldest } else { WhenFull::DropNewest };
        let (runs, singles) = (takes_packets(bound, when_full), takes_packets(bound, when_full));
        for outbox in [&runs, &singles] {
            outbox.join_group(GROUP, Arc::default());
        }
        let mut next = 0;
        for (step, count, quota) in steps {
            let share = (quota % 2 == 0).then_some(GROUP);
            let marks = next..next + count as u32;
            match step {
                0..3 => {
                    next = marks.end;
                    runs.push_batch(&mut plain(&runs, share, marks.clone()), runs.connection(), &mut Vec::new(), Instant::now());
                    let single = |mark| Delivery { share, ..delivery(QoS::AtMostOnce, mark) };
                    push(&singles, marks.map(single));
                }
                3 | 4 => {
                    next = marks.end;
                    for outbox in [&runs, &singles] {
                        push(outbox, marks.clone().map(|mark| delivery(QoS::AtLeastOnce, mark)));
                    }
                }
                5 => {
                    let newest = |outbox: &Outbox| {
                        outbox.withdraw_newest(GROUP, count).iter().map(mark).collect::<Vec<_>>()
                    };
                    prop_assert_eq!(newest(&runs), newest(&singles));
                }
                _ => prop_assert_eq!(take(&runs, quota), take(&singles, quota)),
            }
            prop_assert_eq!(settled_messages(&runs), settled_messages(&singles));
            prop_assert_eq!(runs.line(), singles.line());
        }
        prop_assert_eq!(runs.common.metrics.dropped_queue_full.get(), singles.common.metrics.dropped_queue_full.get());
        runs.clear();
        prop_assert_eq!(runs.common.budget.used(), 0);
    }
}
