//! The end of a connection: its session, and the last packet to the client.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenbin_codec::{Disconnect, DisconnectProperties, Packet, ReasonCode, Text};
use tenbin_session::SessionExpiry;
use tokio::io::AsyncWriteExt as _;
use tracing::field::{debug, display};

use super::ConnectionTask;
use super::ends::{Event, Fields, Last, Row};
use crate::lifecycle;
use crate::net::authentication::Login;
use crate::net::core::Core;
use crate::net::end::End;
use crate::net::stream::Stream;
use crate::net::transport::Transport;
use crate::registry::Lease;
use crate::slices::in_turn;
use crate::threads::Home;
use crate::values::Bound;

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
            peer: self.core.open.peer,
            client_id: principal.client_id.clone(),
            user: principal.identity.user.clone(),
            listener: Arc::clone(&principal.listener),
        }
    }

    /// Ends the connection in order, unless the broker is deposed.
    pub(super) async fn finish(mut self, end: End) {
        let deposed = Arc::clone(&self.core.open.shared).when_deposed();
        let listener = Arc::clone(&self.core.lease.client.rights.principal().listener);
        let deposed_to = self.core.open.shared.operations.leadership.deposed().map(|servers| servers.of(&listener));
        if let Some(server_reference) = deposed_to {
            return self.leave_deposed(server_reference).await;
        }
        if let Some(servers) = self.core.open.shared.operations.leadership.fenced() {
            self.leave_fenced(servers.of(&listener)).await;
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
        let Core { open: _open, out, .. } = core;
        let _ = tokio::time::timeout(DEPOSED_GOODBYE, Transport { socket, input: inbound.end(), out }.close()).await;
    }

    /// Logs and counts the end.
    fn note(&self, row: &Row<'_>) {
        let (shared, client) = (&self.core.open.shared, &self.core.lease.client);
        if let Some(bound) = row.bound {
            shared.operations.metrics.bounds.hit(bound, 1, Instant::now());
        }
        (row.count)(&shared.operations.metrics);
        let (peer, client, limit) = (self.core.open.peer, &client.id, row.bound.map(Bound::key));
        let Fields { refusal, packet, bytes, rule, reason, error, server } = &row.fields;
        let (packet, reason, error) = (packet.map(display), reason.map(display), error.map(display));
        let (refusal, server) = (refusal.map(debug), server.as_ref().map(display));
        match row.event {
            Event::Nothing => {}
            Event::Login(refusal) => self.login().refused(shared, refusal),
            Event::Debug(event) => tracing::debug!(%peer, ?client, reason, error, "{event}"),
            Event::Info(event) => tracing::info!(
                %peer, ?client, refusal, packet, bytes, limit, rule, reason, error, server, "{event}"
            ),
        }
    }

    /// Ends the session before the last packet, so that nothing waits for this client's socket. Earlier packets are
    /// answered before that.
    async fn finish_in_order(mut self, end: End) {
        if end.row(&self.core).is_read {
            self.gate.settle(&self.core);
            let _ = tokio::time::timeout(GOODBYE, self.gate.answered(&mut self.core)).await;
        }
        self.count_traffic();
        let row = end.row(&self.core);
        self.note(&row);
        if let Some(roster) = self.core.open.shared.sessions.registry.roster() {
            roster.disconnected(self.core.lease.client.number);
            let Lease { client, state, .. } = &self.core.lease;
            if state.subscriptions.remembered_groups().next().is_some() {
                let chronicle = &self.core.open.shared.operations.chronicle;
                chronicle.departed(&client.id, row.why(), row.removes_will);
            }
        }
        let Self { mut core, mut outbound, gate, socket, inbound, departure, .. } = self;
        match row.last {
            Last::Disconnect(reason, Some(server)) => refer(&mut core, reason, server),
            Last::Disconnect(reason, None) => core.connection.disconnect(reason, &mut core.out),
            Last::Answer(violation) => core.connection.disconnect_for(violation, &mut core.out),
            Last::Nothing => {}
        }
        if let Some(hooks) = &core.hooks {
            hooks.trace_output(&core.out, &core.connection);
        }
        outbound.end(&core);
        let settled_at = gate.end(&mut core);
        let Core { open, lease, connection, out, hooks, _counted } = core;
        let ended = departure.end(connection.into_session(), settled_at, row.removes_will);
        if let Some(hooks) = &hooks {
            hooks.connection_ends(&ended.session, ended.expiry == SessionExpiry::AtDisconnect);
        }
        let is_over = lifecycle::end(&open.shared, lease, ended, Instant::now()).await;
        if let Some(hooks) = hooks {
            hooks.disconnected(&row.ending);
        }
        // The connection counts until the session has ended: clients cannot create sessions faster than they end.
        if let Some(is_over) = is_over {
            let _ = is_over.await; // an error means it has ended
        }
        if row.ending.reason.is_none() && !socket.owes_close() {
            return;
        }
        if !open.shared.may_act().await && open.shared.operations.leadership.deposed().is_some() {
            return;
        }
        let _ = tokio::time::timeout(GOODBYE, Transport { socket, input: inbound.end(), out }.close()).await;
    }
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
