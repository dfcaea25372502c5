//! Messages, subscriptions and their ends, from members to the broker.

use std::num::NonZeroU16;

use bytes::Bytes;
use tenbin_codec::{
    Ack, Packet, PacketId, PublishHeader, QoS, ReasonCode, RetainHandling, SubAck, Subscribe, Subscription,
    SubscriptionOptions, TopicFilter, Unsubscribe,
};

use super::{Hub, Key, Request, State, VERSION, WILLS_MAXIMUM, Waiting, refusal};

/// Packet Identifiers of a connection.
pub(super) const IDS_MAXIMUM: usize = u16::MAX as usize;

impl Hub {
    pub(super) fn publish(&mut self, message: Waiting) {
        if !matches!(self.state, State::Up(_)) {
            return self.wait(message);
        }
        if self.is_forbidden(&message) {
            return self.dropped += 1;
        }
        if message.qos == QoS::AtMostOnce {
            let header = PublishHeader { retain: message.retain, ..PublishHeader::default() };
            return self.write_with(|out| header.encode(&message.topic, &message.payload, VERSION, out));
        }
        if self.waiting.is_empty() && self.may_publish() {
            self.send_publish(&message);
        } else {
            self.wait(message);
        }
    }

    /// Whether the broker would end the trunk for a Will. Members' own messages are checked by their peers.
    fn is_forbidden(&self, message: &Waiting) -> bool {
        let Waiting { owner: None, qos, retain, payload, .. } = message else { return false };
        matches!(&self.state, State::Up(terms) if refusal(terms, *qos, *retain, payload.len()).is_some())
    }

    pub(super) fn wait(&mut self, message: Waiting) {
        if message.owner.is_none() && self.waiting.len() >= WILLS_MAXIMUM {
            return self.dropped += 1;
        }
        self.waiting_bytes += message.bytes();
        // It must not keep the read buffer of its member alive.
        let payload = Bytes::copy_from_slice(&message.payload);
        self.waiting.push_back(Waiting { topic: message.topic.detach(), payload, ..message });
    }

    pub(super) fn send_publish(&mut self, message: &Waiting) {
        let Waiting { owner, qos, retain, topic, payload } = message;
        let Some(id) = self.next_id() else { return self.dropped += 1 };
        self.requests.insert(id, Request::Publish(*owner));
        self.publishing += 1;
        let header = PublishHeader { qos: *qos, retain: *retain, packet_id: Some(id), ..PublishHeader::default() };
        self.write_with(|out| header.encode(topic, payload, VERSION, out));
    }

    /// Whether the broker takes a further QoS 1 or 2 message, and a Packet Identifier is free.
    fn may_publish(&self) -> bool {
        self.publishing < self.receive_maximum() && self.requests.len() < IDS_MAXIMUM
    }

    /// Sends packets that waited for a Packet Identifier or the broker's Receive Maximum.
    pub(super) fn send_waiting(&mut self) {
        while self.requests.len() < IDS_MAXIMUM
            && let Some(filter) = self.unsubscribing.pop_front()
        {
            if !self.subscriptions.contains(&filter) {
                self.write_unsubscribe(filter);
            }
        }
        while self.may_publish() {
            let Some(message) = self.waiting.pop_front() else { return };
            self.waiting_bytes -= message.bytes();
            if self.is_forbidden(&message) {
                self.dropped += 1;
            } else if message.qos == QoS::AtMostOnce {
                self.publish(message);
            } else {
                self.send_publish(&message);
            }
        }
    }

    /// Passes the broker's answer to a message on to its owner: PUBACK or PUBREC, which `packet` makes.
    pub(super) fn answer(&mut self, ack: &Ack, packet: fn(Ack) -> Packet) {
        let Some(Request::Publish(owner)) = self.requests.get(&ack.packet_id) else { return };
        let Some((key, own_id)) = *owner else {
            if ack.reason.is_error() {
                tracing::warn!(reason = %ack.reason, "broker refused a Will");
                self.dropped += 1;
            }
            return;
        };
        let answer = packet(Ack::new(own_id, ack.reason));
        if let Some(member) = self.member(key)
            && matches!(answer, Packet::PubRec(_))
            && !ack.reason.is_error()
        {
            member.unreleased.insert(own_id);
        }
        self.send(key, &answer);
    }

    /// Ends an exchange: the broker owes no further answer.
    pub(super) fn finish_publish(&mut self, id: PacketId) {
        let Some(Request::Publish(owner)) = self.requests.remove(&id) else { return };
        self.publishing = self.publishing.saturating_sub(1);
        if let Some((key, _)) = owner {
            self.note_answered(key);
        }
        self.send_waiting();
        self.unblock();
    }

    /// A request of a member is over.
    fn note_answered(&mut self, key: Key) {
        if let Some(member) = self.member(key) {
            member.unanswered = member.unanswered.saturating_sub(1);
            if member.moving.is_some() {
                member.wake(); // Its move may wait for this.
            }
        }
    }

    pub(super) fn subscribe(&mut self, key: Key, own_id: PacketId, filter: &TopicFilter, qos: QoS) {
        let (Some(id), State::Up(_)) = (self.next_id(), &self.state) else {
            // It tries again.
            let reasons = vec![ReasonCode::QuotaExceeded];
            let suback = SubAck { packet_id: own_id, properties: Default::default(), reasons };
            return self.send(key, &Packet::SubAck(suback));
        };
        let filter = filter.detach();
        let Some(member) = self.member(key) else { return };
        member.unanswered += 1;
        member.filters.retain(|(known, _)| *known != filter);
        member.filters.push((filter.clone(), qos));
        let (identifier, highest) = self.subscriptions.add(&filter, key, qos);
        let options =
            SubscriptionOptions { retain_handling: RetainHandling::Always, ..SubscriptionOptions::at(highest) };
        let subscribe = Subscribe {
            packet_id: id,
            subscription_identifier: Some(identifier),
            user_properties: Vec::new(),
            subscriptions: vec![Subscription { filter: filter.clone(), options }],
        };
        self.requests.insert(id, Request::Subscribe { owner: (key, own_id), filter, identifier, qos });
        self.write(&Packet::Subscribe(subscribe));
    }

    pub(super) fn finish_subscribe(&mut self, suback: &SubAck) {
        let Some(Request::Subscribe { owner: (key, packet_id), filter, identifier, qos }) =
            self.requests.remove(&suback.packet_id)
        else {
            return;
        };
        self.subscriptions.acknowledge(&filter, identifier);
        let reason = match suback.reasons.first() {
            Some(ReasonCode::Success) => ReasonCode::Success,
            Some(granted @ (ReasonCode::GrantedQoS1 | ReasonCode::GrantedQoS2)) => match (granted, qos) {
                (_, QoS::AtMostOnce) => ReasonCode::Success,
                (_, QoS::AtLeastOnce) => ReasonCode::GrantedQoS1,
                (granted, QoS::ExactlyOnce) => *granted,
            },
            refusal => {
                self.forget_filter(key, &filter);
                refusal.copied().unwrap_or(ReasonCode::UnspecifiedError)
            }
        };
        let reasons = vec![reason];
        self.send(key, &Packet::SubAck(SubAck { packet_id, properties: Default::default(), reasons }));
        self.note_answered(key);
        self.send_waiting();
    }

    /// Ends a member's subscription to a filter.
    pub(in crate::upstream::trunk) fn forget_filter(&mut self, key: Key, filter: &TopicFilter) {
        if let Some(member) = self.member(key) {
            member.filters.retain(|(known, _)| known != filter);
        }
        self.unsubscribe(key, filter);
    }

    /// Ends a member's subscription at the broker, if it was the last one.
    pub(super) fn unsubscribe(&mut self, key: Key, filter: &TopicFilter) {
        if self.subscriptions.remove(filter, key) && matches!(self.state, State::Up(_)) {
            self.write_unsubscribe(filter.clone());
        }
    }

    fn write_unsubscribe(&mut self, filter: TopicFilter) {
        let Some(packet_id) = self.next_id() else { return self.unsubscribing.push_back(filter) };
        self.requests.insert(packet_id, Request::Unsubscribe);
        let filters = vec![filter];
        self.write(&Packet::Unsubscribe(Unsubscribe { packet_id, user_properties: Vec::new(), filters }));
    }

    pub(super) fn next_id(&mut self) -> Option<PacketId> {
        if self.requests.len() >= IDS_MAXIMUM {
            return None;
        }
        loop {
            self.last_id = self.last_id % u16::MAX + 1;
            let id = PacketId::new(self.last_id)?;
            if !self.requests.contains_key(&id) {
                return Some(id);
            }
        }
    }

    pub(super) fn receive_maximum(&self) -> u16 {
        match &self.state {
            State::Up(connack) => connack.properties.receive_maximum.map_or(u16::MAX - 1, NonZeroU16::get),
            State::Down | State::Opening => 0,
        }
    }
}
