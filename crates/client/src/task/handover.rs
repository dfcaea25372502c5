use std::collections::VecDeque;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::{ClientEvent, Message};

/// Passes events to the application in order, and holds events for which the queue has no room.
///
/// It holds at most one message, because nothing is read from the socket while it does. The other events are few: the last two
/// changes of the connection, and one refusal for each subscription.
pub(super) struct Handover {
    queue: mpsc::Sender<ClientEvent>,
    waiting: VecDeque<ClientEvent>,
    holds_message: bool,
}

impl Handover {
    pub(super) fn new(queue: mpsc::Sender<ClientEvent>) -> Self {
        Self { queue, waiting: VecDeque::new(), holds_message: false }
    }

    /// Whether the application still takes events.
    pub(super) fn is_open(&self) -> bool {
        !self.queue.is_closed()
    }

    /// Whether an event waits for room in the queue, so that [`Handover::hand_over`] must be called.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether a message waits, so that no further one can be accepted.
    pub(super) fn holds_message(&self) -> bool {
        self.holds_message
    }

    pub(super) fn push_message(&mut self, message: Message) {
        debug_assert!(!self.holds_message, "nothing is decoded while a message waits");
        self.push(ClientEvent::Message(message));
    }

    /// Adds a change of the connection.
    ///
    /// Discards a connection and its loss if both are still waiting: otherwise they could pile up without bound.
    pub(super) fn push_connection_event(&mut self, event: ClientEvent) {
        let is_change =
            |event: &ClientEvent| matches!(event, ClientEvent::Connected { .. } | ClientEvent::Disconnected { .. });
        if self.waiting.len() >= 2 && self.waiting.iter().rev().take(2).all(is_change) {
            self.waiting.truncate(self.waiting.len() - 2);
        }
        self.push(event);
    }

    pub(super) fn push(&mut self, event: ClientEvent) {
        let event = if self.waiting.is_empty() {
            match self.queue.try_send(event) {
                Ok(()) | Err(TrySendError::Closed(_)) => return,
                Err(TrySendError::Full(event)) => event,
            }
        } else {
            event
        };
        self.holds_message |= matches!(event, ClientEvent::Message(_));
        self.waiting.push_back(event);
    }

    /// Waits for room, and passes on the first event. Cancel safe.
    pub(super) async fn hand_over(&mut self) {
        match self.queue.reserve().await {
            Ok(permit) => {
                if let Some(event) = self.waiting.pop_front() {
                    permit.send(event);
                }
            }
            Err(_) => self.waiting.clear(), // The application has dropped its events.
        }
        self.holds_message = self.waiting.iter().any(|event| matches!(event, ClientEvent::Message(_)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DisconnectReason;

    #[test]
    fn unseen_connection_events_do_not_pile_up() {
        let (queue, mut events) = mpsc::channel(1);
        let mut handover = Handover::new(queue);
        for _ in 0..100 {
            handover.push_connection_event(ClientEvent::Connected { session_present: false });
            handover.push_connection_event(ClientEvent::Disconnected { reason: DisconnectReason::Closed });
        }
        assert!(handover.waiting.len() <= 2);
        assert!(!handover.holds_message());
        assert!(matches!(events.try_recv(), Ok(ClientEvent::Connected { .. })));
        assert!(matches!(handover.waiting.back(), Some(ClientEvent::Disconnected { .. })), "the last state is told");
    }
}
