use crate::names::Names;
use crate::predefined::PredefinedTopics;
use crate::settings::Settings;

/// Data that all peers of a gateway share.
#[derive(Debug)]
pub struct Gateway {
    pub(crate) settings: Settings,
    pub(crate) predefined: PredefinedTopics,
    pub(crate) names: Names,
}

/// Memory of all clients' topic names, each stored once: 64 MiB.
const NAME_BYTES_MAXIMUM: usize = 64 << 20;

impl Gateway {
    /// A gateway with these settings and predefined topics.
    pub fn new(settings: Settings, predefined: PredefinedTopics) -> Self {
        Self { settings, predefined, names: Names::new(NAME_BYTES_MAXIMUM) }
    }

    /// Bounds the memory of all clients' topic names, in bytes.
    #[must_use]
    pub fn with_name_bytes_maximum(mut self, bytes: usize) -> Self {
        self.names = Names::new(bytes);
        self
    }

    /// Behaviour and bounds.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }
}
