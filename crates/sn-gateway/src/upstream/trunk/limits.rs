//! Limits of a broker's CONNACK, for a client that does not get it.

use std::num::{NonZeroU16, NonZeroU32};

use tenbin_codec::{ConnAck, Packet, ProtocolVersion, QoS, ReasonCode, WriteBuffer};

/// The limits.
pub(super) struct Limits {
    maximum_qos: QoS,
    retain_available: bool,
    wildcards_available: bool,
    shared_available: bool,
    maximum_packet_size: usize,
    /// QoS 1 and 2 messages under way.
    pub(super) receive_maximum: usize,
}

impl Limits {
    pub(super) fn of(connack: &ConnAck) -> Self {
        let properties = &connack.properties;
        Self {
            maximum_qos: properties.maximum_qos.unwrap_or(QoS::ExactlyOnce),
            retain_available: properties.retain_available != Some(false),
            wildcards_available: properties.wildcard_subscription_available != Some(false),
            shared_available: properties.shared_subscription_available != Some(false),
            maximum_packet_size: properties
                .maximum_packet_size
                .map_or(usize::MAX, |size: NonZeroU32| size.get() as usize),
            receive_maximum: properties.receive_maximum.map_or(u16::MAX, NonZeroU16::get).into(),
        }
    }

    /// Why the broker would end the connection for a PUBLISH or SUBSCRIBE, if it would.
    pub(super) fn refusal(&self, packet: &Packet) -> Option<ReasonCode> {
        match packet {
            Packet::Publish(publish) if publish.qos > self.maximum_qos => return Some(ReasonCode::QoSNotSupported),
            Packet::Publish(publish) if publish.retain && !self.retain_available => {
                return Some(ReasonCode::RetainNotSupported);
            }
            Packet::Subscribe(subscribe) => {
                let mut filters = subscribe.subscriptions.iter().map(|subscription| &subscription.filter);
                if !self.shared_available && filters.clone().any(|filter| filter.is_shared()) {
                    return Some(ReasonCode::SharedSubscriptionsNotSupported);
                }
                if !self.wildcards_available && filters.any(|filter| filter.has_wildcard()) {
                    return Some(ReasonCode::WildcardSubscriptionsNotSupported);
                }
            }
            Packet::Publish(_) => {}
            _ => return None,
        }
        (packet_size(packet) > self.maximum_packet_size).then_some(ReasonCode::PacketTooLarge)
    }
}

/// Encoded bytes of a packet.
pub(super) fn packet_size(packet: &Packet) -> usize {
    let mut out = WriteBuffer::new();
    packet.encode(ProtocolVersion::V5, &mut out);
    out.len()
}
