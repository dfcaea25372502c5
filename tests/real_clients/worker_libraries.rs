//! Workers written with the libraries in `clients`: they report their load here, and are silent at other brokers.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tenbin_codec::QoS;

use super::bridge::Mosquitto;
use super::programs::{built, is_built, source, text};
use super::{Killed, is_installed};
use crate::support::{BrokerProcess, Lines, PATIENCE, RawClient, exchange};

const FILTER: &str = "jobs/#";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Language {
    Python,
    JavaScript,
    Go,
    Java,
}

const ALL: [Language; 4] = [Language::Python, Language::JavaScript, Language::Go, Language::Java];

impl Language {
    fn is_there(self) -> bool {
        let has = |what, program, argument| is_installed(what, Command::new(program).arg(argument), &[0]);
        match self {
            Self::Python => {
                let probe = "import paho.mqtt, sys; sys.exit(int(paho.mqtt.__version__.split('.')[0]) < 2)";
                is_installed("Paho for Python, version 2", Command::new("python3").args(["-c", probe]), &[0])
            }
            Self::JavaScript => {
                has("Node.js", "node", "--version") && is_built("tenbin-load", &built("node/node_modules/tenbin-load"))
            }
            Self::Go => is_built("the worker in Go", &built("go/reporting_worker")),
            Self::Java => {
                has("Java", "java", "-version")
                    && is_built("the worker in Java", &built("java/classes/ReportingWorker.class"))
            }
        }
    }

    fn command(self) -> Command {
        match self {
            Self::Python => {
                let mut command = Command::new("python3");
                command.args(["-B", &source("python/reporting_worker.py")]);
                command
            }
            Self::JavaScript => {
                let mut command = Command::new("node");
                command.arg(source("node/reporting_worker.js")).env("NODE_PATH", built("node/node_modules"));
                command
            }
            Self::Go => Command::new(built("go/reporting_worker")),
            Self::Java => {
                let mut command = Command::new("java");
                let path = format!("{}/*:{}", text(&built("java/lib")), text(&built("java/classes")));
                command.args(["-XX:TieredStopAtLevel=1", "-cp", &path, "ReportingWorker"]);
                command
            }
        }
    }
}

/// A running worker.
struct Worker {
    lines: Lines,
    _child: Killed,
}

impl Worker {
    fn start(language: Language, broker: SocketAddr, service_ms: u32) -> Self {
        let (port, service) = (broker.port().to_string(), service_ms.to_string());
        let mut command = language.command();
        command.args(["127.0.0.1", &port, "pool", FILTER, &service]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("installed");
        let lines = Lines::collect(child.stdout.take().expect("a pipe"));
        Self { lines, _child: Killed(child) }
    }

    fn wait_until_ready(&self) {
        self.lines.wait_for(&["ready"], 2 * PATIENCE);
    }

    fn done(&self) -> Vec<String> {
        self.lines.all().into_iter().filter(|line| line != "ready").collect()
    }
}

/// Publishes messages, two in 8 ms, and waits until the workers have processed each of them once.
fn play(workers: &[Worker], publisher: &mut RawClient, messages: usize) {
    workers.iter().for_each(Worker::wait_until_ready);
    for number in 0..messages {
        publisher.publish("jobs/1", &number.to_string(), QoS::AtLeastOnce);
        std::thread::sleep(Duration::from_millis(4));
    }
    let (begin, all) = (Instant::now(), || workers.iter().flat_map(Worker::done).collect::<Vec<_>>());
    while all().len() < messages {
        assert!(begin.elapsed() < PATIENCE, "{} of {messages}", all().len());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(all().into_iter().collect::<BTreeSet<_>>().len(), messages);
}

/// Number of load reports that the broker has accepted, and of others.
fn reports(admin: SocketAddr) -> [u64; 2] {
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n");
    let body = exchange(admin, request.as_bytes()).expect("an answer").body;
    ["accepted", "rejected"].map(|result| {
        let name = format!("tenbin_load_reports_total{{result=\"{result}\"}} ");
        let line = body.lines().find_map(|line| line.strip_prefix(&name));
        line.unwrap_or_else(|| panic!("{name}: {body}")).parse().expect("a number")
    })
}

/// Plays these workers; the last one takes five times as long as the others.
fn share_messages_by_load(languages: &[Language]) {
    if !languages.iter().all(|language| language.is_there()) {
        return;
    }
    let environment = [("TENBIN_ADMIN__ADDRESS", "127.0.0.1:0".into())];
    let broker = BrokerProcess::start_in(&environment, &["--ephemeral", "--listen", "127.0.0.1:0"]);
    let admin = broker.wait_for_start_line("admin HTTP at http://");
    let admin = admin.rsplit("http://").next().and_then(|text| text.parse().ok()).expect("an address");
    let last = languages.len() - 1;
    let service = |index| if index == last { 25 } else { 5 };
    let workers: Vec<_> = languages
        .iter()
        .enumerate()
        .map(|(index, language)| Worker::start(*language, broker.address(), service(index)))
        .collect();
    play(&workers, &mut broker.v5("publisher"), 300);
    let done: Vec<_> = workers.iter().map(|worker| worker.done().len()).collect();
    assert!(done[..last].iter().all(|other| *other > done[last]), "{languages:?}: {done:?}");
    let [accepted, rejected] = reports(admin);
    assert!(accepted >= languages.len() as u64 && rejected == 0, "{languages:?}: {accepted}, {rejected}");
}

#[test]
fn workers_in_python_share_messages_by_their_load() {
    share_messages_by_load(&[Language::Python; 3]);
}

#[test]
fn workers_in_javascript_share_messages_by_their_load() {
    share_messages_by_load(&[Language::JavaScript; 3]);
}

#[test]
fn workers_in_go_share_messages_by_their_load() {
    share_messages_by_load(&[Language::Go; 3]);
}

#[test]
fn workers_in_java_share_messages_by_their_load() {
    share_messages_by_load(&[Language::Java; 3]);
}

#[test]
fn workers_in_four_languages_share_messages_by_their_load() {
    share_messages_by_load(&ALL);
}

#[test]
fn workers_are_silent_at_another_broker() {
    if !Mosquitto::is_installed() || !ALL.iter().all(|language| language.is_there()) {
        return;
    }
    for language in ALL {
        let mosquitto = Mosquitto::start_with("");
        let mut publisher = mosquitto.client("publisher");
        let mut witness = mosquitto.client("witness");
        // `#` leaves `$load` out.
        ["#", "$load", "$load/#"].iter().for_each(|filter| witness.subscribe(filter, QoS::AtLeastOnce));
        let workers = [Worker::start(language, mosquitto.address, 1), Worker::start(language, mosquitto.address, 1)];
        play(&workers, &mut publisher, 40);
        let seen = witness.drain();
        assert!(seen.len() == 40 && seen.iter().all(|message| message.topic.as_bytes() == b"jobs/1"), "{language:?}");
    }
}
