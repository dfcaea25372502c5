//! Brokers that refuse packets by DISCONNECT, do not read, or take little.

use super::*;

#[test]
fn nothing_that_could_be_the_reason_goes_beside_a_suspect() {
    let mut world = World::new([Limits::default(); 2]);
    world.settle();
    let state = TopicName::try_from("state").unwrap();
    let told = Settings { state_topic: Some(state.clone()), ..Arc::into_inner(settings()).unwrap() };
    world.relay.settings = Arc::new(told);
    let id = PacketId::new(1).unwrap();
    let topic = TopicName::try_from("t").unwrap();
    world.relay.suspect = Some(Suspect::after(None, Side::Local, id, &topic));
    let topics_to_remote = |world: &mut World| {
        world.pass(Side::Remote, true, usize::MAX);
        let received = std::mem::take(&mut world.brokers[1].received);
        received.into_iter().map(|publish| publish.topic.text().to_string()).collect::<Vec<_>>()
    };
    world.relay.tell_state(true);
    world.relay.receive(Side::Local, message(2, QoS::AtMostOnce, false), world.now).unwrap();
    assert_eq!(topics_to_remote(&mut world), [""; 0]);
    assert_eq!(world.relay.status.dropped(Dropped::Slow), 1);
    world.relay.receive(Side::Local, message(1, QoS::AtLeastOnce, true), world.now).unwrap();
    assert_eq!(topics_to_remote(&mut world), ["t"]);
    world.pass(Side::Remote, false, usize::MAX);
    assert_eq!(topics_to_remote(&mut world), ["state"]);
    assert_eq!(world.relay.status.messages(Side::Local), 1);
}

#[test]
fn broker_that_does_not_read_its_acknowledgements_is_left() {
    for mut packet in [
        Packet::PubRel(Ack::new(PacketId::new(100).unwrap(), ReasonCode::Success)),
        message(1, QoS::AtLeastOnce, false),
    ] {
        if let Packet::Publish(publish) = &mut packet {
            publish.topic = TopicName::try_from("$none").unwrap(); // Unmatched.
        }
        let mut world = World::new([Limits::default(); 2]);
        world.settle();
        let mut flood =
            |count| (0..count).find_map(|_| world.relay.receive(Side::Remote, packet.clone(), world.now).err());
        assert!(flood(200_000).is_none());
        world.relay.halves.iter_mut().for_each(|half| half.out.clear());
        let mut flood =
            |count| (0..count).find_map(|_| world.relay.receive(Side::Remote, packet.clone(), world.now).err());
        assert!(flood(200_000).is_none(), "it has read the first ones");
        assert!(matches!(flood(200_000), Some(FailureKind::Unread)));
    }
}

#[test]
fn message_with_all_user_properties_is_dropped() {
    let mut world = World::new([Limits::default(); 2]);
    world.settle();
    for (count, dropped) in [(USER_PROPERTIES_MAX - 1, 0), (USER_PROPERTIES_MAX, 1)] {
        let property = UserProperty::new(Text::from_static("n"), Text::from_static("v"));
        let properties = MessageProperties { user_properties: vec![property; count], ..MessageProperties::default() };
        let Packet::Publish(publish) = message(1, QoS::AtMostOnce, false) else { unreachable!() };
        let publish = Packet::Publish(Publish { packet_id: None, properties: properties.boxed(), ..publish });
        world.relay.receive(Side::Local, publish, world.now).unwrap();
        assert_eq!(world.relay.status.dropped(Dropped::TooLarge), dropped);
    }
}

#[test]
fn state_is_no_larger_than_packets_may_be() {
    let mut world = World::new([Limits::default(); 2]);
    world.settle();
    let state_topic = TopicName::try_from("$SYS/broker/connection/a/state").ok();
    world.relay.settings = Arc::new(Settings { state_topic, ..Arc::into_inner(settings()).unwrap() });
    world.relay.half(Side::Remote).agreed.maximum_packet_size = 32;
    world.relay.tell_state(true);
    assert!(world.relay.half(Side::Remote).out.is_empty());
    assert_eq!(world.relay.status.dropped(Dropped::TooLarge), 1);
}
