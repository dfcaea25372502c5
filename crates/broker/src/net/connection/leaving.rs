//! A slow receiver that is asked to another node: it gets no further messages, and is told once it has acknowledged those
//! that were sent.
//!
//! So DISCONNECT does not wait behind megabytes in its socket, and no message is sent again.

use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::{Sleep, sleep};

use super::ConnectionTask;
use crate::net::stream::Stream;

/// The wait for the acknowledgements of a client that is to leave.
#[derive(Debug)]
pub(super) struct Leaving {
    until: Pin<Box<Sleep>>,
}

impl<S: Stream> ConnectionTask<S> {
    /// Sends no further messages.
    #[cold]
    pub(super) fn begin_leaving(&mut self) {
        self.leaving.get_or_insert_with(|| Box::new(Leaving { until: Box::pin(sleep(ACKNOWLEDGED_WITHIN)) }));
        // The request may have replaced theirs.
        self.answer_questions();
    }

    /// Whether the client can be told now. One that does not read cannot, and stays.
    #[cold]
    pub(super) fn poll_leaving(&mut self, context: &mut Context<'_>) -> bool {
        let Some(leaving) = &mut self.leaving else { return false };
        let client = &self.core.lease.client;
        let reason = if self.core.open.shared.routing.slow_receivers.server(client).is_none() {
            "there is no other node"
        } else if self.core.out.is_empty() && self.core.connection.session().in_flight() == 0 {
            return true;
        } else if leaving.until.as_mut().poll(context).is_ready() {
            "it has not acknowledged what was sent"
        } else {
            return false;
        };
        let peer = &self.core.open.peer;
        tracing::info!(%peer, client = ?client.id, reason, "the slow receiver stays at this node");
        self.leaving = None;
        self.outbound.look_again();
        context.waker().wake_by_ref();
        false
    }
}

const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(60);
