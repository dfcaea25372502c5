//! Input of the balancer about a client: its load reports (thesis §4.1) in any packet type, and its progress with
//! shared messages.

use std::time::{Duration, Instant};

use tenbin_balancer::{Acknowledged, LoadReport, Rng};
use tenbin_codec::{Packet, PingReq, ReasonCode, ReportCarrier, Text};
use tenbin_session::{Delivery, Publication, SharedDelivery};

use super::connection::ConnectionTask;
use super::input::InputBatch;
use super::stream::Stream;
use crate::lifecycle;
use crate::outbox::Booked;
use crate::router::HeldKey;

impl<S: Stream> ConnectionTask<S> {
    /// The load report in an acknowledgement, to be applied after the acknowledgement itself.
    pub(super) fn report_in(&self, packet: &Packet) -> Option<Text> {
        let (Packet::PubAck(ack) | Packet::PubRec(ack) | Packet::PubComp(ack)) = packet else { return None };
        let properties = ack.properties.as_ref()?; // nearly always there are none
        properties.load_report().filter(|_| self.report_carriers.contains(ReportCarrier::Ack)).cloned()
    }

    /// Handles PINGREQ with an optional load report. The decoder rejects extended PINGREQs where reports are disabled.
    pub(super) fn pinged(&mut self, ping: &PingReq, now: Instant) {
        self.tell_acknowledged();
        match ping.body.as_ref().filter(|body| !body.payload.is_empty()) {
            Some(body) => self.take_report(&body.payload, now),
            None => self.lease.client.load.plain_ping(self.shared.clock.nanos(now)),
        }
    }

    /// Handles the final acknowledgement or refusal of a shared message.
    ///
    /// [`ConnectionTask::tell_acknowledged`] has to follow, once for a batch.
    pub(super) fn acknowledged(&mut self, delivery: &SharedDelivery, reason: ReasonCode, batch: &mut InputBatch) {
        let (load, now) = (&self.lease.client.load, batch.now.nanos);
        let booked = Booked::of_sent(delivery);
        self.shared.router.keys_done(HeldKey::of_sent(delivery), self.lease.client.number);
        if reason.is_error() {
            booked.refuse(load, now);
        } else if delivery.sent_at < self.established_at {
            // Sent on an earlier connection: the time since then does not measure the client's speed.
            load.written(booked.messages, booked.bytes, false, now);
        } else {
            if batch.sent.at != delivery.sent_at {
                batch.sent = self.shared.clock.moment(delivery.sent_at);
            }
            let acknowledged = self.acknowledged.get_or_insert_with(|| Acknowledged::new(now));
            acknowledged.add(batch.sent.nanos, booked.bytes);
        }
    }

    /// Reports acknowledged messages to the balancer.
    pub(super) fn tell_acknowledged(&mut self) {
        if let Some(acknowledged) = self.acknowledged.take() {
            self.lease.client.load.acknowledged(&acknowledged);
        }
    }

    /// Handles a published load report; returns the Reason Code of its acknowledgement.
    pub(super) fn published_report(&mut self, publication: &Publication, now: Instant) -> ReasonCode {
        if !self.report_carriers.contains(ReportCarrier::Publish) {
            return ReasonCode::NotAuthorized; // without reports the topic is reserved
        }
        self.take_report(&publication.payload, now);
        ReasonCode::Success
    }

    /// Redelivers unsent shared messages of a draining client to other members.
    ///
    /// In-flight messages stay with the client, and so do messages that must follow them in order.
    fn hand_over(&mut self, now: Instant) {
        // If no other member takes them, QoS 0 messages return to this queue and others wait with their group: limit
        // the rate.
        if self.handed_over_at.as_ref().is_some_and(|at| now.saturating_duration_since(**at) < HAND_OVER_INTERVAL) {
            return;
        }
        self.handed_over_at = Some(Box::new(now));
        let client = &self.lease.client;
        let redelivery = self.shared.router.begin_redelivery(client.number, &client.outbox);
        let waiting = client.outbox.withdraw_by(|queue| {
            let freed = redelivery.free(queue.iter(), self.shared.clock.nanos(now));
            move |delivery: &Delivery| freed.contains(delivery)
        });
        if !waiting.is_empty() {
            tracing::debug!(client = ?client.id, messages = waiting.len(), "draining: its messages go to others");
        }
        redelivery.finish(waiting, now, &mut Rng::new(client.number));
    }

    /// Applies a load report. A malformed report is counted and otherwise ignored.
    pub(super) fn take_report(&mut self, json: &[u8], now: Instant) {
        // The report was made after these acknowledgements.
        self.tell_acknowledged();
        match LoadReport::from_json(json) {
            Ok(report) => {
                let client = &self.lease.client;
                let drained = client.load.is_draining();
                client.load.report(&report, self.shared.clock.nanos(now));
                self.shared.metrics.load_reports.add(1);
                if report.draining {
                    self.hand_over(now);
                } else if drained {
                    lifecycle::takes_messages(&self.shared, &self.lease, now);
                }
            }
            Err(error) => {
                self.shared.metrics.load_reports_rejected.add(1);
                tracing::debug!(peer = %self.shared.peer, client = ?self.lease.client.id, %error, "load report rejected");
            }
        }
    }
}

/// Minimum interval between redeliveries from a draining client.
const HAND_OVER_INTERVAL: Duration = Duration::from_secs(1);
