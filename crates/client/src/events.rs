use std::{error, fmt};

use tenbin_codec::{ReasonCode, TopicFilter};
use tokio::sync::mpsc;

use crate::{DisconnectReason, Message};

/// What happens at a client, in order. Ends (`None`) when the client has ended and everything is taken.
///
/// Holds at most [`ClientOptions::queue`](crate::ClientOptions::queue) events; when it is full, the client stops
/// reading from the socket. An application without interest in messages drops it: what is received from then on
/// is thrown away, and acknowledged in [`AcknowledgeMode::OnReceipt`](crate::AcknowledgeMode::OnReceipt) only.
#[derive(Debug)]
pub struct Events(pub(crate) mpsc::Receiver<ClientEvent>);

/// Something that happened at a client.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ClientEvent {
    /// A message was received.
    Message(Message),
    /// A connection was accepted; the first one is told, too.
    Connected {
        /// Whether the broker went on with its Session. If not, the client makes its subscriptions again by
        /// itself, and publishes again what was not acknowledged.
        session_present: bool,
    },
    /// A connection was lost. What follows is up to [`ClientOptions::reconnect`](crate::ClientOptions::reconnect).
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
    /// Waits for the next event; `None` when the client has ended. Cancel safe: no event is lost.
    pub async fn recv(&mut self) -> Option<ClientEvent> {
        self.0.recv().await
    }

    /// As [`recv`](Self::recv), for a thread of its own.
    ///
    /// # Panics
    /// When called within an asynchronous task.
    pub fn blocking_recv(&mut self) -> Option<ClientEvent> {
        self.0.blocking_recv()
    }

    /// The next event, if there is one now.
    ///
    /// # Errors
    /// There is none now, or there will be none any more.
    pub fn try_recv(&mut self) -> Result<ClientEvent, TryRecvError> {
        self.0.try_recv().map_err(|error| match error {
            mpsc::error::TryRecvError::Empty => TryRecvError::Empty,
            mpsc::error::TryRecvError::Disconnected => TryRecvError::Ended,
        })
    }

    /// Events that wait.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Why [`Events::try_recv`] has no event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TryRecvError {
    /// None waits now.
    Empty,
    /// The client has ended.
    Ended,
}

impl fmt::Display for TryRecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "no event waits",
            Self::Ended => "the client has ended",
        })
    }
}

impl error::Error for TryRecvError {}
