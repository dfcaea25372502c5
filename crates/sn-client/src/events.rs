use tenbin_sn_codec::v1_2::ReturnCode;
use tokio::sync::mpsc;

use crate::{Failure, Message, Topic};

/// Events of a client, in order. Ends with `None` after the last event of an ended client.
///
/// Holds [`ClientOptions::queue`](crate::ClientOptions::queue) messages; while it is full, the client drops further
/// ones without an answer. An application that needs no messages may drop it: from then on the client acknowledges and
/// discards them.
#[derive(Debug)]
pub struct Events(pub(crate) mpsc::Receiver<ClientEvent>);

/// An event of a client.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ClientEvent {
    /// A message was received.
    Message(Message),
    /// A gateway accepted a connection, including the first one.
    Connected {
        /// The gateway, as configured.
        gateway: String,
    },
    /// A connection was lost. The client looks for another gateway.
    Disconnected(Failure),
    /// The gateway refused to make this subscription again after a reconnect.
    SubscriptionLost {
        /// The subscription's filter.
        filter: Topic,
        /// Why it was refused.
        code: ReturnCode,
    },
}

impl Events {
    /// Waits for the next event; `None` once the client has ended. Cancel safe: no event is lost.
    pub async fn recv(&mut self) -> Option<ClientEvent> {
        self.0.recv().await
    }
}

/// The task's end of the event queue.
#[derive(Debug)]
pub(crate) struct EventSender(mpsc::Sender<ClientEvent>);

/// Room in the queue beyond its messages. An application that reads no events misses later changes of connections.
const CHANGES_MAX: usize = 16;

/// A queue with room for `messages`.
pub(crate) fn queue(messages: usize) -> (EventSender, Events) {
    let (sender, receiver) = mpsc::channel(messages + CHANGES_MAX);
    (EventSender(sender), Events(receiver))
}

impl EventSender {
    /// Whether a message may come.
    pub(crate) fn has_room(&self) -> bool {
        self.0.is_closed() || self.0.capacity() > CHANGES_MAX
    }

    pub(crate) fn send(&self, event: ClientEvent) {
        let _ = self.0.try_send(event);
    }
}
