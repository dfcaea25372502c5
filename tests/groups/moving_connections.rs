//! Migration of connections between worker threads, which clients must not notice.

use std::time::Duration;

use crate::support::{PATIENCE, RawClient, lasting};
use tenbin_broker::{Broker, Config};
use tenbin_codec::{ProtocolVersion, QoS};
use tenbin_loadgen::run::{Audience, Plan, Publishers, Schedule, Verdict, run_plan};
use tokio::runtime::Runtime;

/// A broker that migrates its connections all the time.
struct Restless {
    broker: Broker,
    runtime: Runtime,
}

impl Restless {
    fn start() -> Self {
        let config = Config { listen: vec![([127, 0, 0, 1], 0).into()], ..Config::default() };
        let runtime = Runtime::new().expect("threads");
        let broker = Broker::builder().config(config).threads(3).restless();
        let broker = runtime.block_on(broker.start()).expect("a free port");
        Self { broker, runtime }
    }

    fn plan(&self, qos: u8, audiences: Vec<Audience>) -> Plan {
        let publishers = Publishers {
            payload: 100,
            messages: Some(5_000),
            in_flight: 20,
            qos,
            ..Publishers::new(4, "moving/{publisher}")
        };
        let port = self.broker.addresses()[0].port();
        let brokers = vec![tenbin_loadgen::run::Broker::new("ours", "127.0.0.1", port)];
        Plan {
            // Only failing tests last so long.
            schedule: Schedule { subscriber_timeout: PATIENCE, ..Schedule::default() },
            ..Plan::new(78, brokers, publishers, audiences)
        }
    }

    fn connect(&self, client_id: &str) -> RawClient {
        RawClient::connect(self.broker.addresses()[0], lasting(ProtocolVersion::V5, client_id)).0
    }

    fn moves(&self) -> u64 {
        self.broker.metrics().connections_moved
    }
}

fn audience(name: &str, clients: u32, filter: &str, qos: u8) -> Audience {
    Audience { qos, ..Audience::new(name, clients, filter) }
}

#[test]
fn migration_loses_doubles_and_reorders_no_message() {
    let restless = Restless::start();
    for qos in 0..=2 {
        let before = restless.moves();
        let audiences = vec![audience("all", 2, "moving/#", qos), audience("one", 1, "moving/0", qos)];
        let outcome = run_plan(&restless.plan(qos, audiences)).unwrap_or_else(|error| panic!("{error}"));
        let expected = 2 * 20_000 + 5_000;
        let flawless = Verdict { expected, received: expected, exact: true, ..Verdict::default() };
        assert_eq!(outcome.verdict, flawless, "{:?}", outcome.notes);
        let moves = restless.moves() - before;
        assert!(moves >= 5, "QoS {qos}: there were only {moves} moves");
    }
}

#[test]
fn idle_connection_migrates_on_wakeup_and_still_ends() {
    let restless = Restless::start();
    let (mut publisher, mut subscriber) = (restless.connect("publisher"), restless.connect("subscriber"));
    subscriber.subscribe("moving", QoS::ExactlyOnce);
    let before = restless.moves();
    for number in 0..100 {
        std::thread::sleep(Duration::from_millis(5));
        publisher.publish("moving", &number.to_string(), QoS::ExactlyOnce);
        let message = subscriber.receive_message();
        assert_eq!(message.payload, number.to_string());
    }
    assert!(restless.moves() - before >= 20, "{} moves", restless.moves() - before);
    assert_eq!(restless.broker.connections(), 2);
    publisher.disconnect();
    subscriber.cut();
    let patience = std::time::Instant::now() + PATIENCE;
    while restless.broker.connections() > 0 {
        assert!(std::time::Instant::now() < patience, "a connection that has moved does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn shutdown_disconnects_migrated_connections() {
    let restless = Restless::start();
    let mut clients: Vec<_> = (0..5).map(|number| restless.connect(&format!("client {number}"))).collect();
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(3));
        clients.iter_mut().for_each(RawClient::settle);
    }
    assert!(restless.moves() > 0);
    restless.runtime.block_on(restless.broker.shutdown());
    clients.iter_mut().for_each(|client| client.expect_end(tenbin_codec::ReasonCode::ServerShuttingDown));
}
