use std::fmt;
use std::num::{NonZeroU16, NonZeroU32};
use std::time::Duration;

use tenbin_codec::{ConnAck, Connect, ConnectProperties, QoS, ReasonCode};

use crate::{Limits, Session};

/// Result of an accepting CONNACK, for the client.
#[derive(Debug)]
pub struct Accepted {
    /// Limits of the connection.
    pub limits: Limits,
    /// Whether the server resumed its session. If not, subscriptions must be made again.
    pub session_present: bool,
    /// The client's session: the given one, or a new one if the server has none `[MQTT-3.2.2-5]`.
    pub session: Session,
}

/// Why the connection was not established.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedByServer {
    /// CONNACK with an error code.
    Reason(ReasonCode),
    /// The server resumed a session that the client does not have `[MQTT-3.2.2-4]`.
    UnknownSession,
}

impl fmt::Display for RefusedByServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reason(reason) => write!(f, "the broker refused the connection: {reason}"),
            Self::UnknownSession => f.write_str("the broker goes on with a session that was to be new [MQTT-3.2.2-4]"),
        }
    }
}

impl std::error::Error for RefusedByServer {}

/// Completes the handshake that `connect` began. `session` is the client's state; Clean Start discards it.
///
/// # Errors
/// The server refused, or resumed a session despite Clean Start.
pub fn complete(connect: &Connect, connack: &ConnAck, session: Session) -> Result<Accepted, RefusedByServer> {
    if connack.reason.is_error() {
        return Err(RefusedByServer::Reason(connack.reason));
    }
    if connack.session_present && connect.clean_start {
        return Err(RefusedByServer::UnknownSession);
    }
    // A 3.1.1 CONNECT has no properties, so they do not apply.
    let untold = ConnectProperties::default();
    let ours = if connect.version.is_v5() { &connect.properties } else { &untold };
    let theirs = &connack.properties;
    let keep_alive = theirs.server_keep_alive.unwrap_or(connect.keep_alive); // [MQTT-3.2.2-21]
    let limits = Limits {
        receive_maximum: ours.receive_maximum.map_or(u16::MAX, NonZeroU16::get),
        peer_receive_maximum: theirs.receive_maximum.map_or(u16::MAX, NonZeroU16::get),
        peer_maximum_packet_size: theirs.maximum_packet_size.map_or(u32::MAX, NonZeroU32::get),
        topic_alias_maximum: ours.topic_alias_maximum.unwrap_or(0),
        peer_topic_alias_maximum: theirs.topic_alias_maximum.unwrap_or(0),
        keep_alive: Duration::from_secs(u64::from(keep_alive)),
        maximum_qos: theirs.maximum_qos.unwrap_or(QoS::ExactlyOnce),
        retain_available: theirs.retain_available.unwrap_or(true),
        wildcard_subscriptions_available: theirs.wildcard_subscription_available.unwrap_or(true),
        subscription_identifiers_available: theirs.subscription_identifier_available.unwrap_or(true),
        shared_subscriptions_available: theirs.shared_subscription_available.unwrap_or(true),
        problem_information: ours.request_problem_information.unwrap_or(true),
    };
    let session = if connack.session_present { session } else { Session::new() };
    Ok(Accepted { limits, session_present: connack.session_present, session })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenbin_codec::{PacketId, ProtocolVersion, Text};

    fn connect(version: ProtocolVersion) -> Connect {
        let mut connect = Connect::new(version, Text::from_static("c"));
        connect.clean_start = false;
        connect.keep_alive = 30;
        connect.properties.receive_maximum = NonZeroU16::new(7);
        connect.properties.topic_alias_maximum = Some(3);
        connect
    }

    fn connack(session_present: bool, reason: ReasonCode) -> ConnAck {
        ConnAck { session_present, reason, properties: Default::default() }
    }

    fn used() -> Session {
        let mut session = Session::new();
        session.awaiting_release.insert(PacketId::new(1).unwrap());
        session
    }

    #[test]
    fn mqtt_3_2_2_5_client_session_ends_without_servers_session() {
        for session_present in [true, false] {
            let connack = connack(session_present, ReasonCode::Success);
            let accepted = complete(&connect(ProtocolVersion::V5), &connack, used()).unwrap();
            assert_eq!(accepted.session.is_empty(), !session_present);
            assert_eq!(accepted.session_present, session_present);
        }
    }

    #[test]
    fn mqtt_3_2_2_4_unexpected_old_session_is_refused() {
        let connect = Connect { clean_start: true, ..connect(ProtocolVersion::V5) };
        let refused = complete(&connect, &connack(true, ReasonCode::Success), Session::new()).unwrap_err();
        assert_eq!(refused, RefusedByServer::UnknownSession);
        let refused = complete(&connect, &connack(false, ReasonCode::Banned), Session::new()).unwrap_err();
        assert_eq!(refused, RefusedByServer::Reason(ReasonCode::Banned));
    }

    #[test]
    fn mqtt_3_2_2_21_the_servers_keep_alive_replaces_ours() {
        let mut connack = connack(false, ReasonCode::Success);
        for (told, in_force) in [(None, 30), (Some(5), 5), (Some(0), 0)] {
            connack.properties.server_keep_alive = told;
            let accepted = complete(&connect(ProtocolVersion::V5), &connack, Session::new()).unwrap();
            assert_eq!(accepted.limits.keep_alive, Duration::from_secs(in_force));
        }
    }

    #[test]
    fn v3_1_1_connect_ignores_properties() {
        for (version, receive_maximum, aliases) in [(ProtocolVersion::V5, 7, 3), (ProtocolVersion::V311, u16::MAX, 0)] {
            let connack = connack(false, ReasonCode::Success);
            let limits = complete(&connect(version), &connack, Session::new()).unwrap().limits;
            assert_eq!((limits.receive_maximum, limits.topic_alias_maximum), (receive_maximum, aliases));
        }
    }
}
