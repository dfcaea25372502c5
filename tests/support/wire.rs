use bytes::Bytes;
use tenbin_codec::{
    Connect, ConnectProperties, MessageProperties, Packet, ProtocolVersion, Publish, QoS, Subscription,
    SubscriptionOptions, Text, TopicFilter, TopicName, WriteBuffer,
};

/// Both versions of the protocol.
pub(crate) const VERSIONS: [ProtocolVersion; 2] = [ProtocolVersion::V5, ProtocolVersion::V311];

/// QoS 0, 1 and 2.
pub(crate) const QOS_ALL: [QoS; 3] = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];

pub(crate) fn text(text: &str) -> Text {
    Text::try_from(text).expect("a legal string")
}

pub(crate) fn topic(name: &str) -> TopicName {
    TopicName::new(text(name)).expect("a legal topic name")
}

pub(crate) fn filter(filter: &str) -> TopicFilter {
    TopicFilter::new(text(filter)).expect("a legal topic filter")
}

/// The filter of a shared subscription.
pub(crate) fn share(name: &str, filter: &str) -> String {
    format!("$share/{name}/{filter}")
}

/// A QoS 0 message.
pub(crate) fn message(name: &str, payload: &str) -> Publish {
    Publish::new(topic(name), Bytes::copy_from_slice(payload.as_bytes()))
}

/// A message at `qos`, whose Packet Identifier the client adds.
pub(crate) fn at_qos(name: &str, payload: &str, qos: QoS) -> Publish {
    Publish { qos, ..message(name, payload) }
}

/// A QoS 1 message to be retained.
pub(crate) fn retained(name: &str, payload: &str) -> Publish {
    Publish { retain: true, ..at_qos(name, payload, QoS::AtLeastOnce) }
}

/// `publish` with a Message Expiry Interval.
pub(crate) fn with_expiry(publish: Publish, seconds: u32) -> Publish {
    let properties = MessageProperties { message_expiry_interval: Some(seconds), ..MessageProperties::default() };
    Publish { properties: properties.boxed(), ..publish }
}

/// A subscription with nothing but a QoS.
pub(crate) fn subscription(topic_filter: &str, qos: QoS) -> Subscription {
    let options = SubscriptionOptions { qos, ..SubscriptionOptions::default() };
    Subscription { filter: filter(topic_filter), options }
}

/// CONNECT that resumes a session, and leaves one that does not expire.
pub(crate) fn lasting(version: ProtocolVersion, client_id: &str) -> Connect {
    let session_expiry_interval = version.is_v5().then_some(u32::MAX);
    Connect {
        clean_start: false,
        properties: ConnectProperties { session_expiry_interval, ..ConnectProperties::default() },
        ..Connect::new(version, text(client_id))
    }
}

/// The bytes of a packet.
pub(crate) fn encode(packet: &Packet, version: ProtocolVersion) -> Bytes {
    let mut out = WriteBuffer::new();
    packet.encode(version, &mut out);
    out.to_bytes()
}

/// Bytes from hexadecimal digits; spaces between them do not matter.
pub(crate) fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).expect("ASCII"));
    pairs.map(|pair| u8::from_str_radix(pair, 16).expect("hexadecimal digits")).collect()
}
