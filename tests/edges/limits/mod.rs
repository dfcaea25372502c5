//! All limits: the Reason Code of a refusal beyond each, and normal service within it.

mod accounts;
mod log_lines;

#[cfg(target_os = "linux")]
use crate::abuse::growth;
#[cfg(target_os = "linux")]
mod memory;
mod numbers;
mod rates;
mod sizes;

use crate::support::{BrokerProcess, ConfigFile};

/// A broker whose configuration holds these lines.
fn broker_with(config: &str) -> BrokerProcess {
    let file = ConfigFile::new(config);
    BrokerProcess::start(&["--config", file.path()])
}
