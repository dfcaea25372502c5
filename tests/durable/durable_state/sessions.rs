use std::time::Duration;

use tenbin_codec::{Connect, ProtocolVersion, QoS, ReasonCode, Subscription, SubscriptionOptions};

use super::{DataDirectory, expiring};
use crate::support::{PATIENCE, RawClient, VERSIONS, lasting, retained, share, subscription};

#[test]
fn session_and_subscriptions_survive_a_kill() {
    let stage = DataDirectory::new();
    let broker = stage.start();
    for version in VERSIONS {
        let (mut client, connack) = RawClient::connect(broker.address(), lasting(version, &version.to_string()));
        assert!(!connack.session_present);
        client.subscribe(&format!("{version}/kept"), QoS::AtLeastOnce);
        client.subscribe(&format!("{version}/gone"), QoS::AtLeastOnce);
        client.subscribe(&format!("{version}/kept"), QoS::ExactlyOnce);
        client.unsubscribe(&[&format!("{version}/gone")]);
    }
    drop(broker);
    let broker = stage.start();
    for version in VERSIONS {
        let mut publisher = broker.v5("publisher");
        let topic = |name: &str| format!("{version}/{name}");
        assert_eq!(publisher.publish(&topic("kept"), "1", QoS::ExactlyOnce), ReasonCode::Success, "it waits");
        let nobody = ReasonCode::NoMatchingSubscribers;
        assert_eq!(publisher.publish(&topic("gone"), "2", QoS::AtLeastOnce), nobody, "{version}");
        let (mut client, connack) = RawClient::connect(broker.address(), lasting(version, &version.to_string()));
        assert!(connack.session_present, "{version}");
        let message = client.receive_message();
        assert_eq!((&message.payload[..], message.qos), (&b"1"[..], QoS::ExactlyOnce), "{version}");
    }
}

#[test]
fn subscription_options_survive_a_kill() {
    let stage = DataDirectory::new();
    let broker = stage.start();
    let mut client = broker.connect(lasting(ProtocolVersion::V5, "client"));
    let options =
        SubscriptionOptions { no_local: true, retain_as_published: true, ..SubscriptionOptions::at(QoS::AtLeastOnce) };
    let own = Subscription { options, ..subscription("#", QoS::AtLeastOnce) };
    client.subscribe_to(Some(77), vec![own]);
    drop(broker);
    let broker = stage.start();
    let mut client = broker.connect(lasting(ProtocolVersion::V5, "client"));
    client.publish("a", "own", QoS::AtLeastOnce);
    broker.v5("other").publish_with(retained("a", "other"));
    let message = client.receive_message();
    assert_eq!((&message.payload[..], message.retain), (&b"other"[..], true));
    assert_eq!(message.subscription_identifiers, [77]);
}

#[test]
fn share_group_membership_survives_a_kill() {
    let stage = DataDirectory::new();
    let broker = stage.start();
    for member in ["one", "two"] {
        let mut member = broker.connect(lasting(ProtocolVersion::V5, member));
        member.subscribe(&share("group", "work/#"), QoS::AtLeastOnce);
    }
    drop(broker);
    let broker = stage.start();
    let mut publisher = broker.v5("publisher");
    for number in 0..4 {
        assert_eq!(publisher.publish("work/x", &number.to_string(), QoS::AtLeastOnce), ReasonCode::Success);
    }
    let mut one = broker.connect(lasting(ProtocolVersion::V5, "one"));
    let got = (0..4).map(|_| one.receive_message().payload).collect::<Vec<_>>();
    assert_eq!(got, ["0", "1", "2", "3"], "they waited with the group");
    let mut two = broker.connect(lasting(ProtocolVersion::V5, "two"));
    one.unsubscribe(&[&share("group", "work/#")]);
    publisher.publish("work/x", "4", QoS::AtLeastOnce);
    assert_eq!(two.receive_message().payload, "4");
}

#[test]
fn ended_sessions_stay_ended_after_a_kill() {
    let stage = DataDirectory::new();
    let broker = stage.start();
    // Ends with its connection.
    broker.connect(expiring("short", 0)).subscribe("short", QoS::AtLeastOnce);
    // Ends by a clean start with expiry 0.
    broker.connect(lasting(ProtocolVersion::V5, "cleaned")).subscribe("cleaned", QoS::AtLeastOnce);
    let mut cleaned = broker.v5("cleaned");
    cleaned.settle();
    // Ends by a clean start that begins another persistent session.
    broker.connect(lasting(ProtocolVersion::V5, "anew")).subscribe("before", QoS::AtLeastOnce);
    let anew = Connect { clean_start: true, ..lasting(ProtocolVersion::V5, "anew") };
    broker.connect(anew).subscribe("after", QoS::AtLeastOnce);
    // Ends because its next connection resumes it with expiry 0.
    broker.connect(lasting(ProtocolVersion::V5, "ends")).subscribe("ends", QoS::AtLeastOnce);
    let (_ends, connack) = RawClient::connect(broker.address(), expiring("ends", 0));
    assert!(connack.session_present);
    drop(broker);
    let broker = stage.start();
    let mut publisher = broker.v5("publisher");
    for topic in ["short", "cleaned", "before", "ends"] {
        let nobody = ReasonCode::NoMatchingSubscribers;
        assert_eq!(publisher.publish(topic, "", QoS::AtLeastOnce), nobody, "{topic}");
    }
    assert_eq!(publisher.publish("after", "", QoS::AtLeastOnce), ReasonCode::Success);
    for (client, is_there) in [("short", false), ("cleaned", false), ("ends", false), ("anew", true)] {
        let (_, connack) = RawClient::connect(broker.address(), lasting(ProtocolVersion::V5, client));
        assert_eq!(connack.session_present, is_there, "{client}");
    }
}

#[test]
fn mqtt_4_1_0_2_session_expires_while_the_broker_is_down() {
    let stage = DataDirectory::new();
    let broker = stage.start();
    for (client, seconds) in [("over", 2), ("not yet", 600)] {
        let mut client = broker.connect(expiring(client, seconds));
        client.subscribe("topic", QoS::AtLeastOnce);
        client.disconnect();
    }
    broker.v5("afterwards").publish_with(retained("written", "1")); // commits all earlier changes, too
    drop(broker);
    std::thread::sleep(Duration::from_millis(2100));
    let broker = stage.start();
    for (client, is_there) in [("over", false), ("not yet", true)] {
        let (_, connack) = RawClient::connect(broker.address(), expiring(client, 600));
        assert_eq!(connack.session_present, is_there, "{client}");
    }
}

#[test]
fn expiry_of_a_connected_session_starts_at_the_restart() {
    let stage = DataDirectory::new();
    let broker = stage.start();
    broker.connect(expiring("client", 5)).subscribe("topic", QoS::AtLeastOnce);
    let mut connected = broker.connect(expiring("connected", 5));
    connected.subscribe("topic", QoS::AtLeastOnce);
    drop(broker);
    std::thread::sleep(Duration::from_millis(5100));
    // The client was connected until the kill, so its expiry starts at the restart.
    let broker = stage.start();
    let mut publisher = broker.v5("publisher");
    assert_eq!(publisher.publish("topic", "", QoS::AtLeastOnce), ReasonCode::Success);
    let until = std::time::Instant::now() + PATIENCE;
    while publisher.publish("topic", "", QoS::AtLeastOnce) != ReasonCode::NoMatchingSubscribers {
        assert!(std::time::Instant::now() < until, "its time is over");
        std::thread::sleep(Duration::from_millis(50));
    }
}
