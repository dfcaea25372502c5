//! A node as a process.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
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
    /// A command that starts the node's command.
    through: Vec<String>,
    /// Logs of all its processes, the oldest first.
    logs: Vec<Lines>,
}

impl Node {
    pub(super) fn plan(directory: &Path, name: &str) -> Self {
        let name = name.to_owned();
        Self {
            address: free_address(),
            cluster: free_address(),
            admin: free_address(),
            data: directory.join(&name),
            config: directory.join(format!("{name}.toml")),
            name,
            process: None,
            is_stopped: false,
            through: Vec::new(),
            logs: Vec::new(),
        }
    }

    /// A process with this node's name and configuration, and with other ports and another directory.
    pub(super) fn plan_namesake(&self, directory: &Path) -> Self {
        let mut other = Self::plan(directory, &format!("{}-again", self.name));
        // A copied file has the same port of the cluster, on another machine.
        other.cluster = (Ipv4Addr::new(127, 0, 0, 2), self.cluster.port()).into();
        let mut text = std::fs::read_to_string(&self.config).expect("a configuration");
        // The entries of `nodes` stay.
        for (from, to) in [(self.address, other.address), (self.admin, other.admin), (self.cluster, other.cluster)] {
            for before in ["listen = \"", "listen = [\"", "address = \""] {
                text = text.replace(&format!("{before}{from}"), &format!("{before}{to}"));
            }
        }
        let text = text.replace(&format!("{:?}", self.data), &format!("{:?}", other.data));
        other.write_whole_config(&text);
        other
    }

    /// Writes its configuration. `shared` has keys of `[cluster]` that all nodes share. `{node}` stands for the node's name.
    pub(super) fn write_config(&mut self, shared: &str, tables: &str) {
        let Self { name, address, cluster, admin, data, .. } = self;
        let shared = shared.replace("{node}", name);
        let text = format!(
            "listen = [\"{address}\"]\n[store]\ndirectory = {data:?}\n[admin]\naddress = \"{admin}\"\n\
             [log]\nlines_per_second_per_address = 0\nlines_per_second = 0\n\
             [cluster]\nnode = \"{name}\"\nlisten = \"{cluster}\"\n{shared}{tables}"
        );
        self.write_whole_config(&text);
    }

    /// Writes the text of its configuration.
    pub(super) fn write_whole_config(&self, text: &str) {
        std::fs::write(&self.config, text).expect("the tests' directory is ours to write");
    }

    /// Its configuration file.
    pub(crate) fn config_path(&self) -> &str {
        self.config.to_str().expect("a readable name")
    }

    /// Replaces a text of its configuration.
    pub(crate) fn change_config(&self, from: &str, to: &str) {
        let text = std::fs::read_to_string(&self.config).expect("a configuration");
        assert!(text.contains(from), "no {from} in {text}");
        std::fs::write(&self.config, text.replace(from, to)).expect("the tests' directory is ours to write");
    }

    pub(crate) fn start(&mut self) {
        assert!(self.process.is_none(), "{} runs already", self.name);
        let words = self.through.iter().map(String::as_str).chain([env!("CARGO_BIN_EXE_tenbin")]).collect::<Vec<_>>();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg("broker").arg("--config").arg(&self.config);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("the built command can be started");
        self.logs.push(Lines::collect(process.stderr.take().expect("piped")));
        self.process = Some(process);
    }

    /// Lets the node start through a command, which runs the one behind its arguments in its own place.
    pub(super) fn start_through(&mut self, command: &[&str]) {
        self.through = command.iter().map(|&word| word.to_owned()).collect();
    }

    /// Process id of the running node.
    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().expect("the node runs").id()
    }

    /// Lets all writes to files fail, as a broken disk does, or no longer.
    pub(crate) fn break_disk(&self, is_broken: bool) {
        let limit = if is_broken { "0:unlimited" } else { "unlimited" };
        let arguments = ["--pid", &self.pid().to_string(), &format!("--fsize={limit}")];
        let done = Command::new("prlimit").args(arguments).status().expect("prlimit is there");
        assert!(done.success(), "prlimit {arguments:?}");
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

    /// Sends SIGHUP.
    pub(crate) fn hang_up(&self) {
        self.signal("HUP");
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
        let pid = self.pid();
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
        let pid = self.pid().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().expect("kill is there");
        assert!(sent.success(), "kill -s {name}");
    }

    /// Deletes its data directory.
    pub(crate) fn wipe(&self) {
        assert!(self.process.is_none(), "{} still runs", self.name);
        std::fs::remove_dir_all(&self.data).expect("a directory");
    }

    /// Name of the only directory that it has set aside.
    pub(crate) fn aside(&self) -> String {
        let entries = std::fs::read_dir(&self.data).expect("a directory");
        let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a readable name"));
        let mut aside: Vec<_> = names.filter(|name| name.starts_with("aside-")).collect();
        assert_eq!(aside.len(), 1, "{aside:?}");
        aside.remove(0)
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

    /// Runs `tenbin cluster switch`. Returns whether it has succeeded, and its output.
    pub(crate) fn switch(&self, arguments: &[&str]) -> (bool, String) {
        let data = self.data.to_str().expect("a readable name");
        let output = crate::tenbin(&[&["cluster", "switch", "--data", data], arguments].concat());
        (output.status.success(), crate::said(&output))
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
