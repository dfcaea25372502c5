//! What clients say of their own load (thesis §4.1), whatever it comes in.

use std::time::Instant;

use tenbin_balancer::LoadReport;
use tenbin_codec::{Packet, PingReq, ReasonCode, ReportCarrier, Text};
use tenbin_session::Publication;
use tokio::io::{AsyncRead, AsyncWrite};

use super::connection::ConnectionTask;

impl<S: AsyncRead + AsyncWrite + Unpin> ConnectionTask<'_, S> {
    /// The report that an acknowledgement carries: to be taken over once the acknowledgement itself has been.
    pub(super) fn report_in(&self, packet: &Packet) -> Option<Text> {
        let (Packet::PubAck(ack) | Packet::PubRec(ack) | Packet::PubComp(ack)) = packet else { return None };
        let properties = ack.properties.as_ref()?; // nearly always there are none
        properties.load_report().filter(|_| self.report_carriers.contains(ReportCarrier::Ack)).cloned()
    }

    /// Takes over what an extended PINGREQ says; where none is taken, the decoder lets none through.
    pub(super) fn pinged(&mut self, ping: &PingReq, now: Instant) {
        if let Some(body) = ping.body.as_ref().filter(|body| !body.payload.is_empty()) {
            self.take_report(&body.payload, now);
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

    /// Takes a report over. One that does not parse changes nothing, and nothing is said about it.
    pub(super) fn take_report(&mut self, json: &[u8], now: Instant) {
        match LoadReport::from_json(json) {
            Ok(report) => {
                self.lease.client.load.report(&report, self.shared.clock.nanos(now));
                self.shared.metrics.load_reports.add(1);
            }
            Err(error) => {
                self.shared.metrics.load_reports_rejected.add(1);
                tracing::debug!(client = ?self.lease.client.id, %error, "load report rejected");
            }
        }
    }
}
