use tenbin_codec::{ReasonCode, TopicFilter};
use tokio::sync::mpsc;

use crate::{DisconnectReason, Message};

/// Events of a client, in order. Ends with `None` after the last event of an ended client.
///
/// Holds at most [`ClientOptions::queue`](crate::ClientOptions::queue) events; while it is full, the client does not
/// read the socket. An application that needs no messages may drop it. From then on the client discards received
/// messages, and acknowledges them only in [`AcknowledgeMode::OnReceipt`](crate::AcknowledgeMode::OnReceipt).
#[derive(Debug)]
pub struct Events(pub(crate) mpsc::Receiver<ClientEvent>);

/// An event of a client.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ClientEvent {
    /// A message was received.
    Message(Message),
    /// A connection was accepted, including the first one.
    Connected {
        /// Whether the broker resumed the Session. If not, the client makes its subscriptions and unacknowledged
        /// publications again.
        session_present: bool,
    },
    /// A connection was lost. [`ClientOptions::reconnect`](crate::ClientOptions::reconnect) determines the next step.
    Disconnected {
        /// Why.
        reason: DisconnectReason,
    },
    /// The broker lost the Session and refused to make this subscription again.
    SubscriptionLost {
        /// The subscription's filter.
        filter: TopicFilter,
        /// Why it was refused.
        reason: ReasonCode,
    },
}

impl Events {
    /// Waits for the next event; `None` once the client has ended. Cancel safe: no event is lost.
    pub async fn recv(&mut self) -> Option<ClientEvent> {
        self.0.recv().await
    }

    /// Blocking form of [`recv`](Self::recv).
    ///
    /// # Panics
    /// If called within an asynchronous task.
    pub fn blocking_recv(&mut self) -> Option<ClientEvent> {
        self.0.blocking_recv()
    }

    /// Returns the next event without waiting.
    ///
    /// # Errors
    /// There is no event now, or the client has ended.
    pub fn try_recv(&mut self) -> Result<ClientEvent, TryRecvError> {
        self.0.try_recv().map_err(|error| match error {
            mpsc::error::TryRecvError::Empty => TryRecvError::Empty,
            mpsc::error::TryRecvError::Disconnected => TryRecvError::Ended,
        })
    }

    /// Number of queued events.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no event is queued.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Why [`Events::try_recv`] returned no event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TryRecvError {
    /// No event is queued now.
    #[error("no event waits")]
    Empty,
    /// The client has ended.
    #[error("the client has ended")]
    Ended,
}
