//! Returning messages of share groups that a member cannot take.

use super::*;

#[test]
fn shared_messages_return_if_member_is_full_or_offline() {
    let outbox = outbox(3, WhenFull::DropOldest);
    outbox.join_group(GROUP, Arc::default());
    let mut returned = Vec::new();
    let mut batch = (0..5).map(|n| shared(QoS::AtLeastOnce, n)).collect();
    outbox.push(&mut batch, &mut returned, Instant::now());
    assert_eq!(returned.iter().map(mark).collect::<Vec<_>>(), [3, 4], "full");
    outbox.push(&mut vec![delivery(QoS::AtMostOnce, 9)], &mut Vec::new(), Instant::now());

    returned = outbox.detach_all();
    assert_eq!(returned.iter().map(mark).collect::<Vec<_>>(), [0, 1, 2], "not connected any more");
    returned.clear();
    outbox.push(&mut vec![shared(QoS::AtMostOnce, 7), shared(QoS::ExactlyOnce, 8)], &mut returned, Instant::now());
    assert_eq!(returned.iter().map(mark).collect::<Vec<_>>(), [7, 8], "not connected");
    assert_eq!(outbox.common.budget.used(), 0);
}

#[test]
fn mqtt_3_10_4_2_messages_for_a_former_member_return() {
    let outbox = outbox(9, WhenFull::DropOldest);
    outbox.join_group(GROUP, Arc::default());
    let mut returned = Vec::new();
    outbox.push(&mut vec![shared(QoS::ExactlyOnce, 0)], &mut returned, Instant::now());
    outbox.leave_group(GROUP);
    let batch = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce].map(|qos| shared(qos, 1));
    outbox.push(&mut batch.into(), &mut returned, Instant::now());
    assert_eq!(returned.iter().map(mark).collect::<Vec<_>>(), [1, 1, 1]);
    outbox.push(&mut vec![delivery(QoS::AtLeastOnce, 2)], &mut Vec::new(), Instant::now());
    outbox.join_group(GROUP, Arc::default());
    outbox.push(&mut vec![shared(QoS::AtLeastOnce, 3)], &mut Vec::new(), Instant::now());
    assert_eq!(take(&outbox, 9), [0, 2, 3]);
}

#[test]
fn group_messages_behind_a_refused_one_are_refused_too() {
    let outbox = outbox(100, WhenFull::DropOldest);
    outbox.join_group(GROUP, Arc::default());
    let of_bytes = |bytes: usize, mark: u32| {
        let topic = TopicName::try_from("t").unwrap();
        let mut payload = vec![0; bytes];
        payload.extend(mark.to_be_bytes());
        let template = PublishTemplate::new(&topic, None, &payload.into(), &mut BytesMut::new());
        Delivery { share: Some(GROUP), ..Delivery::new(template, QoS::AtLeastOnce, false) }
    };
    let last_bytes = |delivery: &Delivery| u32::from_be_bytes(*delivery.template.payload().last_chunk().unwrap());
    let mut batch = Batch::default();
    batch.add(of_bytes(900_000, 0));
    batch.add(of_bytes(900_000, 1));
    batch.add(of_bytes(0, 2));
    batch.add(delivery(QoS::AtLeastOnce, 3));
    let returned = returned_by(&outbox, &mut batch);
    assert_eq!(returned.iter().map(last_bytes).collect::<Vec<_>>(), [1, 2]);
    let mut taken = Batch::default();
    outbox.take_now(9, usize::MAX, &mut taken);
    assert_eq!(taken.into_singles().iter().map(last_bytes).collect::<Vec<_>>(), [0, 3]);
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
    assert_eq!(returned.iter().map(mark).collect::<Vec<_>>(), [0], "its earlier ones are with others");
    assert_eq!(take(&outbox, 9), [1]);
}
