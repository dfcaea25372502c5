use std::sync::Arc;

use tenbin_codec::Text;
use tokio::sync::watch;

use crate::Config;
use crate::hooks::HookSet;
use crate::lifecycle::denials::Denials;
use crate::lifecycle::{Chronicle, Leadership};
use crate::log_limiter::LogLimiter;
use crate::metrics::Metrics;
use crate::threads::Threads;
use crate::trace::Traces;

/// Threads, leadership and end of the broker; counts, hooks and traces.
///
/// All parts count and report here. Operators and the node of a cluster act on it.
#[derive(Debug)]
pub(crate) struct Operations {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) hooks: Arc<HookSet>,
    pub(crate) traces: Traces,
    pub(crate) denials: Denials,
    /// Events that operators see.
    pub(crate) chronicle: Chronicle,
    pub(crate) log_limiter: Arc<LogLimiter>,
    /// Worker threads; without them, a connection runs on the runtime that accepted it.
    pub(crate) threads: Option<Threads>,
    /// Whether the broker may act.
    pub(crate) leadership: Leadership,
    /// Becomes true once, before the broker shuts connections down.
    pub(crate) stopping: watch::Sender<bool>,
    /// Server that clients are referred to when an operator sends them away.
    pub(crate) server_reference: arc_swap::ArcSwapOption<Text>,
}

impl Operations {
    pub(super) fn new(config: &Config, metrics: Arc<Metrics>, hooks: Arc<HookSet>, threads: Option<Threads>) -> Self {
        Self {
            metrics,
            hooks,
            traces: Traces::default(),
            denials: Denials::default(),
            chronicle: Chronicle::default(),
            log_limiter: Arc::new(LogLimiter::new(config)),
            threads,
            leadership: Leadership::default(),
            stopping: watch::Sender::new(false),
            server_reference: arc_swap::ArcSwapOption::empty(),
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Waits until the broker is stopping, without keeping the state.
    pub(crate) fn stopped(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let mut stopping = self.stopping.subscribe();
        async move {
            let _ = stopping.wait_for(|stopping| *stopping).await; // an error: the state is gone
        }
    }
}
