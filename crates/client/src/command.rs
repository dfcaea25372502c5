use std::time::{Duration, Instant};

use tenbin_codec::{ReasonCode, Subscription, TopicFilter};
use tokio::sync::oneshot;

use crate::{ClientErrorKind, OutgoingMessage};

/// Where the task answers a command. Dropped without an answer it means that the client has ended.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, ClientErrorKind>>;

/// What the application asks the broker for, by way of the task.
#[derive(Debug)]
pub(crate) enum Command {
    Publish { message: OutgoingMessage, expires_at: Option<Instant>, reply: Reply<ReasonCode> },
    Subscribe { subscriptions: Vec<Subscription>, reply: Reply<Vec<ReasonCode>> },
    Unsubscribe { filters: Vec<TopicFilter>, reply: Reply<Vec<ReasonCode>> },
}

/// What the application asks of the connection itself. It does not wait behind commands.
#[derive(Debug)]
pub(crate) enum Control {
    /// To be ended in order, for good.
    Leave(Reply<()>),
    /// To be ended at once, and made again after so long.
    Cut(Duration),
}
