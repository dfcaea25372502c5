//! MQTT features by configuration: announced in CONNACK, and enforced with their Reason Codes.

use std::num::NonZeroU32;

use crate::support::{BrokerProcess, ConfigFile, RawClient, at_qos, hex, message, share, subscription, text, topic};
use bytes::Bytes;
use tenbin_codec::{
    Connect, MessageProperties, Packet, PacketType, ProtocolVersion, Publish, QoS, ReasonCode, Subscribe, Subscription,
    Will,
};

#[test]
fn fully_supported_features_are_not_announced() {
    let broker = BrokerProcess::start(&[]);
    let (_client, connack) = RawClient::connect(broker.address(), v5(""));
    let told = &connack.properties;
    assert_eq!((told.maximum_qos, told.retain_available, told.wildcard_subscription_available), (None, None, None));
    assert_eq!((told.subscription_identifier_available, told.shared_subscription_available), (None, None));
    assert_eq!(told.response_information, None);
}

#[test]
fn mqtt_3_2_2_9_maximum_qos_is_announced_and_enforced() {
    let broker = served("maximum_qos = 1");
    let (mut client, connack) = RawClient::connect(broker.address(), v5(""));
    assert_eq!(connack.properties.maximum_qos, Some(QoS::AtLeastOnce));
    // [MQTT-3.2.2-10]: a client may request any QoS, and gets this one.
    let granted = client.subscribe_to(None, vec![subscription("topic", QoS::ExactlyOnce)]);
    assert_eq!(granted, [ReasonCode::GrantedQoS1]);
    assert_eq!(client.publish("topic", "x", QoS::AtLeastOnce), ReasonCode::Success);
    let id = Some(client.next_id());
    client.send(&Packet::Publish(Publish { packet_id: id, ..at_qos("topic", "x", QoS::ExactlyOnce) }));
    client.wait_for(PacketType::Publish);
    ends(client, ReasonCode::QoSNotSupported); // [MQTT-3.2.2-11]
}

#[test]
fn mqtt_3_2_2_12_and_13_unsupported_will_is_refused() {
    let broker = served("maximum_qos = 0\nretain = false");
    for (qos, retain, reason) in [
        (QoS::AtLeastOnce, false, ReasonCode::QoSNotSupported),
        (QoS::AtMostOnce, true, ReasonCode::RetainNotSupported),
        (QoS::AtMostOnce, false, ReasonCode::Success),
    ] {
        let (_client, connack) =
            RawClient::try_connect(broker.address(), Connect { will: Some(will(qos, retain)), ..v5("") });
        assert_eq!((connack.reason, connack.session_present), (reason, false)); // [MQTT-3.2.2-6]
    }
}

#[test]
fn mqtt_3_2_2_14_without_retain_a_retained_publish_is_refused() {
    let broker = served("retain = false");
    let (mut client, connack) = RawClient::connect(broker.address(), v5(""));
    assert_eq!(connack.properties.retain_available, Some(false));
    client.send(&Packet::Publish(Publish { retain: true, ..message("topic", "x") }));
    ends(client, ReasonCode::RetainNotSupported);
}

#[test]
fn unsupported_subscriptions_end_a_5_0_connection() {
    let broker =
        served("wildcard_subscriptions = false\nsubscription_identifiers = false\nshared_subscriptions = false");
    let (_client, connack) = RawClient::connect(broker.address(), v5(""));
    let told = &connack.properties;
    assert_eq!(told.wildcard_subscription_available, Some(false));
    assert_eq!(told.subscription_identifier_available, Some(false));
    assert_eq!(told.shared_subscription_available, Some(false));
    for (filter, identifier, reason) in [
        ("a/#", None, ReasonCode::WildcardSubscriptionsNotSupported),
        ("+/a", None, ReasonCode::WildcardSubscriptionsNotSupported),
        ("a", Some(1), ReasonCode::SubscriptionIdentifiersNotSupported),
        (&share("group", "a"), None, ReasonCode::SharedSubscriptionsNotSupported),
    ] {
        let mut client = broker.v5("");
        let subscriptions = vec![subscription(filter, QoS::AtMostOnce)];
        let subscribe = subscribe(&mut client, identifier, subscriptions);
        client.send(&subscribe);
        ends(client, reason);
    }
    let mut client = broker.v5("");
    client.subscribe("a", QoS::AtMostOnce);
}

#[test]
fn unsupported_subscriptions_are_refused_one_by_one_at_3_1_1() {
    let broker = served("wildcard_subscriptions = false\nshared_subscriptions = false");
    let mut client = broker.v311("");
    let filters = ["a/#", "a", &share("group", "a")].map(|filter| subscription(filter, QoS::AtLeastOnce));
    let reasons = client.subscribe_to(None, filters.into());
    assert_eq!(reasons, [ReasonCode::UnspecifiedError, ReasonCode::GrantedQoS1, ReasonCode::UnspecifiedError]);
}

#[test]
fn mqtt_3_1_2_28_configured_response_information_on_request() {
    let broker = served("response_information = \"answers/here\"");
    for (asked, id, told) in [
        (Some(true), "client", Some("answers/here/client")),
        (Some(false), "client", None),
        (None, "client", None),
        (Some(true), "no/level", None),
        (Some(true), "+", None),
    ] {
        let mut connect = v5(id);
        connect.properties.request_response_information = asked;
        let (_client, connack) = RawClient::connect(broker.address(), connect);
        assert_eq!(connack.properties.response_information, told.map(text), "{asked:?} {id}");
    }
}

#[test]
fn mqtt_3_1_2_24_connack_beyond_the_packet_limit_is_not_sent() {
    let broker = served("response_information = \"answers/that/make/connack/larger\"");
    let mut connect = v5("client");
    connect.properties.request_response_information = Some(true);
    // [MQTT-3.2.2-19] and alike: CONNACK omits optional properties.
    connect.properties.maximum_packet_size = NonZeroU32::new(20);
    let (client, connack) = RawClient::connect(broker.address(), connect.clone());
    assert_eq!(connack.properties.response_information, None);
    drop(client);
    connect.properties.maximum_packet_size = NonZeroU32::new(4);
    let mut client = broker.open(ProtocolVersion::V5);
    client.send(&Packet::Connect(Box::new(connect)));
    assert_eq!(client.read_to_end(), []);
    // A refusal has a Reason String only if it fits, too.
    let mut connect = v5("client");
    connect.properties.maximum_packet_size = NonZeroU32::new(5);
    connect.properties.authentication_method = Some(text("unknown"));
    let (_client, connack) = RawClient::try_connect(broker.address(), connect);
    assert!(connack.reason.is_error());
}

#[test]
fn payload_format_is_checked_only_where_configured() {
    let unchecked = BrokerProcess::start(&[]);
    assert_eq!(unchecked.v5("").publish_with(not_utf8(QoS::AtLeastOnce)), ReasonCode::NoMatchingSubscribers);
    let broker = served("payload_format_check = true");
    let mut client = broker.v5("");
    client.subscribe("#", QoS::AtMostOnce);
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        assert_eq!(client.publish_with(not_utf8(qos)), ReasonCode::PayloadFormatInvalid);
        assert_eq!(client.publish_with(Publish { properties: None, ..not_utf8(qos) }), ReasonCode::Success);
        assert_eq!(client.receive_message().properties, None, "only what says it is text has to be");
    }
    client.expect_nothing_waiting();
    client.send(&Packet::Publish(not_utf8(QoS::AtMostOnce)));
    ends(client, ReasonCode::PayloadFormatInvalid);
    let mut will = will(QoS::AtMostOnce, false);
    (will.properties, will.payload) = (not_utf8(QoS::AtMostOnce).properties, Bytes::from_static(b"\xFF"));
    let (_client, connack) = RawClient::try_connect(broker.address(), Connect { will: Some(will), ..v5("") });
    assert_eq!(connack.reason, ReasonCode::PayloadFormatInvalid);
}

#[test]
fn mqtt_4_6_0_2_own_message_arrives_before_its_puback() {
    let broker = BrokerProcess::start(&[]);
    for version in crate::support::VERSIONS {
        let mut client = broker.client(version, "");
        client.subscribe("topic", QoS::AtLeastOnce);
        let publish = |id, qos| Packet::Publish(Publish { packet_id: Some(id), ..at_qos("topic", "x", qos) });
        let ids = [(); 4].map(|()| client.next_id());
        let batch = [QoS::AtLeastOnce, QoS::ExactlyOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];
        let bytes = ids.iter().zip(batch).flat_map(|(&id, qos)| crate::support::encode(&publish(id, qos), version));
        client.send_bytes(&bytes.collect::<Vec<_>>());
        let got = (0..8).map(|_| client.receive()).collect::<Vec<_>>();
        let position = |kind, id| {
            got.iter().position(|packet| match packet {
                Packet::PubAck(ack) | Packet::PubRec(ack) => (packet.packet_type(), ack.packet_id) == (kind, id),
                _ => false,
            })
        };
        let first_message = got.iter().position(|packet| packet.packet_type() == PacketType::Publish);
        assert!(first_message < position(PacketType::PubAck, ids[0]), "{got:?}");
        assert!(position(PacketType::PubAck, ids[0]) < position(PacketType::PubAck, ids[2]), "{got:?}");
        assert!(position(PacketType::PubRec, ids[1]) < position(PacketType::PubRec, ids[3]), "{got:?}"); // [MQTT-4.6.0-3]
    }
}

#[test]
fn mqtt_3_1_is_served_as_3_1_1_is() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.client(ProtocolVersion::V31, "client of 3.1");
    client.subscribe("topic", QoS::AtLeastOnce);
    client.publish("topic", "x", QoS::ExactlyOnce);
    assert_eq!(client.receive_message().payload, "x");
    let (_client, connack) = RawClient::try_connect(broker.address(), Connect::new(ProtocolVersion::V31, text("")));
    assert_eq!(connack.reason, ReasonCode::ClientIdentifierNotValid, "there it needs one");
}

#[test]
fn mqtt_3_14_2_1_disconnect_with_server_code_publishes_the_will() {
    let broker = BrokerProcess::start(&[]);
    let mut heir = broker.v5("");
    heir.subscribe("will", QoS::AtMostOnce);
    for bytes in ["E0 01 8B", "E0 01 A2", "E0 01 05", "E0 06 00 04 1C 00 01 70"] {
        let mut client = broker.connect(Connect { will: Some(will(QoS::AtMostOnce, false)), ..v5("") });
        client.send_bytes(&hex(bytes));
        assert_eq!(client.read_to_end(), [], "{bytes}");
        assert_eq!(heir.receive_message().payload, "gone", "{bytes}");
    }
}

#[test]
fn violation_has_a_reason_string_if_it_fits() {
    let broker = BrokerProcess::start(&[]);
    for (maximum, in_words) in [(None, true), (NonZeroU32::new(16), false)] {
        let mut connect = v5("");
        connect.properties.maximum_packet_size = maximum;
        let mut client = broker.open(ProtocolVersion::V5);
        client.send(&Packet::Connect(Box::new(Connect { client_id: text("named"), ..connect })));
        client.wait_for(PacketType::ConnAck);
        client.send_bytes(&hex("30 08 00 01 74 03 23 00 0B 78")); // Topic Alias 11 of 10
        let Packet::Disconnect(disconnect) = client.wait_for(PacketType::Disconnect) else { unreachable!() };
        assert_eq!(disconnect.reason, ReasonCode::TopicAliasInvalid); // [MQTT-3.2.2-17]
        let words = disconnect.properties.and_then(|properties| properties.reason_string);
        assert_eq!(words.is_some(), in_words, "{words:?}"); // [MQTT-3.14.2-3]
    }
}

#[test]
fn bridge_state_message_is_accepted_and_not_delivered() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.v5("");
    client.subscribe("$SYS/broker/connection/#", QoS::AtLeastOnce);
    assert_eq!(client.publish("$SYS/broker/connection/bridge/state", "1", QoS::AtLeastOnce), ReasonCode::Success);
    assert_eq!(client.publish("$SYS/broker/connection/state", "1", QoS::AtLeastOnce), ReasonCode::NotAuthorized);
    let will = Will { topic: topic("$SYS/broker/connection/bridge/state"), ..will(QoS::AtLeastOnce, true) };
    broker.connect(Connect { will: Some(will), ..v5("") }).cut();
    client.expect_nothing_waiting();
}

/// A broker with these lines in `[capabilities]`.
fn served(lines: &str) -> BrokerProcess {
    let config = ConfigFile::new(&format!("[capabilities]\n{lines}\n"));
    BrokerProcess::start(&["--config", config.path()])
}

fn v5(client_id: &str) -> Connect {
    Connect::new(ProtocolVersion::V5, text(client_id))
}

fn will(qos: QoS, retain: bool) -> Will {
    let payload = Bytes::from_static(b"gone");
    Will { qos, retain, topic: topic("will"), payload, delay_interval: None, properties: None }
}

fn not_utf8(qos: QoS) -> Publish {
    let properties = MessageProperties { payload_format_indicator: Some(true), ..MessageProperties::default() };
    Publish { qos, payload: Bytes::from_static(b"\xC3\x28"), properties: properties.boxed(), ..message("topic", "") }
}

fn subscribe(client: &mut RawClient, subscription_identifier: Option<u32>, subscriptions: Vec<Subscription>) -> Packet {
    let packet_id = client.next_id();
    Packet::Subscribe(Subscribe { packet_id, subscription_identifier, user_properties: Vec::new(), subscriptions })
}

/// Asserts DISCONNECT with this reason, then the end of the connection.
fn ends(mut client: RawClient, reason: ReasonCode) {
    client.expect_end(reason);
}
