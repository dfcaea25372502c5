//! Work stealing: a share group's messages for a member that accepts no more go to others, though it stays connected.
//! No message is lost or doubled.

use std::collections::BTreeSet;
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use crate::support::{BrokerProcess, ConfigFile, PATIENCE, RawClient, at_qos, share, text};
use bytes::Bytes;
use tenbin_codec::{Connect, Packet, ProtocolVersion, Publish, QoS, ReasonCode};

#[test]
fn messages_of_a_member_without_acks_go_to_another() {
    for (policy, qos) in [
        ("round_robin", QoS::AtLeastOnce),
        ("round_robin", QoS::ExactlyOnce),
        ("thesis_score", QoS::AtLeastOnce),
        ("adaptive", QoS::AtLeastOnce),
    ] {
        let broker = BrokerProcess::start(&["--policy", policy]);
        let mut stuck = worker(&broker, "stuck", 1);
        let mut other = worker(&broker, "other", 100);
        let mut publisher = broker.v5("publisher");
        for number in 0..40 {
            assert_eq!(publisher.publish("work", &number.to_string(), qos), ReasonCode::Success);
        }
        let begun = stuck.receive_publish();
        let mut seen = BTreeSet::from([payload(&begun)]);
        while seen.len() < 40 {
            assert!(seen.insert(payload(&other.receive_message())), "{policy} {qos}: twice");
        }
        // It is still a member.
        stuck.acknowledge(&begun);
        stuck.expect_nothing_waiting();
        other.expect_nothing_waiting();
        other.disconnect();
        publisher.publish("work", "new", qos);
        assert_eq!(payload(&stuck.receive_message()), "new");
    }
}

#[test]
fn messages_of_a_member_that_does_not_read_go_to_another() {
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
        let file = ConfigFile::new("[sys]\ninterval_seconds = 1");
        let broker = BrokerProcess::start(&["--policy", "round_robin", "--config", file.path()]);
        let mut stuck = worker(&broker, "stuck", u16::MAX);
        let mut other = worker(&broker, "other", u16::MAX);
        let mut publisher = broker.v5("publisher");
        let mut seen = BTreeSet::new();
        let mut from_stuck = 0;
        let (mut newest, mut out_of_order) = (0, 0);
        let mut arrive_at_other = |number: u32| {
            out_of_order += usize::from(number < newest);
            newest = newest.max(number);
            number
        };
        for number in 0..MESSAGES {
            publisher.publish_with(large(number, qos));
            // The other one keeps up: every second message is its own.
            if number % 2 == 1 {
                assert!(seen.insert(arrive_at_other(number_of(&other.receive_message()))));
            }
        }
        // Then it also gets messages of the member that does not read.
        while from_stuck <= MESSAGES / 10 {
            assert!(seen.insert(arrive_at_other(number_of(&other.receive_message()))), "{qos}: twice");
            from_stuck += 1;
        }
        let begun = Instant::now();
        while seen.len() < MESSAGES as usize {
            assert!(begun.elapsed() < PATIENCE, "{qos}: {} of {MESSAGES}", seen.len());
            let at_other = other.drain().iter().map(|publish| arrive_at_other(number_of(publish))).collect::<Vec<_>>();
            for number in at_other.into_iter().chain(stuck.drain().iter().map(number_of)) {
                assert!(seen.insert(number), "{qos}: twice");
            }
        }
        stuck.expect_nothing_waiting();
        other.expect_nothing_waiting();
        // Without a key, no order holds for them; all others are in order.
        assert!(out_of_order > 0, "{qos}");
        wait_until_moved(&broker, out_of_order);
    }
}

#[test]
fn no_work_stealing_between_members_at_their_limits() {
    let broker = BrokerProcess::start(&["--policy", "round_robin"]);
    let mut workers = ["one", "two"].map(|id| worker(&broker, id, 1));
    let mut publisher = broker.v5("publisher");
    for number in 0..10 {
        publisher.publish("work", &number.to_string(), QoS::AtLeastOnce);
    }
    let begun = workers.each_mut().map(RawClient::receive_publish);
    assert_eq!(begun.each_ref().map(payload), ["0", "1"]);
    // Time for many checks, which must change nothing.
    std::thread::sleep(Duration::from_millis(1500));
    let [one, two] = &mut workers;
    one.acknowledge(&begun[0]);
    let own = [(); 4].map(|()| payload(&one.receive_message()));
    assert_eq!(own, ["2", "4", "6", "8"]);
    // Now it is idle and steals work: the newest messages first, since they would have waited longest.
    let helped = [(); 4].map(|()| payload(&one.receive_message()));
    assert_eq!(helped, ["9", "7", "5", "3"]);
    two.acknowledge(&begun[1]);
    workers.iter_mut().for_each(RawClient::expect_nothing_waiting);
}

#[test]
fn key_stays_with_its_member_until_that_leaves() {
    let file = ConfigFile::new("[[share]]\nkey = \"topic\"");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let mut stuck = worker(&broker, "stuck", 1);
    let mut publisher = broker.v5("publisher");
    let numbers = (0..10).map(|number| number.to_string()).collect::<Vec<_>>();
    numbers.iter().for_each(|number| assert!(!publisher.publish("work", number, QoS::AtLeastOnce).is_error()));
    assert_eq!(payload(&stuck.receive_publish()), "0");
    let mut other = worker(&broker, "other", 100);
    other.expect_nothing_for(Duration::from_millis(1000));
    stuck.cut();
    let received = numbers.iter().map(|_| payload(&other.receive_message())).collect::<Vec<_>>();
    assert_eq!(received, numbers, "in order");
}

/// A late worker takes over part of a slow worker's queue, long before the slow one could finish it.
#[test]
fn late_worker_steals_work_from_a_slow_one() {
    let broker = BrokerProcess::start(&["--policy", "adaptive"]);
    let mut slow = worker(&broker, "slow", 1);
    let mut publisher = broker.v5("publisher");
    for number in 0..30 {
        publisher.publish("work", &number.to_string(), QoS::AtLeastOnce);
    }
    let mut seen = BTreeSet::new();
    let work = |worker: &mut RawClient, seen: &mut BTreeSet<String>| {
        let publish = worker.receive_publish();
        std::thread::sleep(Duration::from_millis(150));
        worker.acknowledge(&publish);
        assert!(seen.insert(payload(&publish)), "twice");
    };
    (0..4).for_each(|_| work(&mut slow, &mut seen));
    let mut helper = worker(&broker, "helper", 100);
    let begun = Instant::now();
    let mut helped = 0;
    while seen.len() < 30 {
        assert!(begun.elapsed() < PATIENCE);
        let before = seen.len();
        for publish in helper.drain() {
            helped += 1;
            assert!(seen.insert(payload(&publish)), "twice");
        }
        if let Some(publish) = take_one(&mut slow) {
            std::thread::sleep(Duration::from_millis(150));
            slow.acknowledge(&publish);
            assert!(seen.insert(payload(&publish)), "twice");
        }
        if seen.len() == before {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    assert!(helped >= 10, "{helped}");
}

/// Returns the next message, unacknowledged, if there is one.
fn take_one(worker: &mut RawClient) -> Option<Publish> {
    match worker.try_receive(Duration::from_millis(1)) {
        Ok(Packet::Publish(publish)) => Some(publish),
        Ok(other) => panic!("{other:?} instead of a message"),
        Err(_) => None,
    }
}

/// Waits until the broker reports that at least `count` messages were moved.
fn wait_until_moved(broker: &BrokerProcess, count: usize) {
    let mut reader = broker.v5("reader");
    reader.subscribe("$SYS/broker/publish/messages/moved", QoS::AtMostOnce);
    let begun = Instant::now();
    while payload(&reader.receive_message()).parse::<usize>().expect("a number") < count {
        assert!(begun.elapsed() < PATIENCE, "fewer than {count}");
    }
}

/// A member with this Receive Maximum.
fn worker(broker: &BrokerProcess, id: &str, receive_maximum: u16) -> RawClient {
    let mut connect = Connect::new(ProtocolVersion::V5, text(id));
    connect.properties.receive_maximum = NonZeroU16::new(receive_maximum);
    let mut worker = broker.connect(connect);
    worker.subscribe(&share("workers", "work"), QoS::ExactlyOnce);
    worker
}

fn payload(publish: &Publish) -> String {
    String::from_utf8_lossy(&publish.payload).into_owned()
}

fn large(number: u32, qos: QoS) -> Publish {
    let mut payload = vec![0; 64 * 1024];
    payload[..4].copy_from_slice(&number.to_be_bytes());
    Publish { payload: Bytes::from(payload), ..at_qos("work", "", qos) }
}

fn number_of(publish: &Publish) -> u32 {
    u32::from_be_bytes(publish.payload[..4].try_into().expect("four bytes"))
}

/// Large messages: half of them exceed the sockets' buffers, and fit into a queue.
const MESSAGES: u32 = 400;
