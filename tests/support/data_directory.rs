use std::path::Path;

use tempfile::TempDir;

use super::BrokerProcess;

/// A data directory for several brokers in succession.
pub(crate) struct DataDirectory {
    directory: TempDir,
}

impl DataDirectory {
    pub(crate) fn new() -> Self {
        let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("the tests' directory is ours to write");
        Self { directory }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Starts a broker. The previous one must be gone. Dropping a broker kills it as by `kill -9`.
    pub(crate) fn start(&self) -> BrokerProcess {
        self.start_with(&[])
    }

    pub(crate) fn start_with(&self, arguments: &[&str]) -> BrokerProcess {
        BrokerProcess::start(&[&["--data", self.path_text()], arguments].concat())
    }

    /// Output of a broker that cannot start.
    pub(crate) fn refusal(&self) -> String {
        let (status, said) = BrokerProcess::fail_to_start(&["--listen", "127.0.0.1:0", "--data", self.path_text()]);
        assert!(!status.success());
        said.last().expect("it says why").clone()
    }

    pub(crate) fn path_text(&self) -> &str {
        self.path().to_str().expect("a target directory with a readable name")
    }
}
