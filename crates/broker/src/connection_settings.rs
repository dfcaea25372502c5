use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tenbin_codec::ReportCarriers;

use crate::Config;
use crate::values::Rate;

/// Settings of new connections, by listener.
#[derive(Debug)]
pub(crate) struct ConnectionSettings(ArcSwap<HashMap<Arc<str>, ListenersOwn>>);

/// Settings of the connections of one listener. A connection keeps its first settings.
#[derive(Debug, Clone, Copy)]
struct ListenersOwn {
    report_carriers: ReportCarriers,
    publish_rate: Option<Rate>,
}

impl ConnectionSettings {
    pub(crate) fn new(config: &Config) -> Self {
        Self(ArcSwap::from_pointee(by_name(config, config).collect()))
    }

    /// Accepted carriers of load reports.
    pub(crate) fn report_carriers(&self, listener: &str) -> ReportCarriers {
        self.0.load().get(listener).map_or(ReportCarriers::ALL, |own| own.report_carriers)
    }

    /// Maximum publish rate of a client; `None` = no bound.
    pub(crate) fn publish_rate(&self, listener: &str) -> Option<Rate> {
        self.0.load().get(listener).and_then(|own| own.publish_rate)
    }

    /// Takes over the listeners of `new`; keys outside of them are those of `config`.
    ///
    /// Listeners that `new` lacks stay, for connections that they have just accepted.
    pub(crate) fn replace(&self, new: &Config, config: &Config) {
        let mut all = (**self.0.load()).clone();
        all.extend(by_name(new, config));
        self.0.store(Arc::new(all));
    }
}

fn by_name(listeners: &Config, config: &Config) -> impl Iterator<Item = (Arc<str>, ListenersOwn)> {
    listeners.all_listeners().map(|listener| {
        let publish_rate = config.publish_rate(&listener);
        (listener.name(), ListenersOwn { report_carriers: listener.load_reports, publish_rate })
    })
}
