//! A broker that runs as a child process during a run.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;
use tenbin_kit::programs::Program;

use crate::LoadgenError;

/// The broker's process. Dropping it ends the process.
#[derive(Debug)]
pub(crate) struct ChildBroker {
    process: Child,
    output: Arc<Output>,
    /// HOST:PORT; empty until the broker listens.
    address: String,
    /// Configuration file of the process, removed on drop.
    config: Option<NamedTempFile>,
}

impl ChildBroker {
    /// Starts this project's broker on a free port, with `policy` instead of its default.
    pub(crate) async fn tenbin(policy: Option<&str>) -> Result<Self, LoadgenError> {
        let program = broker_program()?;
        Self::start(Self::tenbin_command(&program, policy)).await
    }

    /// As [`ChildBroker::tenbin`], with queues long enough for an overload of seconds.
    ///
    /// A Mosquitto beside it has unlimited queues, so that shorter queues would compare dropped messages.
    pub(crate) async fn tenbin_with_long_queues(policy: Option<&str>) -> Result<Self, LoadgenError> {
        let program = broker_program()?;
        let config = config_file(LONG_QUEUES)?;
        let mut command = Self::tenbin_command(&program, policy);
        command.arg("--config").arg(config.path());
        let mut broker = Self::spawn(command)?;
        broker.config = Some(config);
        broker.wait_for_address(&program, Output::listens_at).await?;
        Ok(broker)
    }

    /// As [`ChildBroker::tenbin`], with `data` as data directory and with this configuration.
    pub(crate) async fn tenbin_with_data(data: &Path, config: Option<&Path>) -> Result<Self, LoadgenError> {
        let program = broker_program()?;
        let mut command = Command::new(&program);
        command.args(["broker", "--listen", "127.0.0.1:0", "--data"]).arg(data);
        if let Some(config) = config {
            command.arg("--config").arg(config);
        }
        Self::start(command).await
    }

    /// Starts two nodes of a cluster, and etcd, which end with it. Returns the addresses of the leader and the follower too.
    ///
    /// # Errors
    /// etcd is not installed, or there is no follower in time.
    pub(crate) async fn pair(directory: &Path) -> Result<(Self, [SocketAddr; 2]), LoadgenError> {
        let program = broker_program()?;
        let start_error = |source| LoadgenError::Start { program: program.clone(), source };
        let port = two_free_ports().map_err(start_error)?;
        let mut command = Command::new(&program);
        command.args(["cluster", "dev", "--nodes", "2", "--no-restart", "--port", &port.to_string(), "--directory"]);
        command.arg(directory).env("TENBIN_CLUSTER__MOVE_SLOW_RECEIVERS", "true");
        let mut pair = Self::spawn(command)?;
        let mut found = None;
        let look = |output: &Output| {
            let node = |number: u16| SocketAddr::from(([127, 0, 0, 1], port + number - 1));
            let [leader, follower] = output.heard().pair?;
            found = Some([node(leader), node(follower)]);
            found.map(|[leader, _]| leader)
        };
        pair.wait_for_address(&program, look).await?;
        found.map(|nodes| (pair, nodes)).ok_or(LoadgenError::NotListening { program, said: String::new() })
    }

    fn tenbin_command(program: &Path, policy: Option<&str>) -> Command {
        let mut command = Command::new(program);
        command.args(["broker", "--listen", "127.0.0.1:0", "--ephemeral"]);
        if let Some(policy) = policy {
            command.args(["--policy", policy]);
        }
        command
    }

    /// Starts `command`, which must print its address to standard output or standard error.
    pub(crate) async fn start(command: Command) -> Result<Self, LoadgenError> {
        let program = PathBuf::from(command.get_program());
        let mut broker = Self::spawn(command)?;
        broker.wait_for_address(&program, Output::listens_at).await?;
        Ok(broker)
    }

    /// Starts Mosquitto on a free port, if it is installed.
    ///
    /// It has its defaults, but allows anonymous clients and unlimited queues: by default it drops messages beyond
    /// 1,000 queued per client.
    pub(crate) async fn mosquitto() -> Result<Self, LoadgenError> {
        let program = find_mosquitto();
        // Another process may take the port before the broker does; then the broker ends and reports it.
        let address = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .map_err(|source| LoadgenError::Start { program: program.clone(), source })?;
        let port = address.port();
        let config = config_file(&format!("listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n"))?;
        let mut command = Command::new(&program);
        command.arg("-c").arg(config.path());
        let mut broker = Self::spawn(command)?;
        broker.config = Some(config);
        broker.wait_for_address(&program, |_| TcpStream::connect(address).is_ok().then_some(address)).await?;
        Ok(broker)
    }

    /// HOST:PORT to connect to.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Checks that the process is running.
    ///
    /// # Errors
    /// The process has ended.
    pub(crate) fn check_alive(&mut self) -> Result<(), LoadgenError> {
        match self.process.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                // Its last output may still be in the pipe.
                std::thread::sleep(Duration::from_millis(50));
                Err(LoadgenError::BrokerExited { status, said: self.output.said() })
            }
            Err(source) => Err(LoadgenError::Runtime(source)),
        }
    }

    fn spawn(mut command: Command) -> Result<Self, LoadgenError> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process =
            command.spawn().map_err(|source| LoadgenError::Start { program: command.get_program().into(), source })?;
        let output = Arc::new(Output::default());
        if let Some(stdout) = process.stdout.take() {
            output.follow(stdout);
        }
        if let Some(stderr) = process.stderr.take() {
            output.follow(stderr);
        }
        Ok(Self { process, output, address: String::new(), config: None })
    }

    async fn wait_for_address(
        &mut self,
        program: &Path,
        mut find: impl FnMut(&Output) -> Option<SocketAddr>,
    ) -> Result<(), LoadgenError> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            if let Some(address) = find(&self.output) {
                self.address = address.to_string();
                return Ok(());
            }
            self.check_alive()?;
            if Instant::now() > deadline {
                return Err(LoadgenError::NotListening { program: program.to_owned(), said: self.output.said() });
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for ChildBroker {
    fn drop(&mut self) {
        // Fails if the process has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Numbers of leader and follower in a line of `tenbin cluster dev`.
fn pair_in(line: &str) -> Option<[u16; 2]> {
    let (leader, rest) = line.split_once(" leads in epoch ")?;
    let (_, rest) = rest.split_once("; ")?;
    let (follower, _) = rest.split_once(" follows")?;
    let number = |node: &str| node.rsplit_once("node-")?.1.parse().ok();
    Some([number(leader)?, number(follower)?])
}

/// The first one of two consecutive ports that are free now.
fn two_free_ports() -> std::io::Result<u16> {
    let mut failed = None;
    for _ in 0..20 {
        let first = TcpListener::bind("127.0.0.1:0")?;
        let port = first.local_addr()?.port();
        match TcpListener::bind(("127.0.0.1", port.saturating_add(1))) {
            Ok(_) if port < u16::MAX => return Ok(port),
            Ok(_) => {}
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| std::io::ErrorKind::AddrInUse.into()))
}

/// Output of a process: the address, and the last lines for error messages.
///
/// It is read to the end, so that the process never blocks on a full pipe.
#[derive(Debug, Default)]
struct Output {
    heard: Mutex<Heard>,
}

#[derive(Debug, Default)]
struct Heard {
    address: Option<SocketAddr>,
    /// Numbers of the nodes that lead and follow, as `cluster dev` tells them.
    pair: Option<[u16; 2]>,
    last_lines: VecDeque<String>,
}

impl Output {
    fn follow(self: &Arc<Self>, stream: impl Read + Send + 'static) {
        let output = Arc::clone(self);
        std::thread::spawn(move || {
            let mut lines = BufReader::new(stream).split(b'\n');
            while let Some(Ok(line)) = lines.next() {
                output.hear(&String::from_utf8_lossy(&line));
            }
        });
    }

    fn hear(&self, line: &str) {
        let mut heard = self.heard();
        heard.address = heard.address.or_else(|| listening_address(line));
        heard.pair = pair_in(line).or(heard.pair);
        if line.trim().is_empty() {
            return;
        }
        if heard.last_lines.len() == LINES_KEPT {
            heard.last_lines.pop_front();
        }
        heard.last_lines.push_back(line.trim_end().to_owned());
    }

    fn listens_at(&self) -> Option<SocketAddr> {
        self.heard().address
    }

    fn said(&self) -> String {
        Vec::from(self.heard().last_lines.clone()).join("\n")
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The address in a start-up line: the first `IP:PORT` after the word "listening".
fn listening_address(line: &str) -> Option<SocketAddr> {
    let (_, after) = line.split_once("listening")?;
    after
        .split(|c: char| c.is_whitespace() || matches!(c, '=' | ',' | '"'))
        .map(|word| word.trim_end_matches('.'))
        .find_map(|word| word.parse().ok())
        .filter(|address: &SocketAddr| address.port() != 0)
}

/// Mosquitto in the PATH, else in the usual directories of distributions.
fn find_mosquitto() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/usr/local/sbin")])
        .map(|directory| directory.join("mosquitto"))
        .find(|program| program.is_file())
        .unwrap_or_else(|| PathBuf::from("mosquitto"))
}

/// Path of this project's broker.
fn broker_program() -> Result<PathBuf, LoadgenError> {
    Ok(Program::Tenbin.find()?)
}

/// A single queue may use all of the memory limit.
const LONG_QUEUES: &str = "\
    [queue]\nmessages_maximum = 4000000\nbytes_maximum = 2147483648\ntotal_bytes_maximum = 2147483648\n";

/// A temporary file with this configuration.
fn config_file(text: &str) -> Result<NamedTempFile, LoadgenError> {
    let written = NamedTempFile::with_prefix("tenbin-loadgen-").and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        Ok(file)
    });
    written.map_err(|source| LoadgenError::Write { path: std::env::temp_dir(), source })
}

/// Time limit for a broker to listen.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Number of lines to keep for error messages.
const LINES_KEPT: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_found_in_the_line_that_says_listening() {
        for line in [
            "listening on 127.0.0.1:40123",
            "2026-01-01T00:00:00Z  INFO tenbin: listening on 127.0.0.1:40123 policy=random version=0.2.0",
            "tenbin 0.2.0 listening on 127.0.0.1:40123 (MQTT 5.0 and 3.1.1, policy random)",
            "listening on 127.0.0.1:40123.",
            "now INFO listening address=127.0.0.1:40123",
        ] {
            let address = listening_address(line);
            assert_eq!(address, Some("127.0.0.1:40123".parse().unwrap()), "{line:?}");
        }
        for line in ["", "listening", "listening on 127.0.0.1:0", "connected from 127.0.0.1:40123", "listening on tcp"]
        {
            assert_eq!(listening_address(line), None, "{line:?}");
        }
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn start(script: &str) -> Result<ChildBroker, LoadgenError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(ChildBroker::start(shell(script)))
    }

    #[test]
    fn a_child_that_listens_is_used_until_it_is_dropped() {
        for stream in ["1", "2"] {
            let script = format!("echo starting; echo 'listening on 127.0.0.1:1883' >&{stream}; exec sleep 60");
            let mut broker = start(&script).unwrap();
            assert_eq!(broker.address(), "127.0.0.1:1883");
            broker.check_alive().unwrap();
            let process = format!("/proc/{}", broker.pid());
            assert!(Path::new(&process).exists());
            drop(broker);
            assert!(!Path::new(&process).exists());
        }
    }

    #[test]
    fn child_exit_error_contains_last_output() {
        let error = start("echo 'error: unknown policy \"x\"' >&2; echo >&2; exit 2").unwrap_err().to_string();
        assert!(error.contains("exit status: 2") && error.ends_with("unknown policy \"x\""), "{error}");
        assert!(!error.contains('\n'));
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = runtime.block_on(ChildBroker::start(Command::new("/nonexistent/broker"))).unwrap_err();
        assert!(error.to_string().starts_with("cannot start /nonexistent/broker: "), "{error}");
    }
}
