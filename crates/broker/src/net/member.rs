//! The client as a member of share groups: its load reports (thesis §4.1) in any packet type, and its progress with
//! shared messages.

use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use tenbin_balancer::{Acknowledged, LoadReport};
use tenbin_codec::{Packet, PingReq, ReasonCode, ReportCarrier, ReportCarriers, Text};
use tenbin_session::{Publication, SharedDelivery};

use super::core::Core;
use super::input_batch::InputBatch;
use crate::lifecycle;
use crate::outbox::Booked;
use crate::router::HeldKey;

/// Settings and load reports of one client.
#[derive(Debug)]
pub(super) struct Member {
    /// Packet types in which the broker accepts the client's load reports.
    report_carriers: ReportCarriers,
    /// Weight of subscriptions that state no other.
    weight: NonZeroU16,
    /// Messages sent before this time were sent on an earlier connection.
    established_at: Instant,
    /// When the queue of this draining client was last offered to other members; boxed, as few connections need it.
    handed_over_at: Option<Box<Instant>>,
}

impl Member {
    pub(super) fn new(report_carriers: ReportCarriers, weight: NonZeroU16, established_at: Instant) -> Self {
        Self { report_carriers, weight, established_at, handed_over_at: None }
    }

    /// Weight of subscriptions that state no other.
    pub(super) fn weight(&self) -> NonZeroU16 {
        self.weight
    }

    /// The load report in an acknowledgement, to be applied after the acknowledgement itself.
    pub(super) fn report_in(&self, packet: &Packet) -> Option<Text> {
        let (Packet::PubAck(ack) | Packet::PubRec(ack) | Packet::PubComp(ack)) = packet else { return None };
        let properties = ack.properties.as_ref()?; // nearly always there are none
        properties.load_report().filter(|_| self.report_carriers.contains(ReportCarrier::Ack)).cloned()
    }

    /// Handles PINGREQ with an optional load report. The decoder rejects extended PINGREQs where reports are disabled.
    pub(super) fn pinged(&mut self, core: &Core, ping: &PingReq, batch: &mut InputBatch) {
        let load = &core.lease.client.load;
        batch.tell_acknowledged(load);
        // Its limit may have changed, and so has its room after bookings that were taken back.
        batch.may_begin = true;
        match ping.body.as_ref().filter(|body| !body.payload.is_empty()) {
            Some(body) => self.take_report(core, &body.payload, batch),
            None => load.plain_ping(batch.now.nanos),
        }
    }

    /// Handles the final acknowledgement or refusal of a shared message.
    ///
    /// [`InputBatch::tell_acknowledged`] has to follow, mostly once for a batch.
    pub(super) fn acknowledged(
        &self,
        core: &Core,
        delivery: &SharedDelivery,
        reason: ReasonCode,
        batch: &mut InputBatch,
    ) {
        let (load, now) = (&core.lease.client.load, batch.now.nanos);
        let booked = Booked::of_sent(delivery);
        let number = core.lease.client.number;
        let left = HeldKey::of_sent(delivery).and_then(|held| core.open.shared.routing.router.key_done(held, number));
        if reason.is_error() {
            batch.may_begin = true;
            booked.refuse(load, now);
        } else if delivery.sent_at < self.established_at {
            // Sent on an earlier connection: the time since then does not measure the client's speed.
            batch.may_begin = true;
            load.written(booked.messages, booked.bytes, false, now);
        } else {
            if batch.sent.at != delivery.sent_at {
                batch.sent = core.open.shared.clock.moment(delivery.sent_at);
            }
            let acknowledged = batch.acknowledged.get_or_insert_with(|| Acknowledged::new(now));
            acknowledged.add(batch.sent.nanos, booked.bytes);
        }
        if let Some(group) = left {
            // A former member may hold the key until it has no outstanding message.
            batch.tell_acknowledged(load);
            core.open.shared.routing.router.key_released(&group, number);
        }
    }

    /// Handles the acknowledgement or refusal of a message that another member has meanwhile. Its key was released then.
    pub(super) fn late(&self, core: &Core, delivery: &SharedDelivery, reason: ReasonCode, batch: &mut InputBatch) {
        let booked = Booked::of_sent(delivery);
        if reason.is_error() {
            booked.refuse(&core.lease.client.load, batch.now.nanos);
            return;
        }
        let sent_at = core.open.shared.clock.nanos(delivery.sent_at);
        batch.acknowledged.get_or_insert_with(|| Acknowledged::new(batch.now.nanos)).add(sent_at, booked.bytes);
        batch.tell_acknowledged(&core.lease.client.load);
    }

    /// When a message was sent on this connection.
    pub(super) fn sent_here_at(&self, delivery: &SharedDelivery) -> Instant {
        delivery.sent_at.max(self.established_at)
    }

    /// Handles a published load report; returns the Reason Code of its acknowledgement.
    pub(super) fn published_report(
        &mut self,
        core: &Core,
        publication: &Publication,
        batch: &mut InputBatch,
    ) -> ReasonCode {
        if !self.report_carriers.contains(ReportCarrier::Publish) {
            return ReasonCode::NotAuthorized; // without reports the topic is reserved
        }
        self.take_report(core, &publication.payload, batch);
        ReasonCode::Success
    }

    /// Applies a load report. A malformed report is counted and otherwise ignored.
    pub(super) fn take_report(&mut self, core: &Core, json: &[u8], batch: &mut InputBatch) {
        let client = &core.lease.client;
        // The report was made after these acknowledgements.
        batch.tell_acknowledged(&client.load);
        match LoadReport::from_json(json) {
            Ok(report) => {
                let drained = client.load.is_draining();
                batch.may_begin = true;
                client.load.report(&report, batch.now.nanos);
                core.open.shared.operations.metrics.load_reports.add(1);
                if report.draining {
                    self.hand_over(core, batch.now.at);
                } else if drained {
                    lifecycle::takes_messages(&core.open.shared.routing, &core.lease, batch.now.at);
                }
            }
            Err(error) => {
                core.open.shared.operations.metrics.load_reports_rejected.add(1);
                tracing::debug!(peer = %core.open.peer, client = ?client.id, %error, "load report rejected");
            }
        }
    }

    /// Gives the queue of a draining client to other members, at most once an interval.
    fn hand_over(&mut self, core: &Core, now: Instant) {
        // If no other member takes them, QoS 0 messages return to this queue and others wait with their group: limit
        // the rate.
        if self.handed_over_at.as_ref().is_some_and(|at| now.saturating_duration_since(**at) < HAND_OVER_INTERVAL) {
            return;
        }
        self.handed_over_at = Some(Box::new(now));
        lifecycle::hand_over(&core.open.shared, &core.lease.client, now);
    }
}

/// Minimum interval between redeliveries from a draining client.
const HAND_OVER_INTERVAL: Duration = Duration::from_secs(1);
