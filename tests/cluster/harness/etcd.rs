//! A server of etcd.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::ports::free_address;

/// A server; killed when dropped.
pub(crate) struct Etcd {
    client: SocketAddr,
    peer: SocketAddr,
    directory: PathBuf,
    process: Option<Child>,
}

impl Etcd {
    /// Starts a server with its data in `directory`. `None` if it is not installed.
    ///
    /// # Panics
    /// In continuous integration, if it is not installed.
    pub(super) fn start(directory: &Path) -> Option<Self> {
        let probe = Command::new("etcd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !probe.is_ok_and(|status| status.success()) {
            assert!(std::env::var_os("CI").is_none(), "etcd is not installed");
            // Past the test harness, which would capture the line.
            let _ = writeln!(std::io::stderr(), "skipped: etcd is not installed");
            return None;
        }
        let (client, peer, directory) = (free_address(), free_address(), directory.join("etcd"));
        let mut etcd = Self { client, peer, directory, process: None };
        etcd.start_again();
        Some(etcd)
    }

    /// Starts the killed server with the same data.
    pub(crate) fn start_again(&mut self) {
        let (client, peer) = (self.url(), format!("http://{}", self.peer));
        let mut command = Command::new("etcd");
        command.args(["--name", "etcd", "--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("etcd={peer}"), "--log-level", "error", "--logger", "zap"]);
        command.args(["--heartbeat-interval", "100", "--election-timeout", "500"]);
        command.arg("--data-dir").arg(&self.directory).stdin(Stdio::null()).stdout(Stdio::null());
        self.process = Some(command.spawn().expect("it is installed"));
    }

    /// URL for the nodes.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.client)
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}
