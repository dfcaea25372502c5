//! Shared subscriptions: one member of each group gets a message (MQTT 5.0 §4.8.2).

use std::time::Instant;

use crate::support::{
    BrokerProcess, ConfigFile, PATIENCE, QOS_ALL, RawClient, VERSIONS, at_qos, lasting, message, retained, share,
    subscription,
};
use tenbin_codec::{Packet, ProtocolVersion, Publish, QoS, ReasonCode};

#[test]
fn every_group_of_a_filter_gets_every_message_once() {
    for policy in POLICIES {
        let broker = BrokerProcess::start(&["--policy", policy]);
        let mut groups = [members(&broker, "one", "topic", 2), members(&broker, "two", "topic", 3)];
        let expected = publish_numbers(&broker, "topic", 30);
        for group in &mut groups {
            assert_eq!(all_payloads(group), expected, "{policy}");
        }
    }
}

#[test]
fn the_same_name_with_another_filter_is_another_group() {
    let broker = BrokerProcess::start(&[]);
    let mut groups =
        [members(&broker, "name", "a/+", 2), members(&broker, "name", "a/b", 2), members(&broker, "name", "#", 1)];
    let expected = publish_numbers(&broker, "a/b", 20);
    for group in &mut groups {
        assert_eq!(all_payloads(group), expected);
    }
}

#[test]
fn members_of_both_versions_share() {
    let broker = BrokerProcess::start(&["--policy", "round_robin"]);
    let mut group = VERSIONS.map(|version| {
        let mut member = broker.client(version, &format!("member {version}"));
        member.subscribe(&share("group", "topic"), QoS::AtLeastOnce);
        member
    });
    publish_numbers(&broker, "topic", 20);
    assert_eq!(group.each_mut().map(|member| member.drain().len()), [10, 10]);
}

#[test]
fn round_robin_shares_evenly_and_in_turn() {
    let broker = BrokerProcess::start(&["--policy", "round_robin"]);
    let mut group = members(&broker, "group", "topic", 3);
    publish_numbers(&broker, "topic", 300);
    for member in &mut group {
        let numbers: Vec<usize> = member.drain().iter().map(crate::support::number_of).collect();
        assert_eq!(numbers.len(), 100);
        assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 3), "{numbers:?}");
    }
}

#[test]
fn report_policies_without_reports_are_round_robin() {
    let file = ConfigFile::new("policy = \"adaptive\"\n[[share]]\nlate_binding = \"off\"\n");
    for arguments in [["--config", file.path()], ["--policy", "thesis_score"]] {
        let broker = BrokerProcess::start(&arguments);
        let mut group = members(&broker, "group", "topic", 3);
        publish_numbers(&broker, "topic", 300);
        assert_eq!(counts(&mut group), [100, 100, 100], "{arguments:?}");
    }
}

#[test]
fn random_shares_roughly_evenly() {
    let broker = BrokerProcess::start(&["--policy", "random"]);
    let mut group = members(&broker, "group", "topic", 3);
    publish_numbers(&broker, "topic", 600);
    let counts = counts(&mut group);
    // The standard deviation is 11.5.
    assert!(counts.iter().all(|count| (120..=280).contains(count)), "{counts:?}");
    assert_eq!(counts.iter().sum::<usize>(), 600);
}

#[test]
fn remaining_members_get_all_messages() {
    for policy in POLICIES {
        let broker = BrokerProcess::start(&["--policy", policy]);
        let mut group = members(&broker, "group", "topic", 4);
        group.pop().expect("the fourth").cut();
        group.pop().expect("the third").disconnect();
        // UNSUBSCRIBE needs the same text. MQTT 5.0 §4.8.2
        let filter = share("group", "topic");
        assert_eq!(group[1].unsubscribe(&["topic"]), [ReasonCode::NoSubscriptionExisted]);
        assert_eq!(group[1].unsubscribe(&[&filter]), [ReasonCode::Success]);
        let expected = publish_numbers(&broker, "topic", 10);
        assert_eq!(all_payloads(&mut group[..1]), expected, "{policy}");
        group[1].expect_nothing_waiting();
        group.remove(0).disconnect();
        let reason = broker.v5("publisher").publish("topic", "", QoS::AtLeastOnce);
        assert_eq!(reason, ReasonCode::NoMatchingSubscribers, "the group went with its last member");
    }
}

#[test]
fn subscribing_twice_adds_one_member() {
    let broker = BrokerProcess::start(&["--policy", "round_robin"]);
    let mut group = members(&broker, "group", "topic", 2);
    group[0].subscribe(&share("group", "topic"), QoS::AtMostOnce);
    publish_numbers(&broker, "topic", 20);
    assert_eq!(counts(&mut group), [10, 10]);
}

#[test]
fn mqtt_4_8_2_3_each_member_has_its_own_qos() {
    let broker = BrokerProcess::start(&["--policy", "round_robin"]);
    let mut group: Vec<_> = QOS_ALL
        .map(|qos| {
            let mut member = broker.v5(&format!("member {qos}"));
            member.subscribe(&share("group", "topic"), qos);
            member
        })
        .into();
    let mut publisher = broker.v5("publisher");
    for published in QOS_ALL {
        for _ in &group {
            publisher.publish("topic", "x", published);
        }
        publisher.settle();
        for (member, granted) in group.iter_mut().zip(QOS_ALL) {
            let qos: Vec<_> = member.drain().iter().map(|message| message.qos).collect();
            assert_eq!(qos, [published.min(granted)]);
        }
    }
}

#[test]
fn an_ordinary_subscription_beside_gets_its_own_copy() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.v5("both");
    client.subscribe_to(Some(1), vec![subscription("topic", QoS::AtLeastOnce)]);
    client.subscribe_to(Some(2), vec![subscription(&share("group", "topic"), QoS::AtLeastOnce)]);
    let mut ordinary = broker.v5("ordinary");
    ordinary.subscribe("topic", QoS::AtLeastOnce);
    broker.v5("publisher").publish("topic", "x", QoS::AtLeastOnce);
    let mut identifiers: Vec<_> =
        client.drain().into_iter().flat_map(|message| message.subscription_identifiers).collect();
    identifiers.sort_unstable();
    assert_eq!(identifiers, [1, 2]);
    assert_eq!(ordinary.drain_payloads(), ["x"]);
}

#[test]
fn offline_member_gets_nothing_while_another_is_online() {
    for policy in POLICIES {
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let broker = BrokerProcess::start(&["--policy", policy]);
            let filter = share("group", "topic");
            let mut offline = broker.connect(lasting(ProtocolVersion::V5, "offline"));
            offline.subscribe(&filter, qos);
            let mut online = broker.connect(lasting(ProtocolVersion::V5, "online"));
            online.subscribe(&filter, qos);
            offline.disconnect();
            let mut publisher = broker.v5("publisher");
            for number in 0..10 {
                publisher.publish("topic", &number.to_string(), qos);
            }
            online.receive_messages(10);

            // When no member is connected, the message waits for one of them.
            online.disconnect();
            publisher.publish("topic", "waits", qos);
            let mut back: Vec<_> =
                ["offline", "online"].map(|id| broker.connect(lasting(ProtocolVersion::V5, id))).into();
            let until = Instant::now() + PATIENCE;
            let mut received = all_payloads(&mut back);
            while received.is_empty() && Instant::now() < until {
                received = all_payloads(&mut back);
            }
            assert_eq!(received, ["waits"], "{policy}, QoS {qos}");
        }
    }
}

#[test]
fn member_with_a_full_queue_is_skipped() {
    let file = ConfigFile::new("[queue]\nbytes_maximum = 1000000");
    for policy in POLICIES {
        let broker = BrokerProcess::start(&["--policy", policy, "--config", file.path()]);
        let mut group = members(&broker, "group", "topic", 2);
        let reader = &mut group[0];
        let mut publisher = broker.v5("publisher");
        let payload = "x".repeat(100_000);
        let mut received = 0;
        for _ in 0..200 {
            for _ in 0..4 {
                publisher.publish("topic", &payload, QoS::AtMostOnce);
            }
            publisher.settle();
            received += reader.drain().len();
        }
        // Of 80 MB, only the content of one queue and two sockets is lost.
        assert!(received > 600, "{policy}: {received} of 800");
    }
}

#[test]
fn shared_subscription_lasts_as_long_as_its_session() {
    let broker = BrokerProcess::start(&["--policy", "round_robin"]);
    let mut kept = broker.connect(lasting(ProtocolVersion::V5, "kept"));
    kept.subscribe(&share("group", "topic"), QoS::AtLeastOnce);
    kept.disconnect();
    let mut group = members(&broker, "group", "topic", 1);
    group.push(broker.connect(lasting(ProtocolVersion::V5, "kept")));
    publish_numbers(&broker, "topic", 20);
    assert_eq!(counts(&mut group), [10, 10]);
}

#[test]
fn retained_publish_goes_live_to_one_member_of_the_group() {
    let broker = BrokerProcess::start(&[]);
    let mut group = members(&broker, "group", "topic", 2);
    broker.v5("publisher").publish_with(retained("topic", "x"));
    assert_eq!(all_payloads(&mut group), ["x"]);
    let mut late = members(&broker, "late", "topic", 1);
    late[0].expect_nothing_waiting();
}

#[test]
fn mqtt_3_8_3_4_no_local_on_a_shared_subscription_is_refused() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.v5("client");
    client.send_bytes(b"\x82\x10\x00\x01\x00\x00\x0A$share/g/t\x04");
    client.expect_end(ReasonCode::ProtocolError);
}

#[test]
fn mqtt_4_8_2_1_and_2_illegal_share_filters_are_refused() {
    let broker = BrokerProcess::start(&[]);
    for filter in
        ["$share//t", "$share/g", "$share/", "$share/g/", "$share/+/t", "$share/#/t", "$share/a+/t", "$share/g#/t"]
    {
        for version in VERSIONS {
            let mut client = broker.client(version, "client");
            let mut body = vec![0, 1];
            if version.is_v5() {
                body.push(0);
            }
            body.extend((filter.len() as u16).to_be_bytes());
            body.extend(filter.as_bytes());
            body.push(0);
            client.send_bytes(&[&[0x82, body.len() as u8], &body[..]].concat());
            match client.receive_or_end() {
                // The filter alone is refused, or the connection ends.
                Some(Packet::SubAck(suback)) => assert!(suback.reasons[0].is_error(), "{filter}"),
                Some(Packet::Disconnect(disconnect)) => assert!(disconnect.reason.is_error(), "{filter}"),
                None => assert!(!version.is_v5(), "{filter}"),
                Some(other) => panic!("{filter}: {other:?}"),
            }
            // Publishing to a topic that such a filter might match does no harm.
            broker.v5("publisher").publish_with(at_qos("t", "", QoS::AtLeastOnce));
        }
    }
    // Ordinary names, no shared subscriptions.
    let mut client = broker.v5("client");
    for filter in ["$share", "$shared/g/t", "share/g/t"] {
        client.subscribe(filter, QoS::AtMostOnce);
    }
}

#[test]
fn mqtt_4_8_2_6_refused_message_goes_to_no_other_member() {
    let broker = BrokerProcess::start(&["--policy", "round_robin"]);
    let mut group = members(&broker, "group", "topic", 2);
    broker.v5("publisher").publish("topic", "x", QoS::AtLeastOnce);
    group.iter_mut().for_each(RawClient::settle);
    let mut refused = 0;
    for member in &mut group {
        while let Ok(packet) = member.try_receive(std::time::Duration::from_millis(1)) {
            let Packet::Publish(Publish { packet_id: Some(id), .. }) = packet else { panic!("{packet:?}") };
            let refusal = tenbin_codec::Ack::new(id, ReasonCode::UnspecifiedError);
            member.send(&Packet::PubAck(refusal));
            refused += 1;
        }
    }
    assert_eq!(refused, 1);
    group.iter_mut().for_each(RawClient::settle);
    group.iter_mut().for_each(RawClient::expect_nothing_waiting);
}

#[test]
fn qos_0_messages_in_one_segment_are_shared_too() {
    let broker = BrokerProcess::start(&["--policy", "round_robin"]);
    let mut group = members(&broker, "group", "topic", 2);
    let mut publisher = broker.v5("publisher");
    let one = crate::support::encode(&Packet::Publish(message("topic", "x")), publisher.version());
    publisher.send_bytes(&one.repeat(100));
    publisher.settle();
    assert_eq!(counts(&mut group), [50, 50]);
}

/// New members of a group, at QoS 1.
fn members(broker: &BrokerProcess, name: &str, filter: &str, count: usize) -> Vec<RawClient> {
    let member = |number| {
        let mut member = broker.v5(&format!("{name} {filter} {number}"));
        member.subscribe(&share(name, filter), QoS::AtLeastOnce);
        member
    };
    (0..count).map(member).collect()
}

/// Publishes numbers one by one. Returns the payloads, sorted.
fn publish_numbers(broker: &BrokerProcess, topic: &str, count: usize) -> Vec<String> {
    let mut publisher = broker.v5("publisher");
    let mut payloads: Vec<_> = (0..count).map(|number| number.to_string()).collect();
    for payload in &payloads {
        assert_eq!(publisher.publish(topic, payload, QoS::AtLeastOnce), ReasonCode::Success);
    }
    payloads.sort();
    payloads
}

/// Payloads that wait for all members together, sorted.
fn all_payloads(group: &mut [RawClient]) -> Vec<String> {
    let mut payloads = Vec::new();
    loop {
        let before = payloads.len();
        payloads.extend(group.iter_mut().flat_map(RawClient::drain_payloads));
        if payloads.len() == before {
            break;
        }
    }
    payloads.sort();
    payloads
}

/// Number of messages that wait for each member.
fn counts(group: &mut [RawClient]) -> Vec<usize> {
    group.iter_mut().map(|member| member.drain().len()).collect()
}

const POLICIES: [&str; 4] = ["adaptive", "thesis_score", "round_robin", "random"];
