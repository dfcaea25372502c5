//! Clean Start and Session Present.

use tenbin_codec::{ConnAck, Connect, ProtocolVersion, QoS};

use crate::support::{BrokerProcess, RawClient, VERSIONS, lasting, text};

#[test]
fn mqtt_3_2_2_3_session_present_reports_a_resumed_session() {
    for version in VERSIONS {
        let broker = BrokerProcess::start(&[]);
        for (clean_start, present) in [(false, false), (false, true), (true, false), (false, version.is_v5())] {
            // A Clean Session of 3.1.1 does not outlive its connection either.
            let (client, connack) = connect(&broker, Connect { clean_start, ..lasting(version, "client") });
            assert_eq!(connack.session_present, present, "{version}");
            client.disconnect();
        }
    }
}

#[test]
fn mqtt_3_1_2_5_a_session_keeps_its_subscriptions() {
    for version in VERSIONS {
        let broker = BrokerProcess::start(&[]);
        let mut client = broker.connect(lasting(version, "client"));
        client.subscribe("a/+", QoS::AtLeastOnce);
        client.subscribe("b", QoS::AtLeastOnce);
        client.unsubscribe(&["b"]);
        client.cut();
        let (mut client, connack) = connect(&broker, lasting(version, "client"));
        assert!(connack.session_present);
        client.publish("a/b", "kept", QoS::AtLeastOnce);
        client.publish("b", "gone", QoS::AtLeastOnce);
        assert_eq!(client.drain_payloads(), ["kept"]);
    }
}

#[test]
fn mqtt_3_1_2_4_clean_start_throws_the_old_session_away() {
    for version in VERSIONS {
        let broker = BrokerProcess::start(&[]);
        let mut client = broker.connect(lasting(version, "client"));
        client.subscribe("topic", QoS::AtLeastOnce);
        client.disconnect();
        let mut publisher = broker.v5("publisher");
        publisher.publish("topic", "waits", QoS::AtLeastOnce);
        let (mut client, connack) = connect(&broker, Connect { clean_start: true, ..lasting(version, "client") });
        assert!(!connack.session_present); // [MQTT-3.2.2-2]
        publisher.publish("topic", "nobody's", QoS::AtLeastOnce);
        client.expect_nothing_waiting();
    }
}

#[test]
fn session_resumes_in_another_protocol_version() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.connect(lasting(ProtocolVersion::V5, "client"));
    client.subscribe("topic", QoS::ExactlyOnce);
    client.disconnect();
    broker.v5("publisher").publish("topic", "waits", QoS::ExactlyOnce);
    let (mut client, connack) = connect(&broker, lasting(ProtocolVersion::V311, "client"));
    assert!(connack.session_present);
    assert_eq!(client.receive_message().payload, "waits");
}

#[test]
fn mqtt_3_1_4_5_connack_announces_the_brokers_capabilities() {
    let broker = BrokerProcess::start(&[]);
    let (_client, connack) = connect(&broker, Connect::new(ProtocolVersion::V5, text("client")));
    let offers = connack.properties;
    // Without a property the standard's default holds: all of these are supported.
    assert_ne!(offers.retain_available, Some(false));
    assert_ne!(offers.wildcard_subscription_available, Some(false));
    assert_ne!(offers.subscription_identifier_available, Some(false));
    assert_ne!(offers.shared_subscription_available, Some(false));
    assert_eq!(offers.maximum_qos, None);
    assert_eq!(offers.response_information, None); // [MQTT-3.1.2-28]
    assert_eq!(offers.authentication_method, None); // [MQTT-4.12.0-6]
    assert_eq!(offers.assigned_client_identifier, None);
}

fn connect(broker: &BrokerProcess, connect: Connect) -> (RawClient, ConnAck) {
    RawClient::connect(broker.address(), connect)
}
