//! The end of a connection: its session, and the last packet to the client.

use std::time::{Duration, Instant};

use tenbin_codec::{Disconnect, DisconnectProperties, Packet, PacketType, ReasonCode, Text};
use tenbin_session::Violation;

use super::authentication::Refusal;
use super::connection::ConnectionTask;
use super::stream::Stream;
use crate::durable::CommitPoint;
use crate::lifecycle::{self, ConnectionEnd};
use crate::outbox::Control;
use crate::slices::in_turn;
use crate::threads::Home;

/// Why a connection ends.
#[derive(Debug)]
pub(super) enum End {
    /// The client sent DISCONNECT.
    Disconnect(ReasonCode),
    /// The socket is closed or broken.
    Closed(std::io::Error),
    /// The client violated the protocol.
    Violation(Violation),
    /// Requested by another part of the broker.
    Control(Control),
    /// Re-authentication failed.
    Refused(Refusal),
    /// Its credentials are not valid any more.
    Revoked,
    /// A partly received packet made no progress.
    Stalled,
    /// A packet of this many bytes exceeds the memory limit of its owner's account.
    NoMemory(usize),
    /// A published message had no room, and the client's version has no refusal.
    Unanswered,
    /// An answer that the client needs exceeds its Maximum Packet Size.
    AnswerTooLarge(PacketType),
}

impl<S: Stream> ConnectionTask<S> {
    /// Migrates the connection or returns its end. Boxed: see [`serve`](super::connection::serve).
    pub(super) fn leave(self, ended: Result<Home, End>) -> Option<impl Future<Output = ()>> {
        match ended {
            Ok(home) => {
                self.move_to(home);
                None
            }
            Err(end) => Some(in_turn(Box::pin(self.finish(end)))),
        }
    }

    /// Ends the session before the last packet, so that nothing waits for this client's socket.
    async fn finish(mut self, end: End) {
        self.count_traffic();
        let peer = self.shared.peer;
        let client = self.lease.client.id.clone();
        let normal = matches!(end, End::Disconnect(ReasonCode::Success));
        let mut server_reference = None;
        let reason = match &end {
            End::Refused(refusal) => {
                tracing::info!(%peer, ?client, ?refusal, "refused when it authenticated again");
                server_reference.clone_from(&refusal.server_reference);
                refusal.reason
            }
            End::Revoked => {
                tracing::info!(%peer, ?client, "no longer authorized");
                Some(ReasonCode::NotAuthorized)
            }
            End::Unanswered => {
                tracing::info!(%peer, ?client, "closing: a message found no room, and MQTT 3.1.1 has no refusal");
                None
            }
            End::AnswerTooLarge(packet) => {
                tracing::info!(%peer, ?client, %packet, "answer is larger than the client takes");
                Some(ReasonCode::PacketTooLarge)
            }
            End::Stalled => {
                tracing::info!(%peer, ?client, "packet stands still");
                Some(ReasonCode::KeepAliveTimeout)
            }
            End::NoMemory(bytes) => {
                tracing::info!(%peer, ?client, bytes, "no memory for a packet within its owner's limit");
                Some(ReasonCode::QuotaExceeded)
            }
            End::Disconnect(reason) => {
                tracing::debug!(%peer, ?client, %reason, "disconnected");
                None
            }
            End::Closed(error) => {
                tracing::debug!(%peer, ?client, %error, "connection lost");
                None
            }
            End::Violation(violation) => {
                self.shared.metrics.violations.add(1);
                tracing::info!(%peer, ?client, rule = violation.rule(), "{violation}");
                self.connection.disconnect_for(violation, &mut self.transport.out);
                None
            }
            End::Control(Control::TakenOver) => {
                tracing::debug!(%peer, ?client, "session taken over");
                Some(ReasonCode::SessionTakenOver) // [MQTT-3.1.4-3]
            }
            End::Control(Control::TooSlow) => {
                self.shared.metrics.disconnected_slow.add(1);
                tracing::info!(%peer, ?client, "disconnected: too slow for what it has subscribed to");
                Some(ReasonCode::QuotaExceeded)
            }
            End::Control(Control::ShuttingDown) => Some(ReasonCode::ServerShuttingDown),
            End::Control(Control::RightsChanged) => None, // ends nothing
        };
        match (reason, server_reference) {
            (Some(reason), Some(server)) => self.refer(reason, server),
            (Some(reason), None) => self.connection.disconnect(reason, &mut self.transport.out),
            (None, _) => {}
        }
        let unwritten = self.unwritten.take_all();
        unwritten.take_back(&self.lease.client.load, self.shared.clock.nanos(Instant::now()));
        self.forget_held_back();
        self.settle();
        let settled_at = self.storing.as_ref().map_or(CommitPoint::NOW, |storing| storing.last());
        let ended = ConnectionEnd {
            settled_at,
            session: self.connection.into_session(),
            will: self.will.filter(|_| !normal),
            expiry: self.session_expiry,
        };
        let is_over = lifecycle::end(&self.shared, self.lease, ended, Instant::now()).await;
        // The connection counts until the session has ended: clients cannot create sessions faster than they end.
        if let Some(is_over) = is_over {
            let _ = is_over.await; // an error means it has ended
        }
        if matches!(end, End::Closed(_)) {
            return;
        }
        let _ = tokio::time::timeout(GOODBYE, self.transport.close()).await;
    }

    /// Sends DISCONNECT with a Server Reference. Only re-authenticating clients get it, which use v5.
    fn refer(&mut self, reason: ReasonCode, server: Text) {
        let properties = DisconnectProperties { server_reference: Some(server), ..DisconnectProperties::default() };
        let disconnect = Disconnect { reason, properties: Some(Box::new(properties)) };
        self.connection.write(&Packet::Disconnect(disconnect), Instant::now(), &mut self.transport.out);
    }
}

/// How long a client has to read the last packets.
const GOODBYE: Duration = Duration::from_secs(2);
