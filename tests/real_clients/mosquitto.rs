//! Mosquitto's command line tools.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::transports::Served;
use super::{Killed, is_installed, wait};
use crate::support::{Lines, PATIENCE, RawClient};
use tenbin_codec::{QoS, ReasonCode};

#[test]
fn mosquitto_publishes_and_subscribes_at_every_qos() {
    for served in brokers(&[]) {
        for from in MOSQUITTO_VERSIONS {
            for to in MOSQUITTO_VERSIONS {
                let subscriber = Subscriber::start(&served, to, &["-q", "2", "-t", "matrix/+"], 3);
                for qos in ["0", "1", "2"] {
                    publish(&served, from, &["-q", qos, "-t", "matrix/topic", "-m", &format!("at {qos}")]);
                }
                let expected = ["0 0 matrix/topic at 0", "1 0 matrix/topic at 1", "2 0 matrix/topic at 2"];
                assert_eq!(subscriber.messages(), expected, "{from} to {to} over {}", served.scheme);
            }
        }
    }
}

#[test]
fn mosquitto_chooses_its_version_of_tls() {
    for served in brokers(&[]).filter(|served| served.scheme == "tls") {
        for tls in ["tlsv1.2", "tlsv1.3"] {
            let subscriber = Subscriber::start(&served, "5", &["--tls-version", tls, "-t", "secret"], 1);
            publish(&served, "5", &["--tls-version", tls, "-t", "secret", "-m", "told"]);
            assert_eq!(subscriber.messages(), ["0 0 secret told"], "{tls}");
        }
        // Of two authorities, the last one counts.
        let untrusting = ["--cafile", "/etc/ssl/certs/ca-certificates.crt", "-t", "a", "-n"];
        let status = tool("mosquitto_pub", &served, "5", &untrusting).stderr(Stdio::null()).status();
        assert!(!status.expect("installed").success(), "an unknown authority");
    }
}

#[test]
fn mosquitto_sees_retained_messages() {
    for served in brokers(&[]) {
        let broker = &served.broker;
        for version in MOSQUITTO_VERSIONS {
            publish(&served, version, &["-q", "1", "-r", "-t", "retained", "-m", "kept"]);
            let subscriber = Subscriber::start(&served, version, &["-q", "1", "-t", "retained"], 1);
            assert_eq!(subscriber.messages(), ["1 1 retained kept"], "{version} over {}", served.scheme);
            publish(&served, version, &["-r", "-n", "-t", "retained"]);
            broker.v5("late").subscribe("retained", QoS::AtLeastOnce);
        }
        let mut late = broker.v5("late");
        late.subscribe("retained", QoS::AtLeastOnce);
        late.expect_nothing_waiting();
    }
}

#[test]
fn mosquitto_leaves_a_will() {
    for served in brokers(&[]) {
        let mut heir = served.broker.v5("heir");
        heir.subscribe("will", QoS::ExactlyOnce);
        let will = ["--will-topic", "will", "--will-qos", "1", "--will-payload", "gone"];
        for version in MOSQUITTO_VERSIONS {
            // A client that disconnects normally leaves no Will.
            publish(&served, version, &[&will[..], &["-t", "other", "-m", "x"]].concat());
            let mut mortal = Subscriber::start(&served, version, &[&will[..], &["-t", "other"]].concat(), 1);
            heir.expect_nothing_waiting();
            mortal.child.kill().expect("our own child");
            let message = heir.receive_message();
            let over = served.scheme;
            assert_eq!((message.qos, &message.payload[..]), (QoS::AtLeastOnce, &b"gone"[..]), "{version} over {over}");
        }
    }
}

#[test]
fn mosquitto_shares_a_subscription() {
    for served in brokers(&["--policy", "round_robin"]) {
        for version in MOSQUITTO_VERSIONS {
            let member = || Subscriber::start(&served, version, &["-q", "1", "-t", "$share/group/work"], 10);
            let members = [member(), member()];
            let mut publisher = tool("mosquitto_pub", &served, version, &["-q", "1", "-t", "work", "-l"]);
            let mut publisher = publisher.stdin(Stdio::piped()).spawn().expect("installed");
            let mut input = publisher.stdin.take().expect("piped");
            let numbers: Vec<_> = (10..30).map(|number| number.to_string()).collect();
            input.write_all((numbers.join("\n") + "\n").as_bytes()).expect("it reads its input");
            drop(input);
            assert!(publisher.wait().expect("our own child").success());
            let [mut all, others] = members.map(Subscriber::messages);
            assert_eq!((all.len(), others.len()), (10, 10), "{version} over {}", served.scheme);
            all.extend(others);
            all.sort();
            let expected: Vec<_> = numbers.iter().map(|number| format!("1 0 work {number}")).collect();
            assert_eq!(all, expected, "{version} over {}", served.scheme);
        }
    }
}

#[test]
fn mosquitto_members_share_thirty_messages_evenly() {
    for served in brokers(&[]) {
        for run in 0..10 {
            let version = MOSQUITTO_VERSIONS[run % 2];
            let (topic, filter) = (format!("even/{run}"), format!("$share/even/even/{run}"));
            let members = [(); 3].map(|()| Subscriber::start(&served, version, &["-q", "1", "-t", &filter], 100));
            for number in 0..30 {
                publish(&served, version, &["-q", "1", "-t", &topic, "-m", &number.to_string()]);
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
            let is_even = counts.iter().all(|count| (8..=12).contains(count));
            assert!(is_even, "run {run} over {}: {counts:?}", served.scheme);
        }
    }
}

/// A broker for each transport that the tools speak; none if they are not installed.
fn brokers<'a>(arguments: &'a [&str]) -> impl Iterator<Item = Served> + 'a {
    let spoken: &[&str] = if mosquitto_is_installed() { &["tcp", "tls", "unix"] } else { &[] };
    Served::over(spoken, arguments)
}

/// `mosquitto_sub`, subscribed.
struct Subscriber {
    child: Child,
    output: Lines,
}

impl Subscriber {
    /// Starts it with further arguments. It exits after `count` messages. Its lines are QoS, RETAIN, topic and payload.
    fn start(served: &Served, version: &str, arguments: &[&str], count: usize) -> Self {
        // The answer to this message shows that the subscription is complete.
        let ready = format!("ready/{}", NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let count = (count + 1).to_string();
        let mut command = tool("mosquitto_sub", served, version, arguments);
        command.args(["-t", &ready, "-C", &count, "-F", "%q %r %t %p"]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("installed");
        let output = Lines::collect(child.stdout.take().expect("piped"));
        let subscriber = Self { child, output };
        let mut prober: RawClient = served.broker.v5("");
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

fn publish(served: &Served, version: &str, arguments: &[&str]) {
    let mut child = Killed(tool("mosquitto_pub", served, version, arguments).spawn().expect("installed"));
    assert!(wait(&mut child.0), "mosquitto_pub failed");
}

fn tool(name: &str, served: &Served, version: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(name);
    match served.url.strip_prefix("unix:") {
        Some(path) => command.args(["--unix", path]),
        None => command.args(["-h", "localhost", "-p", &served.port().to_string()]),
    };
    if served.scheme == "tls" {
        command.args(["--cafile", &served.authority()]);
    }
    command.args(["-V", version]).args(arguments).stdin(Stdio::null());
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
