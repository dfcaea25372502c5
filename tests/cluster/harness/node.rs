//! A node as a process.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::ports::free_address;
use crate::support::{Lines, PATIENCE};

/// A node; killed when dropped. Its ports and its directory stay the same.
pub(crate) struct Node {
    pub(crate) name: String,
    /// Address for clients.
    pub(crate) address: SocketAddr,
    /// Address for the other nodes.
    pub(crate) cluster: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) data: PathBuf,
    config: PathBuf,
    process: Option<Child>,
    is_stopped: bool,
    /// Logs of all its processes, the oldest first.
    logs: Vec<Lines>,
}

impl Node {
    pub(super) fn plan(directory: &Path, number: usize) -> Self {
        let name = format!("node-{number}");
        Self {
            address: free_address(),
            cluster: free_address(),
            admin: free_address(),
            data: directory.join(&name),
            config: directory.join(format!("{name}.toml")),
            name,
            process: None,
            is_stopped: false,
            logs: Vec::new(),
        }
    }

    /// Writes its configuration. `shared` has keys of `[cluster]` that all nodes share.
    pub(super) fn write_config(&mut self, shared: &str, tables: &str) {
        let Self { name, address, cluster, admin, data, .. } = self;
        let text = format!(
            "listen = [\"{address}\"]\n[store]\ndirectory = {data:?}\n[admin]\naddress = \"{admin}\"\n\
             [log]\nlines_per_second_per_address = 0\nlines_per_second = 0\n\
             [cluster]\nnode = \"{name}\"\nlisten = \"{cluster}\"\n{shared}{tables}"
        );
        std::fs::write(&self.config, text).expect("the tests' directory is ours to write");
    }

    /// Replaces a text of its configuration.
    pub(crate) fn change_config(&self, from: &str, to: &str) {
        let text = std::fs::read_to_string(&self.config).expect("a configuration");
        assert!(text.contains(from), "no {from} in {text}");
        std::fs::write(&self.config, text.replace(from, to)).expect("the tests' directory is ours to write");
    }

    pub(crate) fn start(&mut self) {
        assert!(self.process.is_none(), "{} runs already", self.name);
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenbin"));
        command.arg("broker").arg("--config").arg(&self.config);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("the built command can be started");
        self.logs.push(Lines::collect(process.stderr.take().expect("piped")));
        self.process = Some(process);
    }

    /// Ends the process as by `kill -9`, also while it is stopped.
    pub(crate) fn kill(&mut self) {
        self.is_stopped = false;
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        self.signal("TERM");
    }

    /// Waits for the end of the process.
    pub(crate) fn wait_for_exit(&mut self) -> ExitStatus {
        let process = self.process.as_mut().expect("the node was started");
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = process.try_wait().expect("our own child") {
                self.process = None;
                return status;
            }
            assert!(Instant::now() < until, "{} still runs", self.name);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops the process: it does nothing until [`Node::go_on`].
    pub(crate) fn stop(&mut self) {
        self.signal("STOP");
        let until = Instant::now() + PATIENCE;
        // The signal reaches its threads one after another.
        while !self.all_threads_are_stopped() {
            assert!(Instant::now() < until, "{} still runs", self.name);
            std::thread::sleep(Duration::from_millis(1));
        }
        self.is_stopped = true;
    }

    fn all_threads_are_stopped(&self) -> bool {
        let pid = self.process.as_ref().expect("the node runs").id();
        let mut threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a running process");
        threads.all(|thread| {
            let stat = std::fs::read_to_string(thread.expect("a thread").path().join("stat"));
            // The state comes behind the name in brackets. A thread may have ended.
            stat.map_or(true, |stat| stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('T')))
        })
    }

    pub(crate) fn go_on(&mut self) {
        self.signal("CONT");
        self.is_stopped = false;
    }

    fn signal(&self, name: &str) {
        let pid = self.process.as_ref().expect("the node runs").id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().expect("kill is there");
        assert!(sent.success(), "kill -s {name}");
    }

    /// Deletes its data directory.
    pub(crate) fn wipe(&self) {
        assert!(self.process.is_none(), "{} still runs", self.name);
        std::fs::remove_dir_all(&self.data).expect("a directory");
    }

    /// Its status; `None` while it does not answer.
    pub(crate) fn status(&self) -> Option<Value> {
        if self.process.is_none() || self.is_stopped {
            return None;
        }
        let mut stream = UnixStream::connect(self.data.join("cluster.sock")).ok()?;
        stream.set_read_timeout(Some(STATUS_WITHIN)).ok()?;
        stream.write_all(b"{\"command\":\"status\"}\n").ok()?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).ok()?;
        let mut answer: Value = serde_json::from_str(&line).ok()?;
        Some(answer["status"].take())
    }

    /// Log of the newest process.
    pub(crate) fn log(&self) -> &Lines {
        self.logs.last().expect("the node was started")
    }

    /// Lines of the logs of all its processes.
    pub(super) fn log_lines(&self) -> Vec<String> {
        self.logs.iter().flat_map(|log| [vec!["-- start".to_owned()], log.all()].concat()).collect()
    }

    /// Runs `tenbin cluster promote`. Returns whether it has succeeded, and its output.
    pub(crate) fn promote(&self, arguments: &[&str]) -> (bool, String) {
        let data = self.data.to_str().expect("a readable name");
        let output = crate::tenbin(&[&["cluster", "promote", "--data", data], arguments].concat());
        (output.status.success(), crate::said(&output))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

const STATUS_WITHIN: Duration = Duration::from_secs(2);
