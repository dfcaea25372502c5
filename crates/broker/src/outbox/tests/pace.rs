//! How a slow receiver's queue behaves.

use super::*;

/// Bound on messages. Byte limits are not reached.
const MESSAGES: usize = 600;

fn outbox(when_full: WhenFull) -> Outbox {
    super::outbox(MESSAGES, when_full)
}

/// Pushes messages of about 1 KB.
fn push(outbox: &Outbox, qos: QoS, marks: std::ops::Range<u32>) {
    super::push(outbox, marks.map(|mark| sized(qos, mark, 1000)));
}

#[test]
fn watched_member_is_unavailable_until_it_keeps_up() {
    let outbox = outbox(WhenFull::DropOldest);
    assert_eq!(outbox.load.availability(), Availability::Ready);
    assert!(outbox.set_pace(1, Pace::Watch, 0));
    assert_eq!(outbox.load.availability(), Availability::Full);
    let mut context = Context::from_waker(Waker::noop());
    assert!(outbox.poll_take(&mut context, 1, 1, &mut Batch::default()).is_pending());
    assert_eq!(outbox.load.availability(), Availability::Full, "room alone does not do");
    assert!(!outbox.set_pace(2, Pace::Normal, 0), "that is another connection");
    assert!(outbox.set_pace(1, Pace::Normal, 0));
    assert_eq!(outbox.load.availability(), Availability::Ready);
    assert!(outbox.take_room_again(), "its groups may have kept messages");
}

#[test]
fn qos_0_overflow_of_slow_receiver_follows_policy() {
    for (when_full, has_newest) in [(WhenFull::DropOldest, true), (WhenFull::DropNewest, false)] {
        let outbox = outbox(when_full);
        push(&outbox, QoS::AtMostOnce, 0..300);
        assert!(outbox.set_pace(1, Pace::Spooling, 0));
        push(&outbox, QoS::AtMostOnce, 300..600);
        let marks = taken(&outbox, usize::MAX);
        assert_eq!(marks.contains(&599), has_newest);
        assert_eq!(marks.contains(&0), !has_newest);
        assert!(marks.is_sorted() && marks.len() <= 300, "{}", marks.len());
        assert_eq!(outbox.common.metrics.dropped_queue_full.get() as usize, 600 - marks.len());
    }
    let outbox = outbox(WhenFull::Disconnect);
    assert!(outbox.set_pace(1, Pace::Spooling, 0));
    push(&outbox, QoS::AtMostOnce, 0..300);
    let mut context = Context::from_waker(Waker::noop());
    let told = outbox.poll_take(&mut context, 1, 1, &mut Batch::default());
    assert_eq!(told, Poll::Ready(Taken::Control(Control::TooSlow)));
}

#[test]
fn qos_1_of_slow_receiver_is_not_dropped_while_it_fits() {
    let outbox = outbox(WhenFull::DropOldest);
    assert!(outbox.set_pace(1, Pace::Spooling, 0));
    push(&outbox, QoS::AtLeastOnce, 0..500);
    assert_eq!(taken(&outbox, usize::MAX), (0..500).collect::<Vec<_>>());
}

#[test]
fn spool_policy_without_store_evicts_qos_0_and_refuses_qos_1() {
    let outbox = outbox(WhenFull::Spool);
    push(&outbox, QoS::AtMostOnce, 0..MESSAGES as u32 + 300);
    let marks = taken(&outbox, usize::MAX);
    assert!(marks.is_sorted() && marks.len() <= MESSAGES);
    assert_eq!(marks.last(), Some(&(MESSAGES as u32 + 299)));
    let outbox = self::outbox(WhenFull::Spool);
    push(&outbox, QoS::AtLeastOnce, 0..MESSAGES as u32 - 1);
    assert!(!outbox.is_over_quota(Instant::now()));
    push(&outbox, QoS::AtLeastOnce, MESSAGES as u32 - 1..MESSAGES as u32);
    assert!(outbox.is_over_quota(Instant::now()));
    assert_eq!(taken(&outbox, usize::MAX), (0..MESSAGES as u32).collect::<Vec<_>>(), "nothing is lost");
}

#[test]
fn request_to_move_replaces_no_other_request() {
    let mut context = Context::from_waker(Waker::noop());
    let mut next = |outbox: &Outbox| outbox.poll_take(&mut context, 1, 1, &mut Batch::default());
    for other in [Control::TakenOver, Control::ShuttingDown, Control::TooSlow, Control::RightsChanged] {
        for requests in [[Control::Moved, other], [other, Control::Moved]] {
            let outbox = outbox(WhenFull::DropOldest);
            requests.into_iter().for_each(|request| outbox.control(request));
            assert_eq!(next(&outbox), Poll::Ready(Taken::Control(other)), "{requests:?}");
            assert!(next(&outbox).is_pending());
        }
    }
    let outbox = outbox(WhenFull::DropOldest);
    outbox.control(Control::Moved);
    assert_eq!(next(&outbox), Poll::Ready(Taken::Control(Control::Moved)));
}
