//! §4.8.2 Shared Subscriptions, in the part that concerns messages under way.

use std::time::{Duration, Instant};

use tenbin_codec::{Ack, Packet, PacketType, ProtocolVersion, Publish, QoS, ReasonCode};

use crate::support::{BrokerProcess, PATIENCE, RawClient, lasting, share};

const POLICIES: [&str; 4] = ["adaptive", "thesis_score", "round_robin", "random"];

#[test]
fn mqtt_4_8_2_4_a_qos_2_delivery_is_finished_with_the_member_that_began_it() {
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
        // Also when PUBREC has come and PUBCOMP has not.
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
fn mqtt_4_8_2_5_a_qos_2_delivery_whose_session_ended_is_given_to_nobody_else() {
    for policy in POLICIES {
        let broker = BrokerProcess::start(&["--policy", policy]);
        let mut members = members(&broker);
        broker.v5("publisher").publish("topic", "x", QoS::ExactlyOnce);
        let (chosen, _) = chosen(&mut members);
        members.remove(chosen).cut();
        // Its session is thrown away.
        broker.v5(NAMES[chosen]).expect_nothing_waiting();
        members[0].expect_nothing_waiting();
    }
}

#[test]
fn mqtt_4_8_2_6_a_refused_delivery_is_given_to_nobody_else() {
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

/// §4.8.2: QoS 1 may move; then it comes with DUP 0, a new delivery to a new receiver.
#[test]
fn a_qos_1_delivery_of_a_member_that_dies_is_given_to_another() {
    let broker = BrokerProcess::start(&["--policy", "round_robin"]);
    let mut members = members(&broker);
    broker.v5("publisher").publish("topic", "x", QoS::AtLeastOnce);
    let (chosen, _) = chosen(&mut members);
    members.remove(chosen).cut();
    let message = members[0].receive_message();
    assert_eq!((&message.payload[..], message.dup), (&b"x"[..], false));
}

const NAMES: [&str; 2] = ["first", "second"];

/// Two members of one group at QoS 2, with sessions that last.
fn members(broker: &BrokerProcess) -> Vec<RawClient> {
    let member = |name| {
        let mut member = broker.connect(lasting(ProtocolVersion::V5, name));
        member.subscribe(&share("group", "topic"), QoS::ExactlyOnce);
        member
    };
    NAMES.map(member).into()
}

/// The member that a message has come to, and the message, unacknowledged.
fn chosen(members: &mut [RawClient]) -> (usize, Publish) {
    // With a store it may come behind the answer to its publisher: its Packet Identifier is kept first.
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
