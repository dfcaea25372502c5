use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tenbin_codec::{QoS, ReasonCode};

use crate::support::{BrokerProcess, ConfigFile, Lines, PATIENCE};

/// `tenbin bridge` as a child process; killed when dropped, as by `kill -9`.
pub(crate) struct BridgeProcess {
    child: Child,
    log: Lines,
}

impl BridgeProcess {
    /// Starts the bridges of a configuration.
    pub(crate) fn start(config: &ConfigFile) -> Self {
        let mut child = command(config).spawn().expect("the built command can be started");
        let log = Lines::collect(child.stderr.take().expect("piped"));
        Self { child, log }
    }

    /// Output of a bridge that does not start.
    pub(crate) fn refusal(config: &ConfigFile) -> String {
        let Output { status, stderr, .. } = command(config).output().expect("the built command can be started");
        assert!(!status.success());
        String::from_utf8(stderr).expect("UTF-8")
    }

    /// Its log, which grows as it runs.
    pub(crate) fn log(&self) -> &Lines {
        &self.log
    }

    /// Ends it in order.
    pub(crate) fn end(mut self) {
        let sent = Command::new("kill").arg(self.child.id().to_string()).status().expect("kill is there");
        assert!(sent.success());
        let until = Instant::now() + PATIENCE;
        while self.child.try_wait().expect("our own child").is_none() {
            assert!(Instant::now() < until, "the bridge still runs");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for BridgeProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(config: &ConfigFile) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenbin"));
    command.args(["bridge", "--config", config.path()]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// A table `[[bridge]]` with these further keys.
pub(crate) fn table(name: &str, remote: SocketAddr, keys: &str) -> String {
    format!("[[bridge]]\nname = \"{name}\"\nremote = \"mqtt://{remote}\"\n{keys}\n")
}

/// A table `[[bridge.topics]]`.
pub(crate) fn topics(direction: &str, filter: &str) -> String {
    format!("[[bridge.topics]]\ndirection = \"{direction}\"\nfilter = \"{filter}\"\n")
}

/// Waits until the broker has a subscription for this topic: the bridge's.
pub(crate) fn wait_for_subscription(broker: &BrokerProcess, topic: &str) {
    let mut prober = broker.v5("");
    let until = Instant::now() + PATIENCE;
    while prober.publish(topic, "probe", QoS::AtLeastOnce) == ReasonCode::NoMatchingSubscribers {
        assert!(Instant::now() < until, "the bridge does not subscribe: {:?}", broker.log().all());
        std::thread::sleep(Duration::from_millis(5));
    }
}
