//! A member that reports draining gets no new messages, completes its messages in flight, and leaves the rest to
//! others.

use std::num::NonZeroU16;

use tenbin_codec::{Connect, Packet, PacketType, PingReq, ProtocolVersion, Publish, QoS};

use crate::load_reports::group::Carrier;
use crate::support::{BrokerProcess, RawClient, at_qos, share, text};

const DRAINS: &str = r#"{"msgsInQueue":0,"processingTimePerMsg":1,"draining":true}"#;
const GOES_ON: [&str; 2] =
    [r#"{"msgsInQueue":0,"processingTimePerMsg":1,"draining":false}"#, r#"{"msgsInQueue":0,"processingTimePerMsg":1}"#];

#[test]
fn draining_member_gets_no_new_messages_until_it_resumes() {
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
fn draining_member_keeps_begun_messages_and_gives_up_the_rest() {
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
        // The member completes its messages, and still gets messages of its non-shared subscription.
        begun.iter().for_each(|message| drains.acknowledge(message));
        assert_eq!(drains.receive_message().payload, "own");
        drains.expect_nothing_waiting();
        other.expect_nothing_waiting();
    }
}

#[test]
fn group_backlog_keeps_order_while_all_members_drain() {
    for goes_on in [true, false] {
        let broker = BrokerProcess::start(&[]);
        let mut workers = ["one", "two"].map(|id| worker(&broker, id, 1));
        let mut publisher = broker.v5("publisher");
        publish(&mut publisher, 4);
        let begun = workers.each_mut().map(RawClient::receive_publish);
        workers.iter_mut().for_each(|worker| report(worker, DRAINS));
        publish(&mut publisher, 5);
        for (worker, message) in workers.iter_mut().zip(&begun) {
            worker.acknowledge(message);
            worker.expect_nothing_waiting();
        }
        // One of them resumes, or a third member joins.
        let taken = if goes_on {
            report(&mut workers[0], GOES_ON[0]);
            take_all(&mut workers[0])
        } else {
            take_all(&mut worker(&broker, "three", 1))
        };
        // First the messages taken back from two queues, then those published while all members drained.
        let mut taken_back = taken[..2].to_vec();
        taken_back.sort();
        assert_eq!((&taken_back[..], taken[2..].concat().as_str()), (&["2".to_owned(), "3".to_owned()][..], "01234"));
        workers[1].expect_nothing_waiting();
    }
}

#[test]
fn qos_0_goes_to_a_draining_member_if_there_is_no_other() {
    let broker = BrokerProcess::start(&[]);
    let mut alone = worker(&broker, "alone", 1);
    report(&mut alone, DRAINS);
    broker.v5("publisher").publish("work", "x", QoS::AtMostOnce);
    assert_eq!(alone.receive_message().payload, "x");
}

#[test]
fn a_new_connection_does_not_drain() {
    let broker = BrokerProcess::start(&["--policy", "round_robin"]);
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
fn every_carrier_reports_draining() {
    let mut group = crate::load_reports::group::Group::new();
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
    // The choice among equal members is random: eight messages may all go to one.
    assert!((0..16).any(|_| group.choices().contains(&0)), "a rejected report drains no member");
}

/// A member with this Receive Maximum.
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

/// Receives the seven queued messages, and no more.
fn take_all(worker: &mut RawClient) -> Vec<String> {
    let taken = (0..7).map(|_| String::from_utf8_lossy(&worker.receive_message().payload).into_owned()).collect();
    worker.expect_nothing_waiting();
    taken
}

const POLICIES: [&str; 3] = ["thesis_score", "round_robin", "random"];
