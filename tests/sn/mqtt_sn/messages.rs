use std::time::Duration;

use tenbin_codec::QoS;

use crate::mqtt_sn::sensor::{CLEAN, QOS_1, QOS_2, RETAIN, Sensor, WILL};
use crate::mqtt_sn::{broker, sn_address};
use crate::support::{BrokerProcess, ConfigFile, share};

#[test]
fn messages_pass_at_every_qos_in_both_directions() {
    let (broker, gateway) = broker();
    let mut backend = broker.v5("backend");
    backend.subscribe("up/#", QoS::ExactlyOnce);
    let mut sensor = Sensor::connect(gateway, "sensor", CLEAN, 60);
    sensor.subscribe("down/+", QOS_2);
    let up = sensor.register("up/1");
    for (number, flags) in [0, QOS_1, QOS_2].into_iter().enumerate() {
        assert_eq!(sensor.publish(up, flags, &format!("up {number}")), 0);
        let message = backend.receive_message();
        assert_eq!((&*message.payload, usize::from(message.qos as u8)), (format!("up {number}").as_bytes(), number));
    }
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let payload = format!("down {}", qos as u8);
        backend.publish("down/1", &payload, qos);
        assert_eq!(sensor.next_message(), Some(payload));
    }
}

#[test]
fn retained_message_reaches_a_new_subscriber() {
    let (broker, gateway) = broker();
    let mut sensor = Sensor::connect(gateway, "sensor", CLEAN, 60);
    let topic = sensor.register("state/1");
    assert_eq!(sensor.publish(topic, QOS_1 | RETAIN, "on"), 0);
    let mut backend = broker.v5("backend");
    backend.subscribe("state/#", QoS::AtMostOnce);
    let message = backend.receive_message();
    assert!(message.retain && message.payload == "on");
    let mut other = Sensor::connect(gateway, "other", CLEAN, 60);
    other.subscribe("state/1", QOS_1);
    assert_eq!(other.next_message().as_deref(), Some("on"));
}

#[test]
fn sleeper_gets_its_messages_at_each_wake() {
    let (broker, gateway) = broker();
    let mut backend = broker.v5("backend");
    let mut sensor = Sensor::connect(gateway, "sleeper", CLEAN, 60);
    sensor.subscribe("down/1", QOS_2);
    for round in 0..3 {
        sensor.sleep(600);
        let expected: Vec<_> = (0..6).map(|number| format!("{round}-{number}")).collect();
        for (payload, qos) in expected.iter().zip([QoS::AtLeastOnce, QoS::ExactlyOnce].into_iter().cycle()) {
            backend.publish("down/1", payload, qos);
        }
        assert_eq!(sensor.wake("sleeper"), expected);
    }
    assert_eq!(sensor.wake("sleeper"), Vec::<String>::new());
}

#[test]
fn silent_client_is_lost_and_its_will_published() {
    let (broker, gateway) = broker();
    let mut backend = broker.v5("backend");
    backend.subscribe("gone", QoS::AtMostOnce);
    drop(Sensor::connect(gateway, "silent", CLEAN | WILL, 1));
    assert_eq!(backend.receive_message().payload, "silent");
}

#[test]
fn stopping_broker_says_goodbye() {
    let (mut broker, gateway) = broker();
    let mut sensor = Sensor::connect(gateway, "sensor", CLEAN, 60);
    broker.signal("TERM");
    assert_eq!(sensor.receive(), [0x18], "DISCONNECT");
    assert!(broker.wait_for_exit(Duration::from_secs(60)).success());
}

#[test]
fn share_group_has_members_of_both_protocols() {
    let (broker, gateway) = broker();
    let group = share("workers", "jobs/+");
    let mut sensor = Sensor::connect(gateway, "sensor", CLEAN, 4);
    sensor.subscribe(&group, QOS_1);
    let mut publisher = broker.v5("publisher");
    publisher.publish("jobs/1", "alone", QoS::AtLeastOnce);
    assert_eq!(sensor.next_message().as_deref(), Some("alone"));
    let mut worker = broker.v5("worker");
    worker.subscribe(&group, QoS::AtLeastOnce);
    // The lost sensor acknowledges nothing more: each message reaches the worker in the end.
    drop(sensor);
    for number in 0..20 {
        publisher.publish("jobs/2", &number.to_string(), QoS::AtLeastOnce);
    }
    let mut received: Vec<u32> = (0..20)
        .map(|_| {
            let message = worker.receive_publish();
            worker.acknowledge(&message);
            std::str::from_utf8(&message.payload).expect("text").parse().expect("a number")
        })
        .collect();
    received.sort_unstable();
    assert_eq!(received, (0..20).collect::<Vec<_>>());
}

#[test]
fn sleeping_member_leaves_its_messages_to_others() {
    let file = ConfigFile::new("policy = \"round_robin\"\n");
    let broker = BrokerProcess::start(&["--config", file.path(), "--sn", "127.0.0.1:0"]);
    let group = share("workers", "jobs/+");
    let mut sensor = Sensor::connect(sn_address(&broker), "sensor", CLEAN, 60);
    sensor.subscribe(&group, QOS_1);
    let mut worker = broker.v5("worker");
    worker.subscribe(&group, QoS::AtLeastOnce);
    sensor.sleep(600);
    let mut publisher = broker.v5("publisher");
    for number in 0..20 {
        publisher.publish("jobs/1", &number.to_string(), QoS::AtLeastOnce);
    }
    // A message that was on its way to the sensor stays with it.
    let mut received: Vec<String> = Vec::new();
    while received.len() < 19 {
        let message = worker.receive_publish();
        worker.acknowledge(&message);
        received.push(String::from_utf8(message.payload.to_vec()).expect("text"));
    }
    received.extend(sensor.wake("sensor"));
    received.extend(worker.drain_payloads());
    let mut numbers: Vec<u32> = received.iter().map(|payload| payload.parse().expect("a number")).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..20).collect::<Vec<_>>());
}
