use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use super::super::programs::built;
use super::kind::Kind;
use crate::support::Lines;

/// A running worker. It ends with the handle, with all its processes.
pub(super) struct Worker {
    child: Child,
    output: Lines,
    complaints: Lines,
}

impl Worker {
    /// Starts a worker whose work takes `factor` times the time in the message.
    pub(super) fn start(kind: &Kind, broker: SocketAddr, client_id: &str, factor: u32, told: &[&str]) -> Self {
        // `timeout` starts a process group for the worker, and ends the whole group when it ends. The limit is for a
        // test that is killed.
        let mut command = Command::new("timeout");
        command.args(["--kill-after", "5", "600"]).args(kind.program());
        command.args([&broker.ip().to_string(), &broker.port().to_string(), client_id, &factor.to_string()]);
        command.args(kind.style()).args(told);
        command.env("NODE_PATH", built("node/node_modules"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("coreutils are installed");
        let output = Lines::collect(child.stdout.take().expect("piped"));
        let complaints = Lines::collect(child.stderr.take().expect("piped"));
        Self { child, output, complaints }
    }

    /// Number of each message, and the time at which its work began, in microseconds since 1970.
    pub(super) fn begun(&self) -> Vec<(usize, u64)> {
        let parse = |line: &String| {
            let (number, begun) = line.split_once(' ')?;
            Some((number.parse().ok()?, begun.parse().ok()?))
        };
        let lines = self.output.all();
        lines.iter().map(|line| parse(line).unwrap_or_else(|| panic!("a worker says {line:?}"))).collect()
    }

    /// Lines of its standard error.
    pub(super) fn complaints(&self) -> Vec<String> {
        self.complaints.all()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-s", "TERM", &self.child.id().to_string()]).status();
        let _ = self.child.wait();
    }
}
