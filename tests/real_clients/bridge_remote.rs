//! Mosquitto as the remote broker of a bridge.

use std::process::Command;

use super::bridge::Mosquitto;
use super::is_installed;
use crate::support::{BrokerProcess, ConfigFile, PATIENCE, QOS_ALL, retained};
use tenbin_codec::QoS;

/// A broker with a bridge of this version to Mosquitto, once both have their subscriptions.
fn bridged(mosquitto: &Mosquitto, version: &str) -> (BrokerProcess, ConfigFile) {
    let topics = [("out", "out/#"), ("in", "in/#"), ("both", "both/#")]
        .map(|(way, filter)| format!("[[bridge.topics]]\ndirection = \"{way}\"\nfilter = \"{filter}\"\n"));
    let config = ConfigFile::new(&format!(
        "[[bridge]]\nname = \"edge\"\nremote = \"mqtt://{}\"\nmqtt = \"{version}\"\n{}",
        mosquitto.address,
        topics.concat()
    ));
    let broker = BrokerProcess::start(&["--config", config.path()]);
    broker.log().wait_for(&["bridge connected"], PATIENCE);
    (broker, config)
}

fn passes_messages_both_ways(version: &str) {
    if !is_installed("mosquitto", Command::new("mosquitto").arg("-h"), &[0, 1, 3]) {
        return;
    }
    let mosquitto = Mosquitto::start_with("max_inflight_messages 5\n");
    mosquitto.client("waits until it listens").disconnect();
    let (broker, _config) = bridged(&mosquitto, version);
    let (mut edge, mut hub) = (broker.v5("edge client"), mosquitto.client("hub client"));
    ["in/#", "both/#"].iter().for_each(|filter| edge.subscribe(filter, QoS::ExactlyOnce));
    ["out/#", "both/#"].iter().for_each(|filter| hub.subscribe(filter, QoS::ExactlyOnce));
    let state = "$SYS/broker/connection/edge/state";
    let mut watcher = mosquitto.client("watcher");
    watcher.subscribe(state, QoS::AtLeastOnce);
    assert_eq!(watcher.receive_message().payload, "1", "{version}");

    for qos in QOS_ALL {
        for number in 0..50 {
            edge.publish("out/a", &number.to_string(), qos);
            assert_eq!(hub.receive_message().payload, number.to_string(), "{version}, QoS {qos}");
            hub.publish("in/a", &number.to_string(), qos);
            assert_eq!(edge.receive_message().payload, number.to_string(), "{version}, QoS {qos}");
        }
    }
    // A message to both sides comes once to each, and keeps its flag for late subscribers.
    for (client, payload) in [(&mut edge, "from the edge"), (&mut hub, "from the hub")] {
        client.publish_with(retained(&format!("both/{}", payload.len()), payload));
    }
    for client in [&mut edge, &mut hub] {
        let mut found: Vec<_> = (0..2).map(|_| client.receive_message().payload).collect();
        found.sort();
        assert_eq!(found, ["from the edge", "from the hub"], "{version}");
    }
    edge.publish("both/last", "the last", QoS::ExactlyOnce);
    for client in [&mut edge, &mut hub] {
        assert_eq!(client.receive_message().payload, "the last", "no message comes again: {version}");
    }
    for client in &mut [mosquitto.client("late"), broker.v5("late")] {
        client.subscribe("both/#", QoS::AtLeastOnce);
        let mut found: Vec<_> =
            (0..2).map(|_| client.receive_message()).map(|found| (found.payload, found.retain)).collect();
        found.sort();
        assert_eq!(found, [("from the edge".into(), true), ("from the hub".into(), true)], "{version}");
    }
    drop(broker);
    assert_eq!(watcher.receive_message().payload, "0", "by the Will: {version}");
}

#[test]
fn mosquitto_takes_a_bridge_of_mqtt_5() {
    passes_messages_both_ways("5.0");
}

#[test]
fn mosquitto_takes_a_bridge_of_mqtt_3_1_1() {
    passes_messages_both_ways("3.1.1");
}
