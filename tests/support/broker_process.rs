use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tenbin_codec::{Connect, ProtocolVersion};

use super::{Lines, PATIENCE, RawClient, text};

/// `tenbin broker` as a child process on a free port; killed when dropped.
pub(crate) struct BrokerProcess {
    child: Child,
    addresses: Vec<SocketAddr>,
    start_lines: Vec<String>,
    output: Lines,
    log: Lines,
    /// Set if the default store is requested, see [`command`].
    data: Option<TempDir>,
}

impl BrokerProcess {
    /// Starts `tenbin broker --listen 127.0.0.1:0` with further arguments and waits until it listens.
    ///
    /// # Panics
    /// If it does not start.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut all = vec!["--listen", "127.0.0.1:0"];
        all.extend(arguments);
        Self::start_exactly(&all)
    }

    /// Starts `tenbin broker` with these arguments only. Waits for one address for each `--listen` and each MQTT
    /// listener of the configuration file, at least one.
    pub(crate) fn start_exactly(arguments: &[&str]) -> Self {
        Self::start_listening(arguments, listeners(arguments))
    }

    /// As [`BrokerProcess::start`], with these limits of file descriptors.
    pub(crate) fn start_with_descriptors(soft: u32, hard: u32, arguments: &[&str]) -> Self {
        let (plain, data) = command(&[&["--listen", "127.0.0.1:0"], arguments].concat());
        let mut limited = Command::new("sh");
        limited.args(["-c", &format!("ulimit -Sn {soft} && ulimit -Hn {hard} && exec \"$0\" \"$@\"")]);
        limited.arg(plain.get_program()).args(plain.get_args());
        Self::spawn((limited, data), 1)
    }

    /// Starts `tenbin broker` with these arguments only, and waits for `wanted` addresses.
    pub(crate) fn start_listening(arguments: &[&str], wanted: usize) -> Self {
        Self::spawn(command(arguments), wanted)
    }

    /// As [`BrokerProcess::start_exactly`], with a larger environment.
    pub(crate) fn start_in(environment: &[(&str, PathBuf)], arguments: &[&str]) -> Self {
        let (mut command, data) = command(arguments);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        Self::spawn((command, data), listeners(arguments))
    }

    /// As [`BrokerProcess::start_exactly`], for a broker that may refuse to start. Then returns its exit status and
    /// output.
    pub(crate) fn try_start(arguments: &[&str]) -> Result<Self, (ExitStatus, Vec<String>)> {
        Self::try_spawn(command(arguments), listeners(arguments))
    }

    fn spawn(command: (Command, Option<TempDir>), wanted: usize) -> Self {
        Self::try_spawn(command, wanted)
            .unwrap_or_else(|(status, said)| panic!("the broker did not start, {status}:\n{}", said.join("\n")))
    }

    fn try_spawn(
        (mut command, data): (Command, Option<TempDir>),
        wanted: usize,
    ) -> Result<Self, (ExitStatus, Vec<String>)> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the built command can be started");
        let output = Lines::collect(child.stdout.take().expect("piped"));
        let log = Lines::collect(child.stderr.take().expect("piped"));
        let mut broker = Self { child, addresses: Vec::new(), start_lines: Vec::new(), output, log, data };
        let until = Instant::now() + PATIENCE;
        while broker.addresses.len() < wanted {
            broker.start_lines = broker.output.all();
            broker.addresses = broker.start_lines.iter().filter_map(|line| address_in(line)).collect();
            if let Some(status) = broker.child.try_wait().expect("our own child") {
                return Err((status, broker.log.to_end(PATIENCE)));
            }
            assert!(Instant::now() < until, "the broker did not start:\n{}", broker.log.all().join("\n"));
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(broker)
    }

    /// Runs `tenbin broker` with arguments that keep it from starting. Returns its exit status and output.
    pub(crate) fn fail_to_start(arguments: &[&str]) -> (ExitStatus, Vec<String>) {
        Self::fail_to_start_in(&[], arguments)
    }

    /// As [`BrokerProcess::fail_to_start`], with a larger environment.
    pub(crate) fn fail_to_start_in(environment: &[(&str, PathBuf)], arguments: &[&str]) -> (ExitStatus, Vec<String>) {
        let (mut command, data) = command(arguments);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        let mut child = command.spawn().expect("the built command can be started");
        let output = Lines::collect(child.stdout.take().expect("piped"));
        let log = Lines::collect(child.stderr.take().expect("piped"));
        let mut broker = Self { child, addresses: Vec::new(), start_lines: Vec::new(), output, log, data };
        let status = broker.wait_for_exit(PATIENCE);
        assert_eq!(broker.output.to_end(PATIENCE), Vec::<String>::new(), "nothing on standard output");
        let said = broker.log.to_end(PATIENCE);
        if !status.success() {
            assert_check_refuses(environment, arguments, &said);
        }
        (status, said)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Data directory that was made for it.
    pub(crate) fn data(&self) -> Option<&Path> {
        self.data.as_ref().map(TempDir::path)
    }

    /// The last address at which it has begun to listen.
    pub(crate) fn last_address(&self) -> SocketAddr {
        self.output.all().iter().rev().find_map(|line| address_in(line)).expect("it listens")
    }

    /// Lines that it printed when it began to listen.
    pub(crate) fn start_lines(&self) -> &[String] {
        &self.start_lines
    }

    /// Waits for a line of its output with this text.
    pub(crate) fn wait_for_start_line(&self, text: &str) -> String {
        self.output.wait_for(&[text], PATIENCE)
    }

    /// Its log, which grows as it runs.
    pub(crate) fn log(&self) -> &Lines {
        &self.log
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Resident memory of the process (Linux only).
    pub(crate) fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("a running process");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("every process has one");
        let kibibytes = line.split_ascii_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok());
        kibibytes.expect("a number of kB") * 1024
    }

    /// CPU time of all its threads (Linux only), which measures its work even on a busy machine.
    pub(crate) fn cpu_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("a running process");
        // The fields after its name in brackets, which may hold anything.
        let (_, fields) = stat.rsplit_once(')').expect("a name in brackets");
        let ticks = fields.split_ascii_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok());
        Duration::from_millis(ticks.sum::<u64>() * 10) // 100 a second
    }

    /// As [`BrokerProcess::cpu_time`], in nanoseconds (Linux only). The time of threads that have ended is missing.
    pub(crate) fn work(&self) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("a running process");
        let nanos = tasks.filter_map(|task| {
            let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
            text.split_ascii_whitespace().next()?.parse::<u64>().ok()
        });
        Duration::from_nanos(nanos.sum())
    }

    /// Sends a signal, such as `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().expect("kill is there");
        assert!(sent.success(), "kill -s {name}");
    }

    /// Waits for the process to end by itself.
    ///
    /// # Panics
    /// If it does not within `patience`.
    pub(crate) fn wait_for_exit(&mut self, patience: Duration) -> ExitStatus {
        let until = Instant::now() + patience;
        loop {
            if let Some(status) = self.child.try_wait().expect("our own child") {
                return status;
            }
            assert!(Instant::now() < until, "the broker still runs after {patience:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A connected client of MQTT 5.0 with a clean session.
    pub(crate) fn v5(&self, client_id: &str) -> RawClient {
        self.client(ProtocolVersion::V5, client_id)
    }

    /// A connected client of MQTT 3.1.1 with a clean session.
    pub(crate) fn v311(&self, client_id: &str) -> RawClient {
        self.client(ProtocolVersion::V311, client_id)
    }

    /// A connected client with a clean session.
    pub(crate) fn client(&self, version: ProtocolVersion, client_id: &str) -> RawClient {
        self.connect(Connect::new(version, text(client_id)))
    }

    /// A client connected with this CONNECT.
    pub(crate) fn connect(&self, connect: Connect) -> RawClient {
        RawClient::connect(self.address(), connect).0
    }

    /// Opens a connection and sends nothing.
    pub(crate) fn open(&self, version: ProtocolVersion) -> RawClient {
        RawClient::open(self.address(), version)
    }

    /// Asserts that other clients are still served: a new client publishes to itself.
    pub(crate) fn assert_serves(&self) {
        let mut client = self.v5("");
        client.subscribe("serves", tenbin_codec::QoS::AtLeastOnce);
        client.publish("serves", "yes", tenbin_codec::QoS::AtLeastOnce);
        assert_eq!(client.receive_message().payload, "yes");
    }
}

impl Drop for BrokerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// True if brokers of tests without store arguments get the default store: `TENBIN_TEST_STORE=durable`.
pub(crate) fn is_store_durable() -> bool {
    std::env::var("TENBIN_TEST_STORE").is_ok_and(|store| store == "durable")
}

/// Builds a broker command, and the data directory made for it.
///
/// Without store arguments the store is ephemeral, so that no test leaves anything for another. With
/// `TENBIN_TEST_STORE=durable` it is the default store, in a temporary directory.
fn command(arguments: &[&str]) -> (Command, Option<TempDir>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenbin"));
    command.arg("broker").args(arguments);
    // Brokers of tests that run at the same time would compete for the default address.
    command.env("TENBIN_ADMIN__ADDRESS", "");
    let is_said = |argument: &&str| ["--data", "--ephemeral", "--print-config", "--help"].contains(argument);
    let directory = || TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("the tests' directory is ours to write");
    let data = (is_store_durable() && !arguments.iter().any(is_said)).then(directory);
    match &data {
        Some(data) => drop(command.arg("--data").arg(data.path())),
        None if !arguments.iter().any(is_said) => drop(command.arg("--ephemeral")),
        None => {}
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    (command, data)
}

/// Asserts that `--check` refuses a configuration that a start refused, and names the same file, unless the machine is the
/// reason.
fn assert_check_refuses(environment: &[(&str, PathBuf)], arguments: &[&str], said: &[String]) {
    let of_machine = ["cannot listen", "data directory", "state in ", "/spool", "/state"];
    let Some(file) = arguments.iter().skip_while(|argument| **argument != "--config").nth(1) else { return };
    if said.iter().any(|line| of_machine.iter().any(|words| line.contains(words))) {
        return;
    }
    let (mut check, _data) = command(&[&["--check"], arguments].concat());
    check.envs(environment.iter().map(|(name, value)| (name, value)));
    let checked = check.output().expect("the built command can be started");
    let text = String::from_utf8_lossy(&checked.stderr);
    assert!(!checked.status.success(), "--check takes what the start refuses: {said:?}");
    let is_named = said.iter().any(|line| line.contains(file));
    assert!(!is_named || text.contains(file), "--check does not name {file}: {text}");
}

/// Number of addresses of MQTT over TCP that these arguments and their configuration file make, at least one.
fn listeners(arguments: &[&str]) -> usize {
    let said = arguments.iter().filter(|&&argument| argument == "--listen").count();
    let file = arguments.iter().skip_while(|argument| **argument != "--config").nth(1);
    // A pipe can be read only once.
    let file = file.filter(|file| Path::new(file).is_file());
    let config = file.and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
    let is_other = |section: &str| ["\"http\"", "\"mqtt-sn\"", "\"unix:"].iter().any(|words| section.contains(words));
    let section = |rest: &&str| !is_other(rest.split_once("\n[").map_or(*rest, |(section, _)| section));
    let sections = format!("\n{config}");
    let list = config.lines().find_map(|line| line.strip_prefix("listen = [")).unwrap_or_default();
    let listed = if said > 0 { 0 } else { list.split(',').filter(|address| address.contains(":0\"")).count() };
    (said + listed + sections.split("\n[[listeners]]").skip(1).filter(section).count()).max(1)
}

fn address_in(line: &str) -> Option<SocketAddr> {
    line.split_once("listening on ")?.1.split_ascii_whitespace().next()?.parse().ok()
}
