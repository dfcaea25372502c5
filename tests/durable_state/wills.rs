use std::time::{Duration, Instant};

use bytes::Bytes;
use tenbin_codec::{Connect, ProtocolVersion, QoS, Will};

use super::support::{BrokerProcess, RawClient, lasting, retained, text, topic};
use super::{Stage, expiring};

#[test]
fn mqtt_3_1_2_8_a_kill_ends_connections_whose_wills_are_published_after_it() {
    let stage = Stage::new();
    let broker = stage.start();
    let mut first_heir = heir(&broker);
    first_heir.subscribe("wills/#", QoS::AtLeastOnce);
    let lost = broker.connect(with_will("lost", None, Connect::new(ProtocolVersion::V5, text("lost"))));
    let lasting_one = broker.connect(with_will("lasting", None, lasting(ProtocolVersion::V311, "lasting")));
    let left = broker.connect(with_will("left", None, lasting(ProtocolVersion::V5, "left")));
    left.disconnect();
    let mut replaced = broker.connect(with_will("replaced", None, lasting(ProtocolVersion::V5, "replaced")));
    replaced.settle();
    // The next connection of the same session ends this one, whose Will is published now and not again.
    let without = broker.connect(lasting(ProtocolVersion::V5, "replaced"));
    assert_eq!(first_heir.receive_message().payload, "replaced");
    drop((first_heir, broker));
    drop((lost, lasting_one, without));
    let broker = stage.start();
    assert_eq!(payloads(&mut heir(&broker)), ["lasting", "lost"]);
    broker.v5("afterwards").publish_with(retained("written", "1")); // and so is that they are gone
    drop(broker);
    let broker = stage.start();
    assert_eq!(payloads(&mut heir(&broker)), [""; 0], "once");
}

#[test]
fn mqtt_3_1_3_9_a_delay_begins_with_the_restart_unless_it_had_begun_before() {
    let stage = Stage::new();
    let broker = stage.start();
    heir(&broker).subscribe("wills/#", QoS::AtLeastOnce);
    broker.connect(with_will("waits", Some(2), expiring("waits", 600))).cut();
    broker.connect(with_will("is back", Some(2), expiring("is back", 600))).cut();
    let connected = broker.connect(with_will("connected", Some(2), expiring("connected", 600)));
    let ends = broker.connect(with_will("session ends", Some(600), expiring("session ends", 0)));
    broker.v5("afterwards").publish_with(retained("written", "1"));
    drop(broker);
    drop((connected, ends));
    let broker = stage.start();
    let restarted = Instant::now();
    broker.connect(expiring("is back", 600)).settle();
    let mut heir = heir(&broker);
    assert_eq!(heir.receive_message().payload, "session ends", "with the connection");
    assert_eq!(heir.receive_message().payload, "waits");
    assert_eq!(heir.receive_message().payload, "connected");
    assert!(restarted.elapsed() > Duration::from_millis(1500), "{:?}", restarted.elapsed());
    heir.expect_nothing_waiting();
    drop((heir, broker));
    stage.start().assert_serves();
}

fn heir(broker: &BrokerProcess) -> RawClient {
    broker.connect(lasting(ProtocolVersion::V5, "heir"))
}

fn payloads(heir: &mut RawClient) -> Vec<String> {
    let mut payloads = heir.drain_payloads();
    payloads.sort();
    payloads
}

fn with_will(payload: &'static str, delay_interval: Option<u32>, connect: Connect) -> Connect {
    let will = Will {
        qos: QoS::AtLeastOnce,
        retain: false,
        topic: topic(&format!("wills/{payload}")),
        payload: Bytes::from_static(payload.as_bytes()),
        delay_interval,
        properties: None,
    };
    Connect { will: Some(will), ..connect }
}
