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

    /// For connections that begin from now on; a listener that `config` does not name goes on as it was.
    pub(crate) fn replace(&self, config: &Config) {
        self.0.rcu(|old| {
            old.iter()
                .map(|(name, &carriers)| (Arc::clone(name), carriers))
                .chain(by_name(config))
                .collect::<HashMap<_, _>>()
        });
    }
}

fn by_name(config: &Config) -> impl Iterator<Item = (Arc<str>, ReportCarriers)> {
    config.all_listeners().map(|listener| (listener.name(), listener.load_reports))
}
