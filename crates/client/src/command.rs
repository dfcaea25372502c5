use std::time::Instant;

use tenbin_codec::{ReasonCode, Subscription, TopicFilter};
use tokio::sync::oneshot;

use crate::{ClientErrorKind, OutgoingMessage};

/// Where the task answers a command. Dropped without an answer it means that the client has ended.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, ClientErrorKind>>;

/// What the application asks of the task.
#[derive(Debug)]
pub(crate) enum Command {
    Publish { message: OutgoingMessage, expires_at: Option<Instant>, reply: Reply<ReasonCode> },
    Subscribe { subscriptions: Vec<Subscription>, reply: Reply<Vec<ReasonCode>> },
    Unsubscribe { filters: Vec<TopicFilter>, reply: Reply<Vec<ReasonCode>> },
}
