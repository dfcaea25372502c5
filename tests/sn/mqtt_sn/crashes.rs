//! `kill -9` of both gateways under load, behind the lossy network.

use std::collections::HashSet;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tenbin_codec::{ProtocolVersion, QoS};

use crate::mqtt_sn::exchange::{Load, mqtt_client};
use crate::mqtt_sn::relay::{Relay, Report, Sender};
use crate::mqtt_sn::sensor::{QOS_1, QOS_2, Sensor};
use crate::mqtt_sn::{LISTENER, built_in_with, sn_address};
use crate::support::{BrokerProcess, DataDirectory, GatewayProcess, PATIENCE, RawClient, lasting, seed};

const LOAD: Load = Load { clients: 20, each: 20 };
/// Acknowledged messages of the clients after which the gateway is killed.
const KILL_AFTER: usize = LOAD.clients * LOAD.each / 3;
/// Messages for the sleeper before the kill.
const ASLEEP: usize = 10;

/// A broker with a gateway, one of which is killed and started again.
trait Stand {
    /// MQTT address of the broker, which changes with its restart.
    fn broker(&self) -> SocketAddr;
    fn gateway(&self) -> SocketAddr;
    /// File with the topic ids.
    fn topic_ids(&self) -> PathBuf;
    /// Whether the killed process is the one that sets DUP. It does not wait for the disk before it sends, and may not
    /// know of its last message to a client.
    fn forgets_sending(&self) -> bool;
    /// Kills the gateway's process.
    fn kill(&mut self);
    /// Starts it again, at the same UDP address.
    fn restart(&mut self);
}

/// The broker with its own gateway; both die.
struct BuiltIn {
    directory: DataDirectory,
    gateway: SocketAddr,
    broker: Option<BrokerProcess>,
}

/// A separate gateway; the broker stays.
struct Separate {
    directory: DataDirectory,
    gateway: SocketAddr,
    broker: BrokerProcess,
    process: Option<GatewayProcess>,
}

/// Clients without repetitions must answer in time beside the load, so that the gateway repeats for 4 s.
fn listener() -> String {
    format!("{LISTENER}retries = 20\n")
}

impl BuiltIn {
    fn start() -> Self {
        let mut stand = Self { directory: DataDirectory::new(), gateway: ([127, 0, 0, 1], 0).into(), broker: None };
        stand.restart();
        stand
    }
}

impl Stand for BuiltIn {
    fn broker(&self) -> SocketAddr {
        self.broker.as_ref().expect("it runs").address()
    }

    fn gateway(&self) -> SocketAddr {
        self.gateway
    }

    fn topic_ids(&self) -> PathBuf {
        self.directory.path().join("sn/field/topic-ids")
    }

    fn forgets_sending(&self) -> bool {
        true
    }

    fn kill(&mut self) {
        self.broker = None;
    }

    fn restart(&mut self) {
        let file = built_in_with(self.gateway, &listener());
        let arguments = ["--data", self.directory.path_text(), "--config", file.path()];
        let broker = BrokerProcess::start_exactly(&arguments);
        self.gateway = sn_address(&broker);
        self.broker = Some(broker);
    }
}

impl Separate {
    fn start() -> Self {
        let (directory, gateway) = (DataDirectory::new(), ([127, 0, 0, 1], 0).into());
        let mut stand = Self { directory, gateway, broker: BrokerProcess::start(&[]), process: None };
        stand.restart();
        stand
    }
}

impl Stand for Separate {
    fn broker(&self) -> SocketAddr {
        self.broker.address()
    }

    fn gateway(&self) -> SocketAddr {
        self.gateway
    }

    fn topic_ids(&self) -> PathBuf {
        self.directory.path().join("topic-ids")
    }

    fn forgets_sending(&self) -> bool {
        false
    }

    fn kill(&mut self) {
        self.process = None;
    }

    fn restart(&mut self) {
        let arguments = ["--state", self.directory.path_text()];
        let process = GatewayProcess::start(self.broker.address(), self.gateway, &listener(), &arguments);
        self.gateway = process.address;
        self.process = Some(process);
    }
}

/// Waits until the file has the text: topic ids are stored soon after the answer.
fn wait_for_text(file: &Path, text: &str) {
    let until = Instant::now() + PATIENCE;
    let has_text = || {
        let bytes = std::fs::read(file).unwrap_or_default();
        bytes.windows(text.len()).any(|part| part == text.as_bytes())
    };
    while !has_text() {
        assert!(Instant::now() < until, "{} has {text}", file.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A client that keeps its session at the broker.
fn lasting_client(broker: SocketAddr, client_id: &str) -> RawClient {
    RawClient::connect(broker, lasting(ProtocolVersion::V5, client_id)).0
}

/// Repeated messages without DUP. If the gateway may forget one message of each sender, the first of each is left out.
fn unmarked(report: &Report, gateway_forgets_one: bool) -> Vec<(Sender, Vec<u8>)> {
    let mut forgotten = HashSet::new();
    let is_fault = |(sender, _): &&(Sender, Vec<u8>)| {
        !gateway_forgets_one || matches!(sender, Sender::Client(_)) || !forgotten.insert(*sender)
    };
    report.unmarked.iter().filter(is_fault).cloned().collect()
}

fn run(what: &str, mut stand: impl Stand) {
    let seed = seed("TENBIN_TEST_SEED");
    let _ = writeln!(std::io::stderr(), "{what}: TENBIN_TEST_SEED={seed}");
    let gateway = stand.gateway();

    // State that must survive: a backend's session, a client's topic id, and a sleeper with its messages.
    let mut backend = lasting_client(stand.broker(), "backend");
    backend.subscribe("up/+", QoS::ExactlyOnce);
    backend.disconnect();
    let mut registered = Sensor::connect(gateway, "registered", 0, 600);
    let old_id = registered.register("old/topic");
    let mut sleeper = Sensor::connect(gateway, "sleeper", 0, 600);
    let sleepers_id = sleeper.subscribe("sleep/deep", QOS_2);
    wait_for_text(&stand.topic_ids(), "old/topic");
    wait_for_text(&stand.topic_ids(), "sleep/deep");
    sleeper.sleep(600);
    let mut expected: Vec<String> = (0..ASLEEP).map(|number| number.to_string()).collect();
    let mut publisher = mqtt_client(stand.broker(), "for-the-sleeper");
    for (payload, qos) in expected.iter().zip([QoS::AtLeastOnce, QoS::ExactlyOnce].into_iter().cycle()) {
        publisher.publish("sleep/deep", payload, qos);
    }

    // The load: half of the messages for its clients are there when the gateway is killed.
    let acknowledged = Arc::new(AtomicUsize::new(0));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
    let relay = runtime.block_on(Relay::start(gateway, seed));
    let clients = runtime.block_on(LOAD.connect_all(relay.address));
    LOAD.publish(stand.broker(), 0..LOAD.each / 2);
    let counter = Arc::clone(&acknowledged);
    let exchanging = runtime.spawn(async move { LOAD.exchange_all(clients, &counter).await });
    while acknowledged.load(Relaxed) < KILL_AFTER {
        assert!(!exchanging.is_finished(), "the load runs");
        std::thread::sleep(Duration::from_millis(5));
    }
    stand.kill();
    let by_then = acknowledged.load(Relaxed);
    stand.restart();
    LOAD.publish(stand.broker(), LOAD.each / 2..LOAD.each);

    // The sleeper finds the gateway without its connection, and resumes its session.
    let mut publisher = mqtt_client(stand.broker(), "for-the-sleeper");
    publisher.publish("sleep/deep", "after the kill", QoS::AtLeastOnce);
    expected.push("after the kill".to_owned());
    sleeper.send(0x16, b"sleeper");
    assert_eq!(sleeper.receive(), [0x18], "DISCONNECT");
    assert_eq!(sleeper.try_connect("sleeper", 0, 600), 0);
    // REGISTER asks it first whether it is at its address.
    for (payload, questions) in expected.iter().zip(std::iter::once(1).chain(std::iter::repeat(0))) {
        let (message, registers) = sleeper.next_message_and_registers();
        assert_eq!((message.as_ref(), registers), (Some(payload), questions), "in order");
        assert_eq!(sleeper.last_topic, sleepers_id, "the old topic id");
    }

    // The other client publishes on its old topic id from a new socket, without REGISTER.
    let mut mirror = mqtt_client(stand.broker(), "mirror");
    mirror.subscribe("old/topic", QoS::AtLeastOnce);
    let mut registered = Sensor::connect(gateway, "registered", 0, 600);
    assert_eq!(registered.publish(old_id, QOS_1, "on the old id"), 0);
    assert_eq!(mirror.receive_message().payload, "on the old id");

    let exchanged = runtime.block_on(exchanging).expect("no panic");
    let copies_up = LOAD.receive_all(&mut lasting_client(stand.broker(), "backend"));
    let report = relay.report();
    let _ = writeln!(
        std::io::stderr(),
        "{what}: killed after {by_then} acknowledged messages; {} connections of {} clients; copies at QoS 1: \
         {copies_up} up, {} down",
        exchanged.connections,
        LOAD.clients,
        exchanged.copies
    );
    assert!(exchanged.connections >= 2 * LOAD.clients, "each client came back");
    assert_eq!(unmarked(&report, stand.forgets_sending()), [], "repeated without DUP");
}

#[test]
fn killed_broker_with_its_gateway_loses_nothing() {
    run("built in", BuiltIn::start());
}

#[test]
fn killed_gateway_loses_nothing() {
    run("separate", Separate::start());
}
