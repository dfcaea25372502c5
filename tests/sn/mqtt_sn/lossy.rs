//! 50 clients behind a network with 10 % loss, 5 % duplicates and reordering, through both gateways.
//!
//! The ordinary run sends 600 messages each way. The long form:
//!
//! ```text
//! TENBIN_TEST_LOSSY=10000 cargo test --workspace --test sn lossy -- --nocapture
//! ```
//!
//! `TENBIN_TEST_SEED` repeats the network's chances of a run.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use tenbin_codec::QoS;

use crate::mqtt_sn::exchange::{Load, mqtt_client};
use crate::mqtt_sn::relay::Relay;
use crate::mqtt_sn::{LISTENER, built_in, sn_address};
use crate::support::{BrokerProcess, GatewayProcess, seed};

const CLIENTS: usize = 50;

/// Messages each way.
fn messages() -> usize {
    std::env::var("TENBIN_TEST_LOSSY").map_or(600, |number| number.parse().expect("TENBIN_TEST_LOSSY is a number"))
}

/// Sends messages both ways through a gateway: clients behind the lossy network, and plain MQTT at the broker.
fn run(what: &str, broker: SocketAddr, gateway: SocketAddr) {
    let (load, seed) = (Load { clients: CLIENTS, each: messages().div_ceil(CLIENTS) }, seed("TENBIN_TEST_SEED"));
    let _ = writeln!(std::io::stderr(), "{what}: TENBIN_TEST_SEED={seed}");
    let (began, acknowledged) = (Instant::now(), Arc::default());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
    let relay = runtime.block_on(Relay::start(gateway, seed));
    let (exchanged, copies_up) = std::thread::scope(|scope| {
        let mut subscriber = mqtt_client(broker, "subscriber");
        subscriber.subscribe("up/+", QoS::ExactlyOnce);
        let received = scope.spawn(move || load.receive_all(&mut subscriber));
        let clients = runtime.block_on(load.connect_all(relay.address));
        scope.spawn(move || load.publish(broker, 0..load.each));
        let exchanged = runtime.block_on(load.exchange_all(clients, &acknowledged));
        (exchanged, received.join().expect("no panic"))
    });
    let report = relay.report();
    let mut line = format!("{what}: {} messages each way in {:.1?}; ", load.each * CLIENTS, began.elapsed());
    let _ = write!(line, "{} datagrams, {} lost, {} doubled; ", report.sent, report.lost, report.doubled);
    let _ = write!(line, "{} PUBLISH repeated, {} connections; ", report.repeated, exchanged.connections);
    let _ = write!(line, "copies at QoS 1: {copies_up} up, {} down", exchanged.copies);
    let _ = writeln!(std::io::stderr(), "{line}");
    assert_eq!(report.unmarked, [], "repeated without DUP");
    assert!(report.lost > 0 && report.doubled > 0 && report.repeated > 0, "{report:?}");
}

#[test]
fn lossy_network_before_the_built_in_gateway() {
    let file = built_in(([127, 0, 0, 1], 0).into());
    let broker = BrokerProcess::start_exactly(&["--config", file.path()]);
    run("built in", broker.address(), sn_address(&broker));
}

#[test]
fn lossy_network_before_a_separate_gateway() {
    let broker = BrokerProcess::start(&[]);
    let gateway = GatewayProcess::start(broker.address(), ([127, 0, 0, 1], 0).into(), LISTENER, &[]);
    run("separate", broker.address(), gateway.address);
}
