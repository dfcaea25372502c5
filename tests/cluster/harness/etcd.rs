//! A server of etcd.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::ports::free_address;

/// A server; killed when dropped.
pub(crate) struct Etcd {
    client: SocketAddr,
    directory: PathBuf,
    /// Options by their names, such as `listen-peer-urls`.
    options: Vec<(String, String)>,
    process: Option<Child>,
}

impl Etcd {
    /// Starts a server with its data in `directory`. `None` if it is not installed.
    pub(super) fn start(directory: &Path) -> Option<Self> {
        let client = free_address();
        let url = format!("http://{client}");
        let options = [
            ("name", "etcd"),
            ("listen-client-urls", &url),
            ("advertise-client-urls", &url),
            ("heartbeat-interval", "100"),
            ("election-timeout", "500"),
        ];
        let options = options.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self::is_there().then(|| Self::start_with(directory, options.into()))
    }

    /// True if it is installed.
    ///
    /// # Panics
    /// In continuous integration, if it is not installed.
    pub(crate) fn is_there() -> bool {
        let probe = Command::new("etcd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        let is_there = probe.is_ok_and(|status| status.success());
        if !is_there {
            assert!(std::env::var_os("CI").is_none(), "etcd is not installed");
            // Past the test harness, which would capture the line.
            let _ = writeln!(std::io::stderr(), "skipped: etcd is not installed");
        }
        is_there
    }

    /// Starts a server with these options, its address for clients among them. For other servers it gets a free address,
    /// unless the options have one.
    pub(crate) fn start_with(directory: &Path, mut options: Vec<(String, String)>) -> Self {
        let value = |name| options.iter().find(|(option, _)| option == name).map(|(_, value)| &value[..]);
        let client = value("listen-client-urls").and_then(|url| url.strip_prefix("http://")?.parse().ok());
        let client = client.expect("an address");
        if value("listen-peer-urls").is_none() {
            let peer = format!("http://{}", free_address());
            let both = ["listen-peer-urls", "initial-advertise-peer-urls"];
            options.extend(both.map(|name| (name.to_owned(), peer.clone())));
        }
        let mut etcd = Self { client, directory: directory.join(format!("etcd-{client}")), options, process: None };
        etcd.start_again();
        etcd
    }

    /// Starts the killed server with the same data.
    pub(crate) fn start_again(&mut self) {
        let mut command = Command::new("etcd");
        command.args(self.options.iter().map(|(name, value)| format!("--{name}={value}")));
        command.args(["--log-level", "error", "--logger", "zap"]);
        command.arg("--data-dir").arg(&self.directory).stdin(Stdio::null()).stdout(Stdio::null());
        self.process = Some(command.spawn().expect("it is installed"));
    }

    /// URL for the nodes.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.client)
    }

    /// Kills the server, and starts it again without its data.
    pub(crate) fn lose_data(&mut self) {
        self.kill();
        std::fs::remove_dir_all(&self.directory).expect("the server's directory");
        self.start_again();
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
