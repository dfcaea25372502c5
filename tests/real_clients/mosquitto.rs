//! Mosquitto's command line tools.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::support::{BrokerProcess, Certificates, ConfigFile, Lines, PATIENCE, RawClient};
use super::{Killed, is_installed, wait};
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
fn mosquitto_publishes_and_subscribes_over_tls() {
    if !mosquitto_is_installed() {
        return;
    }
    let certificates = Certificates::new();
    let config = ConfigFile::new(&certificates.listener(""));
    let broker = BrokerProcess::start_listening(&["--listen", "127.0.0.1:0", "--config", config.path()], 2);
    let (port, root) = (broker.addresses()[1].port().to_string(), certificates.path("root.pem"));
    // Of two hosts or ports, the last one counts.
    for tls in ["tlsv1.2", "tlsv1.3"] {
        let secure =
            ["-h", "localhost", "-p", &port, "--cafile", &root, "--tls-version", tls, "-q", "2", "-t", "secret"];
        for version in MOSQUITTO_VERSIONS {
            let subscriber = Subscriber::start(&broker, version, &secure, 3);
            for qos in ["0", "1", "2"] {
                publish(&broker, version, &[&secure[..], &["-q", qos, "-m", &format!("at {qos}")]].concat());
            }
            let expected = ["0 0 secret at 0", "1 0 secret at 1", "2 0 secret at 2"];
            assert_eq!(subscriber.messages(), expected, "{version} over {tls}");
        }
    }
    let untrusted = ["-h", "localhost", "-p", &port, "--cafile", "/etc/ssl/certs/ca-certificates.crt", "-t", "a", "-n"];
    let status = tool("mosquitto_pub", &broker, "5", &untrusted).stderr(Stdio::null()).status().expect("installed");
    assert!(!status.success(), "an unknown authority");
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
        // A client that disconnects normally leaves no Will.
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
fn mosquitto_members_share_thirty_messages_evenly() {
    if !mosquitto_is_installed() {
        return;
    }
    let broker = BrokerProcess::start(&[]);
    for run in 0..10 {
        let version = MOSQUITTO_VERSIONS[run % 2];
        let (topic, filter) = (format!("even/{run}"), format!("$share/even/even/{run}"));
        let members = [(); 3].map(|()| Subscriber::start(&broker, version, &["-q", "1", "-t", &filter], 100));
        for number in 0..30 {
            publish(&broker, version, &["-q", "1", "-t", &topic, "-m", &number.to_string()]);
        }
        let until = Instant::now() + PATIENCE;
        let counts = loop {
            let counts = members.each_ref().map(Subscriber::received);
            if counts.iter().sum::<usize>() >= 30 {
                break counts;
            }
            assert!(Instant::now() < until, "run {run}: {counts:?}");
            std::thread::sleep(Duration::from_millis(2));
        };
        assert!(counts.iter().all(|count| (8..=12).contains(count)), "run {run}: {counts:?}");
    }
}

/// `mosquitto_sub`, subscribed.
struct Subscriber {
    child: Child,
    output: Lines,
}

impl Subscriber {
    /// Starts it with further arguments. It exits after `count` messages. Its lines are QoS, RETAIN, topic and payload.
    fn start(broker: &BrokerProcess, version: &str, arguments: &[&str], count: usize) -> Self {
        // The answer to this message shows that the subscription is complete.
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

    /// Number of messages received so far.
    fn received(&self) -> usize {
        self.output.all().iter().filter(|line| !line.contains("ready/")).count()
    }

    /// All messages, once they have arrived.
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

fn mosquitto_is_installed() -> bool {
    ["mosquitto_pub", "mosquitto_sub"].into_iter().all(|name| is_installed(name, Command::new(name).arg("--help"), ANY))
}

/// The tools end their help with status 1.
const ANY: &[i32] = &[0, 1];

/// The two versions as Mosquitto's tools call them.
const MOSQUITTO_VERSIONS: [&str; 2] = ["5", "mqttv311"];

static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
