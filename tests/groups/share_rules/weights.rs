use tenbin_codec::{Connect, Packet, PacketType, ProtocolVersion, QoS, Subscribe, UserProperty};

use crate::support::{BrokerProcess, RawClient, at_qos, share, subscription, text};

const TOPIC: &str = "topic";

/// Subscribes with this User Property. SUBACK must grant QoS 1, as for any subscription.
fn join(member: &mut RawClient, weight: Option<&str>) {
    let subscribe = Subscribe {
        packet_id: member.next_id(),
        subscription_identifier: None,
        user_properties: weight.map(property).into_iter().collect(),
        subscriptions: vec![subscription(&share("group", TOPIC), QoS::AtLeastOnce)],
    };
    member.send(&Packet::Subscribe(subscribe));
    match member.wait_for(PacketType::SubAck) {
        Packet::SubAck(suback) => assert_eq!(suback.reasons[0].byte(), QoS::AtLeastOnce.bits()),
        other => panic!("{other:?} instead of SUBACK"),
    }
}

fn property(weight: &str) -> UserProperty {
    UserProperty::new(text("weight"), text(weight))
}

/// A client whose CONNECT sets this weight.
fn connect(broker: &BrokerProcess, client_id: &str, weight: &str) -> RawClient {
    let mut connect = Connect::new(ProtocolVersion::V5, text(client_id));
    connect.properties.user_properties = vec![property(weight)];
    broker.connect(connect)
}

/// Publishes `count` messages. Returns how many of them each member gets.
fn shares<const N: usize>(broker: &BrokerProcess, members: [&mut RawClient; N], count: usize) -> [usize; N] {
    let mut publisher = broker.v5("publisher");
    for _ in 0..count {
        publisher.publish_with(at_qos(TOPIC, "", QoS::AtLeastOnce));
    }
    members.map(|member| member.drain().len())
}

#[test]
fn subscription_weight_can_be_set_and_changed() {
    let broker = BrokerProcess::start(&["--policy", "weighted_round_robin"]);
    let [mut heavy, mut light, mut old] = [broker.v5("heavy"), broker.v5("light"), broker.v311("old")];
    join(&mut heavy, Some("3"));
    join(&mut light, None);
    old.subscribe(&share("group", TOPIC), QoS::AtLeastOnce);
    assert_eq!(shares(&broker, [&mut heavy, &mut light, &mut old], 50), [30, 10, 10]);
    join(&mut light, Some("6"));
    assert_eq!(shares(&broker, [&mut heavy, &mut light, &mut old], 50), [15, 30, 5]);
    join(&mut light, None);
    assert_eq!(shares(&broker, [&mut heavy, &mut light, &mut old], 50), [30, 10, 10]);
}

#[test]
fn connection_weight_is_the_default_of_its_subscriptions() {
    let broker = BrokerProcess::start(&["--policy", "weighted_round_robin"]);
    let [mut one, mut other] = [connect(&broker, "one", "4"), connect(&broker, "other", "4")];
    join(&mut one, None);
    join(&mut other, Some("1"));
    assert_eq!(shares(&broker, [&mut one, &mut other], 50), [40, 10]);
}

#[test]
fn invalid_weights_are_ignored() {
    let broker = BrokerProcess::start(&["--policy", "weighted_round_robin"]);
    let [mut one, mut other] = [connect(&broker, "one", "many"), connect(&broker, "other", "2")];
    join(&mut one, Some("65536"));
    join(&mut other, Some("0"));
    assert_eq!(shares(&broker, [&mut one, &mut other], 30), [10, 20]);
}
