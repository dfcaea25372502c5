//! The part of a driver that is the protocol's own.

use std::future::Future;

use crate::LoadgenError;
use crate::run::Plan;
use bytes::Bytes;

use super::host::Side;

/// A protocol: how its clients connect.
pub(super) trait Protocol: Send + Sync + 'static {
    /// Name in [`Plan::protocol`].
    const NAME: &'static str;

    /// Receiving side of a subscriber.
    type Inlet: Inlet + 'static;

    /// Sending side of a publisher.
    type Outlet: Outlet + 'static;

    /// Checks that the plan can be run over this protocol.
    ///
    /// # Errors
    /// It cannot. The error says why.
    fn check(plan: &Plan) -> Result<(), LoadgenError>;

    /// Creates topics or streams that do not exist.
    ///
    /// # Errors
    /// The system refuses, or no door answers.
    async fn create(side: &Side) -> Result<(), LoadgenError>;

    /// Connects and subscribes receiver `number` of the layout. It gets all messages that are published from now on.
    ///
    /// # Errors
    /// The system cannot be reached, or refuses.
    async fn subscribe(side: &Side, number: u32) -> Result<Self::Inlet, LoadgenError>;

    /// Connects publisher `number`.
    ///
    /// # Errors
    /// The system cannot be reached, or refuses.
    async fn publisher(side: &Side, number: u32) -> Result<Self::Outlet, LoadgenError>;
}

/// A message that arrived.
pub(super) struct Arrival {
    pub(super) payload: Bytes,
    /// Whether the system says that it has sent the message before.
    pub(super) is_repeated: bool,
}

impl From<Bytes> for Arrival {
    /// A message of a system that does not tell repetitions.
    fn from(payload: Bytes) -> Self {
        Self { payload, is_repeated: false }
    }
}

/// Receiving side of a subscriber.
pub(super) trait Inlet {
    /// Waits for messages, and appends at least one and `most` at most. It is cancel safe.
    ///
    /// A lost connection is the protocol's own affair. The call returns without messages to be called again.
    async fn receive(&mut self, arrivals: &mut Vec<Arrival>, most: usize);

    /// Acknowledges all messages of earlier calls of [`Inlet::receive`].
    async fn acknowledge(&mut self) {}

    /// Leaves the system in good order.
    async fn close(&mut self) {}
}

/// Sending side of a publisher.
pub(super) trait Outlet {
    /// Whether messages are published once [`Outlet::flush`] returns, without an acknowledgement of each.
    const FLUSHES: bool;

    /// End of a message.
    type Receipt: Future<Output = Fate> + 'static;

    /// Hands over a message to the client library; waits while its queue is full.
    ///
    /// # Errors
    /// The library does not take it, or does not know whether it was sent.
    async fn send(&mut self, topic: u32, payload: Bytes) -> Result<Self::Receipt, Fate>;

    /// Writes all messages to the socket, and says how they ended.
    async fn flush(&mut self) -> Fate {
        Fate::Written
    }

    /// Leaves the system in good order.
    async fn close(&mut self) {}
}

/// How a message ended at its publisher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// Acknowledged, and thereby published.
    Acknowledged,
    /// Written, and thereby published: there is no acknowledgement.
    Written,
    /// Refused: the system does not have it.
    Refused,
    /// Unknown: the system may have it.
    Unconfirmed,
}
