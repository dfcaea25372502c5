use std::time::{Duration, Instant};

use tenbin_codec::{ReasonCode, Subscription, TopicFilter};
use tokio::sync::oneshot;

use crate::{ClientErrorKind, OutgoingMessage};

/// Channel for the task's answer to a command. Dropped without an answer, it means that the client has ended.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, ClientErrorKind>>;

/// A request of the application to the broker.
#[derive(Debug)]
pub(crate) enum Command {
    Publish { message: OutgoingMessage, expires_at: Option<Instant>, reply: Reply<ReasonCode> },
    Subscribe { subscriptions: Vec<Subscription>, reply: Reply<Vec<ReasonCode>> },
    Unsubscribe { filters: Vec<TopicFilter>, reply: Reply<Vec<ReasonCode>> },
}

/// A request about the connection itself. It bypasses the command queue.
#[derive(Debug)]
pub(crate) enum Control {
    /// End the client in order.
    Leave(Reply<()>),
    /// Close the connection at once, and reconnect after this time.
    Cut(Duration),
}
