//! The broker's side: opening, CONNECT, the broker's packets, and the end.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use tenbin_codec::{
    ConnAck, Connect, ConnectProperties, Disconnect, DisconnectProperties, NewSession, Packet, PingReq, QoS,
    ReasonCode, ReportCarrier, ReportCarriers,
};
use tenbin_sn_codec::v1_2::{Message, ReturnCode};

use super::{Action, End, GatewayPeer, PeerState};
use crate::held::Held;
use crate::outbox::DeliveryStep;
use crate::output::Io;
use crate::reason::connack_code;

/// The stream to the broker.
#[derive(Debug)]
pub(super) enum Upstream {
    Closed,
    /// The caller was asked to open it.
    Opening {
        since: Instant,
    },
    /// CONNECT is written.
    Connecting {
        since: Instant,
    },
    Open(Link),
}

/// An open stream to the broker, with the limits of its CONNACK.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) maximum_qos: QoS,
    pub(super) retain_available: bool,
    pub(super) maximum_packet_size: u32,
    pub(super) receive_maximum: u16,
    /// Whether load reports may be published.
    pub(super) takes_reports: bool,
    keep_alive: Duration,
    /// Last packet to the broker.
    pub(super) sent_at: Instant,
    /// An unanswered PINGREQ.
    pub(super) pinged_at: Option<Instant>,
}

/// Session Expiry Interval of Clean Session clients in seconds: the session outlives a Will update, which replaces the
/// connection. The gateway ends it explicitly.
const CLEAN_SESSION_EXPIRY: u32 = 60;
/// Bytes by which an MQTT-SN PUBLISH may be longer than the MQTT packet with the same payload.
const PUBLISH_EXCESS: u16 = 2;

impl GatewayPeer {
    /// The stream to the broker is open: writes CONNECT.
    pub fn upstream_opened(&mut self, io: &mut Io<'_>) {
        if !matches!(self.upstream, Upstream::Opening { .. }) {
            return;
        }
        self.upstream = Upstream::Connecting { since: io.now };
        let settings = self.settings();
        let (version, is_v5) = (settings.upstream_version, settings.upstream_version.is_v5());
        let session_expiry = if self.terms.clean_session {
            CLEAN_SESSION_EXPIRY
        } else {
            u32::try_from(settings.session_expiry.as_secs()).unwrap_or(u32::MAX)
        };
        let asks_for_reports = settings.sleep_reports.iter().map(|_| ReportCarriers::question());
        let is_new = !self.may_resume(); // [SN-ADDRESS-8]
        let properties = ConnectProperties {
            session_expiry_interval: Some(session_expiry),
            receive_maximum: Some(settings.in_flight), // [SN-DELIVER-3]
            maximum_packet_size: NonZeroU32::new(
                settings.datagram_bytes_maximum.saturating_sub(PUBLISH_EXCESS).max(1).into(),
            ), // [SN-BOUND-3]
            user_properties: asks_for_reports.chain(is_new.then(NewSession::property)).collect(),
            ..ConnectProperties::default()
        };
        let login = self.login.as_deref().or(settings.upstream_login.as_ref());
        let (user_name, password) = login.map(|login| (login.user.clone(), login.password.clone())).unzip();
        let connect = Connect {
            version,
            is_bridge: false,
            // A Will update resumes the session. [SN-WILLUPD-1]
            clean_start: self.terms.clean_session && self.will_update.is_none(),
            keep_alive: u16::try_from(settings.upstream_keep_alive.as_secs()).unwrap_or(u16::MAX),
            client_id: self.client_id.clone(),
            will: self.will.as_deref().cloned(),
            user_name,
            password: password.flatten(),
            properties: if is_v5 { properties } else { ConnectProperties::default() },
        };
        Packet::Connect(Box::new(connect)).encode(version, io.upstream);
    }

    /// The stream to the broker was closed, or could not be opened.
    pub fn upstream_closed(&mut self, io: &mut Io<'_>) -> Action {
        match (&self.state, &self.upstream) {
            (PeerState::Ended, _) | (_, Upstream::Closed) => Action::Continue,
            (PeerState::Connecting(_), _) => {
                self.tell_refusal(ReturnCode::Congestion, io); // [SN-UNKNOWN-2]
                self.end(End::Upstream(None))
            }
            _ => self.end_by_broker(None, io),
        }
    }

    /// Handles a packet of the broker.
    pub fn handle_packet(&mut self, packet: Packet, io: &mut Io<'_>) -> Action {
        let is_open = match self.upstream {
            Upstream::Closed | Upstream::Opening { .. } => return Action::Continue,
            Upstream::Connecting { .. } => false,
            Upstream::Open(_) => true,
        };
        let action = match packet {
            Packet::ConnAck(connack) if !is_open => self.handle_connack(&connack, io),
            Packet::Disconnect(disconnect) => self.end_by_broker(Some(disconnect.reason), io),
            _ if !is_open => self.end_by_broker(Some(ReasonCode::ProtocolError), io),
            Packet::Publish(publish) => self.deliver(publish, io),
            Packet::PubRel(ack) => self.handle_broker_pubrel(ack.packet_id, io),
            Packet::PubAck(ack) => self.handle_broker_puback(&ack, io),
            Packet::PubRec(ack) => self.handle_broker_pubrec(&ack, io),
            Packet::PubComp(ack) => self.handle_broker_pubcomp(&ack, io),
            Packet::SubAck(suback) => self.handle_suback(&suback, io),
            Packet::UnsubAck(unsuback) => self.handle_unsuback(&unsuback, io),
            Packet::PingResp => self.handle_pingresp(io),
            _ => self.end_by_broker(Some(ReasonCode::ProtocolError), io),
        };
        self.finish_wake(io);
        action
    }

    /// Whether the peer has room for further packets of the broker. A false holds back the broker's messages, which it
    /// then treats as those of any slow client `[SN-PACE-2]`.
    pub fn accepts_packets(&self) -> bool {
        let settings = self.settings();
        match self.state {
            // Excess QoS 0 messages are dropped.
            PeerState::Asleep(_) => self.outbox.queued_acknowledged() < settings.sleep_messages,
            _ => {
                self.outbox.queued() <= settings.sleep_messages / 2
                    && self.outbox.queued_bytes() <= settings.sleep_bytes / 2
                    // PUBREL may stand behind more messages than fit: 3.1.1 has no Receive Maximum.
                    || self.outbox.window().iter().any(|message| message.step == DeliveryStep::Received)
            }
        }
    }

    /// Ends the connection for the client's DISCONNECT: no Will is published.
    pub(super) fn leave_broker(&mut self, io: &mut Io<'_>) {
        self.write_disconnect(ReasonCode::Success, io);
    }

    /// Ends the connection of a lost client: the Will is published `[SN-KEEPALIVE-2]`.
    pub(super) fn lose(&mut self, end: End, io: &mut Io<'_>) -> Action {
        // A session that ends with its client is ended explicitly; any other stays, and the stream just closes.
        if self.ends_session() {
            self.write_disconnect(ReasonCode::DisconnectWithWill, io);
        }
        self.end(end)
    }

    /// Whether the session ends with the connection. A forged CONNECT leaves no new session behind `[SN-ADDRESS-6]`.
    fn ends_session(&self) -> bool {
        self.terms.clean_session || !self.keeps_session
    }

    /// Writes DISCONNECT, which ends a session that is not kept. 3.1.1 has neither reason nor expiry: a
    /// lost client's stream closes without DISCONNECT there.
    fn write_disconnect(&mut self, reason: ReasonCode, io: &mut Io<'_>) {
        let is_v5 = self.settings().upstream_version.is_v5();
        if !is_v5 && reason != ReasonCode::Success {
            return;
        }
        let properties = (self.ends_session() && is_v5).then(|| {
            Box::new(DisconnectProperties { session_expiry_interval: Some(0), ..DisconnectProperties::default() })
        });
        // Also before CONNACK, which a client need not wait for.
        if matches!(self.upstream, Upstream::Connecting { .. } | Upstream::Open(_)) {
            let version = self.settings().upstream_version;
            Packet::Disconnect(Disconnect { reason, properties }).encode(version, io.upstream);
        }
    }

    /// Writes a packet, if the stream is open.
    pub(super) fn write(&mut self, packet: &Packet, io: &mut Io<'_>) {
        let version = self.settings().upstream_version;
        if let Upstream::Open(link) = &mut self.upstream {
            link.sent_at = io.now;
            packet.encode(version, io.upstream);
        }
    }

    pub(super) fn write_ping(&mut self, io: &mut Io<'_>) {
        if let Upstream::Open(link) = &mut self.upstream {
            link.pinged_at = Some(io.now);
        }
        self.write(&Packet::PingReq(PingReq::PLAIN), io);
    }

    fn handle_connack(&mut self, connack: &ConnAck, io: &mut Io<'_>) -> Action {
        let code = connack_code(connack.reason);
        let is_first = matches!(self.state, PeerState::Connecting(_));
        if connack.reason == ReasonCode::ClientIdentifierNotValid && is_first && !self.may_resume() {
            return self.end(End::SessionExists);
        }
        if code != ReturnCode::Accepted && is_first {
            return self.refuse_connection(code, io); // [SN-CONNECT-5]
        }
        // A Will update that finds no session has lost the client's subscriptions: the client must know.
        if code != ReturnCode::Accepted || (!is_first && !connack.session_present) {
            return self.end_by_broker(Some(connack.reason), io);
        }
        let keep_alive = match connack.properties.server_keep_alive {
            Some(seconds) => Duration::from_secs(seconds.into()),
            None => self.settings().upstream_keep_alive,
        };
        self.upstream = Upstream::Open(Link::new(connack, keep_alive, io.now));
        self.was_connected = true;
        match std::mem::replace(&mut self.state, PeerState::Active) {
            PeerState::Connecting(held) => {
                self.keeps_session = connack.session_present || self.is_confirmed();
                if connack.session_present {
                    self.require_proof();
                }
                if let Some(held) = held {
                    return self.handle_held(*held, io);
                }
                self.send(&Message::ConnAck(ReturnCode::Accepted), io);
            }
            state => {
                self.state = state;
                self.answer_will_update(ReturnCode::Accepted, io);
            }
        }
        Action::Continue
    }

    /// Handles the requests that have waited for the broker.
    fn handle_held(&mut self, held: Held, io: &mut Io<'_>) -> Action {
        for datagram in held.into_messages() {
            let action = match Message::decode(&datagram) {
                Ok(message) => self.handle_message(&message, 0, io),
                Err(_) => Action::Continue,
            };
            if action != Action::Continue {
                return action;
            }
        }
        Action::Continue
    }

    /// The broker is gone: the client is told `[SN-UNKNOWN-2]`.
    pub(super) fn end_by_broker(&mut self, reason: Option<ReasonCode>, io: &mut Io<'_>) -> Action {
        if matches!(self.state, PeerState::Connecting(_)) {
            self.tell_refusal(ReturnCode::Congestion, io);
        } else {
            self.disconnect_client(io);
        }
        self.end(End::Upstream(reason))
    }
}

impl Link {
    fn new(connack: &ConnAck, keep_alive: Duration, now: Instant) -> Self {
        let properties = &connack.properties;
        Self {
            maximum_qos: properties.maximum_qos.unwrap_or(QoS::ExactlyOnce),
            retain_available: properties.retain_available.unwrap_or(true),
            maximum_packet_size: properties.maximum_packet_size.map_or(u32::MAX, NonZeroU32::get),
            receive_maximum: properties.receive_maximum.map_or(u16::MAX, std::num::NonZeroU16::get),
            takes_reports: ReportCarriers::told(&properties.user_properties).contains(ReportCarrier::Publish),
            keep_alive,
            sent_at: now,
            pinged_at: None,
        }
    }

    /// When the next PINGREQ is due.
    pub(super) fn ping_due(&self) -> Option<Instant> {
        (self.keep_alive > Duration::ZERO && self.pinged_at.is_none()).then(|| self.sent_at + self.keep_alive)
    }
}
