//! A client that holds back one acknowledgement while all Packet Identifiers are used up still receives messages.

use crate::support::{BrokerProcess, DataDirectory, Numbered, RawClient, lasting, number_of, share};
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
    // The last acknowledgements may not have been stored.
    while let publish = client.receive_message()
        && number_of(&publish) < 70_000
    {
        assert_ne!(publish.packet_id, Some(held));
    }
    pass(&mut publisher, &mut client, held, 70_001, 136_000);
}

#[test]
fn mqtt_4_6_0_1_held_message_is_sent_again_before_later_ones() {
    let directory = DataDirectory::new();
    let broker = directory.start();
    let receiver = || lasting(ProtocolVersion::V5, "receiver");
    let (mut client, _) = RawClient::connect(broker.address(), receiver());
    client.subscribe("topic", QoS::AtLeastOnce);
    let mut publisher = broker.v5("publisher");
    pass(&mut publisher, &mut client, PacketId::new(65_535).expect("not 0"), 1, 40_000);
    let held = hold_first(&mut publisher, &mut client);
    // The later messages get lower identifiers, and more identifiers are free before them than before the held one.
    pass(&mut publisher, &mut client, held, 40_000, 100_000);
    Numbered { topics: &["topic"], count: END, qos: QoS::AtLeastOnce }.publish_from(&mut publisher, 100_000);
    for number in 100_000..END {
        assert_eq!(number_of(&client.receive_publish()), number);
    }

    // When a connection ends, the session drops its messages from memory and reads them again.
    drop(client);
    let (client, _) = RawClient::connect(broker.address(), receiver());
    let client = sent_again(client, held);
    drop((client, broker));
    let broker = directory.start();
    let (client, _) = RawClient::connect(broker.address(), receiver());
    sent_again(client, held);
}

/// One past the number of the last message.
const END: usize = 100_010;

/// Asserts that `client` gets message 0, then later ones to the end in order. The last acknowledgements may not have
/// been stored.
fn sent_again(mut client: RawClient, held: PacketId) -> RawClient {
    let first = client.receive_publish();
    assert_eq!((first.packet_id, number_of(&first), first.dup), (Some(held), 0, true));
    let mut last = 0;
    while last < END - 1 {
        let number = number_of(&client.receive_publish());
        assert!(number == last + 1 || number > last && last < 100_000 && number <= 100_000, "{number} after {last}");
        last = number;
    }
    client
}

/// Publishes message 0, which `client` receives and does not acknowledge. Returns its Packet Identifier.
fn hold_first(publisher: &mut RawClient, client: &mut RawClient) -> PacketId {
    publisher.publish("topic", "0", QoS::AtLeastOnce);
    let held = client.receive_publish();
    assert_eq!(number_of(&held), 0);
    held.packet_id.expect("QoS 1")
}

/// Publishes the numbers from `first` to before `end`. `client` receives them in order and acknowledges each.
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
