//! Zero, one and the largest value in every interval that a client or a configuration may set.

use std::time::Duration;

use tenbin_codec::{
    Connect, ConnectProperties, Disconnect, DisconnectProperties, MessageProperties, ProtocolVersion, Publish, QoS,
    ReasonCode, Will,
};

use crate::abuse::broker_with;
use crate::support::{BrokerProcess, at_qos, lasting, message, text, topic};

const EXTREMES: [u32; 6] = [0, 1, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFE, 0xFFFF_FFFF];

fn will(delay: u32, expiry: u32) -> Will {
    let properties = MessageProperties { message_expiry_interval: Some(expiry), ..MessageProperties::default() };
    Will {
        qos: QoS::AtLeastOnce,
        retain: true,
        topic: topic("will"),
        payload: "gone".into(),
        delay_interval: Some(delay),
        properties: properties.boxed(),
    }
}

#[test]
fn session_expiry_will_delay_and_keep_alive() {
    let broker = BrokerProcess::start(&[]);
    for session_expiry in EXTREMES {
        for delay in EXTREMES {
            for keep_alive in [0, 1, 65_535] {
                let connect = Connect {
                    clean_start: true,
                    keep_alive,
                    will: Some(will(delay, delay)),
                    properties: ConnectProperties {
                        session_expiry_interval: Some(session_expiry),
                        ..ConnectProperties::default()
                    },
                    ..Connect::new(ProtocolVersion::V5, text("client"))
                };
                let mut client = broker.connect(connect.clone());
                client.subscribe("t", QoS::AtLeastOnce);
                client.cut();
                let again = Connect { clean_start: false, ..connect };
                let (client, connack) = crate::support::RawClient::connect(broker.address(), again);
                assert_eq!(connack.session_present, session_expiry > 0, "{session_expiry}");
                client.disconnect();
            }
        }
    }
    broker.assert_serves();
}

#[test]
fn session_expiry_at_disconnect() {
    let broker = BrokerProcess::start(&[]);
    for seconds in EXTREMES {
        let client = broker.connect(lasting(ProtocolVersion::V5, "client"));
        let properties = DisconnectProperties { session_expiry_interval: Some(seconds), ..Default::default() };
        let properties = Some(Box::new(properties));
        client.disconnect_with(Disconnect { properties, ..Disconnect::new(ReasonCode::Success) });
        let connect = lasting(ProtocolVersion::V5, "client");
        let (_, connack) = crate::support::RawClient::connect(broker.address(), connect);
        assert_eq!(connack.session_present, seconds > 0, "{seconds}");
    }
}

#[test]
fn message_expiry() {
    let broker = BrokerProcess::start(&[]);
    let mut sleeper = broker.connect(lasting(ProtocolVersion::V5, "sleeper"));
    sleeper.subscribe("t/#", QoS::AtLeastOnce);
    sleeper.disconnect();
    let mut publisher = broker.v5("publisher");
    for seconds in EXTREMES {
        let properties = MessageProperties { message_expiry_interval: Some(seconds), ..MessageProperties::default() };
        publisher.publish_with(Publish {
            retain: true,
            properties: properties.boxed(),
            ..at_qos(&format!("t/{seconds}"), "x", QoS::AtLeastOnce)
        });
    }
    std::thread::sleep(Duration::from_millis(1100));
    let mut client = broker.v5("client");
    client.subscribe("t/#", QoS::AtLeastOnce);
    let mut sleeper = broker.connect(lasting(ProtocolVersion::V5, "sleeper"));
    for receiver in [&mut client, &mut sleeper] {
        let mut left = receiver.drain().into_iter().map(|publish| {
            let asked: u32 = String::from_utf8_lossy(&publish.topic.as_bytes()[2..]).parse().expect("a number");
            let left = publish.properties.and_then(|properties| properties.message_expiry_interval);
            let left = left.expect("[MQTT-3.3.2-6]");
            assert!(left < asked && asked - left < 20, "{left} left of {asked}");
            asked
        });
        let mut found = left.by_ref().collect::<Vec<_>>();
        found.sort_unstable();
        assert_eq!(found, EXTREMES[2..], "0 and 1 are over");
    }
}

#[test]
fn every_interval_of_the_configuration() {
    for [session, keep_alive, connect, sys] in
        [[0u64, 0, 600_000, 0], [1, 1, 600_000, 1], [4_294_967_295, 65_535, 600_000, 86_400]]
    {
        let broker = broker_with(&format!(
            "[sessions]\nexpiry_maximum_seconds = {session}\n[connections]\nkeep_alive_maximum_seconds = {keep_alive}\n\
             connect_timeout_ms = {connect}\n[sys]\ninterval_seconds = {sys}"
        ));
        for version in crate::support::VERSIONS {
            let mut client = broker.connect(Connect { keep_alive: 65_535, ..lasting(version, "client") });
            client.subscribe("t", QoS::AtLeastOnce);
            client.publish("t", "x", QoS::AtLeastOnce);
            client.receive_message();
            client.disconnect();
        }
        broker.assert_serves();
    }
    // The shortest timeout closes a silent client, and a rate or bound of 1 admits one.
    let broker = broker_with("[connections]\nconnect_timeout_ms = 1\npublishes_per_second = 1");
    broker.open(ProtocolVersion::V5).expect_closed();
    let broker2 = broker_with("[connections]\npublishes_per_second = 1000000000\nconnects_per_second = 1000000000");
    let mut client = broker2.v5("client");
    client.subscribe("t", QoS::AtMostOnce);
    client.send(&tenbin_codec::Packet::Publish(message("t", "x")));
    client.receive_message();
}
