//! What the balancer gets to know of a client: its own reports (thesis §4.1), whatever they come in, and what becomes of
//! the messages that share groups gave it.

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
    /// The report that an acknowledgement carries: to be taken over once the acknowledgement itself has been.
    pub(super) fn report_in(&self, packet: &Packet) -> Option<Text> {
        let (Packet::PubAck(ack) | Packet::PubRec(ack) | Packet::PubComp(ack)) = packet else { return None };
        let properties = ack.properties.as_ref()?; // nearly always there are none
        properties.load_report().filter(|_| self.report_carriers.contains(ReportCarrier::Ack)).cloned()
    }

    /// Takes over what an extended PINGREQ says; where none is taken, the decoder lets none through.
    pub(super) fn pinged(&mut self, ping: &PingReq, now: Instant) {
        self.tell_acknowledged();
        match ping.body.as_ref().filter(|body| !body.payload.is_empty()) {
            Some(body) => self.take_report(&body.payload, now),
            None => self.lease.client.load.plain_ping(self.shared.clock.nanos(now)),
        }
    }

    /// The client has acknowledged, for good, what a share group gave it, or refused it. To be followed by
    /// [`ConnectionTask::tell_acknowledged`], once for a batch.
    pub(super) fn acknowledged(&mut self, delivery: &SharedDelivery, reason: ReasonCode, batch: &mut InputBatch) {
        let (load, now) = (&self.lease.client.load, batch.now.nanos);
        let booked = Booked::of_sent(delivery);
        self.shared.router.keys_done(HeldKey::of_sent(delivery), self.lease.client.number);
        if reason.is_error() {
            booked.refuse(load, now);
        } else if delivery.sent_at < self.established_at {
            // Of an earlier connection: the time since then says nothing of the client's speed.
            load.written(booked.messages, booked.bytes, false, now);
        } else {
            if batch.sent.at != delivery.sent_at {
                batch.sent = self.shared.clock.moment(delivery.sent_at);
            }
            let acknowledged = self.acknowledged.get_or_insert_with(|| Acknowledged::new(now));
            acknowledged.add(batch.sent.nanos, booked.bytes);
        }
    }

    /// Tells the balancer what has been acknowledged.
    pub(super) fn tell_acknowledged(&mut self) {
        if let Some(acknowledged) = self.acknowledged.take() {
            self.lease.client.load.acknowledged(&acknowledged);
        }
    }

    /// Takes over a report that was published; what its acknowledgement says.
    pub(super) fn published_report(&mut self, publication: &Publication, now: Instant) -> ReasonCode {
        if !self.report_carriers.contains(ReportCarrier::Publish) {
            return ReasonCode::NotAuthorized; // then it is one more topic that is not the clients'
        }
        self.take_report(&publication.payload, now);
        ReasonCode::Success
    }

    /// The client wants no further messages: what share groups gave it and it has not been sent goes to others. What is
    /// under way stays with it, and so does what has to follow that in order.
    fn hand_over(&mut self, now: Instant) {
        // Where nobody else takes it, QoS 0 comes back, and the rest waits with its group: not more often than is of use.
        if self.handed_over_at.as_ref().is_some_and(|at| now.saturating_duration_since(**at) < HAND_OVER_INTERVAL) {
            return;
        }
        self.handed_over_at = Some(Box::new(now));
        let client = &self.lease.client;
        let handover = self.shared.router.begin_handover(client.number, &client.outbox);
        let waiting = client.outbox.withdraw_by(|queue| {
            let freed = handover.free(queue.iter(), self.shared.clock.nanos(now));
            move |delivery: &Delivery| freed.contains(delivery)
        });
        if !waiting.is_empty() {
            tracing::debug!(client = ?client.id, messages = waiting.len(), "draining: its messages go to others");
        }
        handover.finish(waiting, now, &mut Rng::new(client.number));
    }

    /// Takes a report over. One that does not parse changes nothing, and nothing is said about it.
    pub(super) fn take_report(&mut self, json: &[u8], now: Instant) {
        // It was made after what came before it was acknowledged.
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

/// How often what waits for a client that drains is offered to others at most.
const HAND_OVER_INTERVAL: Duration = Duration::from_secs(1);
