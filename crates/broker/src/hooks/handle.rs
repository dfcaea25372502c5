use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::{Message, Publication, QoS, ReasonCode, TopicFilter};
use crate::Config;
use crate::metrics::MetricsSnapshot;

/// The running broker as the embedding program uses it. Clones are cheap.
///
/// A handle does not keep its broker running.
#[derive(Clone)]
pub struct Handle(Arc<dyn Embedded>);

/// The broker behind a [`Handle`].
pub(crate) trait Embedded: Send + Sync {
    fn publish(&self, message: Message) -> Answer<'_, Result<usize, PublishError>>;
    fn subscribe(&self, filter: &TopicFilter, qos: QoS) -> Result<Box<dyn Inbox>, BrokerStopped>;
    fn reload(&self, config: &Config) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;
    fn metrics(&self) -> Result<MetricsSnapshot, BrokerStopped>;
    fn invalidate_routes(&self);
}

/// A boxed future.
pub(crate) type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Messages of one subscription of the embedding program.
pub(crate) trait Inbox: Send {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Received>>;
}

/// The broker has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the broker has stopped")]
pub struct BrokerStopped;

/// Error of [`Handle::publish`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The broker has stopped.
    #[error(transparent)]
    Stopped(#[from] BrokerStopped),
    /// The message is refused, with the Reason Code that a client would get. Receivers with room have it.
    #[error("the message is refused: {0}")]
    Refused(ReasonCode),
    /// A hook has waited for the call itself. The message is not published.
    #[error("a hook cannot publish while it runs: spawn a task that does")]
    InHook,
}

/// A message of a [`Subscription`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// The message. Its QoS is the lower one of publication and subscription.
    pub message: Publication,
    /// Whether it was retained before the subscription began.
    pub retained: bool,
}

impl Handle {
    pub(crate) fn new(broker: Arc<dyn Embedded>) -> Self {
        Self(broker)
    }

    /// Publishes a message. Returns the number of its receivers once it is in their queues, and on disk as far as they
    /// are stored; a share group counts as one.
    ///
    /// Neither hooks nor access rules concern it. At QoS 1 and 2 it waits while a share group holds its publishers'
    /// acknowledgements (`hold_beyond_ms`).
    ///
    /// A hook cannot wait for it, since the batch of its connection is under way: `tokio::spawn` it there.
    ///
    /// # Errors
    /// The broker has stopped, a hook polls the call, or the message is refused. Reasons of a refusal are a reserved or
    /// too long topic, a response topic with wildcards, a payload that is not the UTF-8 text it claims to be, a size
    /// above `packet_bytes_maximum`, and a receiver without room.
    pub async fn publish(&self, message: Message) -> Result<usize, PublishError> {
        self.0.publish(message).await
    }

    /// Subscribes to a Topic Filter, of a share group too (`$share/NAME/FILTER`).
    ///
    /// The subscription is a separate session that ends when it is dropped, with a queue as long as any client's
    /// queue. Retained messages come first. Taking a message acknowledges it.
    ///
    /// # Errors
    /// The broker has stopped.
    pub fn subscribe(&self, filter: &TopicFilter, qos: QoS) -> Result<Subscription, BrokerStopped> {
        self.0.subscribe(filter, qos).map(Subscription)
    }

    /// Applies another configuration, as [`Broker::reload`](crate::Broker::reload).
    ///
    /// # Errors
    /// A [`ReloadError`](crate::ReloadError), or [`BrokerStopped`].
    pub fn reload(&self, config: &Config) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.0.reload(config)
    }

    /// Current values of the counters.
    ///
    /// # Errors
    /// The broker has stopped.
    pub fn metrics(&self) -> Result<MetricsSnapshot, BrokerStopped> {
        self.0.metrics()
    }

    /// Has all connections ask [`Hooks::select`](super::Hooks::select) again.
    pub fn invalidate_routes(&self) {
        self.0.invalidate_routes();
    }
}

/// A subscription of the embedding program. Ends when it is dropped.
pub struct Subscription(Box<dyn Inbox>);

impl Subscription {
    /// Waits for the next message; `None`: the broker has stopped. Cancel-safe.
    pub async fn next(&mut self) -> Option<Received> {
        std::future::poll_fn(|context| self.0.poll_next(context)).await
    }
}

impl futures_core::Stream for Subscription {
    type Item = Received;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Received>> {
        self.0.poll_next(context)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").finish_non_exhaustive()
    }
}
