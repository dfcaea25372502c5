//! State in the data directory: after `kill -9` it is as acknowledged.

mod churn;
mod directory;
mod first_start;
mod full_disk;
mod random;
mod retained;
mod sessions;
mod speeds;
mod wills;

use crate::support::DataDirectory;
use tenbin_codec::{Connect, ConnectProperties, ProtocolVersion};

/// CONNECT that resumes a session, with this Session Expiry Interval.
fn expiring(client_id: &str, seconds: u32) -> Connect {
    let properties = ConnectProperties { session_expiry_interval: Some(seconds), ..ConnectProperties::default() };
    let connect = Connect::new(ProtocolVersion::V5, crate::support::text(client_id));
    Connect { clean_start: false, properties, ..connect }
}
