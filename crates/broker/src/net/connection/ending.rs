//! The end of a connection: its session, and the last packet to the client.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenbin_codec::{DecodeError, Disconnect, DisconnectProperties, Packet, ReasonCode, Text};
use tenbin_session::{SessionExpiry, Violation};
use tokio::io::AsyncWriteExt as _;

use super::ConnectionTask;
use crate::lifecycle;
use crate::net::authentication::Login;
use crate::net::core::Core;
use crate::net::end::End;
use crate::net::stream::Stream;
use crate::net::transport::Transport;
use crate::outbox::Control;
use crate::slices::in_turn;
use crate::threads::Home;

impl<S: Stream> ConnectionTask<S> {
    /// Migrates the connection or returns its end. Boxed: see [`serve`](super::serve).
    pub(super) fn leave(self, ended: Result<Home, End>) -> Option<impl Future<Output = ()>> {
        match ended {
            Ok(home) => {
                self.move_to(home);
                None
            }
            Err(end) => Some(in_turn(Box::pin(self.finish(end)))),
        }
    }

    /// The login that the client has repeated.
    fn login(&self) -> Login {
        let principal = self.core.lease.client.rights.principal();
        Login {
            peer: self.core.shared.peer,
            client_id: principal.client_id.clone(),
            user: principal.identity.user.clone(),
            listener: Arc::clone(&principal.listener),
        }
    }

    /// Ends the connection in order, unless the broker is deposed.
    pub(super) async fn finish(mut self, end: End) {
        let deposed = self.core.shared.when_deposed();
        if let Some(server_reference) = self.core.shared.leadership.deposed().cloned() {
            return self.leave_deposed(server_reference).await;
        }
        if let Some(server_reference) = self.core.shared.leadership.fenced() {
            self.leave_fenced(server_reference).await;
        }
        tokio::select! {
            // First: a deposed broker sends nothing.
            biased;
            () = deposed => {}
            () = self.finish_in_order(end) => {}
        }
    }

    /// Sends the client to another server, and closes the socket. The session ends once the broker may act.
    async fn leave_fenced(&mut self, server_reference: Option<Text>) {
        let goodbye = async {
            // As of a deposed broker.
            if self.core.out.is_empty() {
                match server_reference {
                    Some(server) => refer(&mut self.core, ReasonCode::UseAnotherServer, server),
                    None => self.core.connection.disconnect(ReasonCode::UseAnotherServer, &mut self.core.out),
                }
                std::future::poll_fn(|context| self.socket.poll_write(&mut self.core.out, context)).await?;
            }
            self.socket.stream().shutdown().await
        };
        let _ = tokio::time::timeout(DEPOSED_GOODBYE, goodbye).await;
    }

    /// Sends the client to another server, and stores nothing: the store may be another node's.
    async fn leave_deposed(self, server_reference: Option<Text>) {
        let Self { mut core, socket, inbound, .. } = self;
        // What is left may begin within a packet, and acknowledges messages: such a client gets nothing more.
        if !core.out.is_empty() {
            return;
        }
        match server_reference {
            Some(server) => refer(&mut core, ReasonCode::UseAnotherServer, server),
            None => core.connection.disconnect(ReasonCode::UseAnotherServer, &mut core.out),
        }
        let Core { shared: _shared, out, .. } = core;
        let _ = tokio::time::timeout(DEPOSED_GOODBYE, Transport { socket, input: inbound.end(), out }.close()).await;
    }

    /// Ends the session before the last packet, so that nothing waits for this client's socket. Earlier packets are
    /// answered before that.
    async fn finish_in_order(mut self, end: End) {
        if end.leaves_client_reading() {
            self.gate.settle(&self.core);
            let _ = tokio::time::timeout(GOODBYE, self.gate.answered(&mut self.core)).await;
        }
        self.count_traffic();
        let peer = self.core.shared.peer;
        let client = self.core.lease.client.id.clone();
        let normal = matches!(end, End::Disconnect(ReasonCode::Success));
        let limit = end.bound().map(|bound| {
            self.core.shared.metrics.bounds.hit(bound, 1, Instant::now());
            bound.key()
        });
        let mut server_reference = None;
        let reason = match &end {
            End::Refused(refusal) => {
                match &refusal.login {
                    Some(login) => self.login().refused(&self.core.shared, login),
                    None => tracing::info!(%peer, ?client, ?refusal, "refused when it authenticated again"),
                }
                server_reference.clone_from(&refusal.server_reference);
                refusal.reason
            }
            End::Revoked => {
                tracing::info!(%peer, ?client, "no longer authorized");
                Some(ReasonCode::NotAuthorized)
            }
            End::Expired => {
                tracing::info!(%peer, ?client, "credentials have expired");
                Some(ReasonCode::MaximumConnectTime)
            }
            End::Unanswered => {
                tracing::info!(%peer, ?client, "closing: a message found no room, and MQTT 3.1.1 has no refusal");
                None
            }
            End::AnswerTooLarge(packet) => {
                tracing::info!(%peer, ?client, %packet, "answer exceeds the client's Maximum Packet Size");
                Some(ReasonCode::PacketTooLarge)
            }
            End::Stalled => {
                tracing::info!(%peer, ?client, "packet stands still");
                Some(ReasonCode::KeepAliveTimeout)
            }
            End::NoMemory(bytes, _) => {
                tracing::info!(%peer, ?client, bytes, limit, "packet exceeds the memory limit of its owner");
                Some(ReasonCode::QuotaExceeded)
            }
            End::Disconnect(reason) => {
                tracing::debug!(%peer, ?client, %reason, "disconnected");
                None
            }
            End::Closed(error) if error.kind() == ErrorKind::InvalidData => {
                self.core.shared.metrics.violations.add(1);
                tracing::info!(%peer, ?client, %error, "closing: malformed bytes");
                None
            }
            End::Closed(error) => {
                tracing::debug!(%peer, ?client, %error, "connection lost");
                None
            }
            End::Violation(violation) => {
                self.core.shared.metrics.violations.add(1);
                self.core.shared.metrics.subscriptions_invalid.add(u64::from(has_invalid_filter(violation)));
                tracing::info!(%peer, ?client, limit, rule = violation.rule(), "{violation}");
                self.core.connection.disconnect_for(violation, &mut self.core.out);
                None
            }
            End::Control(Control::TakenOver) => {
                tracing::debug!(%peer, ?client, "session taken over");
                Some(ReasonCode::SessionTakenOver) // [MQTT-3.1.4-3]
            }
            End::Control(Control::TooSlow) => {
                self.core.shared.metrics.disconnected_slow.add(1);
                tracing::info!(%peer, ?client, "disconnected: too slow for its subscriptions");
                Some(ReasonCode::QuotaExceeded)
            }
            End::Hook(reason) => {
                tracing::info!(%peer, ?client, %reason, "ended by a hook");
                Some(*reason)
            }
            #[cfg(feature = "admin")]
            End::Control(Control::Kicked(reason)) => {
                tracing::info!(%peer, ?client, %reason, "disconnected by an operator");
                if matches!(reason, ReasonCode::UseAnotherServer | ReasonCode::ServerMoved) {
                    server_reference = self.core.shared.server_reference.load().as_deref().cloned();
                }
                Some(*reason)
            }
            #[cfg(feature = "admin")]
            End::Control(Control::Asked) => None, // ends nothing
            End::Control(Control::ShuttingDown) => Some(ReasonCode::ServerShuttingDown),
            End::Control(Control::RightsChanged) => None, // ends nothing
        };
        #[cfg(feature = "admin")]
        if let Some(roster) = self.core.shared.registry.roster() {
            roster.disconnected(self.core.lease.client.number);
        }
        let Self { mut core, mut outbound, gate, socket, inbound, departure, .. } = self;
        match (reason, server_reference) {
            (Some(reason), Some(server)) => refer(&mut core, reason, server),
            (Some(reason), None) => core.connection.disconnect(reason, &mut core.out),
            (None, _) => {}
        }
        if let Some(hooks) = &core.hooks {
            hooks.trace_output(&core.out, &core.connection);
        }
        outbound.end(&core);
        let settled_at = gate.end(&mut core);
        let Core { shared, lease, connection, out, hooks, _counted } = core;
        let ended = departure.end(connection.into_session(), settled_at, normal);
        if let Some(hooks) = &hooks {
            hooks.connection_ends(&ended.session, ended.expiry == SessionExpiry::AtDisconnect);
        }
        let is_over = lifecycle::end(&shared, lease, ended, Instant::now()).await;
        if let Some(hooks) = hooks {
            hooks.disconnected(&end.ending());
        }
        // The connection counts until the session has ended: clients cannot create sessions faster than they end.
        if let Some(is_over) = is_over {
            let _ = is_over.await; // an error means it has ended
        }
        if matches!(end, End::Closed(_)) && !socket.owes_close() {
            return;
        }
        if !shared.may_act().await && shared.leadership.deposed().is_some() {
            return;
        }
        let _ = tokio::time::timeout(GOODBYE, Transport { socket, input: inbound.end(), out }.close()).await;
    }
}

/// Whether a packet had an invalid Topic Filter.
fn has_invalid_filter(violation: &Violation) -> bool {
    matches!(violation, Violation::Decode(DecodeError::TopicFilter | DecodeError::SharedFilter))
}

/// Sends DISCONNECT, with a Server Reference if the client accepts such a large packet. A client of MQTT 3.1.1 gets
/// neither.
fn refer(core: &mut Core, reason: ReasonCode, server: Text) {
    if !core.connection.version().is_v5() {
        return;
    }
    let properties = DisconnectProperties { server_reference: Some(server), ..DisconnectProperties::default() };
    let disconnect = Disconnect { reason, properties: Some(Box::new(properties)) };
    if !core.connection.write(&Packet::Disconnect(disconnect), Instant::now(), &mut core.out) {
        core.connection.disconnect(reason, &mut core.out);
    }
}

/// How long a client has to read the last packets, and before that the disk to let answers go.
const GOODBYE: Duration = Duration::from_secs(2);
/// The same at a deposed broker.
const DEPOSED_GOODBYE: Duration = Duration::from_millis(500);
