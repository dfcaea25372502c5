use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use super::{ConfigFile, Lines, PATIENCE};

/// `tenbin gateway` as a child process; killed when dropped, as by `kill -9`.
pub(crate) struct GatewayProcess {
    child: Child,
    pub(crate) address: SocketAddr,
    output: Lines,
    config: ConfigFile,
}

impl GatewayProcess {
    /// Starts a gateway before a broker, at `address`, with these lines of its table `[listener]` and further arguments.
    pub(crate) fn start(broker: SocketAddr, address: SocketAddr, listener: &str, arguments: &[&str]) -> Self {
        let config = ConfigFile::new(&format!("[listener]\n{listener}"));
        let mut child = Command::new(env!("CARGO_BIN_EXE_tenbin"))
            .args(["gateway", "--broker", &broker.to_string(), "--listen", &address.to_string()])
            .args(["--config", config.path()])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the built command can be started");
        let output = Lines::collect(child.stdout.take().expect("piped"));
        let line = output.wait_for(&["listening on UDP"], PATIENCE);
        let address = line.split_once("UDP ").and_then(|(_, rest)| rest.split(',').next()?.parse().ok());
        let address = address.unwrap_or_else(|| panic!("an address: {line}"));
        Self { child, address, output, config }
    }

    /// Replaces the lines of its table `[listener]`, and waits for this word in the log.
    pub(crate) fn reload(&self, listener: &str, until: &str) {
        std::fs::write(self.config.path(), format!("[listener]\n{listener}")).expect("the file");
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
