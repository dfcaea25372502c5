//! Bodies of all packets, and what MQTT 3.1.1 lacks.

use bytes::Bytes;
use tenbin_codec::{ConnAck, DecodeError, Packet, PacketId, ProtocolVersion, QoS, ReasonCode};

use ProtocolVersion::{V5, V311};

use crate::receiver::{Sender, decode, encode, packet, receive};

#[test]
fn faults_of_bodies_at_v5() {
    use DecodeError as E;
    for (first, body, error, reason) in [
        (0x30, &b"\0\0\0"[..], E::TopicNameEmpty, 0x82),    // [MQTT-4.7.3-1]
        (0x30, b"\0\x03a/+\0", E::TopicNameWildcard, 0x81), // [MQTT-3.3.2-2]
        (0x30, b"\0\x02\xC3\x28\0", E::InvalidUtf8, 0x81),  // [MQTT-3.3.2-1]
        (0x30, b"\0\x02a\0\0", E::NulCharacter, 0x81),      // [MQTT-4.7.3-2]
        (0x30, b"\0\x05a", E::Truncated, 0x81),
        (0x30, b"\0\x01a", E::Truncated, 0x81),          // [MQTT-2.2.2-1]
        (0x32, b"\0\x01a\0\0\0", E::PacketIdZero, 0x82), // [MQTT-2.2.1-3]
        (0x32, b"\0\x01a\0", E::Truncated, 0x81),
        (0x40, b"\0\0", E::PacketIdZero, 0x82),
        (0x40, b"\0", E::Truncated, 0x81),
        (0x40, b"\0\x01\0\0\0", E::SurplusBytes, 0x81),
        (0x62, b"\0\0", E::PacketIdZero, 0x82),
        (0x82, b"\0\0\0\0\x01f\0", E::PacketIdZero, 0x82),
        (0x82, b"\0\x01\0", E::NoTopicFilter, 0x82),         // [MQTT-3.8.3-2]
        (0x82, b"\0\x01\0\0\0\0", E::TopicFilter, 0x81),     // [MQTT-4.7.3-1]
        (0x82, b"\0\x01\0\0\x02a#\0", E::TopicFilter, 0x81), // [MQTT-4.7.1-1]
        (0x82, b"\0\x01\0\0\x03#/a\0", E::TopicFilter, 0x81),
        (0x82, b"\0\x01\0\0\x02+b\0", E::TopicFilter, 0x81), // [MQTT-4.7.1-2]
        (0x82, b"\0\x01\0\0\x01f", E::Truncated, 0x81),
        (0x82, b"\0\x01\0\0\x01f\x40", E::SubscriptionOptions, 0x81), // [MQTT-3.8.3-5]
        (0x82, b"\0\x01\0\0\x01f\x80", E::SubscriptionOptions, 0x81),
        (0x82, b"\0\x01\0\0\x01f\x03", E::SubscriptionOptionValue, 0x82),
        (0x82, b"\0\x01\0\0\x01f\x30", E::SubscriptionOptionValue, 0x82),
        (0x82, b"\0\x01\0\0\x09$share//t\0", E::SharedFilter, 0x81), // [MQTT-4.8.2-1]
        (0x82, b"\0\x01\0\0\x08$share/x\0", E::SharedFilter, 0x81),  // [MQTT-4.8.2-2]
        (0x82, b"\0\x01\0\0\x0A$share/+/t\0", E::SharedFilter, 0x81),
        (0x82, b"\0\x01\0\0\x0A$share/x/t\x04", E::NoLocalShared, 0x82), // [MQTT-3.8.3-4]
        (0xA2, b"\0\0\0\0\x01f", E::PacketIdZero, 0x82),
        (0xA2, b"\0\x01\0", E::NoTopicFilter, 0x82), // [MQTT-3.10.3-2]
        (0xA2, b"\0\x01\0\0\x01\xFF", E::InvalidUtf8, 0x81), // [MQTT-3.10.3-1]
        (0xC0, b"\x01", E::Truncated, 0x81),
        (0xE0, b"\0\0\0", E::SurplusBytes, 0x81),
        (0xF0, b"\x18", E::Truncated, 0x81), // AUTH has no form with a code and no Property Length
    ] {
        assert_eq!(receive(Sender::Client, V5, &packet(first, body)), Err(error), "{first:#04x} {body:?}");
        assert_eq!(error.reason().byte(), reason, "{first:#04x} {body:?}");
    }
    for (first, body, error) in [
        (0x20, &b"\x02\0\0"[..], E::ConnAckFlags), // [MQTT-3.2.2-1]
        (0x20, b"\0\0", E::Truncated),
        (0x90, b"\0\0\0\0", E::PacketIdZero),
        (0xD0, b"\0", E::SurplusBytes),
    ] {
        assert_eq!(receive(Sender::Server, V5, &packet(first, body)), Err(error), "{first:#04x} {body:?}");
    }
}

#[test]
fn faults_of_bodies_at_v311() {
    use DecodeError as E;
    for (first, body, error) in [
        (0x30, &b"\0\0"[..], E::TopicNameEmpty),
        (0x40, b"\0\x01\0", E::SurplusBytes),
        (0x62, b"\0\x01\0\0", E::SurplusBytes),
        (0x82, b"\0\x01", E::NoTopicFilter),                  // 3.1.1 [MQTT-3.8.3-3]
        (0x82, b"\0\x01\0\x01f\x04", E::SubscriptionOptions), // 3.1.1 [MQTT-3.8.3-4]
        (0x82, b"\0\x01\0\x01f\x08", E::SubscriptionOptions),
        (0x82, b"\0\x01\0\x01f\x10", E::SubscriptionOptions),
        (0x82, b"\0\x01\0\x01f\x03", E::SubscriptionOptionValue),
        (0xA2, b"\0\x01", E::NoTopicFilter),
        (0xC0, b"\0", E::PingBody),
        (0xE0, b"\0", E::SurplusBytes),
    ] {
        assert_eq!(receive(Sender::Client, V311, &packet(first, body)), Err(error), "{first:#04x} {body:?}");
    }
    for (first, body, error) in [
        (0x20, &b"\0\x06"[..], E::ReasonCode(6)), // 3.1.1 table 3.1
        (0x20, b"\0\x80", E::ReasonCode(0x80)),
        (0x20, b"\0\0\0", E::SurplusBytes),
        (0x90, b"\0\x01\x03", E::ReasonCode(3)),
        (0x90, b"\0\x01\x87", E::ReasonCode(0x87)), // 3.1.1 [MQTT-3.9.3-2]
        (0xB0, b"\0\x01\0", E::SurplusBytes),
    ] {
        assert_eq!(receive(Sender::Server, V311, &packet(first, body)), Err(error), "{first:#04x} {body:?}");
    }
}

#[test]
fn v311_packets_have_no_properties() {
    let Ok(Packet::Publish(publish)) = decode(V311, &packet(0x30, b"\0\x01t\0payload")) else { panic!() };
    assert_eq!(&publish.payload[..], b"\0payload");
    let Ok(Packet::Subscribe(subscribe)) = decode(V311, &packet(0x82, b"\0\x01\0\x01f\x02")) else { panic!() };
    assert_eq!(subscribe.subscriptions[0].options.qos, QoS::ExactlyOnce);
    let Ok(Packet::ConnAck(connack)) = decode(V311, &packet(0x20, &[0, 5])) else { panic!() };
    assert_eq!(connack.reason, ReasonCode::NotAuthorized);
    let Ok(Packet::SubAck(suback)) = decode(V311, &packet(0x90, &[0, 1, 2, 0x80])) else { panic!() };
    assert_eq!(suback.reasons, [ReasonCode::GrantedQoS2, ReasonCode::UnspecifiedError]);
}

#[test]
fn content_unknown_to_3_1_1_is_not_written() {
    let connack = |reason| encode(&Packet::ConnAck(Box::new(ConnAck::new(false, reason))), V311);
    assert_eq!(connack(ReasonCode::ProtocolError), Bytes::new());
    assert_eq!(&connack(ReasonCode::Banned)[..], &[0x20, 2, 0, 5]);
    let ping = tenbin_codec::PingReq::with_payload(Bytes::from_static(b"{}"));
    assert_eq!(&encode(&Packet::PingReq(ping), V311)[..], &[0xC0, 0]);
    let ack = tenbin_codec::Ack::new(PacketId::new(1).unwrap(), ReasonCode::NotAuthorized);
    assert_eq!(&encode(&Packet::PubAck(ack), V311)[..], &[0x40, 2, 0, 1]);
}
