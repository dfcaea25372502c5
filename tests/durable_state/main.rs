//! What the broker keeps in its data directory: there after `kill -9`, as it was acknowledged.

#[path = "../support/mod.rs"]
mod support;

mod churn;
mod directory;
mod full_disk;
mod random;
mod retained;
mod sessions;
mod small_disk;
mod speeds;
mod wills;

use std::path::Path;

use support::BrokerProcess;
use tempfile::TempDir;
use tenbin_codec::{Connect, ConnectProperties, ProtocolVersion};

/// A data directory, and one broker after the other that uses it.
struct Stage {
    directory: TempDir,
}

impl Stage {
    fn new() -> Self {
        let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("the tests' directory is ours to write");
        Self { directory }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The one before has to be gone. Dropped, it is killed as by `kill -9`.
    fn start(&self) -> BrokerProcess {
        self.start_with(&[])
    }

    fn start_with(&self, arguments: &[&str]) -> BrokerProcess {
        let path = self.path().to_str().expect("a target directory with a readable name");
        BrokerProcess::start(&[&["--data", path], arguments].concat())
    }

    /// What a broker says that cannot start.
    fn refusal(&self) -> String {
        let path = self.path().to_str().expect("a target directory with a readable name");
        let (status, said) = BrokerProcess::fail_to_start(&["--listen", "127.0.0.1:0", "--data", path]);
        assert!(!status.success());
        said.last().expect("it says why").clone()
    }
}

/// A CONNECT of a session that goes on, and outlives its connection for so long.
fn expiring(client_id: &str, seconds: u32) -> Connect {
    let properties = ConnectProperties { session_expiry_interval: Some(seconds), ..ConnectProperties::default() };
    let connect = Connect::new(ProtocolVersion::V5, support::text(client_id));
    Connect { clean_start: false, properties, ..connect }
}
