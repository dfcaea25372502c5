use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use super::{ConfigFile, Lines, PATIENCE};

/// `tenbin gateway` as a child process; killed when dropped, as by `kill -9`.
pub(crate) struct GatewayProcess {
    child: Child,
    /// The first one of its addresses.
    pub(crate) address: SocketAddr,
    pub(crate) addresses: Vec<SocketAddr>,
    output: Lines,
    config: ConfigFile,
}

impl GatewayProcess {
    /// Starts a gateway before a broker, at `address`, with these lines of its table `[listener]` and further arguments.
    pub(crate) fn start(broker: SocketAddr, address: SocketAddr, listener: &str, arguments: &[&str]) -> Self {
        let address = address.to_string();
        let arguments = [&["--listen", &address], arguments].concat();
        Self::start_configured(broker, &format!("[listener]\n{listener}"), &arguments)
    }

    /// Starts a gateway before a broker, with this configuration and further arguments.
    pub(crate) fn start_configured(broker: SocketAddr, config: &str, arguments: &[&str]) -> Self {
        let config = ConfigFile::new(config);
        let mut child = Command::new(env!("CARGO_BIN_EXE_tenbin"))
            .args(["gateway", "--broker", &broker.to_string(), "--config", config.path()])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the built command can be started");
        let output = Lines::collect(child.stdout.take().expect("piped"));
        let line = output.wait_for(&["listening on UDP"], PATIENCE);
        let addresses = line.split_once("UDP ").and_then(|(_, rest)| rest.split(',').next());
        let addresses = addresses.unwrap_or_default().split(" and ").filter_map(|text| text.parse().ok());
        let addresses: Vec<SocketAddr> = addresses.collect();
        let address = *addresses.first().unwrap_or_else(|| panic!("an address: {line}"));
        Self { child, address, addresses, output, config }
    }

    /// Replaces the lines of its table `[listener]`, and waits for this word in the log.
    pub(crate) fn reload(&self, listener: &str, until: &str) {
        self.reload_all(&format!("[listener]\n{listener}"), until);
    }

    /// Replaces its configuration, and waits for this word in the log.
    pub(crate) fn reload_all(&self, config: &str, until: &str) {
        std::fs::write(self.config.path(), config).expect("the file");
        let sent = Command::new("kill").args(["-HUP", &self.pid().to_string()]).status().expect("kill runs");
        assert!(sent.success());
        self.output.wait_for(&[until], PATIENCE);
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for GatewayProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
