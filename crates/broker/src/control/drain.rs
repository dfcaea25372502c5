//! The drain: clients go to other servers at an even rate.

use std::sync::Arc;
use std::time::Duration;

use tenbin_admin::{Answer, ControlError, DrainRequest, DrainView};
use tenbin_codec::{ReasonCode, Text};
use tokio::time::Instant;

use super::{Control, DrainRefused};
use crate::outbox;
use crate::registry::Client;

impl Control {
    pub(super) fn begin_drain(&self, request: DrainRequest) -> Answer<DrainView> {
        let DrainRequest { listener, seconds, server_reference } = request;
        if seconds > SECONDS_MAX {
            return Err(ControlError::Invalid(format!("seconds: needs to be at most {SECONDS_MAX}")));
        }
        let reference = server_reference.map(Text::try_from).transpose();
        let reference = reference.map_err(|error| ControlError::Invalid(format!("server_reference: {error}")))?;
        let mut connections = 0;
        let send_away = Box::new(|| {
            self.shared.server_reference.store(reference.map(Arc::new));
            let clients = self.connected_at(listener.as_deref());
            connections = clients.len();
            tokio::spawn(send_away(clients, Duration::from_secs(seconds.into()))).abort_handle()
        });
        self.reach.begin_drain(listener.as_deref(), send_away).map_err(|refused| match refused {
            DrainRefused::NoListener => {
                ControlError::NotFound(format!("there is no open listener {:?}", listener.as_deref().unwrap_or("")))
            }
            DrainRefused::Running => {
                ControlError::Conflict("clients of an earlier drain still go; end it first".to_owned())
            }
        })?;
        tracing::info!(connections, seconds, ?listener, "drain: clients are sent away at an even rate");
        Ok(DrainView { connections, seconds })
    }

    pub(super) fn cancel_drain(&self) -> Answer<()> {
        match self.reach.end_drain() {
            Ok(true) => {
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
        self.for_each_client(|client| {
            let is_wanted = || listener.is_none_or(|name| *client.rights.principal().listener == *name);
            if client.outbox.view().state != "offline" && is_wanted() {
                found.push((Arc::clone(client), client.outbox.connection()));
            }
        });
        found
    }
}

/// Ends these connections at an even rate within `span`. A client that has come back in between stays.
async fn send_away(clients: Vec<(Arc<Client>, u32)>, span: Duration) {
    let (begun, total) = (Instant::now(), clients.len());
    for (number, (client, connection)) in clients.into_iter().enumerate() {
        tokio::time::sleep_until(begun + span.mul_f64(number as f64 / total as f64)).await;
        client.outbox.control_connection(connection, outbox::Control::Kicked(ReasonCode::UseAnotherServer));
    }
}

const SECONDS_MAX: u32 = 86_400;
