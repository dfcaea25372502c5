//! §4.8.2 Shared Subscriptions: messages in flight.

use std::time::{Duration, Instant};

use tenbin_codec::{Ack, Packet, PacketType, ProtocolVersion, Publish, QoS, ReasonCode};

use crate::support::{BrokerProcess, PATIENCE, RawClient, lasting, share};

const POLICIES: [&str; 4] = ["adaptive", "thesis_score", "round_robin", "random"];

#[test]
fn mqtt_4_8_2_4_qos_2_delivery_is_completed_by_its_first_member() {
    for policy in POLICIES {
        let broker = BrokerProcess::start(&["--policy", policy]);
        let mut members = members(&broker);
        broker.v5("publisher").publish("topic", "x", QoS::ExactlyOnce);
        let (chosen, publish) = chosen(&mut members);
        members.remove(chosen).cut();
        members[0].expect_nothing_waiting();

        let mut back = broker.connect(lasting(ProtocolVersion::V5, NAMES[chosen]));
        let again = back.receive_publish();
        assert_eq!((again.packet_id, again.dup), (publish.packet_id, true), "{policy}");
        // The same after PUBREC, before PUBCOMP.
        let id = again.packet_id.expect("QoS 2");
        back.send(&Packet::PubRec(Ack::new(id, ReasonCode::Success)));
        back.wait_for_ack(PacketType::PubRel, id);
        back.cut();
        members[0].expect_nothing_waiting();
        let mut back = broker.connect(lasting(ProtocolVersion::V5, NAMES[chosen]));
        back.wait_for_ack(PacketType::PubRel, id);
        back.send(&Packet::PubComp(Ack::new(id, ReasonCode::Success)));
        back.expect_nothing_waiting();
        members[0].expect_nothing_waiting();
    }
}

#[test]
fn mqtt_4_8_2_5_qos_2_delivery_ends_with_its_session() {
    for policy in POLICIES {
        let broker = BrokerProcess::start(&["--policy", policy]);
        let mut members = members(&broker);
        broker.v5("publisher").publish("topic", "x", QoS::ExactlyOnce);
        let (chosen, _) = chosen(&mut members);
        members.remove(chosen).cut();
        // Discards its session.
        broker.v5(NAMES[chosen]).expect_nothing_waiting();
        members[0].expect_nothing_waiting();
    }
}

#[test]
fn mqtt_4_8_2_6_refused_delivery_is_not_redelivered() {
    for policy in POLICIES {
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let broker = BrokerProcess::start(&["--policy", policy]);
            let mut members = members(&broker);
            broker.v5("publisher").publish("topic", "x", qos);
            let (chosen, publish) = chosen(&mut members);
            let refusal = Ack::new(publish.packet_id.expect("QoS 1 or 2"), ReasonCode::UnspecifiedError);
            let refusal = if qos == QoS::AtLeastOnce { Packet::PubAck(refusal) } else { Packet::PubRec(refusal) };
            members[chosen].send(&refusal);
            members.iter_mut().for_each(RawClient::expect_nothing_waiting);
            members.remove(chosen).cut();
            members[0].expect_nothing_waiting();
        }
    }
}

/// §4.8.2: a QoS 1 message may move. Then it has DUP 0: it is a new delivery to another receiver.
#[test]
fn qos_1_delivery_of_a_dead_member_goes_to_another_member() {
    let broker = BrokerProcess::start(&["--policy", "round_robin"]);
    let mut members = members(&broker);
    broker.v5("publisher").publish("topic", "x", QoS::AtLeastOnce);
    let (chosen, _) = chosen(&mut members);
    members.remove(chosen).cut();
    let message = members[0].receive_message();
    assert_eq!((&message.payload[..], message.dup), (&b"x"[..], false));
}

const NAMES: [&str; 2] = ["first", "second"];

/// Two members of one group at QoS 2, with persistent sessions.
fn members(broker: &BrokerProcess) -> Vec<RawClient> {
    let member = |name| {
        let mut member = broker.connect(lasting(ProtocolVersion::V5, name));
        member.subscribe(&share("group", "topic"), QoS::ExactlyOnce);
        member
    };
    NAMES.map(member).into()
}

/// Returns the member that received the message, and the message, unacknowledged.
fn chosen(members: &mut [RawClient]) -> (usize, Publish) {
    // With a store the message may follow the publisher's acknowledgement: its Packet Identifier is stored first.
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        for (number, member) in members.iter_mut().enumerate() {
            member.settle();
            if let Ok(Packet::Publish(publish)) = member.try_receive(Duration::from_millis(1)) {
                return (number, publish);
            }
        }
    }
    panic!("nobody got the message");
}
