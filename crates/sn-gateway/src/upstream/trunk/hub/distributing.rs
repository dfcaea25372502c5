//! Messages of the broker to members.

use tenbin_codec::{Ack, Packet, PacketId, Publish, PublishHeader, QoS, ReasonCode};

use super::{Hub, Key, MEMBER_BYTES_MAXIMUM, Member, VERSION};

impl Hub {
    /// Passes a message of the broker to the members whose filters it matched, and acknowledges it: the members have it
    /// from here on.
    pub(super) fn distribute(&mut self, publish: &Publish) {
        let id = publish.packet_id;
        let is_copy = publish.qos == QoS::ExactlyOnce && id.is_some_and(|id| !self.unreleased.insert(id));
        if !is_copy {
            let mut receivers = std::mem::take(&mut self.receivers);
            let identifiers = &publish.subscription_identifiers;
            let is_known = self.subscriptions.receivers(identifiers, publish.retain, &mut receivers);
            if !is_known || publish.payload.len() > self.payload_bytes_maximum {
                self.dropped += receivers.len().max(1) as u64;
                receivers.clear();
            }
            for &(key, qos) in &receivers {
                let is_sent = self.member(key).is_some_and(|member| member.deliver(publish, qos));
                self.dropped += u64::from(!is_sent);
            }
            self.receivers = receivers;
        }
        match (id, publish.qos) {
            (Some(id), QoS::AtLeastOnce) => self.write(&Packet::PubAck(Ack::new(id, ReasonCode::Success))),
            (Some(id), QoS::ExactlyOnce) => self.write(&Packet::PubRec(Ack::new(id, ReasonCode::Success))),
            _ => {}
        }
    }

    pub(super) fn note_acknowledged(&mut self, key: Key) {
        if let Some(member) = self.member(key) {
            member.unacknowledged = member.unacknowledged.saturating_sub(1);
        }
    }
}

impl Member {
    /// Writes a message. False if the member is slow.
    fn deliver(&mut self, publish: &Publish, granted: QoS) -> bool {
        if self.inbound.len() > MEMBER_BYTES_MAXIMUM || self.is_closed {
            return false;
        }
        let qos = publish.qos.min(granted);
        let packet_id = (qos != QoS::AtMostOnce).then(|| {
            self.last_id = self.last_id % u16::MAX + 1;
            self.unacknowledged = self.unacknowledged.saturating_add(1);
            PacketId::new(self.last_id).expect("1 to 65,535")
        });
        let header = PublishHeader { qos, retain: publish.retain, packet_id, ..PublishHeader::default() };
        header.encode(&publish.topic, &publish.payload, VERSION, &mut self.inbound);
        self.wake();
        true
    }
}
