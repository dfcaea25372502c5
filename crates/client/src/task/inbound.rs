//! Packets from the broker, and the application's acknowledgements.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tenbin_codec::{Decoded, Packet, QoS, ReasonCode, SubAck, UnsubAck};
use tenbin_session::{Event, PendingAck, Publication, Violation};

use super::Task;
use super::link::Link;
use super::request::Request;
use crate::message::Acknowledgement;
use crate::{AcknowledgeMode, ClientErrorKind, DisconnectReason, Message};

impl Task {
    /// Handles all decoded packets until the application's queue is full. `now` is when they were read.
    pub(super) fn receive(&mut self, link: &mut Link, now: Instant) -> Result<(), DisconnectReason> {
        while !self.events.holds_message() {
            match link.decoder.decode(&mut link.input).map_err(Violation::from)? {
                Decoded::Packet(packet) => self.handle_packet(link, packet, now)?,
                Decoded::NeedMore(_) => break,
            }
        }
        Ok(())
    }

    /// Fails messages of an earlier connection that exceed the broker's Maximum Packet Size on this one.
    pub(super) fn fail_dropped(&mut self, link: &mut Link) {
        while let Some(dropped) = link.connection.poll_dropped() {
            if let Some(Request::Publish { reply, .. }) = self.in_flight.remove(dropped.packet_id) {
                let _ = reply.send(Err(ClientErrorKind::NotTaken(ReasonCode::PacketTooLarge)));
            }
        }
    }

    /// Handles an acknowledgement of the application. `link`: the connection, if there is one.
    pub(super) fn acknowledge(&mut self, link: Option<&mut Link>, acknowledgement: &Acknowledgement) {
        let &Acknowledgement { packet_id, qos, connection, session, .. } = acknowledgement;
        let is_due = match qos {
            // If the broker sends a QoS 2 message again in this session, the application does not get it again. So the
            // acknowledgement of the first delivery also counts for the second.
            QoS::ExactlyOnce => session == self.session_number && self.unacknowledged.remove(&packet_id),
            _ => connection == self.connection_number,
        };
        if let Some(link) = link.filter(|_| is_due) {
            let ack = PendingAck { packet_id, qos };
            match acknowledgement.rejection.get() {
                Some(rejection) => link.reject(ack, rejection, Instant::now()),
                None => link.acknowledge(ack, Instant::now()),
            }
        }
    }

    fn handle_packet(&mut self, link: &mut Link, packet: Packet, now: Instant) -> Result<(), DisconnectReason> {
        self.check_answer(&packet)?;
        let packet_type = packet.packet_type();
        let is_dup = matches!(&packet, Packet::Publish(publish) if publish.dup);
        let received = match &packet {
            Packet::PubRec(ack) if !ack.reason.is_error() => Some(ack.packet_id),
            _ => None,
        };
        match link.connection.handle_packet(packet, now, &mut link.out)? {
            Event::Handled => {
                if let Some(id) = received {
                    self.in_flight.release(id);
                }
            }
            Event::PingResp => link.pings.answered(),
            Event::Publish(publication) => self.take_message(link, publication, is_dup, now),
            Event::Duplicate(ack) => {
                if !self.unacknowledged.contains(&ack.packet_id) {
                    link.acknowledge(ack, now);
                }
            }
            Event::Delivered { packet_id, reason, .. } => {
                if let Some(Request::Publish { reply, .. }) = self.in_flight.remove(packet_id) {
                    let _ = reply.send(Ok(reason));
                }
                self.fail_dropped(link); // Free quota has let more messages be sent again.
            }
            Event::SubAck(suback) => self.subscribed(suback),
            Event::UnsubAck(unsuback) => self.unsubscribed(unsuback),
            Event::Disconnect(disconnect) => {
                let detail = disconnect.properties.and_then(|properties| properties.reason_string);
                let detail = detail.map(|text| text.to_string());
                return Err(DisconnectReason::ByBroker { reason: disconnect.reason, detail });
            }
            // The client never begins an extended authentication [MQTT-4.12.0-6]; a broker never sends the others.
            Event::Auth(_) | Event::Subscribe(_) | Event::Unsubscribe(_) | Event::Ping(_)
            // The client's messages have no share group.
            | Event::Rejected(_) | Event::Late { .. }
            // And the client's session is not stored.
            | Event::Received { .. } | Event::Released(_) => {
                return Err(Violation::Unexpected(packet_type).into());
            }
        }
        Ok(())
    }

    /// Checks that SUBACK and UNSUBACK match their request, filter by filter `[MQTT-3.8.4-2]`, `[MQTT-3.8.4-6]`.
    ///
    /// Accepts an answer without a request.
    fn check_answer(&self, packet: &Packet) -> Result<(), Violation> {
        let id = match packet {
            Packet::SubAck(suback) => suback.packet_id,
            Packet::UnsubAck(unsuback) => unsuback.packet_id,
            _ => return Ok(()),
        };
        let fits = match (self.in_flight.get(id), packet) {
            (None, _) => true,
            (Some(Request::Subscribe { subscriptions, .. }), Packet::SubAck(suback)) => {
                subscriptions.len() == suback.reasons.len()
            }
            // 3.1.1 has no Reason Codes in UNSUBACK.
            (Some(Request::Unsubscribe { filters, .. }), Packet::UnsubAck(unsuback)) => {
                filters.len() == unsuback.reasons.len() || !self.connect.version.is_v5()
            }
            _ => false,
        };
        if fits { Ok(()) } else { Err(Violation::Unexpected(packet.packet_type())) }
    }

    fn take_message(&mut self, link: &mut Link, publication: Publication, dup: bool, now: Instant) {
        let Publication { topic, qos, retain, payload, properties, subscription_identifiers, ack, .. } = publication;
        let is_manual = self.options.acknowledge == AcknowledgeMode::Manual;
        let acknowledgement = ack.filter(|_| is_manual).map(|PendingAck { packet_id, qos }| {
            if qos == QoS::ExactlyOnce {
                self.unacknowledged.insert(packet_id);
            }
            Arc::new(Acknowledgement {
                packet_id,
                qos,
                connection: self.connection_number,
                session: self.session_number,
                given: AtomicBool::new(false),
                can_reject: self.connect.version.is_v5(),
                rejection: OnceLock::new(),
            })
        });
        let is_wanted = self.events.is_open();
        if let Some(reporter) = self.options.load_reporter.as_ref().filter(|_| is_wanted) {
            reporter.arrived();
        }
        if let Some(ack) = ack.filter(|_| !is_manual) {
            link.acknowledge(ack, now);
        }
        if !is_wanted {
            return;
        }
        self.events.push_message(Message {
            topic,
            payload,
            qos,
            retain,
            dup,
            properties,
            subscription_identifiers,
            received_at: now,
            acknowledgement,
        });
    }

    fn subscribed(&mut self, suback: SubAck) {
        let Some(Request::Subscribe { subscriptions, reply }) = self.in_flight.remove(suback.packet_id) else {
            return;
        };
        for (subscription, &reason) in subscriptions.into_iter().zip(&suback.reasons) {
            if !reason.is_error() {
                self.subscriptions.insert(subscription.filter, subscription.options); // Or replaces it [MQTT-3.8.4-3].
            } else if reply.is_none() {
                self.lose_subscription(subscription.filter, reason);
            }
        }
        if let Some(reply) = reply {
            let _ = reply.send(Ok(suback.reasons));
        }
    }

    fn unsubscribed(&mut self, unsuback: UnsubAck) {
        let Some(Request::Unsubscribe { filters, reply }) = self.in_flight.remove(unsuback.packet_id) else {
            return;
        };
        let mut reasons = unsuback.reasons;
        reasons.resize(filters.len(), ReasonCode::Success); // 3.1.1 has no Reason Codes.
        for (filter, reason) in filters.iter().zip(&reasons) {
            if !reason.is_error() {
                self.subscriptions.remove(filter);
            }
        }
        let _ = reply.send(Ok(reasons));
    }
}
