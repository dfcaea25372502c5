//! CONNACK: its content and its encoding.

use tenbin_codec::{
    ConnAck, Connect, DecodeError, Packet, ProtocolVersion, ReasonCode, ReportCarriers, Secret, Text, WriteBuffer,
};
use tenbin_session::handshake::{Negotiated, negotiate};

use crate::lifecycle::BrokerState;

/// Negotiates the connection's limits; the CONNACK has every property, but no session yet.
///
/// `assigned`: the Client Identifier, if the broker has chosen it.
///
/// # Errors
/// The broker does not support the Will, or the client does not accept a CONNACK of this size.
pub(super) fn negotiate_limits(
    shared: &BrokerState,
    connect: &Connect,
    client_id: &Text,
    assigned: Option<Text>,
    data: Option<Secret>,
    report_carriers: ReportCarriers,
) -> Result<Negotiated, ReasonCode> {
    let mut negotiated = negotiate(connect, &shared.sessions.capabilities, false, assigned)?;
    let properties = &mut negotiated.connack.properties;
    properties.response_information = response_information(shared, connect, client_id);
    properties.authentication_method = connect.properties.authentication_method.as_ref().map(Text::detach); // [MQTT-4.12.0-5]
    properties.authentication_data = data;
    // Only on request: some clients cannot read a CONNACK with User Properties.
    if ReportCarriers::are_asked_for(&connect.properties.user_properties) {
        properties.user_properties.extend(report_carriers.to_property());
    }
    // Check this before any change: a client that accepts no CONNACK gets no connection.
    let limits = &mut negotiated.limits;
    if !put(negotiated.connack.clone(), limits.peer_maximum_packet_size, connect.version, &mut WriteBuffer::new()) {
        return Err(ReasonCode::PacketTooLarge);
    }
    limits.peer_receive_maximum = limits.peer_receive_maximum.min(shared.config.in_flight_maximum());
    Ok(negotiated)
}

/// Answers an illegal CONNECT in the format that its sender knows, if an answer is permitted.
pub(super) fn answer_illegal_connect(error: DecodeError, version: Option<ProtocolVersion>, out: &mut WriteBuffer) {
    let version = match error {
        // In the format of 3.1.1 to its clients, and to bridges, which come with another level then. [MQTT-3.1.2-2]
        DecodeError::ProtocolVersion(3 | 4 | Connect::BRIDGE..) => Some(ProtocolVersion::V311),
        DecodeError::ProtocolVersion(_) => Some(ProtocolVersion::V5),
        // A guesser of credentials learns nothing. Without the end of the packet no answer is possible.
        DecodeError::Credentials | DecodeError::RemainingLength => None,
        _ => version,
    };
    // A peer that does not speak MQTT gets no answer; 3.1.1 has no code for a malformed packet.
    if let Some(version) = version {
        refuse(error.reason(), Some(error.to_string()), u32::MAX, version, out);
    }
}

/// Appends a CONNACK that refuses the client `[MQTT-3.2.2-6]`.
///
/// Omits the reason string `words` if the packet is too large for the client `[MQTT-3.2.2-19]`. Appends nothing if it
/// still is `[MQTT-3.1.2-24]`.
fn refuse(
    reason: ReasonCode,
    words: Option<String>,
    packet_size_maximum: u32,
    version: ProtocolVersion,
    out: &mut WriteBuffer,
) {
    let mut connack = ConnAck::new(false, reason);
    connack.properties.reason_string = words.and_then(|words| Text::try_from(words).ok());
    put(connack, packet_size_maximum, version, out);
}

/// Appends CONNACK; returns `false` and writes nothing if it is too large for the client `[MQTT-3.1.2-24]`.
///
/// First leaves out Reason String, User Properties `[MQTT-3.2.2-19]`, `[MQTT-3.2.2-20]` and Response Information. The
/// other properties bind the client.
pub(super) fn put(
    mut connack: ConnAck,
    packet_size_maximum: u32,
    version: ProtocolVersion,
    out: &mut WriteBuffer,
) -> bool {
    for _ in 0..2 {
        let mut aside = WriteBuffer::new();
        Packet::ConnAck(Box::new(connack.clone())).encode(version, &mut aside);
        if aside.len() <= packet_size_maximum as usize {
            out.put_payload(&aside.to_bytes());
            return true;
        }
        connack.properties.reason_string = None;
        connack.properties.user_properties.clear();
        connack.properties.response_information = None;
    }
    false
}

/// Response Information (MQTT 5.0 §4.10.1): a topic prefix that no other client gets.
fn response_information(shared: &BrokerState, connect: &Connect, client_id: &Text) -> Option<Text> {
    let levels = &shared.config.capabilities.response_information;
    let is_asked_for = connect.properties.request_response_information == Some(true); // [MQTT-3.1.2-28]
    let is_one_level = !client_id.as_bytes().iter().any(|byte| matches!(byte, b'/' | b'+' | b'#'));
    if levels.is_empty() || !is_asked_for || !is_one_level {
        return None;
    }
    Text::try_from(format!("{levels}/{client_id}")).ok()
}
