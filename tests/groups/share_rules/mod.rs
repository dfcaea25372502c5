//! Rules of share groups: chosen by name, and replaced while messages flow.

mod affinity;
mod by_name;
mod concurrency;
mod hold;
mod reload;
mod weights;

use crate::support::{BrokerProcess, ConfigFile, PATIENCE};

/// A broker whose rules can be replaced.
struct Ruled {
    broker: BrokerProcess,
    file: ConfigFile,
}

impl Ruled {
    fn start(rules: &str) -> Self {
        let file = ConfigFile::new(rules);
        Self { broker: BrokerProcess::start(&["--config", file.path()]), file }
    }

    /// Loads new rules. `reloads` counts all reloads since the start, this one included.
    fn reload(&self, rules: &str, reloads: usize) {
        std::fs::write(self.file.path(), rules).expect("the tests' directory is ours to write");
        self.broker.signal("HUP");
        let done = self.broker.log().count(" reloaded", reloads, PATIENCE);
        assert_eq!(done, reloads, "{}", self.broker.log().all().join("\n"));
    }
}
