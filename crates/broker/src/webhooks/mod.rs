//! Webhooks: events of the broker for services that take them over HTTP, and spans for a collector of OpenTelemetry.
//!
//! Hooks put events into a bounded queue and never wait. One task for each service sends them.

#[cfg(feature = "web")]
mod sender;
#[cfg(feature = "web")]
mod teller;

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::Config;
#[cfg(feature = "web")]
use crate::event_queue::{Bounds, EventQueue};
use crate::hooks::HookSet;
use crate::metrics::Metrics;
#[cfg(feature = "otel")]
use crate::telemetry;

/// The webhooks of a configuration.
pub(crate) struct Webhooks {
    #[cfg(feature = "web")]
    senders: Vec<sender::Sender>,
}

/// Tasks that send events. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Sending {
    tasks: JoinSet<()>,
    #[cfg(feature = "web")]
    queues: Vec<Arc<EventQueue>>,
}

impl Webhooks {
    /// Reads the keys of webhooks and spans, and adds their hooks.
    ///
    /// # Errors
    /// A webhook or the collector is unusable; the text names it and the key.
    #[cfg(feature = "web")]
    pub(crate) fn load(config: &Config, hooks: &mut HookSet) -> Result<Self, String> {
        let load = |webhook: &crate::config::Webhook| {
            let queue = Arc::new(EventQueue::new(BOUNDS));
            let sender = sender::Sender::of_webhook(webhook, Arc::clone(&queue));
            hooks.add(Box::new(teller::Teller::new(webhook, queue)));
            sender.map_err(|reason| format!("webhook {:?}: {reason}", webhook.url))
        };
        let mut senders = config.webhook.iter().map(load).collect::<Result<Vec<_>, _>>()?;
        senders.extend(collector(config, hooks)?);
        Ok(Self { senders })
    }

    #[cfg(not(feature = "web"))]
    pub(crate) fn load(config: &Config, _hooks: &mut HookSet) -> Result<Self, String> {
        let missing = |table: &str, feature: &str| Err(format!("{table}: built without the feature {feature}"));
        match config {
            Config { webhook, .. } if !webhook.is_empty() => missing("webhook", "web"),
            Config { telemetry, .. } if *telemetry != Default::default() => missing("telemetry", "otel"),
            _ => Ok(Self {}),
        }
    }

    /// Sends events from now on, on the calling runtime. Dropped ones count in `metrics`.
    pub(crate) fn start(self, metrics: &Arc<Metrics>) -> Sending {
        #[cfg(feature = "web")]
        {
            let queues: Vec<_> = self.senders.iter().map(|sender| Arc::clone(sender.queue())).collect();
            queues.iter().for_each(|queue| queue.count_in(metrics));
            Sending { tasks: self.senders.into_iter().map(sender::Sender::run).collect(), queues }
        }
        #[cfg(not(feature = "web"))]
        {
            let _ = metrics;
            Sending { tasks: JoinSet::new() }
        }
    }
}

impl Sending {
    /// Sends the waiting events, without a second attempt, as far as that takes no longer than [`LAST`]. The rest is
    /// dropped and counted.
    pub(crate) async fn end(mut self) {
        #[cfg(feature = "web")]
        self.queues.iter().for_each(|queue| queue.close());
        let _ = tokio::time::timeout(LAST, async { while self.tasks.join_next().await.is_some() {} }).await;
        #[cfg(feature = "web")]
        self.queues.iter().for_each(|queue| queue.drop_rest());
    }
}

/// The sender of spans, if there is a collector, whose telemetry `hooks` get.
///
/// # Errors
/// A key is unusable; the text names it.
#[cfg(feature = "otel")]
fn collector(config: &Config, hooks: &mut HookSet) -> Result<Option<sender::Sender>, String> {
    let crate::config::Telemetry { otlp, root_ratio } = &config.telemetry;
    let Some(service) = otlp else {
        let is_off = *root_ratio == 0.0;
        return if is_off { Ok(None) } else { Err("telemetry.root_ratio: needs telemetry.otlp".to_owned()) };
    };
    let telemetry = Arc::new(telemetry::Telemetry::new(*root_ratio));
    let (body, rejected) = (telemetry::request, telemetry::rejected);
    let content = sender::Content { names: ["collector", "spans"], body, rejected };
    let url = format!("{}/v1/traces", service.expose().trim_end_matches('/'));
    let sender = sender::Sender::new(service, url, Arc::clone(telemetry.queue()), content);
    hooks.set_telemetry(telemetry);
    sender.map(Some).map_err(|error| format!("telemetry.otlp: {error}"))
}

#[cfg(all(feature = "web", not(feature = "otel")))]
fn collector(config: &Config, _hooks: &mut HookSet) -> Result<Option<sender::Sender>, String> {
    let missing = || "telemetry: built without the feature otel".to_owned();
    if config.telemetry == Default::default() { Ok(None) } else { Err(missing()) }
}

/// Bounds of a webhook's queue.
#[cfg(feature = "web")]
const BOUNDS: Bounds = Bounds {
    waiting: 10_000,
    batch: 256,
    gathered: Duration::from_millis(100),
    dropped: |metrics| &metrics.webhook_dropped,
    taken: None,
};
/// Time for the last events of a broker that stops.
const LAST: Duration = Duration::from_secs(2);
