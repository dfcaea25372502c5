//! A client that holds back one acknowledgement for longer than the Packet Identifiers last goes on receiving.

mod support;

use support::{BrokerProcess, DataDirectory, Numbered, RawClient, lasting, number_of, share};
use tenbin_codec::{Ack, Packet, PacketId, ProtocolVersion, QoS, ReasonCode, WriteBuffer};

#[test]
fn mqtt_2_2_1_4_member_with_one_held_puback_gets_70000_more() {
    let broker = BrokerProcess::start(&["--ephemeral"]);
    let mut member = broker.v5("member");
    member.subscribe(&share("group", "topic"), QoS::AtLeastOnce);
    let mut publisher = broker.v5("publisher");
    let held = hold_first(&mut publisher, &mut member);
    pass(&mut publisher, &mut member, held, 1, 70_000);
    member.send(&Packet::PubAck(Ack::new(held, ReasonCode::Success)));
    member.expect_nothing_waiting();
}

#[test]
fn mqtt_2_2_1_4_held_identifier_stays_in_use_after_a_restart() {
    let directory = DataDirectory::new();
    let broker = directory.start();
    let receiver = || lasting(ProtocolVersion::V5, "receiver");
    let (mut client, _) = RawClient::connect(broker.address(), receiver());
    client.subscribe("topic", QoS::AtLeastOnce);
    let mut publisher = broker.v5("publisher");
    let held = hold_first(&mut publisher, &mut client);
    pass(&mut publisher, &mut client, held, 1, 70_000);
    drop(broker);

    let broker = directory.start();
    let (mut client, connack) = RawClient::connect(broker.address(), receiver());
    assert!(connack.session_present);
    let mut publisher = broker.v5("publisher");
    publisher.publish("topic", "70000", QoS::AtLeastOnce);
    let again = client.receive_publish();
    assert_eq!((again.packet_id, number_of(&again), again.dup), (Some(held), 0, true));
    // The last acknowledgements may not be on disk.
    while let publish = client.receive_message()
        && number_of(&publish) < 70_000
    {
        assert_ne!(publish.packet_id, Some(held));
    }
    pass(&mut publisher, &mut client, held, 70_001, 136_000);
}

/// Publishes message 0, which `client` receives and does not acknowledge: its Packet Identifier.
fn hold_first(publisher: &mut RawClient, client: &mut RawClient) -> PacketId {
    publisher.publish("topic", "0", QoS::AtLeastOnce);
    let held = client.receive_publish();
    assert_eq!(number_of(&held), 0);
    held.packet_id.expect("QoS 1")
}

/// Publishes the numbers from `first` to before `end`; `client` gets them in order, and acknowledges each.
fn pass(publisher: &mut RawClient, client: &mut RawClient, held: PacketId, first: usize, end: usize) {
    let mut next = first;
    while next < end {
        let until = end.min(next + 200);
        Numbered { topics: &["topic"], count: until, qos: QoS::AtLeastOnce }.publish_from(publisher, next);
        let mut acks = WriteBuffer::new();
        for number in next..until {
            let publish = client.receive_publish();
            assert_eq!((number_of(&publish), publish.dup), (number, false));
            let id = publish.packet_id.expect("QoS 1");
            assert_ne!(id, held, "message {number}");
            Packet::PubAck(Ack::new(id, ReasonCode::Success)).encode(client.version(), &mut acks);
        }
        client.send_bytes(&acks.to_bytes());
        next = until;
    }
}
