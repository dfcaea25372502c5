//! Clients that others wrote: Mosquitto's command line tools and Paho for Python.
//!
//! Where they are not installed, these tests say so and pass; in continuous integration (`CI` is set) they fail.

mod support;

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::{BrokerProcess, Lines, PATIENCE, RawClient};
use tenbin_codec::{QoS, ReasonCode};

#[test]
fn mosquitto_publishes_and_subscribes_at_every_qos() {
    if !mosquitto_is_installed() {
        return;
    }
    let broker = BrokerProcess::start(&[]);
    for from in MOSQUITTO_VERSIONS {
        for to in MOSQUITTO_VERSIONS {
            let subscriber = Subscriber::start(&broker, to, &["-q", "2", "-t", "matrix/+"], 3);
            for qos in ["0", "1", "2"] {
                publish(&broker, from, &["-q", qos, "-t", "matrix/topic", "-m", &format!("at {qos}")]);
            }
            let expected = ["0 0 matrix/topic at 0", "1 0 matrix/topic at 1", "2 0 matrix/topic at 2"];
            assert_eq!(subscriber.messages(), expected, "{from} to {to}");
        }
    }
}

#[test]
fn mosquitto_sees_retained_messages() {
    if !mosquitto_is_installed() {
        return;
    }
    let broker = BrokerProcess::start(&[]);
    for version in MOSQUITTO_VERSIONS {
        publish(&broker, version, &["-q", "1", "-r", "-t", "retained", "-m", "kept"]);
        let subscriber = Subscriber::start(&broker, version, &["-q", "1", "-t", "retained"], 1);
        assert_eq!(subscriber.messages(), ["1 1 retained kept"], "{version}");
        publish(&broker, version, &["-r", "-n", "-t", "retained"]);
        broker.v5("late").subscribe("retained", QoS::AtLeastOnce);
    }
    let mut late = broker.v5("late");
    late.subscribe("retained", QoS::AtLeastOnce);
    late.expect_nothing_waiting();
}

#[test]
fn mosquitto_leaves_a_will() {
    if !mosquitto_is_installed() {
        return;
    }
    let broker = BrokerProcess::start(&[]);
    let mut heir = broker.v5("heir");
    heir.subscribe("will", QoS::ExactlyOnce);
    let will = ["--will-topic", "will", "--will-qos", "1", "--will-payload", "gone"];
    for version in MOSQUITTO_VERSIONS {
        // One that ends well leaves none.
        publish(&broker, version, &[&will[..], &["-t", "other", "-m", "x"]].concat());
        let mut mortal = Subscriber::start(&broker, version, &[&will[..], &["-t", "other"]].concat(), 1);
        heir.expect_nothing_waiting();
        mortal.child.kill().expect("our own child");
        let message = heir.receive_message();
        assert_eq!((message.qos, &message.payload[..]), (QoS::AtLeastOnce, &b"gone"[..]), "{version}");
    }
}

#[test]
fn mosquitto_shares_a_subscription() {
    if !mosquitto_is_installed() {
        return;
    }
    let broker = BrokerProcess::start(&["--policy", "round_robin"]);
    for version in MOSQUITTO_VERSIONS {
        let member = || Subscriber::start(&broker, version, &["-q", "1", "-t", "$share/group/work"], 10);
        let members = [member(), member()];
        let mut publisher = tool("mosquitto_pub", &broker, version, &["-q", "1", "-t", "work", "-l"]);
        let mut publisher = publisher.stdin(Stdio::piped()).spawn().expect("installed");
        let mut input = publisher.stdin.take().expect("piped");
        let numbers: Vec<_> = (10..30).map(|number| number.to_string()).collect();
        input.write_all((numbers.join("\n") + "\n").as_bytes()).expect("it reads its input");
        drop(input);
        assert!(publisher.wait().expect("our own child").success());
        let [mut all, others] = members.map(Subscriber::messages);
        assert_eq!((all.len(), others.len()), (10, 10), "{version}");
        all.extend(others);
        all.sort();
        let expected: Vec<_> = numbers.iter().map(|number| format!("1 0 work {number}")).collect();
        assert_eq!(all, expected, "{version}");
    }
}

#[test]
fn paho_for_python_passes_its_script() {
    let probe = "import paho.mqtt, sys; sys.exit(int(paho.mqtt.__version__.split('.')[0]) < 2)";
    if !is_installed("Paho for Python, version 2", Command::new("python3").args(["-c", probe])) {
        return;
    }
    let broker = BrokerProcess::start(&["--policy", "round_robin"]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real_clients/paho_client.py");
    let (ip, port) = (broker.address().ip().to_string(), broker.address().port().to_string());
    let mut command = Command::new("python3");
    command.args(["-B", script, &ip, &port]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut client = Killed(command.spawn().expect("installed"));
    let said = Lines::collect(client.0.stdout.take().expect("piped"));
    let complaints = Lines::collect(client.0.stderr.take().expect("piped"));
    let status = wait(&mut client.0);
    let said = said.to_end(PATIENCE);
    assert!(status, "{}\n{}\n{:?}", said.join("\n"), complaints.to_end(PATIENCE).join("\n"), broker.log().all());
    assert_eq!(said.len(), 12, "{said:?}");
}

/// `mosquitto_sub`, subscribed.
struct Subscriber {
    child: Child,
    output: Lines,
}

impl Subscriber {
    /// Starts it with further arguments; it ends by itself after `count` messages. Its lines are QoS, RETAIN, topic
    /// and payload.
    fn start(broker: &BrokerProcess, version: &str, arguments: &[&str], count: usize) -> Self {
        // The answer to a message tells when somebody has subscribed.
        let ready = format!("ready/{}", NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let count = (count + 1).to_string();
        let mut command = tool("mosquitto_sub", broker, version, arguments);
        command.args(["-t", &ready, "-C", &count, "-F", "%q %r %t %p"]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("installed");
        let output = Lines::collect(child.stdout.take().expect("piped"));
        let subscriber = Self { child, output };
        let mut prober: RawClient = broker.v5("");
        let until = Instant::now() + PATIENCE;
        while prober.publish(&ready, "", QoS::AtLeastOnce) == ReasonCode::NoMatchingSubscribers {
            assert!(Instant::now() < until, "mosquitto_sub does not subscribe");
            std::thread::sleep(Duration::from_millis(2));
        }
        subscriber
    }

    /// The messages, when all have come.
    fn messages(mut self) -> Vec<String> {
        assert!(wait(&mut self.child), "mosquitto_sub failed");
        let lines = self.output.to_end(PATIENCE);
        lines.into_iter().filter(|line| !line.contains("ready/")).collect()
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A child that does not outlive its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn publish(broker: &BrokerProcess, version: &str, arguments: &[&str]) {
    let mut child = Killed(tool("mosquitto_pub", broker, version, arguments).spawn().expect("installed"));
    assert!(wait(&mut child.0), "mosquitto_pub failed");
}

fn tool(name: &str, broker: &BrokerProcess, version: &str, arguments: &[&str]) -> Command {
    let (ip, port) = (broker.address().ip().to_string(), broker.address().port().to_string());
    let mut command = Command::new(name);
    command.args(["-h", &ip, "-p", &port, "-V", version]).args(arguments).stdin(Stdio::null());
    command
}

/// Waits for the end of a child: whether it ended well.
fn wait(child: &mut Child) -> bool {
    let until = Instant::now() + 2 * PATIENCE;
    while Instant::now() < until {
        if let Some(status) = child.try_wait().expect("our own child") {
            return status.success();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    false
}

fn mosquitto_is_installed() -> bool {
    ["mosquitto_pub", "mosquitto_sub"].into_iter().all(|name| is_installed(name, Command::new(name).arg("--help")))
}

/// Whether `probe` can be run; says so if not.
///
/// # Panics
/// In continuous integration, where nothing may be skipped.
fn is_installed(what: &str, probe: &mut Command) -> bool {
    let quiet = probe.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let installed = match quiet.status() {
        // Mosquitto's tools end their help with status 1.
        Ok(status) => status.success() || what.starts_with("mosquitto"),
        Err(_) => false,
    };
    if !installed {
        assert!(std::env::var_os("CI").is_none(), "{what} is not installed");
        // Past the test harness, which would keep it to itself.
        let _ = writeln!(std::io::stderr(), "skipped: {what} is not installed");
    }
    installed
}

/// The two versions as Mosquitto's tools call them.
const MOSQUITTO_VERSIONS: [&str; 2] = ["5", "mqttv311"];

static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
