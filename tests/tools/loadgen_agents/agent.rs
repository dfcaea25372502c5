use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

use crate::support::{BrokerProcess, Lines, PATIENCE};

/// `tenbin loadgen agent` as a child process on a free port; killed when dropped.
pub(crate) struct Agent {
    child: Child,
    lines: Lines,
    pub(crate) address: String,
}

impl Agent {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenbin"));
        command.args(["loadgen", "agent", "--listen", "127.0.0.1:0"]).args(arguments).stdout(Stdio::piped());
        let mut child = command.spawn().expect("our own binary");
        let lines = Lines::collect(child.stdout.take().expect("piped"));
        let line = lines.wait_for(&["agent listening on "], PATIENCE);
        let address = line.trim_start_matches("agent listening on ").to_owned();
        Self { child, lines, address }
    }

    /// Its output about the runs that it served.
    pub(crate) fn lines(&self) -> &Lines {
        &self.lines
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().expect("kill is there");
        assert!(sent.success(), "kill -s {name}");
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `tenbin-loadgen run` on `broker`.
pub(crate) fn run(broker: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenbin"));
    command.args(["loadgen", "run", "--broker", broker]).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// As [`run`], with these agents.
pub(crate) fn run_by(agents: &[&Agent], broker: &BrokerProcess) -> Command {
    let addresses: Vec<_> = agents.iter().map(|agent| agent.address.as_str()).collect();
    let mut command = run(&broker.address().to_string());
    command.args(["--agents", &addresses.join(",")]);
    command
}

/// Runs `command` to its end and returns its `summary.json`.
///
/// # Panics
/// If it fails.
pub(crate) fn summary(mut command: Command) -> Value {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("agents-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let output = command.arg("--out").arg(&directory).output().expect("our own binary");
    assert!(output.status.success(), "{}", words(&output));
    let text = std::fs::read_to_string(directory.join("summary.json")).expect("a summary");
    let _ = std::fs::remove_dir_all(&directory);
    serde_json::from_str(&text).expect("JSON")
}

/// Runs `command`, which must fail, and returns its error line.
///
/// # Panics
/// If it does not fail, or prints more than a line.
pub(crate) fn failure(mut command: Command) -> String {
    let output = command.output().expect("our own binary");
    assert!(!output.status.success(), "{}", words(&output));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.lines()
        .rfind(|line| line.starts_with("tenbin-loadgen: "))
        .unwrap_or_else(|| panic!("no reason: {text}"))
        .to_owned()
}

fn words(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
