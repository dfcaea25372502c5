//! DISCONNECT, sleep, and PINGREQ.

use std::time::{Duration, Instant};

use tenbin_codec::{PublishHeader, ReportCarrier, TopicName};
use tenbin_sn_codec::v1_2::{Disconnect, Message, PingReq, ReturnCode};

use super::upstream::Upstream;
use super::{Action, Awake, End, GatewayPeer, PeerState};
use crate::output::Io;

/// Pings to the broker that return with no message between before a wake ends: with a window of one, the answer to a
/// message's acknowledgement is the next message, and may follow the first PINGRESP.
const QUIET_PINGS: u8 = 2;

impl GatewayPeer {
    /// Interrupts the wake of a client that has lost its address: the rest of its messages waits for the next one.
    pub fn sleep_on(&mut self) {
        if let PeerState::Awake(awake) = self.state {
            self.state = PeerState::Asleep(awake.duration);
        }
    }

    pub(super) fn handle_disconnect(&mut self, disconnect: Disconnect, io: &mut Io<'_>) -> Action {
        match disconnect.duration.filter(|&seconds| seconds > 0) {
            Some(seconds) if self.is_connected() => {
                let duration = Duration::from_secs(seconds.into()).min(self.settings().sleep_maximum); // [SN-SLEEP-1]
                if matches!(self.state, PeerState::Active) {
                    self.report(true, io);
                }
                self.state = PeerState::Asleep(duration);
                self.disconnect_client(io);
                Action::Continue
            }
            _ => {
                self.leave_broker(io); // [SN-DISCONNECT-1]
                self.disconnect_client(io);
                self.end(End::Disconnected)
            }
        }
    }

    pub(super) fn handle_pingreq(&mut self, ping: &PingReq<'_>, io: &mut Io<'_>) -> Action {
        match self.state {
            // Another client's id: it is no client of this address.
            _ if ping.client_id.is_some_and(|id| id.as_bytes() != self.client_id.as_bytes()) => {
                self.disconnect_client(io);
                Action::Continue
            }
            PeerState::Active => {
                self.send(&Message::PingResp, io); // [SN-PING-1]
                Action::Continue
            }
            PeerState::Asleep(duration) => {
                self.state = PeerState::Awake(Awake {
                    duration,
                    since: io.now,
                    delivered: 0,
                    quiet_pings: 0,
                    is_pinging: false,
                });
                self.repeat_all(io); // [SN-WAKE-1]
                self.deliver_waiting(io);
                Action::Continue
            }
            // PINGRESP comes at the end of the wake.
            PeerState::Awake(_) => Action::Continue,
            _ => self.unexpected(io),
        }
    }

    /// CONNECT ends sleep, and the client gets its messages `[SN-WAKE-3]`.
    pub(super) fn return_from_sleep(&mut self, io: &mut Io<'_>) -> Action {
        self.state = PeerState::Active;
        self.send(&Message::ConnAck(ReturnCode::Accepted), io);
        self.report(false, io);
        self.repeat_all(io);
        self.deliver_waiting(io);
        Action::Continue
    }

    /// Sends PINGRESP and lets the client sleep again, if it has all its messages `[SN-WAKE-2]`.
    pub(super) fn finish_wake(&mut self, io: &mut Io<'_>) {
        let PeerState::Awake(awake) = self.state else { return };
        let has_enough = self.has_enough(&awake, io.now);
        // The question for a proof holds nothing up.
        let is_idle = self.outbox.is_idle() || (self.is_new() && self.outbox.has_nothing_but_register());
        let has_all = is_idle && awake.quiet_pings >= QUIET_PINGS;
        if has_all || (has_enough && self.outbox.nothing_under_way()) {
            self.send(&Message::PingResp, io);
            self.state = PeerState::Asleep(awake.duration);
            self.alive_at = io.now;
            return;
        }
        let Upstream::Open(link) = &self.upstream else { return };
        if is_idle && link.pinged_at.is_none() {
            self.state = PeerState::Awake(Awake { is_pinging: true, ..awake });
            self.write_ping(io);
        }
    }

    /// Whether a wake ends although more messages come: it had its messages, or its time.
    pub(super) fn has_enough(&self, awake: &Awake, now: Instant) -> bool {
        let settings = self.settings();
        settings.awake_messages.is_some_and(|maximum| awake.delivered >= maximum.get())
            || now >= awake.since + settings.retry_time()
    }

    /// The broker answers a ping.
    pub(super) fn handle_pingresp(&mut self, _: &mut Io<'_>) -> Action {
        if let Upstream::Open(link) = &mut self.upstream {
            link.pinged_at = None;
        }
        if let PeerState::Awake(awake) = &mut self.state
            && std::mem::take(&mut awake.is_pinging)
        {
            awake.quiet_pings += 1;
        }
        Action::Continue
    }

    /// Tells the broker's share groups that the client falls asleep or is back, if the broker offers load reports
    /// `[SN-SLEEP-4]`.
    fn report(&mut self, falls_asleep: bool, io: &mut Io<'_>) {
        let settings = &self.gateway.settings;
        let (Upstream::Open(link), Some(reports)) = (&mut self.upstream, &settings.sleep_reports) else { return };
        if link.takes_reports
            && let Ok(topic) = TopicName::try_from(ReportCarrier::TOPIC)
        {
            let report = if falls_asleep { &reports.asleep } else { &reports.active };
            link.sent_at = io.now;
            PublishHeader::default().encode(&topic, report, settings.upstream_version, io.upstream);
        }
    }
}
