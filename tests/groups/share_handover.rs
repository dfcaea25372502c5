//! Share groups whose members join, leave and die: no message is lost, and QoS 2 stays with its first member (MQTT 5.0
//! §4.8.2).

use std::num::NonZeroU32;

use crate::support::{BrokerProcess, ConfigFile, RawClient, at_qos, lasting, message, share, text};
use tenbin_codec::{Connect, ProtocolVersion, Publish, QoS, ReasonCode};

#[test]
fn messages_of_an_offline_group_go_to_the_first_returner() {
    for policy in POLICIES {
        let broker = BrokerProcess::start(&["--policy", policy]);
        let ids = ["a", "b", "c"];
        for id in ids {
            member(&broker, id, QoS::ExactlyOnce).disconnect();
        }
        let mut publisher = broker.v5("publisher");
        let sent: Vec<_> = (0..20).map(|number| number.to_string()).collect();
        for (number, payload) in sent.iter().enumerate() {
            let qos = if number % 2 == 0 { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
            assert_eq!(publisher.publish("topic", payload, qos), ReasonCode::Success);
        }
        publisher.publish("topic", "QoS 0 does not wait", QoS::AtMostOnce);
        publisher.settle();

        let mut first = broker.connect(lasting(ProtocolVersion::V5, "b"));
        let received = first.drain();
        assert_eq!(payloads(&received), sent, "{policy}: all, in order");
        for (number, publish) in received.iter().enumerate() {
            assert_eq!(publish.qos == QoS::AtLeastOnce, number % 2 == 0, "as they were published");
            assert!(!publish.dup);
        }
        for id in ["a", "c"] {
            broker.connect(lasting(ProtocolVersion::V5, id)).expect_nothing_waiting();
        }
    }
}

#[test]
fn group_backlog_takes_qos_and_identifier_of_its_receiver() {
    let broker = BrokerProcess::start(&[]);
    member(&broker, "away", QoS::ExactlyOnce).disconnect();
    broker.v5("publisher").publish("topic", "x", QoS::ExactlyOnce);
    let mut joins = broker.v5("joins");
    let subscription = crate::support::subscription(&share("group", "topic"), QoS::AtLeastOnce);
    joins.subscribe_to(Some(7), vec![subscription]);
    let received = joins.drain();
    assert_eq!(payloads(&received), ["x"]);
    assert_eq!((received[0].qos, &received[0].subscription_identifiers[..]), (QoS::AtLeastOnce, &[7][..]));
}

#[test]
fn unacknowledged_qos_1_messages_of_a_dead_member_move_at_once() {
    for (policy, persistent) in POLICIES.into_iter().flat_map(|policy| [(policy, false), (policy, true)]) {
        let broker = BrokerProcess::start(&["--policy", policy]);
        let mut dies = if persistent { member(&broker, "dies", QoS::AtLeastOnce) } else { joiner(&broker, "dies") };
        let mut publisher = broker.v5("publisher");
        let sent: Vec<_> = (0..10).map(|number| number.to_string()).collect();
        for payload in &sent {
            publisher.publish("topic", payload, QoS::AtLeastOnce);
        }
        let taken: Vec<_> = (0..10).map(|_| dies.receive_publish()).collect();
        dies.acknowledge(&taken[0]);
        dies.settle();
        let mut other = joiner(&broker, "other");
        other.expect_nothing_waiting();

        dies.cut();
        let received: Vec<_> = (1..10).map(|_| other.receive_message()).collect();
        assert_eq!(payloads(&received), sent[1..], "{policy}, persistent {persistent}");
        assert!(received.iter().all(|publish| !publish.dup), "the first time for this member");
        if persistent {
            broker.connect(lasting(ProtocolVersion::V5, "dies")).expect_nothing_waiting();
        }
    }
}

#[test]
fn mqtt_3_8_4_8_redelivered_message_keeps_its_published_qos() {
    let broker = BrokerProcess::start(&[]);
    let mut dies = joiner_at(&broker, "dies", QoS::AtLeastOnce);
    let mut publisher = broker.v5("publisher");
    let sent: Vec<_> = (0..4).map(|number| number.to_string()).collect();
    for payload in &sent {
        publisher.publish("topic", payload, QoS::ExactlyOnce);
        assert_eq!(dies.receive_publish().qos, QoS::AtLeastOnce);
    }
    let mut other = joiner(&broker, "other");
    dies.cut();
    let received: Vec<_> = sent.iter().map(|_| other.receive_message()).collect();
    assert_eq!(payloads(&received), sent);
    assert!(received.iter().all(|publish| publish.qos == QoS::ExactlyOnce), "{received:?}");
}

#[test]
fn mqtt_4_8_2_4_and_5_sent_qos_2_message_stays_with_its_member() {
    for persistent in [true, false] {
        let broker = BrokerProcess::start(&["--policy", "round_robin"]);
        let mut dies = if persistent { member(&broker, "dies", QoS::ExactlyOnce) } else { joiner(&broker, "dies") };
        let mut publisher = broker.v5("publisher");
        publisher.publish("topic", "begun", QoS::ExactlyOnce);
        let begun = dies.receive_publish();
        assert_eq!(begun.qos, QoS::ExactlyOnce);
        let mut other = joiner(&broker, "other");
        dies.cut();
        // The broker has noticed the end of the connection once the other member gets everything.
        let mut published = 0;
        loop {
            publisher.publish("topic", "new", QoS::ExactlyOnce);
            published += 1;
            if published > 3 && payloads(&other.drain()).iter().all(|payload| payload == "new") {
                break;
            }
        }
        if persistent {
            let mut back = broker.connect(lasting(ProtocolVersion::V5, "dies"));
            let again = back.receive_publish();
            assert_eq!((&again.payload[..], again.packet_id, again.dup), (&b"begun"[..], begun.packet_id, true));
        }
    }
}

#[test]
fn mqtt_3_1_2_25_oversized_message_goes_to_another_member() {
    for policy in POLICIES {
        let broker = BrokerProcess::start(&["--policy", policy]);
        let mut connect = Connect::new(ProtocolVersion::V5, text("small"));
        connect.properties.maximum_packet_size = NonZeroU32::new(100);
        let mut small = broker.connect(connect);
        small.subscribe(&share("group", "topic"), QoS::AtLeastOnce);
        let mut large = joiner(&broker, "large");
        let mut publisher = broker.v5("publisher");
        let payload = "x".repeat(200);
        for _ in 0..10 {
            publisher.publish("topic", &payload, QoS::AtLeastOnce);
        }
        assert_eq!(large.drain().len(), 10, "{policy}");
        small.expect_nothing_waiting();
        for _ in 0..10 {
            publisher.publish_with(message("topic", "small enough"));
        }
        publisher.settle();
        assert!(!small.drain().is_empty(), "{policy}: it is a member all the same");
    }
}

#[test]
fn joining_and_leaving_members_lose_and_double_no_message() {
    let broker = BrokerProcess::start(&["--policy", "round_robin"]);
    let mut stays = joiner(&broker, "stays");
    let mut publisher = broker.v5("publisher");
    let mut received = Vec::new();
    for round in 0..50 {
        let mut comes = joiner(&broker, &format!("comes {round}"));
        for number in 0..10 {
            let payload = (round * 10 + number).to_string();
            publisher.publish_with(at_qos("topic", &payload, QoS::AtLeastOnce));
        }
        received.extend(payloads(&comes.drain()));
        comes.unsubscribe(&[&share("group", "topic")]);
        received.extend(payloads(&comes.drain()));
    }
    received.extend(payloads(&stays.drain()));
    let mut numbers: Vec<usize> = received.iter().map(|payload| payload.parse().expect("a number")).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..500).collect::<Vec<_>>());
}

#[test]
fn group_backlogs_larger_than_a_queue_are_delivered_in_full() {
    let file = ConfigFile::new("[queue]\nmessages_maximum = 20");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let mut member = broker.connect(lasting(ProtocolVersion::V5, "member"));
    for group in ["one", "two", "three"] {
        member.subscribe(&share(group, "topic"), QoS::AtLeastOnce);
    }
    member.disconnect();
    let mut publisher = broker.v5("publisher");
    for number in 0..20 {
        publisher.publish("topic", &number.to_string(), QoS::AtLeastOnce);
    }
    let mut back = broker.connect(lasting(ProtocolVersion::V5, "member"));
    let mut received = Vec::new();
    for _ in 0..60 {
        let publish = back.receive_publish();
        back.acknowledge(&publish);
        received.push(publish);
    }
    back.expect_nothing_waiting();
    for number in 0..20 {
        let number = number.to_string();
        assert_eq!(payloads(&received).iter().filter(|payload| **payload == number).count(), 3);
    }
}

/// A member whose session outlives its connections.
fn member(broker: &BrokerProcess, id: &str, qos: QoS) -> RawClient {
    let mut member = broker.connect(lasting(ProtocolVersion::V5, id));
    member.subscribe(&share("group", "topic"), qos);
    member
}

/// A member whose session ends with its connection, at QoS 2.
fn joiner(broker: &BrokerProcess, id: &str) -> RawClient {
    joiner_at(broker, id, QoS::ExactlyOnce)
}

fn joiner_at(broker: &BrokerProcess, id: &str, qos: QoS) -> RawClient {
    let mut member = broker.v5(id);
    member.subscribe(&share("group", "topic"), qos);
    member
}

fn payloads(messages: &[Publish]) -> Vec<String> {
    messages.iter().map(|publish| String::from_utf8_lossy(&publish.payload).into_owned()).collect()
}

const POLICIES: [&str; 4] = ["adaptive", "thesis_score", "round_robin", "random"];
