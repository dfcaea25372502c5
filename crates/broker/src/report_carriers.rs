use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tenbin_codec::ReportCarriers;

use crate::Config;

/// Accepted carriers of load reports, by listener. A connection keeps those announced in its CONNACK.
#[derive(Debug)]
pub(crate) struct ListenerCarriers(ArcSwap<HashMap<Arc<str>, ReportCarriers>>);

impl ListenerCarriers {
    pub(crate) fn new(config: &Config) -> Self {
        Self(ArcSwap::from_pointee(by_name(config).collect()))
    }

    /// Returns the carriers for a new connection of this listener.
    pub(crate) fn of(&self, listener: &str) -> ReportCarriers {
        self.0.load().get(listener).copied().unwrap_or(ReportCarriers::ALL)
    }

    /// Replaces the carriers for new connections. A reloaded configuration has every open listener.
    pub(crate) fn replace(&self, config: &Config) {
        self.0.store(Arc::new(by_name(config).collect()));
    }
}

fn by_name(config: &Config) -> impl Iterator<Item = (Arc<str>, ReportCarriers)> {
    config.all_listeners().map(|listener| (listener.name(), listener.load_reports))
}
