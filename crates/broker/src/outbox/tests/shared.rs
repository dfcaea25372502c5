//! Returning messages of share groups that a member cannot take.

use super::*;

#[test]
fn shared_messages_return_if_member_is_full_or_offline() {
    let outbox = outbox(3, WhenFull::DropOldest);
    outbox.join_group(GROUP, Arc::default());
    let returned = push(&outbox, (0..5).map(|n| shared(QoS::AtLeastOnce, n)));
    assert_eq!(marks(&returned), [3, 4], "full");
    push(&outbox, [delivery(QoS::AtMostOnce, 9)]);

    assert_eq!(marks(&outbox.detach_all()), [0, 1, 2], "not connected any more");
    let returned = push(&outbox, [shared(QoS::AtMostOnce, 7), shared(QoS::ExactlyOnce, 8)]);
    assert_eq!(marks(&returned), [7, 8], "not connected");
    assert_eq!(outbox.common.budget.used(), 0);
}

#[test]
fn mqtt_3_10_4_2_messages_for_a_former_member_return() {
    let outbox = outbox(9, WhenFull::DropOldest);
    outbox.join_group(GROUP, Arc::default());
    assert!(push(&outbox, [shared(QoS::ExactlyOnce, 0)]).is_empty());
    outbox.leave_group(GROUP);
    let returned = push(&outbox, [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce].map(|qos| shared(qos, 1)));
    assert_eq!(marks(&returned), [1, 1, 1]);
    push(&outbox, [delivery(QoS::AtLeastOnce, 2)]);
    outbox.join_group(GROUP, Arc::default());
    push(&outbox, [shared(QoS::AtLeastOnce, 3)]);
    assert_eq!(take(&outbox, 9), [0, 2, 3]);
}

#[test]
fn group_messages_behind_a_refused_one_are_refused_too() {
    let outbox = outbox(100, WhenFull::DropOldest);
    outbox.join_group(GROUP, Arc::default());
    let of_bytes = |bytes, mark| Delivery { share: Some(GROUP), ..sized(QoS::AtLeastOnce, mark, bytes) };
    let mut batch = Batch::default();
    batch.add(of_bytes(900_000, 0));
    batch.add(of_bytes(900_000, 1));
    batch.add(of_bytes(0, 2));
    batch.add(delivery(QoS::AtLeastOnce, 3));
    let returned = returned_by(&outbox, &mut batch);
    assert_eq!(marks(&returned), [1, 2]);
    assert_eq!(taken(&outbox, usize::MAX), [0, 3]);
}

#[test]
fn shared_messages_for_earlier_connection_return() {
    let outbox = outbox(100, WhenFull::DropOldest);
    outbox.join_group(GROUP, Arc::default());
    let earlier = outbox.connection();
    outbox.attach(u32::MAX, None); // taken over
    let mut batch = Batch::default();
    batch.add(shared(QoS::AtLeastOnce, 0));
    batch.add(delivery(QoS::AtLeastOnce, 1));
    let mut returned = Vec::new();
    outbox.push_batch(&mut batch, earlier, &mut returned, Instant::now());
    assert_eq!(marks(&returned), [0], "its earlier ones are with others");
    assert_eq!(take(&outbox, 9), [1]);
}

#[test]
fn draining_member_offers_all_its_backlogs() {
    for (offers, expected) in [(false, 16), (true, 40)] {
        let outbox = outbox(9, WhenFull::DropOldest);
        for number in (1..=40).filter_map(NonZeroU64::new) {
            outbox.join_group(number, Arc::default());
            outbox.note_backlog(number);
        }
        outbox.load.drain(true, Nanos(0));
        if offers {
            outbox.offer_backlogs();
        }
        let (mut looks, mut begins) = (0, true);
        while std::mem::take(&mut begins) || outbox.take_room_again() {
            looks += (0..16).map_while(|look| outbox.next_backlog(looks == 0 && look == 0)).count();
            outbox.look_later(false);
        }
        assert_eq!(looks, expected);
    }
}
