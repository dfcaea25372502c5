use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tenbin_codec::ReportCarriers;

use crate::Config;

/// What load reports are taken from, by listener. A connection goes by what it was told in CONNACK.
#[derive(Debug)]
pub(crate) struct ListenerCarriers(ArcSwap<HashMap<Arc<str>, ReportCarriers>>);

impl ListenerCarriers {
    pub(crate) fn new(config: &Config) -> Self {
        Self(ArcSwap::from_pointee(by_name(config).collect()))
    }

    /// For a connection that begins at the listener of this name.
    pub(crate) fn of(&self, listener: &str) -> ReportCarriers {
        self.0.load().get(listener).copied().unwrap_or(ReportCarriers::ALL)
    }

    /// For connections that begin from now on. A reload names every listener that is open.
    pub(crate) fn replace(&self, config: &Config) {
        self.0.store(Arc::new(by_name(config).collect()));
    }
}

fn by_name(config: &Config) -> impl Iterator<Item = (Arc<str>, ReportCarriers)> {
    config.all_listeners().map(|listener| (listener.name(), listener.load_reports))
}
