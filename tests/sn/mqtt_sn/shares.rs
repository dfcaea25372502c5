//! Share groups with members of MQTT-SN beside those of MQTT.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::Value;
use tenbin_codec::QoS;

use crate::mqtt_sn::sensor::{CLEAN, QOS_1, Sensor};
use crate::mqtt_sn::{LISTENER, built_in, built_in_with, sn_address};
use crate::support::{BrokerProcess, ConfigFile, GatewayProcess, PATIENCE, RawClient, share};

const JOBS: &str = "jobs/pump";
/// Messages that others acknowledge while the slow member works on one.
const SLOWNESS: usize = 8;

/// The broker's own gateway, and a separate one, which soon repeat messages.
pub(crate) fn stands() -> Vec<(BrokerProcess, Option<GatewayProcess>)> {
    stands_with(LISTENER)
}

/// As [`stands`], with these keys of the gateways.
fn stands_with(listener: &str) -> Vec<(BrokerProcess, Option<GatewayProcess>)> {
    let file = built_in_with(([127, 0, 0, 1], 0).into(), listener);
    let built_in = BrokerProcess::start_exactly(&["--config", file.path()]);
    let file = ConfigFile::new("");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let gateway = GatewayProcess::start(broker.address(), ([127, 0, 0, 1], 0).into(), listener, &[]);
    vec![(built_in, None), (broker, Some(gateway))]
}

pub(crate) fn address(broker: &BrokerProcess, gateway: Option<&GatewayProcess>) -> std::net::SocketAddr {
    gateway.map_or_else(|| sn_address(broker), |gateway| gateway.address)
}

fn member(gateway: std::net::SocketAddr, client_id: &str) -> Sensor {
    let mut member = Sensor::connect(gateway, client_id, CLEAN, 600);
    member.subscribe(&share("pumps", JOBS), QOS_1);
    member
}

fn mqtt_member(broker: &BrokerProcess, client_id: &str) -> RawClient {
    let mut member = broker.v5(client_id);
    member.subscribe(&share("pumps", JOBS), QoS::AtLeastOnce);
    member
}

/// Takes the next message, if one is there. Acknowledges it at once, or returns its PUBACK.
fn take(sensor: &mut Sensor, is_slow: bool) -> Option<(String, Option<Vec<u8>>)> {
    loop {
        let datagram = sensor.try_receive()?;
        match datagram[0] {
            0x0A => sensor.send(0x0B, &[&datagram[1..5], &[0]].concat()),
            0x16 => sensor.send(0x17, b""),
            0x0C => {
                let puback = [&datagram[2..6], &[0]].concat();
                let payload = String::from_utf8(datagram[6..].to_vec()).expect("text");
                if is_slow {
                    return Some((payload, Some(puback)));
                }
                sensor.send(0x0D, &puback);
                return Some((payload, None));
            }
            other => panic!("{other:#x}: {datagram:?}"),
        }
    }
}

/// The group's report of its members that `wanted` accepts.
fn members(reader: &mut RawClient, wanted: impl Fn(&Value) -> bool) -> Value {
    let until = Instant::now() + PATIENCE;
    loop {
        let publish = reader.receive_message();
        if publish.topic.text().as_str().ends_with("/members") {
            let value = serde_json::from_slice(&publish.payload).expect("JSON");
            if wanted(&value) {
                return value;
            }
            assert!(Instant::now() < until, "{value}");
        }
    }
}

fn state_of(report: &Value, client_id: &str) -> String {
    let of = |member: &&Value| member["client"] == client_id;
    let member = report["members"].as_array().into_iter().flatten().find(of);
    member.and_then(|member| member["state"].as_str()).unwrap_or_default().to_owned()
}

#[test]
fn shares_follow_the_speed_of_members() {
    const MESSAGES: usize = 120;
    // Nothing is repeated while the slow member works.
    for (broker, gateway) in stands_with("retry_seconds = 60\n") {
        let at = address(&broker, gateway.as_ref());
        let (mut fast, mut slow) = (member(at, "fast"), member(at, "slow"));
        let mut mqtt = mqtt_member(&broker, "mqtt");
        let mut publisher = broker.v5("publisher");
        let mut published = 0;
        let mut counts = BTreeMap::from([("fast", 0), ("slow", 0), ("mqtt", 0)]);
        let mut received = std::collections::BTreeSet::new();
        // The slow member's PUBACK, and the number of others' messages before it.
        let mut work: Option<(Vec<u8>, usize)> = None;
        let until = Instant::now() + PATIENCE;
        while received.len() < MESSAGES {
            assert!(Instant::now() < until, "{counts:?}");
            // One for each member: a member of MQTT would take all that there are.
            if published < MESSAGES && published - received.len() < 3 {
                publisher.publish(JOBS, &published.to_string(), QoS::AtLeastOnce);
                published += 1;
            }
            if let Some((payload, _)) = take(&mut fast, false) {
                *counts.entry("fast").or_default() += 1;
                received.insert(payload);
            }
            if let Ok(packet) = mqtt.try_receive(std::time::Duration::from_millis(1)) {
                let tenbin_codec::Packet::Publish(publish) = packet else { panic!("{packet:?}") };
                mqtt.acknowledge(&publish);
                *counts.entry("mqtt").or_default() += 1;
                received.insert(String::from_utf8(publish.payload.to_vec()).expect("text"));
            }
            let others = counts["fast"] + counts["mqtt"];
            if work.is_none()
                && let Some((payload, Some(puback))) = take(&mut slow, true)
            {
                *counts.entry("slow").or_default() += 1;
                received.insert(payload);
                work = Some((puback, others + SLOWNESS));
            }
            if work.as_ref().is_some_and(|(_, end)| others >= *end)
                && let Some((puback, _)) = work.take()
            {
                slow.send(0x0D, &puback);
            }
        }
        // How the two quick ones divide the rest depends on the machine.
        assert!(counts["fast"] > counts["slow"] && counts["mqtt"] > counts["slow"], "{counts:?}");
        assert!(counts["slow"] > 0, "{counts:?}");
    }
}

#[test]
fn reports_name_sensors_and_know_that_they_sleep() {
    let file = built_in(([127, 0, 0, 1], 0).into());
    let broker = BrokerProcess::start_exactly(&["--config", file.path()]);
    let at = sn_address(&broker);
    let mut reader = broker.v5("reader");
    reader.subscribe("$SYS/share/pumps/+/+", QoS::AtMostOnce);
    let mut sleeper = member(at, "sleeper");
    let mut mqtt = mqtt_member(&broker, "mqtt");
    members(&mut reader, |report| state_of(report, "sleeper") == "ready" && state_of(report, "mqtt") == "ready");

    sleeper.sleep(6000);
    let report = members(&mut reader, |report| state_of(report, "sleeper") != "ready");
    assert_eq!(state_of(&report, "sleeper"), "draining", "{report}");
    let mut publisher = broker.v5("publisher");
    for number in 0..20 {
        publisher.publish(JOBS, &number.to_string(), QoS::AtLeastOnce);
    }
    let came: Vec<_> = (0..20).map(|_| mqtt.receive_message().payload).collect();
    assert_eq!(came.len(), 20, "none waits for the sleeper");
    assert_eq!(sleeper.wake("sleeper"), [] as [&str; 0]);

    // Back for good, it takes its part again.
    assert_eq!(sleeper.try_connect("sleeper", 0, 600), 0);
    members(&mut reader, |report| state_of(report, "sleeper") == "ready");
    // By `$load` a sensor tells itself that it takes no more.
    let load = sleeper.register("$load");
    let drains = r#"{"msgsInQueue":0,"processingTimePerMsg":1,"draining":true}"#;
    assert_eq!(sleeper.publish(load, QOS_1, drains), 0);
    members(&mut reader, |report| state_of(report, "sleeper") == "draining");
}

/// A member that is lost while it has a message.
#[test]
fn messages_of_a_lost_member_reach_others() {
    for (broker, gateway) in stands() {
        let at = address(&broker, gateway.as_ref());
        let mut lost = member(at, "lost");
        let mut publisher = broker.v5("publisher");
        publisher.publish(JOBS, "first", QoS::AtLeastOnce);
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some((payload, Some(_))) = take(&mut lost, true) {
                assert_eq!(payload, "first");
                break;
            }
            assert!(Instant::now() < until, "it has the message");
        }
        // From here on it answers nothing, and the gateway's repetitions end.
        let mut other = mqtt_member(&broker, "other");
        assert_eq!(other.receive_message().payload, "first");
    }
}
