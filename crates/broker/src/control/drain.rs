//! The drain: clients go to other servers at an even rate.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenbin_admin::{Answer, ControlError, DrainRequest, DrainView};
use tenbin_codec::{ReasonCode, Text};
use tokio::time::Instant;

use super::Control;
use crate::lifecycle::BrokerState;
use crate::outbox;
use crate::registry::Client;
use crate::values::DrainRefused;

impl Control {
    pub(super) fn begin_drain(&self, request: DrainRequest) -> Answer<DrainView> {
        let DrainRequest { listener, seconds, server_reference } = request;
        if seconds > SECONDS_MAX {
            return Err(ControlError::Invalid(format!("seconds: needs to be at most {SECONDS_MAX}")));
        }
        let reference = server_reference.map(Text::try_from).transpose();
        let reference = reference.map_err(|error| ControlError::Invalid(format!("server_reference: {error}")))?;
        let mut connections = 0;
        let send_away = Box::new(|is_over: Arc<AtomicBool>| {
            self.shared.operations.server_reference.store(reference.map(Arc::new));
            let clients = self.connected_at(listener.as_deref());
            connections = clients.len();
            let leaving = Leaving {
                shared: Arc::clone(&self.shared),
                listener: listener.clone(),
                span: Duration::from_secs(seconds.into()),
                is_over,
            };
            tokio::spawn(leaving.send_away(clients)).abort_handle()
        });
        self.reach.begin_drain(listener.as_deref(), send_away).map_err(|refused| match refused {
            DrainRefused::NoListener => {
                ControlError::NotFound(format!("there is no open listener {:?}", listener.as_deref().unwrap_or("")))
            }
            DrainRefused::Running => {
                ControlError::Conflict("clients of an earlier drain still go; end it first".to_owned())
            }
        })?;
        self.note_operator("a drain of listeners has begun");
        tracing::info!(connections, seconds, ?listener, "drain: clients are sent away at an even rate");
        Ok(DrainView { connections, seconds })
    }

    pub(super) fn cancel_drain(&self) -> Answer<()> {
        match self.reach.end_drain() {
            Ok(true) => {
                self.note_operator("the drain of listeners was ended");
                tracing::info!("drain: ended by an operator; its listeners are open again");
                Ok(())
            }
            Ok(false) => Err(ControlError::NotFound("there is no drain".to_owned())),
            Err(error) => Err(ControlError::Unavailable(error)),
        }
    }

    /// Clients that are connected through this listener, or through any, with the numbers of their connections.
    fn connected_at(&self, listener: Option<&str>) -> Vec<(Arc<Client>, u32)> {
        let mut found = Vec::new();
        self.for_each_client(|client| found.extend(connection_at(client, listener)));
        found
    }
}

/// A drain whose clients go.
struct Leaving {
    shared: Arc<BrokerState>,
    /// `None` = all.
    listener: Option<String>,
    span: Duration,
    /// Becomes true before a listener opens again.
    is_over: Arc<AtomicBool>,
}

impl Leaving {
    /// Ends these connections at an even rate within the span, then those that began in between. A client that came
    /// back by another listener stays.
    async fn send_away(self, clients: Vec<(Arc<Client>, u32)>) {
        let (begun, total) = (Instant::now(), clients.len());
        for (number, gone) in clients.into_iter().enumerate() {
            tokio::time::sleep_until(begun + self.span.mul_f64(number as f64 / total as f64)).await;
            self.end_connection(&gone);
        }
        // A client whose connection was accepted before may still log in.
        let all_have_come = begun + self.shared.config.connect_timeout() + SESSION_TIMEOUT;
        loop {
            let is_last = Instant::now() >= all_have_come;
            let left = self.left().await;
            if is_last && left.is_empty() {
                return;
            }
            left.iter().for_each(|gone| self.end_connection(gone));
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Clients that are still connected. Other tasks of the admin thread run between two pages.
    async fn left(&self) -> Vec<(Arc<Client>, u32)> {
        let mut found = Vec::new();
        let Some(roster) = self.shared.sessions.registry.roster() else { return found };
        let mut after = Some(0);
        while let Some(last) = after {
            after = roster.page(last, |client, _| {
                found.extend(connection_at(client, self.listener.as_deref()));
                ControlFlow::Continue(())
            });
            tokio::task::yield_now().await;
        }
        found
    }

    /// Ends this connection of the client; a later one stays.
    fn end_connection(&self, (client, connection): &(Arc<Client>, u32)) {
        // The connection was seen before this look, so it did not begin after the end of the drain.
        if !self.is_over.load(Ordering::Acquire) {
            client.outbox.control_connection(*connection, outbox::Control::Kicked(ReasonCode::UseAnotherServer));
        }
    }
}

/// The client and the number of its connection, if it is connected through this listener, or through any.
fn connection_at(client: &Arc<Client>, listener: Option<&str>) -> Option<(Arc<Client>, u32)> {
    // Before the name: if a connection by another listener takes over in between, it has another number.
    let connection = client.outbox.connection();
    let is_wanted = listener.is_none_or(|name| *client.rights.principal().listener == *name);
    (is_wanted && client.outbox.view().state != "offline").then(|| (Arc::clone(client), connection))
}

const SECONDS_MAX: u32 = 86_400;
/// Time in which a client that has logged in gets its session.
const SESSION_TIMEOUT: Duration = Duration::from_secs(1);
/// Time between two looks at the clients that are left.
const PAUSE: Duration = Duration::from_millis(250);
