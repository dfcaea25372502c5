//! How a connection ends: what becomes of its session, and what the client is told.

use std::time::{Duration, Instant};

use tenbin_codec::{Disconnect, DisconnectProperties, Packet, PacketType, ReasonCode, Text};
use tenbin_session::Violation;

use super::authentication::Refusal;
use super::connection::ConnectionTask;
use super::stream::Stream;
use crate::durable::SafeAt;
use crate::lifecycle::{self, ConnectionEnd};
use crate::outbox::Control;
use crate::slices::in_turn;
use crate::threads::Home;

/// Why a connection is over.
#[derive(Debug)]
pub(super) enum End {
    /// The client said DISCONNECT.
    Disconnect(ReasonCode),
    /// The socket is closed or broken.
    Closed(std::io::Error),
    /// The client broke a rule.
    Violation(Violation),
    /// Asked for from within.
    Control(Control),
    /// It authenticated again, in vain.
    Refused(Refusal),
    /// Its credentials do not hold any more.
    Revoked,
    /// A packet that had begun did not go on.
    Stalled,
    /// A packet of so many bytes found no memory in its owner's account.
    NoMemory(usize),
    /// It published a message that found no room, at a version that has no word for that.
    Unanswered,
    /// It waits for an answer that is larger than its Maximum Packet Size.
    AnswerTooLarge(PacketType),
}

impl<S: Stream> ConnectionTask<S> {
    /// Goes on elsewhere, or has an end, in its turn. Boxed: see [`serve`](super::connection::serve).
    pub(super) fn leave(self, ended: Result<Home, End>) -> Option<impl Future<Output = ()>> {
        match ended {
            Ok(home) => {
                self.move_to(home);
                None
            }
            Err(end) => Some(in_turn(Box::pin(self.finish(end)))),
        }
    }

    /// Gives the session back first, so that nobody waits for this client's socket, then says goodbye.
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
        let settled_at = self.storing.as_ref().map_or(SafeAt::NOW, |storing| storing.last());
        let ended = ConnectionEnd {
            settled_at,
            session: self.connection.into_session(),
            will: self.will.filter(|_| !normal),
            expiry: self.session_expiry,
        };
        let is_over = lifecycle::end(&self.shared, self.lease, ended, Instant::now()).await;
        // Until then it counts as a connection: nobody can make more sessions than end.
        if let Some(is_over) = is_over {
            let _ = is_over.await; // an error: it is over
        }
        if matches!(end, End::Closed(_)) {
            return;
        }
        let _ = tokio::time::timeout(GOODBYE, self.transport.close()).await;
    }

    /// Says goodbye and where to go on; only to clients that authenticate again, so at v5.
    fn refer(&mut self, reason: ReasonCode, server: Text) {
        let properties = DisconnectProperties { server_reference: Some(server), ..DisconnectProperties::default() };
        let disconnect = Disconnect { reason, properties: Some(Box::new(properties)) };
        self.connection.write(&Packet::Disconnect(disconnect), Instant::now(), &mut self.transport.out);
    }
}

/// How long a client has for reading our last words.
const GOODBYE: Duration = Duration::from_secs(2);
