//! What the broker keeps in its data directory: there after `kill -9`, as it was acknowledged.

#[path = "../support/mod.rs"]
mod support;

mod churn;
mod directory;
mod full_disk;
mod random;
mod retained;
mod sessions;
mod speeds;
mod wills;

use support::DataDirectory;
use tenbin_codec::{Connect, ConnectProperties, ProtocolVersion};

/// A CONNECT of a session that goes on, and outlives its connection for so long.
fn expiring(client_id: &str, seconds: u32) -> Connect {
    let properties = ConnectProperties { session_expiry_interval: Some(seconds), ..ConnectProperties::default() };
    let connect = Connect::new(ProtocolVersion::V5, support::text(client_id));
    Connect { clean_start: false, properties, ..connect }
}
