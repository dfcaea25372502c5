//! Will messages: when they are published, and when not.

use std::time::{Duration, Instant};

use crate::support::{BrokerProcess, QOS_ALL, RawClient, Silence, VERSIONS, lasting, text, topic};
use bytes::Bytes;
use tenbin_codec::{
    Connect, ConnectProperties, Disconnect, MessageProperties, Packet, ProtocolVersion, QoS, ReasonCode, UserProperty,
    Will,
};

#[test]
fn mqtt_3_14_4_3_a_normal_disconnect_drops_the_will() {
    for version in VERSIONS {
        let (broker, mut heir) = broker_and_heir();
        broker.connect(with_will(version, "x")).disconnect();
        heir.expect_nothing_waiting();
    }
}

#[test]
fn disconnect_with_will_publishes_it() {
    let (broker, mut heir) = broker_and_heir();
    let client = broker.connect(with_will(ProtocolVersion::V5, "x"));
    client.disconnect_with(Disconnect::new(ReasonCode::DisconnectWithWill));
    assert_eq!(heir.receive_message().payload, "x");
}

#[test]
fn mqtt_3_1_2_8_a_lost_connection_publishes_the_will_once() {
    for version in VERSIONS {
        let (broker, mut heir) = broker_and_heir();
        broker.connect(with_will(version, "x")).cut();
        let will = heir.receive_message();
        assert_eq!((&will.payload[..], will.retain), (&b"x"[..], false)); // [MQTT-3.1.2-14]
        // The Will ended with its connection. [MQTT-3.1.2-10]
        broker.connect(Connect::new(version, text("will"))).cut();
        heir.expect_nothing_waiting();
    }
}

#[test]
fn mqtt_3_1_2_22_keep_alive_timeout_publishes_the_will() {
    for version in VERSIONS {
        let (broker, mut heir) = broker_and_heir();
        let mut client = broker.connect(Connect { keep_alive: 1, ..with_will(version, "x") });
        let connected = Instant::now();
        client.expect_end(ReasonCode::KeepAliveTimeout);
        let waited = connected.elapsed();
        assert!(waited > Duration::from_millis(1300), "1.5 x 1 s: {waited:?}");
        assert_eq!(heir.receive_message().payload, "x");
    }
}

#[test]
fn keep_alive_counts_packets_of_the_client_only() {
    let (broker, mut heir) = broker_and_heir();
    let mut client = broker.connect(Connect { keep_alive: 3, ..with_will(ProtocolVersion::V5, "x") });
    client.subscribe("tick", QoS::AtMostOnce);
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(5000) {
        client.settle();
        std::thread::sleep(Duration::from_millis(250));
    }
    heir.expect_nothing_waiting();
    let silent_since = Instant::now();
    loop {
        assert!(silent_since.elapsed() < crate::support::PATIENCE, "messages to a silent client keep it alive");
        heir.publish("tick", "", QoS::AtLeastOnce);
        match client.try_receive(Duration::from_millis(100)) {
            Ok(Packet::Publish(_)) | Err(Silence::TimedOut) => {}
            Ok(Packet::Disconnect(disconnect)) => break assert_eq!(disconnect.reason, ReasonCode::KeepAliveTimeout),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(heir.receive_message().payload, "x");
}

#[test]
fn mqtt_3_1_2_8_a_protocol_error_publishes_the_will() {
    for version in VERSIONS {
        let (broker, mut heir) = broker_and_heir();
        let mut client = broker.connect(with_will(version, "x"));
        client.send_bytes(&[0x36, 0x00]); // QoS 3
        client.expect_end(ReasonCode::MalformedPacket);
        assert_eq!(heir.receive_message().payload, "x");
    }
}

#[test]
fn mqtt_3_1_2_8_a_delayed_will_comes_after_its_delay() {
    let (broker, mut heir) = broker_and_heir();
    let client = broker.connect(delayed(1, u32::MAX));
    let ended = Instant::now();
    client.cut();
    assert_eq!(heir.receive_message().payload, "delayed");
    let waited = ended.elapsed();
    assert!(waited > Duration::from_millis(950), "{waited:?}");
}

#[test]
fn mqtt_3_1_2_8_delayed_will_is_published_at_session_end() {
    let (broker, mut heir) = broker_and_heir();
    let client = broker.connect(delayed(1000, 1));
    let ended = Instant::now();
    client.cut();
    assert_eq!(heir.receive_message().payload, "delayed");
    let waited = ended.elapsed();
    assert!(waited > Duration::from_millis(950), "{waited:?}");
    // A session without expiry ends with its connection.
    broker.connect(delayed(1000, 0)).cut();
    assert_eq!(heir.receive_message().payload, "delayed");
}

#[test]
fn mqtt_3_1_3_9_reconnect_within_the_delay_drops_the_will() {
    let (broker, mut heir) = broker_and_heir();
    broker.connect(delayed(4, u32::MAX)).cut();
    let (back, connack) = RawClient::connect(broker.address(), lasting(ProtocolVersion::V5, "will"));
    assert!(connack.session_present);
    heir.expect_nothing_for(Duration::from_millis(4500));
    back.disconnect();
    heir.expect_nothing_waiting();
}

/// MQTT 5.0 §3.1.3.2.2, §3.1.4: a takeover ends the old connection, and perhaps its session.
#[test]
fn mqtt_3_1_4_3_takeover_and_wills() {
    let resume = lasting(ProtocolVersion::V5, "will");
    let start_anew = Connect::new(ProtocolVersion::V5, text("will"));
    for (what, old, new, published) in [
        ("no delay", delayed(0, u32::MAX), &resume, true),
        ("delay, session goes on", delayed(1000, u32::MAX), &resume, false),
        ("delay, session thrown away", delayed(1000, u32::MAX), &start_anew, true),
        ("delay, session ends with its connection", delayed(1000, 0), &resume, true),
    ] {
        let (broker, mut heir) = broker_and_heir();
        let mut old = broker.connect(old);
        let (new, _) = RawClient::connect(broker.address(), new.clone());
        old.expect_end(ReasonCode::SessionTakenOver);
        let wills = heir.drain_payloads();
        assert_eq!(wills.len(), usize::from(published), "{what}");
        drop(new);
    }
}

#[test]
fn takeover_at_3_1_1_publishes_the_will() {
    let (broker, mut heir) = broker_and_heir();
    let mut old = broker.connect(with_will(ProtocolVersion::V311, "x"));
    let _new = broker.v311("will");
    old.expect_closed();
    assert_eq!(heir.receive_message().payload, "x");
}

#[test]
fn mqtt_3_1_2_15_a_retained_will_is_retained() {
    for version in VERSIONS {
        let broker = BrokerProcess::start(&[]);
        let mut connect = with_will(version, "gone");
        connect.will.as_mut().expect("a will").retain = true;
        broker.connect(connect).cut();
        let mut late = broker.v5("late");
        late.subscribe("wills", QoS::AtLeastOnce);
        let will = late.receive_message();
        assert_eq!((&will.payload[..], will.retain), (&b"gone"[..], true));
    }
}

#[test]
fn mqtt_3_1_3_10_a_will_keeps_its_qos_and_properties_in_order() {
    let properties = MessageProperties {
        payload_format_indicator: Some(true),
        message_expiry_interval: Some(1000),
        content_type: Some(text("text/plain")),
        response_topic: Some(text("reply")),
        correlation_data: Some(Bytes::from_static(&[0, 1])),
        user_properties: [("b", "2"), ("a", "1"), ("b", "2")]
            .map(|(name, value)| UserProperty::new(text(name), text(value)))
            .into(),
    };
    let (broker, mut heir) = broker_and_heir();
    for qos in QOS_ALL {
        let mut connect = with_will(ProtocolVersion::V5, "x");
        let will = connect.will.as_mut().expect("a will");
        will.qos = qos;
        will.properties = properties.clone().boxed();
        broker.connect(connect).cut();
        let message = heir.receive_message();
        assert_eq!(message.qos, qos);
        assert_eq!(message.properties.as_deref(), Some(&properties), "no delay among them, and nothing waited");
    }
}

#[test]
fn a_will_to_a_reserved_topic_is_refused() {
    let broker = BrokerProcess::start(&[]);
    for topic_name in ["$SYS/broker", "$share/group/x"] {
        let mut connect = with_will(ProtocolVersion::V5, "x");
        connect.will.as_mut().expect("a will").topic = topic(topic_name);
        let (mut client, connack) = RawClient::try_connect(broker.address(), connect);
        assert_eq!(connack.reason, ReasonCode::TopicNameInvalid);
        client.expect_closed(); // [MQTT-3.2.2-7]
    }
}

fn broker_and_heir() -> (BrokerProcess, RawClient) {
    let broker = BrokerProcess::start(&[]);
    let mut heir = broker.v5("heir");
    heir.subscribe("wills", QoS::ExactlyOnce);
    (broker, heir)
}

fn with_will(version: ProtocolVersion, payload: &'static str) -> Connect {
    let will = Will {
        qos: QoS::AtLeastOnce,
        retain: false,
        topic: topic("wills"),
        payload: Bytes::from_static(payload.as_bytes()),
        delay_interval: None,
        properties: None,
    };
    Connect { will: Some(will), ..Connect::new(version, text("will")) }
}

/// A will with a delay, and a session with an expiry, both in seconds.
fn delayed(delay: u32, session_expiry: u32) -> Connect {
    let mut connect = with_will(ProtocolVersion::V5, "delayed");
    connect.will.as_mut().expect("a will").delay_interval = Some(delay);
    let session_expiry_interval = Some(session_expiry);
    let properties = ConnectProperties { session_expiry_interval, ..ConnectProperties::default() };
    Connect { clean_start: false, properties, ..connect }
}
