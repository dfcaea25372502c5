//! Reason Codes of MQTT 5.0 as return codes of MQTT-SN.

use tenbin_codec::{QoS, ReasonCode};
use tenbin_sn_codec::v1_2::{self, ReturnCode};

/// Return code of CONNACK.
pub(crate) fn connack_code(reason: ReasonCode) -> ReturnCode {
    match reason {
        ReasonCode::Success => ReturnCode::Accepted,
        reason if is_congestion(reason) => ReturnCode::Congestion, // [SN-MAP-1]
        _ => ReturnCode::NotSupported,
    }
}

/// Return code of SUBACK and PUBACK.
pub(crate) fn ack_code(reason: ReasonCode) -> ReturnCode {
    match reason {
        reason if !reason.is_error() => ReturnCode::Accepted,
        reason if is_congestion(reason) => ReturnCode::Congestion, // [SN-MAP-2]
        ReasonCode::TopicNameInvalid | ReasonCode::TopicFilterInvalid => ReturnCode::InvalidTopicId,
        _ => ReturnCode::NotSupported,
    }
}

/// Reasons that may pass by themselves.
fn is_congestion(reason: ReasonCode) -> bool {
    matches!(
        reason,
        ReasonCode::ServerUnavailable
            | ReasonCode::ServerBusy
            | ReasonCode::ServerShuttingDown
            | ReasonCode::ReceiveMaximumExceeded
            | ReasonCode::MessageRateTooHigh
            | ReasonCode::QuotaExceeded
            | ReasonCode::ConnectionRateExceeded
    )
}

/// Granted QoS of a SUBACK; 0 for a refusal.
pub(crate) fn granted_qos(reason: ReasonCode) -> v1_2::QoS {
    match reason {
        ReasonCode::GrantedQoS1 => v1_2::QoS::AtLeastOnce,
        ReasonCode::GrantedQoS2 => v1_2::QoS::ExactlyOnce,
        _ => v1_2::QoS::AtMostOnce,
    }
}

pub(crate) fn to_mqtt(qos: v1_2::QoS) -> QoS {
    match qos {
        v1_2::QoS::AtMostOnce => QoS::AtMostOnce,
        v1_2::QoS::AtLeastOnce => QoS::AtLeastOnce,
        v1_2::QoS::ExactlyOnce => QoS::ExactlyOnce,
    }
}

pub(crate) fn from_mqtt(qos: QoS) -> v1_2::QoS {
    match qos {
        QoS::AtMostOnce => v1_2::QoS::AtMostOnce,
        QoS::AtLeastOnce => v1_2::QoS::AtLeastOnce,
        QoS::ExactlyOnce => v1_2::QoS::ExactlyOnce,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_map_to_the_codes_of_the_table() {
        for (reason, connack, ack) in [
            (ReasonCode::Success, ReturnCode::Accepted, ReturnCode::Accepted),
            (ReasonCode::NoMatchingSubscribers, ReturnCode::NotSupported, ReturnCode::Accepted),
            (ReasonCode::ServerBusy, ReturnCode::Congestion, ReturnCode::Congestion),
            (ReasonCode::QuotaExceeded, ReturnCode::Congestion, ReturnCode::Congestion),
            (ReasonCode::ConnectionRateExceeded, ReturnCode::Congestion, ReturnCode::Congestion),
            (ReasonCode::ReceiveMaximumExceeded, ReturnCode::Congestion, ReturnCode::Congestion),
            (ReasonCode::TopicNameInvalid, ReturnCode::NotSupported, ReturnCode::InvalidTopicId),
            (ReasonCode::TopicFilterInvalid, ReturnCode::NotSupported, ReturnCode::InvalidTopicId),
            (ReasonCode::NotAuthorized, ReturnCode::NotSupported, ReturnCode::NotSupported),
            (ReasonCode::QoSNotSupported, ReturnCode::NotSupported, ReturnCode::NotSupported),
            (ReasonCode::RetainNotSupported, ReturnCode::NotSupported, ReturnCode::NotSupported),
            (ReasonCode::PacketTooLarge, ReturnCode::NotSupported, ReturnCode::NotSupported),
            (ReasonCode::UnspecifiedError, ReturnCode::NotSupported, ReturnCode::NotSupported),
        ] {
            assert_eq!((connack_code(reason), ack_code(reason)), (connack, ack), "{reason}");
        }
    }
}
