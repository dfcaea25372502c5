//! Every limit: what is refused beyond it, with which Reason Code, and that what is within it goes on.

mod accounts;
mod log_lines;
#[path = "../support/mod.rs"]
mod support;

#[cfg(target_os = "linux")]
#[path = "../abuse/growth.rs"]
mod growth;
#[cfg(target_os = "linux")]
mod memory;
mod numbers;
mod rates;
mod sizes;

use support::{BrokerProcess, ConfigFile};

/// A broker whose configuration holds these lines.
fn broker_with(config: &str) -> BrokerProcess {
    let file = ConfigFile::new(config);
    BrokerProcess::start(&["--config", file.path()])
}
