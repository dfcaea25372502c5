#![cfg(target_os = "linux")]
//! Hostile clients. Each test states the memory and time that the broker may use under the attack.

mod amplification;
mod canary;
mod costs;
mod descriptors;
pub(crate) mod growth;
mod intervals;
mod pinning;
mod retained_storm;
mod slow;
mod takeover;
mod topics;
mod unacknowledged;

use crate::support::{BrokerProcess, ConfigFile};

/// A broker whose configuration holds these lines.
fn broker_with(config: &str) -> BrokerProcess {
    let file = ConfigFile::new(config);
    BrokerProcess::start(&["--config", file.path()])
}
