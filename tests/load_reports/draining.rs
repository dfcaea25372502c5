//! A member that says it drains gets no new messages, ends what it has begun, and leaves the rest to others.

use std::num::NonZeroU16;

use tenbin_codec::{Connect, Packet, PacketType, PingReq, ProtocolVersion, Publish, QoS};

use crate::group::Carrier;
use crate::support::{BrokerProcess, RawClient, at_qos, share, text};

const DRAINS: &str = r#"{"msgsInQueue":0,"processingTimePerMsg":1,"draining":true}"#;
const GOES_ON: [&str; 2] =
    [r#"{"msgsInQueue":0,"processingTimePerMsg":1,"draining":false}"#, r#"{"msgsInQueue":0,"processingTimePerMsg":1}"#];

#[test]
fn it_gets_nothing_new_until_it_goes_on() {
    for policy in POLICIES {
        let broker = BrokerProcess::start(&["--policy", policy]);
        let mut drains = worker(&broker, "drains", 100);
        let mut other = worker(&broker, "other", 100);
        let mut publisher = broker.v5("publisher");
        for goes_on in GOES_ON {
            report(&mut drains, DRAINS);
            publish(&mut publisher, 20);
            assert_eq!((drains.drain().len(), other.drain().len()), (0, 20), "{policy}");
            report(&mut drains, goes_on);
            publish(&mut publisher, 20);
            assert!(!drains.drain().is_empty(), "{policy}");
            other.drain();
        }
    }
}

#[test]
fn what_it_has_begun_stays_with_it_and_what_waits_goes_to_others_in_order() {
    for (policy, qos) in [("round_robin", QoS::AtLeastOnce), ("thesis_score", QoS::ExactlyOnce)] {
        let broker = BrokerProcess::start(&["--policy", policy]);
        let mut drains = worker(&broker, "drains", 2);
        drains.subscribe("own", QoS::AtLeastOnce);
        let mut publisher = broker.v5("publisher");
        for number in 0..10 {
            publisher.publish("work", &number.to_string(), qos);
        }
        publisher.publish("own", "own", qos);
        let begun = [drains.receive_publish(), drains.receive_publish()];
        let mut other = worker(&broker, "other", 100);
        report(&mut drains, DRAINS);
        assert_eq!(other.drain_payloads(), (2..10).map(|number| number.to_string()).collect::<Vec<_>>());
        // Its own connection, its own quota: what it has it ends, and gets what is meant for it alone.
        begun.iter().for_each(|message| drains.acknowledge(message));
        assert_eq!(drains.receive_message().payload, "own");
        drains.expect_nothing_waiting();
        other.expect_nothing_waiting();
    }
}

#[test]
fn one_that_is_alone_is_given_everything_all_the_same() {
    let broker = BrokerProcess::start(&[]);
    let mut alone = worker(&broker, "alone", 1);
    let mut publisher = broker.v5("publisher");
    publish(&mut publisher, 5);
    (0..3).for_each(|_| report(&mut alone, DRAINS));
    publish(&mut publisher, 5);
    let payloads = (0..10).map(|_| String::from_utf8_lossy(&alone.receive_message().payload).into_owned());
    assert_eq!(payloads.collect::<Vec<_>>().concat(), "0123401234");
}

#[test]
fn a_new_connection_does_not_drain() {
    let broker = BrokerProcess::start(&[]);
    let mut drains = worker(&broker, "drains", 100);
    let mut other = worker(&broker, "other", 100);
    report(&mut drains, DRAINS);
    drains.disconnect();
    let mut back = worker(&broker, "drains", 100);
    let mut publisher = broker.v5("publisher");
    publish(&mut publisher, 20);
    assert_eq!((back.drain().len(), other.drain().len()), (10, 10));
}

#[test]
fn every_carrier_brings_it() {
    let mut group = crate::group::Group::new();
    for carrier in Carrier::ALL {
        group.report(0, carrier, DRAINS.as_bytes());
        group.assert_all_go_to(1, &format!("{carrier:?}"));
        group.report(0, carrier, GOES_ON[1].as_bytes());
        group.report(1, carrier, DRAINS.as_bytes());
        group.assert_all_go_to(0, &format!("{carrier:?}"));
        group.report(1, carrier, GOES_ON[0].as_bytes());
    }
    for no_report in [r#""yes""#, "1", "null"] {
        let json = DRAINS.replace("true", no_report);
        group.report(0, Carrier::PingReq, json.as_bytes());
    }
    group.assert_rejections(3);
    assert!(group.choices().contains(&0), "what is no report drains nobody");
}

/// A member that takes so many messages at a time.
fn worker(broker: &BrokerProcess, id: &str, receive_maximum: u16) -> RawClient {
    let mut connect = Connect::new(ProtocolVersion::V5, text(id));
    connect.properties.receive_maximum = NonZeroU16::new(receive_maximum);
    let mut worker = broker.connect(connect);
    worker.subscribe(&share("workers", "work"), QoS::ExactlyOnce);
    worker
}

fn report(worker: &mut RawClient, json: &str) {
    worker.send(&Packet::PingReq(PingReq::with_payload(json.to_owned().into())));
    worker.wait_for(PacketType::PingResp);
}

fn publish(publisher: &mut RawClient, messages: u32) {
    for number in 0..messages {
        let message: Publish = at_qos("work", &number.to_string(), QoS::AtLeastOnce);
        publisher.publish_with(message);
    }
}

const POLICIES: [&str; 3] = ["thesis_score", "round_robin", "random"];
