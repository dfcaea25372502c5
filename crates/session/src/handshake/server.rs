use std::num::{NonZeroU16, NonZeroU32};
use std::time::Duration;

use tenbin_codec::{ConnAck, ConnAckProperties, Connect, QoS, ReasonCode, Text};

use crate::{Limits, SessionExpiry};

/// Limits and features that a server offers its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Most unacknowledged QoS 1 and 2 messages accepted from one client.
    pub receive_maximum: NonZeroU16,
    /// Largest accepted packet, in bytes.
    pub maximum_packet_size: NonZeroU32,
    /// Topic Aliases accepted from one client; 0 = none.
    pub topic_alias_maximum: u16,
    /// Topic Aliases sent to one client, within its own maximum; 0 = none.
    pub topic_aliases_sent: u16,
    /// Longest Keep Alive; zero = no limit. Replaces a longer one or none.
    ///
    /// Sent as Server Keep Alive, so it applies to v5 only.
    pub keep_alive_maximum: Duration,
    /// Longest session expiry.
    pub session_expiry_maximum: SessionExpiry,
    /// Highest supported QoS.
    pub maximum_qos: QoS,
    /// Whether retained messages are supported.
    pub retain_available: bool,
    /// Whether filters with wildcards are supported.
    pub wildcard_subscriptions_available: bool,
    /// Whether Subscription Identifiers are supported.
    pub subscription_identifiers_available: bool,
    /// Whether shared subscriptions are supported.
    pub shared_subscriptions_available: bool,
}

/// Result of an accepted CONNECT, for the server.
#[derive(Debug, Clone)]
pub struct Negotiated {
    /// The answer.
    pub connack: ConnAck,
    /// Limits of the connection.
    pub limits: Limits,
    /// How long the session outlives the connection.
    pub session_expiry: SessionExpiry,
}

/// Makes the CONNACK for `connect`, and the limits that it promises.
///
/// `session_present`: the server resumes a stored session. `assigned_client_id`: needed if the client sent none.
///
/// # Errors
/// A Will that the server does not support `[MQTT-3.2.2-12]`, `[MQTT-3.2.2-13]`.
pub fn negotiate(
    connect: &Connect,
    capabilities: &Capabilities,
    session_present: bool,
    assigned_client_id: Option<Text>,
) -> Result<Negotiated, ReasonCode> {
    if let Some(will) = &connect.will {
        if will.qos > capabilities.maximum_qos {
            return Err(ReasonCode::QoSNotSupported);
        }
        if will.retain && !capabilities.retain_available {
            return Err(ReasonCode::RetainNotSupported);
        }
    }
    let is_v5 = connect.version.is_v5();
    let (session_expiry, granted_expiry) = session_expiry(connect, capabilities);
    let (keep_alive, server_keep_alive) = keep_alive(connect, capabilities);
    let asked = &connect.properties;
    let properties = ConnAckProperties {
        session_expiry_interval: granted_expiry,
        receive_maximum: (capabilities.receive_maximum.get() != u16::MAX).then_some(capabilities.receive_maximum),
        // [MQTT-3.2.2-9]
        maximum_qos: (capabilities.maximum_qos != QoS::ExactlyOnce).then_some(capabilities.maximum_qos),
        retain_available: (!capabilities.retain_available).then_some(false),
        wildcard_subscription_available: (!capabilities.wildcard_subscriptions_available).then_some(false),
        subscription_identifier_available: (!capabilities.subscription_identifiers_available).then_some(false),
        shared_subscription_available: (!capabilities.shared_subscriptions_available).then_some(false),
        maximum_packet_size: Some(capabilities.maximum_packet_size),
        assigned_client_identifier: assigned_client_id, // [MQTT-3.1.3-7]
        topic_alias_maximum: (capabilities.topic_alias_maximum > 0).then_some(capabilities.topic_alias_maximum),
        server_keep_alive,
        ..ConnAckProperties::default()
    };
    let limits = Limits {
        // 3.1.1 has no flow control, so the client knows no limit.
        receive_maximum: if is_v5 { capabilities.receive_maximum.get() } else { u16::MAX },
        peer_receive_maximum: asked.receive_maximum.map_or(u16::MAX, NonZeroU16::get), // [MQTT-3.3.4-9]
        peer_maximum_packet_size: asked.maximum_packet_size.map_or(u32::MAX, NonZeroU32::get),
        topic_alias_maximum: capabilities.topic_alias_maximum,
        peer_topic_alias_maximum: asked.topic_alias_maximum.unwrap_or(0).min(capabilities.topic_aliases_sent),
        keep_alive,
        maximum_qos: capabilities.maximum_qos,
        retain_available: capabilities.retain_available,
        wildcard_subscriptions_available: capabilities.wildcard_subscriptions_available,
        subscription_identifiers_available: capabilities.subscription_identifiers_available,
        shared_subscriptions_available: capabilities.shared_subscriptions_available,
        problem_information: asked.request_problem_information.unwrap_or(true),
    };
    let properties = if is_v5 { properties } else { ConnAckProperties::default() };
    let connack = ConnAck { session_present, reason: ReasonCode::Success, properties };
    Ok(Negotiated { connack, limits, session_expiry })
}

/// Returns the expiry in force, and the CONNACK property if it differs from the requested one.
fn session_expiry(connect: &Connect, capabilities: &Capabilities) -> (SessionExpiry, Option<u32>) {
    let maximum = capabilities.session_expiry_maximum.seconds();
    if !connect.version.is_v5() {
        // Clean Session 1 ends with its connection, 0 never ends (3.1.1 §3.1.2.4).
        let seconds = if connect.clean_start { 0 } else { maximum };
        return (SessionExpiry::from_seconds(seconds), None);
    }
    let asked = connect.properties.session_expiry_interval.unwrap_or(0);
    let granted = asked.min(maximum);
    (SessionExpiry::from_seconds(granted), (granted != asked).then_some(granted))
}

fn keep_alive(connect: &Connect, capabilities: &Capabilities) -> (Duration, Option<u16>) {
    let asked = Duration::from_secs(u64::from(connect.keep_alive));
    let maximum = capabilities.keep_alive_maximum;
    let too_long = !maximum.is_zero() && (asked.is_zero() || asked > maximum);
    if too_long && connect.version.is_v5() {
        (maximum, Some(u16::try_from(maximum.as_secs()).unwrap_or(u16::MAX))) // [MQTT-3.1.2-21]
    } else {
        (asked, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenbin_codec::ProtocolVersion;

    fn capabilities() -> Capabilities {
        Capabilities {
            receive_maximum: NonZeroU16::new(20).unwrap(),
            maximum_packet_size: NonZeroU32::new(1000).unwrap(),
            topic_alias_maximum: 5,
            topic_aliases_sent: 3,
            keep_alive_maximum: Duration::from_secs(60),
            session_expiry_maximum: SessionExpiry::from_seconds(100),
            maximum_qos: QoS::ExactlyOnce,
            retain_available: true,
            wildcard_subscriptions_available: true,
            subscription_identifiers_available: true,
            shared_subscriptions_available: true,
        }
    }

    #[test]
    fn mqtt_3_1_2_21_v5_keep_alive_over_maximum_is_replaced() {
        for (version, asked, in_force, told) in [
            (ProtocolVersion::V5, 30, 30, None),
            (ProtocolVersion::V5, 120, 60, Some(60)),
            (ProtocolVersion::V5, 0, 60, Some(60)),
            (ProtocolVersion::V311, 120, 120, None),
        ] {
            let mut connect = Connect::new(version, Text::from_static("c"));
            connect.keep_alive = asked;
            let negotiated = negotiate(&connect, &capabilities(), false, None).unwrap();
            assert_eq!(negotiated.limits.keep_alive, Duration::from_secs(in_force));
            assert_eq!(negotiated.connack.properties.server_keep_alive, told);
        }
    }

    #[test]
    fn session_expiry_is_capped_and_change_is_in_connack() {
        let mut connect = Connect::new(ProtocolVersion::V5, Text::from_static("c"));
        let told = |connect: &Connect| {
            let negotiated = negotiate(connect, &capabilities(), false, None).unwrap();
            (negotiated.session_expiry.seconds(), negotiated.connack.properties.session_expiry_interval)
        };
        assert_eq!(told(&connect), (0, None));
        connect.properties.session_expiry_interval = Some(50);
        assert_eq!(told(&connect), (50, None));
        connect.properties.session_expiry_interval = Some(u32::MAX);
        assert_eq!(told(&connect), (100, Some(100)));
        let mut connect = Connect::new(ProtocolVersion::V311, Text::from_static("c"));
        assert_eq!(told(&connect), (0, None));
        connect.clean_start = false;
        assert_eq!(told(&connect), (100, None));
    }

    #[test]
    fn clients_limits_bound_the_server() {
        let mut connect = Connect::new(ProtocolVersion::V5, Text::from_static("c"));
        connect.properties.receive_maximum = NonZeroU16::new(7);
        connect.properties.maximum_packet_size = NonZeroU32::new(99);
        connect.properties.topic_alias_maximum = Some(9);
        let limits = negotiate(&connect, &capabilities(), false, None).unwrap().limits;
        assert_eq!(limits.peer_receive_maximum, 7);
        assert_eq!(limits.peer_maximum_packet_size, 99);
        assert_eq!(limits.peer_topic_alias_maximum, 3);
        assert_eq!((limits.receive_maximum, limits.topic_alias_maximum), (20, 5));
    }
}
