//! Bisquitt's clients in Go, if they are installed: in `target/go`, as `.ci/run` does, or on the path. Tests of the broker's
//! own gateway include this file too.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// Bound on every wait; only a failing test reaches it.
const PATIENCE: Duration = Duration::from_secs(120);

/// Keys of the table `[listener]` of a gateway for [`Bisquitt::exercise`]. The Keep Alive of the clients is a minute: only
/// unanswered repetitions show their loss sooner.
pub(crate) const LISTENER: &str =
    "retry_seconds = 0.5\nconnects_per_second_per_address = 0\nqos_minus_one = true\ntopics.7 = \"plant/predefined\"\n";

/// The installed programs.
pub(crate) struct Bisquitt {
    publish: PathBuf,
    subscribe: PathBuf,
}

/// A running `bisquitt-sub`, which ends with the handle as by `kill -9`.
struct Subscriber {
    child: Child,
    lines: Receiver<String>,
}

impl Bisquitt {
    /// `None` if the programs are not installed.
    pub(crate) fn find() -> Option<Self> {
        let program = |name: &str| {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().take(3);
            let path = std::env::var_os("PATH").unwrap_or_default();
            let directories = root.map(|directory| directory.join("target/go")).chain(std::env::split_paths(&path));
            directories.map(|directory| directory.join(name)).find(|program| program.is_file())
        };
        let found = program("bisquitt-pub").zip(program("bisquitt-sub"));
        if found.is_none() {
            let install = "as .ci/run does";
            let _ = writeln!(std::io::stderr(), "skipped: Bisquitt is not installed ({install})");
        }
        found.map(|(publish, subscribe)| Self { publish, subscribe })
    }

    fn command(program: &Path, gateway: SocketAddr, arguments: &str) -> Command {
        let mut command = Command::new(program);
        command.args(["--host", "127.0.0.1", "--port", &gateway.port().to_string()]);
        command.args(["--predefined-topic", "plant/predefined;7"]).args(arguments.split(' ')).stdin(Stdio::null());
        command
    }

    fn publish(&self, gateway: SocketAddr, arguments: &str) {
        let output = Self::command(&self.publish, gateway, arguments).output().expect("an executable file");
        assert!(output.status.success(), "{arguments}: {output:?}");
    }

    /// A client that has its subscription.
    fn subscribe(&self, gateway: SocketAddr, arguments: &str) -> Subscriber {
        let mut command = Self::command(&self.subscribe, gateway, &format!("--debug {arguments}"));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("an executable file");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, lines) = sync_channel(100);
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let subscriber = Subscriber { child, lines };
        subscriber.wait_for(PATIENCE, |line| line.contains("-> SUBACK")).expect("SUBACK");
        subscriber
    }

    /// Sends messages of each QoS, on a name and on a predefined topic, from client to client, and a Will. The gateway
    /// has the keys [`LISTENER`].
    pub(crate) fn exercise(&self, gateway: SocketAddr) {
        let cases = [
            ("plant/one", 0, 0),
            ("plant/one", 1, 1),
            ("plant/one", 2, 2),
            ("plant/one", 1, 2),
            ("plant/+", 2, 1),
            ("plant/predefined", 0, 0),
            ("plant/predefined", 1, 1),
            ("plant/predefined", 2, 2),
        ];
        for (number, (topic, receive_qos, send_qos)) in cases.into_iter().enumerate() {
            // Each receiver ends without DISCONNECT, so that the next one with its id would have to wait.
            let receiver = self.subscribe(gateway, &format!("-t {topic} -q {receive_qos} -i receiver-{number}"));
            let topic = topic.replace('+', "two");
            for message in ["first", "second"] {
                self.publish(gateway, &format!("-t {topic} -q {send_qos} -m {message} -i sender"));
                let qos = match receive_qos.min(send_qos) {
                    0 => String::new(),
                    qos => format!("[qos {qos}]"),
                };
                assert_eq!(receiver.message(PATIENCE), Some(format!("{topic}: {message} {qos}")));
            }
        }
        self.publish_without_connection(gateway);
        self.leave_a_will(gateway);
    }

    /// QoS −1, which is 3 at Bisquitt.
    fn publish_without_connection(&self, gateway: SocketAddr) {
        let receiver = self.subscribe(gateway, "-t plant/predefined -q 1 -i receiver-minus-one");
        // The gateway's own client may not be connected yet, and such messages are lost then.
        let deadline = Instant::now() + PATIENCE;
        let message = loop {
            self.publish(gateway, "-t plant/predefined -q 3 -m minus-one");
            if let Some(message) = receiver.message(Duration::from_millis(500)) {
                break message;
            }
            assert!(Instant::now() < deadline, "a QoS -1 message");
        };
        assert_eq!(message, "plant/predefined: minus-one ");
    }

    fn leave_a_will(&self, gateway: SocketAddr) {
        let witness = self.subscribe(gateway, "-t plant/gone -q 1 -i witness");
        let will = "--will-topic plant/gone --will-message bye --will-qos 1";
        let lost = self.subscribe(gateway, &format!("-t plant/one -q 1 -i lost {will}"));
        drop(lost);
        // Unanswered repetitions of this message show that the client is lost.
        self.publish(gateway, "-t plant/one -q 1 -m lost -i sender");
        assert_eq!(witness.message(PATIENCE), Some("plant/gone: bye [qos 1]".to_owned()));
    }
}

impl Subscriber {
    /// The next line that is no line of the log; `None` if none comes in time.
    fn message(&self, patience: Duration) -> Option<String> {
        self.wait_for(patience, |line| !line.contains("[DEBUG]"))
    }

    fn wait_for(&self, patience: Duration, matches: impl Fn(&str) -> bool) -> Option<String> {
        let deadline = Instant::now() + patience;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if matches(&line) => return Some(line),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => return None,
                Err(RecvTimeoutError::Disconnected) => panic!("bisquitt-sub has ended"),
            }
        }
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
