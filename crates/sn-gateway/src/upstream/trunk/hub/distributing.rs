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

    pub(super) fn note_acknowledged(&mut self, key: Key, id: PacketId) {
        if let Some(member) = self.member(key) {
            member.unacknowledged.remove(&id);
            if member.moving.is_some() {
                member.wake(); // Its move may wait for this.
            }
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
        let packet_id = if qos == QoS::AtMostOnce { None } else { self.next_id() };
        if qos != QoS::AtMostOnce && packet_id.is_none() {
            return false;
        }
        let header = PublishHeader { qos, retain: publish.retain, packet_id, ..PublishHeader::default() };
        header.encode(&publish.topic, &publish.payload, VERSION, &mut self.inbound);
        if let Some(id) = packet_id {
            self.unacknowledged.insert(id, self.read + self.inbound.len() as i64);
        }
        if qos == QoS::ExactlyOnce
            && let Some(moving) = &mut self.moving
        {
            moving.note_delivered(publish);
        }
        self.wake();
        true
    }

    /// The next Packet Identifier that no unacknowledged message has.
    fn next_id(&mut self) -> Option<PacketId> {
        if self.unacknowledged.len() >= usize::from(u16::MAX) {
            return None;
        }
        loop {
            self.last_id = self.last_id % u16::MAX + 1;
            let id = PacketId::new(self.last_id)?;
            if !self.unacknowledged.contains_key(&id) {
                return Some(id);
            }
        }
    }
}
