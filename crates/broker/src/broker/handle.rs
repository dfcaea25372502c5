//! The broker behind a [`Handle`] of the embedding program.

use std::sync::Weak;
use std::task::Poll;
use std::time::Instant;

use tenbin_codec::{QoS, ReasonCode, Text, TopicFilter};

use super::Parts;
use crate::Config;
use crate::hooks::{self, Answer, BrokerStopped, Embedded, HookSet, Message, PublishError};
use crate::lifecycle::{BrokerState, Inbox};
use crate::metrics::MetricsSnapshot;
use crate::router::{Collector, Flushed, Publisher};

/// Does not keep the broker running: hooks may own handles.
pub(super) struct Embedding(pub(super) Weak<Parts>);

impl Embedding {
    fn parts(&self) -> Result<std::sync::Arc<Parts>, BrokerStopped> {
        self.0.upgrade().filter(|parts| !parts.shared.operations.is_stopping()).ok_or(BrokerStopped)
    }
}

impl Embedded for Embedding {
    fn publish(&self, message: Message) -> Answer<'_, Result<usize, PublishError>> {
        Box::pin(async move {
            if HookSet::is_in_hook() {
                return Err(PublishError::InHook);
            }
            let parts = self.parts()?;
            if !parts.shared.may_act().await {
                return Err(BrokerStopped.into());
            }
            let (shared, now) = (&parts.shared, Instant::now());
            let (receivers, Flushed { commit_point, holding, .. }) = publish(shared, message, now)?;
            shared.storage.safe(commit_point).await;
            let holding = holding.unwrap_or_default();
            std::future::poll_fn(|context| {
                let is_held = holding.iter().any(|group| group.still_holds(context.waker()));
                if is_held { Poll::Pending } else { Poll::Ready(()) }
            })
            .await;
            Ok(receivers)
        })
    }

    fn subscribe(&self, filter: &TopicFilter, qos: QoS) -> Result<Box<dyn hooks::Inbox>, BrokerStopped> {
        Ok(Box::new(Inbox::new(&self.parts()?.shared, filter, qos, Instant::now())))
    }

    fn reload(&self, config: &Config) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.parts()?.reload(|| Ok(config.clone()))?;
        Ok(())
    }

    fn metrics(&self) -> Result<MetricsSnapshot, BrokerStopped> {
        Ok(self.parts()?.shared.operations.metrics.snapshot())
    }

    fn invalidate_routes(&self) {
        if let Ok(parts) = self.parts() {
            parts.shared.routing.router.invalidate();
        }
    }
}

/// Routes a message to all receivers' queues; returns their number.
fn publish(shared: &BrokerState, message: Message, now: Instant) -> Result<(usize, Flushed), PublishError> {
    let publication = message.into_routed(now);
    shared.routing.checks.own(&publication).map_err(PublishError::Refused)?;
    let mut publisher = Publisher::new(&shared.routing.router, 0, &Text::EMPTY);
    let mut collector = Collector::new();
    let published = publisher.publish(&shared.routing.router, &mut collector, &publication, shared.clock.moment(now));
    let mut flushed = publisher.flush(&shared.routing.router, &mut collector, now);
    flushed.append_until(published.commit_point);
    if published.reason.is_error() || !flushed.refused.is_empty() {
        return Err(PublishError::Refused(ReasonCode::QuotaExceeded));
    }
    Ok((published.receivers as usize, flushed))
}
