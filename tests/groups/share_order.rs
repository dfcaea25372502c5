//! The order of messages in share groups whose members drain, come and go, or are full. A message of a key is processed
//! only after all earlier ones of that key. New messages never overtake the group backlog.

use std::num::{NonZeroU16, NonZeroU32};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::support::{
    BrokerProcess, ConfigFile, DataDirectory, Numbered, PATIENCE, RawClient, Silence, VERSIONS, lasting, number_of,
    share, text,
};
use tenbin_codec::{Connect, Packet, PacketType, PingReq, ProtocolVersion, Publish, QoS, ReasonCode, UserProperty};

#[test]
fn key_keeps_its_order_while_its_member_is_full() {
    let file = ConfigFile::new("[queue]\nmessages_maximum = 16\n[[share]]\nkey = \"topic\"");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let mut slow = worker(&broker, take_at_once("slow", 1));
    let mut publisher = broker.v5("publisher");
    publisher.publish("t/a", "0", QoS::AtLeastOnce);
    let begun = slow.receive_publish();
    let mut other = worker(&broker, take_at_once("other", 100));
    // More than the member's queue holds.
    let taken: Vec<usize> =
        (1..60).filter(|number| !publisher.publish("t/a", &number.to_string(), QoS::AtLeastOnce).is_error()).collect();
    assert!(taken.len() >= 16, "{taken:?}");
    other.expect_nothing_waiting();
    slow.acknowledge(&begun);
    // A member that was full for long may complete its messages before more arrive. Then the rest goes to any member.
    let received: Vec<usize> = taken.iter().map(|_| number_of(&next_of(&mut slow, &mut other))).collect();
    assert_eq!(received, taken);
    // A member that leaves releases its keys.
    slow.cut();
    publisher.publish("t/a", "60", QoS::AtLeastOnce);
    assert_eq!(number_of(&other.receive_message()), 60);
}

#[test]
fn keys_of_a_full_member_hold_up_no_other_keys() {
    for stored in [false, true] {
        let file = ConfigFile::new("[queue]\nmessages_maximum = 16\n[[share]]\nkey = \"topic\"");
        let directory = DataDirectory::new();
        let arguments = ["--config", file.path()];
        let broker = if stored { directory.start_with(&arguments) } else { BrokerProcess::start(&arguments) };
        let expiry = stored.then_some(1000);
        let member = |id, receive_maximum| {
            let mut connect = take_at_once(id, receive_maximum);
            connect.properties.session_expiry_interval = expiry;
            worker(&broker, connect)
        };
        let mut hangs = member("hangs", 1);
        let mut publisher = broker.v5("publisher");
        let mut publish = |topic: &str, number: usize| publisher.publish(topic, &number.to_string(), QoS::AtLeastOnce);
        publish("t/a", 0);
        let begun = hangs.receive_publish();
        // Its queue is full, and messages wait with the group.
        let mut taken: Vec<usize> = (1..25).filter(|&number| !publish("t/a", number).is_error()).collect();
        assert!(taken.len() > 16, "{taken:?}");
        assert!(!publish("t/b", 99).is_error());
        let mut other = member("other", 1000);
        assert_eq!(number_of(&other.receive_message()), 99);
        for number in 100..300 {
            assert!(!publish("t/b", number).is_error(), "message {number}");
            assert_eq!(number_of(&other.receive_message()), number);
            taken.extend((number % 40 == 0 && !publish("t/a", number).is_error()).then_some(number));
        }
        hangs.acknowledge(&begun);
        let received: Vec<usize> = taken[..5].iter().map(|_| number_of(&hangs.receive_message())).collect();
        assert_eq!(received, taken[..5], "stored: {stored}");
        // The remaining messages of the key stay together.
        hangs.cut();
        let received: Vec<usize> = taken[5..].iter().map(|_| number_of(&other.receive_message())).collect();
        assert_eq!(received, taken[5..], "stored: {stored}");
        other.expect_nothing_waiting();
    }
}

#[test]
fn large_message_of_a_full_member_holds_up_no_other_keys() {
    let file = ConfigFile::new("[queue]\nmessages_maximum = 16\n[[share]]\nkey = \"topic\"");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let mut hangs = worker(&broker, take_at_once("hangs", 1));
    let mut publisher = broker.v5("publisher");
    let mut publish = |topic: &str, payload: &str| publisher.publish(topic, payload, QoS::AtLeastOnce);
    publish("t/a", "first");
    let begun = hangs.receive_publish();
    let taken = (0..20).filter(|_| !publish("t/a", "a").is_error()).count();
    assert!(taken >= 16, "its queue is full: {taken}");
    let mut small = take_at_once("small", 1000);
    small.properties.maximum_packet_size = NonZeroU32::new(200);
    let mut small = worker(&broker, small);
    let large = "x".repeat(1000);
    assert!(!publish("t/large", &large).is_error());
    for number in 0..50 {
        assert!(!publish("t/b", &number.to_string()).is_error(), "message {number}");
        assert_eq!(number_of(&small.receive_message()), number);
    }
    hangs.acknowledge(&begun);
    let received = (0..=taken).map(|_| payload(&hangs.receive_message())).collect::<Vec<_>>();
    assert!(received.contains(&large), "it comes where there is room for it");
}

#[test]
fn draining_member_keeps_the_keys_it_has_begun() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let file = ConfigFile::new("[[share]]\nkey = \"topic\"\npolicy = \"round_robin\"");
        let broker = BrokerProcess::start(&["--config", file.path()]);
        let mut drains = worker(&broker, take_at_once("drains", 1));
        let mut publisher = broker.v5("publisher");
        let mut publish = |topic: &str, payload: &str| assert!(!publisher.publish(topic, payload, qos).is_error());
        for (topic, payload) in [("t/a", "a 0"), ("t/b", "b 0"), ("t/a", "a 1"), ("t/b", "b 1"), ("t/a", "a 2")] {
            publish(topic, payload);
        }
        let begun = drains.receive_publish();
        assert_eq!(payload(&begun), "a 0");
        let mut other = worker(&broker, take_at_once("other", 100));
        report(&mut drains, true);
        assert_eq!(other.drain_payloads(), ["b 0", "b 1"], "{qos}: of this key nothing was begun");
        publish("t/a", "a 3");
        publish("t/b", "b 2");
        publish("t/c", "c 0");
        assert_eq!(other.drain_payloads(), ["b 2", "c 0"]);
        drains.acknowledge(&begun);
        assert_eq!(["a 1", "a 2", "a 3"].map(|_| payload(&drains.receive_message())), ["a 1", "a 2", "a 3"], "{qos}");
        drains.settle();
        // All messages of the key are done.
        publish("t/a", "a 4");
        assert_eq!(other.drain_payloads(), ["a 4"]);
        drains.expect_nothing_waiting();
    }
}

#[test]
fn unsent_messages_of_a_member_that_unsubscribes_go_to_others() {
    let broker = BrokerProcess::start(&[]);
    let mut leaves = worker(&broker, take_at_once("leaves", 1));
    let mut publisher = broker.v5("publisher");
    for payload in ["a 0", "a 1", "b 0", "a 2"] {
        publisher.publish(&format!("t/{}", &payload[..1]), payload, QoS::AtLeastOnce);
    }
    let begun = leaves.receive_publish();
    assert_eq!(payload(&begun), "a 0");
    let mut other = worker(&broker, take_at_once("other", 100));
    leave(&mut leaves);
    let expected = ["a 1", "b 0", "a 2"];
    assert_eq!(expected.map(|_| payload(&other.receive_message())), expected);
    leaves.acknowledge(&begun);
    leaves.expect_nothing_waiting();
    other.expect_nothing_waiting();
}

#[test]
fn member_that_unsubscribes_holds_the_keys_it_has_begun() {
    for (qos, stored) in [(QoS::AtLeastOnce, false), (QoS::ExactlyOnce, false), (QoS::AtLeastOnce, true)] {
        let file = ConfigFile::new("[[share]]\nkey = \"topic\"\npolicy = \"round_robin\"");
        let directory = DataDirectory::new();
        let arguments = ["--config", file.path()];
        let broker = if stored { directory.start_with(&arguments) } else { BrokerProcess::start(&arguments) };
        let member = |id, receive_maximum| {
            let mut connect = take_at_once(id, receive_maximum);
            connect.properties.session_expiry_interval = stored.then_some(1000);
            worker(&broker, connect)
        };
        let mut leaves = member("leaves", 2);
        let mut publisher = broker.v5("publisher");
        let mut publish = |payload: &str| {
            assert!(!publisher.publish(&format!("t/{}", &payload[..1]), payload, qos).is_error(), "{payload}");
        };
        ["a 0", "c 0", "a 1", "b 0", "a 2"].into_iter().for_each(&mut publish);
        let begun = [leaves.receive_publish(), leaves.receive_publish()];
        assert_eq!(begun.each_ref().map(payload), ["a 0", "c 0"]);
        let mut other = member("other", 100);
        leave(&mut leaves);
        publish("a 3");
        publish("b 1");
        assert_eq!(other.drain_payloads(), ["b 0", "b 1"], "{qos} stored: {stored}");
        leaves.acknowledge(&begun[0]);
        leaves.settle();
        let of_key = ["a 1", "a 2", "a 3"];
        assert_eq!(of_key.map(|_| payload(&other.receive_message())), of_key, "{qos} stored: {stored}");
        // Back in the group, it goes on with the key that it holds.
        publish("c 1");
        other.expect_nothing_waiting();
        leaves.subscribe(&share("workers", "t/+"), QoS::ExactlyOnce);
        assert_eq!(payload(&leaves.receive_publish()), "c 1");
        // The end of its connection frees its keys, and gives back messages of QoS 1.
        leave(&mut leaves);
        publish("c 2");
        other.expect_nothing_waiting();
        leaves.cut();
        let rest: &[&str] = if qos == QoS::AtLeastOnce { &["c 0", "c 1", "c 2"] } else { &["c 2"] };
        let received: Vec<_> = rest.iter().map(|_| payload(&other.receive_message())).collect();
        assert_eq!(received, rest, "{qos} stored: {stored}");
        publish("c 3");
        assert_eq!(other.drain_payloads(), ["c 3"]);
    }
}

/// Other groups of the client go on, and DISCONNECT or a takeover ends the holding like a lost connection.
#[test]
fn unsubscribed_member_holds_no_key_of_another_group() {
    let file = ConfigFile::new("[[share]]\nkey = \"topic\"");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    for takeover in [false, true] {
        let mut leaves = worker(&broker, take_at_once("leaves", 10));
        leaves.subscribe(&share("second", "t/+"), QoS::AtLeastOnce);
        let mut publisher = broker.v5("publisher");
        publisher.publish("t/a", "a 0", QoS::AtLeastOnce);
        let begun = [leaves.receive_publish(), leaves.receive_publish()];
        let mut other = worker(&broker, take_at_once("other", 100));
        leave(&mut leaves);
        publisher.publish("t/a", "a 1", QoS::AtLeastOnce);
        let of_second = leaves.receive_publish();
        assert_eq!(payload(&of_second), "a 1");
        other.expect_nothing_waiting();
        // Which group a message is of, the client cannot tell: so all of this key end.
        if takeover {
            broker.connect(take_at_once("leaves", 10)).expect_nothing_waiting();
        } else {
            leaves.disconnect();
        }
        assert_eq!(["a 0", "a 1"].map(|_| payload(&other.receive_message())), ["a 0", "a 1"], "{takeover}");
        assert_eq!(begun.each_ref().map(payload), ["a 0", "a 0"]);
    }
}

/// More of them than the group counts. They hold the key until the last one is acknowledged.
#[test]
fn key_with_uncounted_messages_is_released_by_the_last_one() {
    const MESSAGES: usize = 16_500;
    let file = ConfigFile::new("[sessions]\nin_flight_maximum = 65535\n[[share]]\nkey = \"topic\"");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let mut publisher = broker.v5("publisher");
    let mut leaves = worker(&broker, take_at_once("leaves", u16::MAX));
    let mut begun = Vec::new();
    for first in (0..MESSAGES).step_by(500) {
        Numbered { topics: &["t/a"], count: first + 500, qos: QoS::AtLeastOnce }.publish_from(&mut publisher, first);
        begun.extend((0..500).map(|_| leaves.receive_publish()));
    }
    let mut other = worker(&broker, take_at_once("other", 100));
    leave(&mut leaves);
    publisher.publish("t/a", "last", QoS::AtLeastOnce);
    other.expect_nothing_waiting();
    begun.iter().for_each(|publish| leaves.acknowledge(publish));
    assert_eq!(payload(&other.receive_message()), "last");
}

/// With QoS 0 a message that was sent is done.
#[test]
fn member_that_unsubscribes_holds_no_key_of_qos_0() {
    let file = ConfigFile::new("[[share]]\nkey = \"topic\"");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let mut publisher = broker.v5("publisher");
    for (published, granted) in [(QoS::AtMostOnce, QoS::AtLeastOnce), (QoS::AtLeastOnce, QoS::AtMostOnce)] {
        let mut leaves = broker.v5("leaves");
        leaves.subscribe(&share("workers", "t/+"), granted);
        publisher.publish("t/a", "0", published);
        assert_eq!(payload(&leaves.receive_publish()), "0");
        let mut other = worker(&broker, take_at_once("other", 100));
        leave(&mut leaves);
        publisher.publish("t/a", "1", published);
        assert_eq!(other.drain_payloads(), ["1"], "{published} {granted}");
    }
    // Messages of QoS 0 pass those that wait for a held key.
    let mut leaves = worker(&broker, take_at_once("leaves", 1));
    publisher.publish("t/b", "b 0", QoS::AtLeastOnce);
    let begun = leaves.receive_publish();
    let mut other = worker(&broker, take_at_once("other", 100));
    leave(&mut leaves);
    publisher.publish("t/b", "b 1", QoS::AtLeastOnce);
    publisher.publish("t/b", "b 2", QoS::AtMostOnce);
    assert_eq!(other.drain_payloads(), ["b 2"]);
    publisher.publish("t/b", "b 3", QoS::AtLeastOnce);
    other.expect_nothing_waiting();
    leaves.acknowledge(&begun);
    assert_eq!(["b 1", "b 3"].map(|_| payload(&other.receive_message())), ["b 1", "b 3"]);
}

#[test]
fn only_draining_member_still_gets_the_keys_it_has_begun() {
    let file = ConfigFile::new("[[share]]\nkey = \"topic\"");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let mut drains = worker(&broker, take_at_once("drains", 100));
    let mut publisher = broker.v5("publisher");
    publisher.publish("t/a", "a 0", QoS::AtLeastOnce);
    let begun = drains.receive_publish();
    report(&mut drains, true);
    publisher.publish("t/a", "a 1", QoS::AtLeastOnce);
    assert_eq!(drains.drain_payloads(), ["a 1"]);
    publisher.publish("t/b", "b 0", QoS::AtLeastOnce);
    drains.expect_nothing_waiting();
    drains.acknowledge(&begun);
    assert_eq!(worker(&broker, take_at_once("other", 100)).drain_payloads(), ["b 0"]);
}

/// The member's queue has some room, but too little to count as free again.
#[test]
fn new_messages_do_not_overtake_the_group_backlog() {
    for key in ["", "key = \"topic\""] {
        let file = ConfigFile::new(&format!("[queue]\nmessages_maximum = 16\n[[share]]\n{key}"));
        let broker = BrokerProcess::start(&["--config", file.path()]);
        let mut slow = worker(&broker, take_at_once("slow", 1));
        let mut publisher = broker.v5("publisher");
        let mut numbers = 0..;
        let mut publish = |count: usize| {
            for number in numbers.by_ref().take(count) {
                let reason = publisher.publish("t/a", &usize::to_string(&number), QoS::AtLeastOnce);
                assert_eq!(reason, ReasonCode::Success);
            }
        };
        // One message is in flight, sixteen are in its queue, eight are in the group backlog.
        publish(25);
        let mut received: Vec<_> = (0..3).map(|_| number_of(&slow.receive_message())).collect();
        slow.settle();
        publish(3);
        received.extend((0..25).map(|_| number_of(&slow.receive_message())));
        assert_eq!(received, (0..28).collect::<Vec<_>>(), "{key}");
        slow.expect_nothing_waiting();
    }
}

#[test]
fn messages_of_a_lost_member_precede_the_group_backlog() {
    let file = ConfigFile::new("[queue]\nmessages_maximum = 16");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let mut connect = lasting(ProtocolVersion::V5, "leaves");
    connect.properties.receive_maximum = NonZeroU16::new(1);
    let mut leaves = worker(&broker, connect);
    leaves.subscribe("own", QoS::AtLeastOnce);
    let mut publisher = broker.v5("publisher");
    for _ in 0..13 {
        publisher.publish("own", "", QoS::AtLeastOnce);
    }
    // Four of them fit into its queue.
    for number in 0..10 {
        publisher.publish("t/a", &number.to_string(), QoS::AtLeastOnce);
    }
    leaves.receive_publish();
    leaves.cut();
    let received = worker(&broker, take_at_once("comes", 100)).drain();
    assert_eq!(received.iter().map(number_of).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
}

#[test]
fn mqtt_4_6_0_1_group_messages_of_both_qos_are_resent_in_order() {
    for version in VERSIONS {
        for stored in [false, true] {
            for rule in ["late_binding = \"off\"", "key = \"topic\""] {
                let file = ConfigFile::new(&format!("[[share]]\n{rule}"));
                let directory = DataDirectory::new();
                let arguments = ["--config", file.path()];
                let broker = if stored { directory.start_with(&arguments) } else { BrokerProcess::start(&arguments) };
                let mut lasts = worker(&broker, lasting(version, "lasts"));
                let mut publisher = broker.v5("publisher");
                for number in 0..100 {
                    let qos = if number % 2 == 0 { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
                    publisher.publish("t/a", &number.to_string(), qos);
                }
                // A stored message of QoS 2 waits for the disk, so the next of QoS 1 may come before it.
                let mut first: Vec<_> = (0..100).map(|_| lasts.receive_publish()).collect();
                first.sort_by_key(number_of);
                lasts.cut();
                // Twice: the messages are in flight again after the first time.
                for _ in 0..2 {
                    let mut lasts = broker.connect(lasting(version, "lasts"));
                    for first in &first {
                        let again = lasts.receive_publish();
                        assert_eq!(number_of(&again), number_of(first), "{version:?}, stored: {stored}, {rule}");
                        assert_eq!((again.packet_id, again.dup), (first.packet_id, true));
                    }
                    lasts.expect_nothing_waiting();
                    lasts.cut();
                }
            }
        }
    }
}

#[test]
fn keys_keep_their_order_while_workers_drain_and_reconnect() {
    ["round_robin", "adaptive"].into_iter().for_each(keys_keep_their_order);
}

/// Workers drain, leave and return in turn, while messages of a few keys are published without pause. They told their
/// concurrency, so that `adaptive` lets messages without a key wait.
fn keys_keep_their_order(policy: &str) {
    let file = ConfigFile::new(&format!("[[share]]\nkey = \"topic\"\npolicy = \"{policy}\""));
    let broker = BrokerProcess::start(&["--config", file.path()]);
    // Never connected. Without this member the group would end, and lose its backlog, when all workers are gone at
    // once.
    worker(&broker, lasting(ProtocolVersion::V5, "away")).disconnect();
    let begun = Mutex::new(vec![Vec::new(); KEYS]);
    let (done, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let until = Instant::now() + Duration::from_secs(4);
    std::thread::scope(|scope| {
        for number in 0..WORKERS {
            let (broker, begun, done, is_over) = (&broker, &begun, &done, &is_over);
            scope.spawn(move || {
                for lives in 0.. {
                    // Also if the publisher has failed.
                    if is_over.load(Ordering::Relaxed) || Instant::now() > until + PATIENCE * 2 {
                        break;
                    }
                    live(broker, number, lives, begun, done, is_over);
                }
            });
        }
        let mut publisher = broker.v5("publisher");
        let mut published = 0;
        while Instant::now() < until || done.load(Ordering::Relaxed) < published {
            // Few at a time: a key whose member begins only after a second may fall behind other keys.
            if Instant::now() < until && published < done.load(Ordering::Relaxed) + WINDOW {
                let (key, number) = (published % KEYS, published / KEYS);
                publisher.publish(&format!("t/{key}"), &number.to_string(), QoS::AtLeastOnce);
                published += 1;
            } else {
                std::thread::sleep(Duration::from_millis(1));
            }
            if Instant::now() > until + PATIENCE {
                break;
            }
        }
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(done.load(Ordering::Relaxed), published, "messages that were done");
    });
    for (key, begun) in begun.into_inner().unwrap_or_else(PoisonError::into_inner).iter().enumerate() {
        let place = begun.windows(2).position(|pair: &[usize]| pair[0] >= pair[1]);
        assert_eq!(
            place,
            None,
            "{policy}: key {key} of {}: {:?}",
            begun.len(),
            place.map(|at| &begun[at..(at + 10).min(begun.len())])
        );
        assert!(!begun.is_empty());
    }
}

/// One connection of a worker: it drains after a while, resumes after another, and is finally lost.
fn live(
    broker: &BrokerProcess,
    number: usize,
    lives: usize,
    begun: &Mutex<Vec<Vec<usize>>>,
    done: &AtomicUsize,
    is_over: &AtomicBool,
) {
    let mut connect = take_at_once(&format!("worker {number}"), 2);
    connect.properties.user_properties = vec![UserProperty::new(text("concurrency"), text("1"))];
    let mut worker = worker(broker, connect);
    let mut is_draining = false;
    for step in 0..40 + 7 * number + lives % 5 {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        if (step % 12 == 4 * number) != is_draining && step % 4 == 0 {
            is_draining = !is_draining;
            let json = format!(r#"{{"msgsInQueue":0,"processingTimePerMsg":0,"draining":{is_draining}}}"#);
            worker.send(&Packet::PingReq(PingReq::with_payload(json.into())));
        }
        match worker.try_receive(Duration::from_millis(2)) {
            Ok(Packet::Publish(publish)) => {
                take(&publish, begun, done);
                worker.acknowledge(&publish);
            }
            Ok(Packet::PingResp) | Err(Silence::TimedOut) => {}
            other => panic!("{other:?} instead of a message"),
        }
    }
    // Messages on their way to it are neither processed nor acknowledged, so others get them.
    worker.cut();
}

/// Processes a message, unless that was done before: its worker may have been lost before the acknowledgement.
fn take(publish: &Publish, begun: &Mutex<Vec<Vec<usize>>>, done: &AtomicUsize) {
    let key = usize::from(publish.topic.as_bytes()[2] - b'0');
    let mut begun = begun.lock().unwrap_or_else(PoisonError::into_inner);
    if !begun[key].contains(&number_of(publish)) {
        begun[key].push(number_of(publish));
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// A client with this Receive Maximum.
fn take_at_once(id: &str, receive_maximum: u16) -> Connect {
    let mut connect = Connect::new(ProtocolVersion::V5, text(id));
    connect.properties.receive_maximum = NonZeroU16::new(receive_maximum);
    connect
}

fn worker(broker: &BrokerProcess, connect: Connect) -> RawClient {
    let mut worker = broker.connect(connect);
    worker.subscribe(&share("workers", "t/+"), QoS::ExactlyOnce);
    worker
}

fn leave(worker: &mut RawClient) {
    assert_eq!(worker.unsubscribe(&[&share("workers", "t/+")]), [ReasonCode::Success]);
}

/// Receives and acknowledges the next message of either client.
fn next_of(one: &mut RawClient, other: &mut RawClient) -> Publish {
    let until = Instant::now() + PATIENCE;
    loop {
        for client in [&mut *one, &mut *other] {
            if let Ok(Packet::Publish(publish)) = client.try_receive(Duration::from_millis(10)) {
                client.acknowledge(&publish);
                return publish;
            }
        }
        assert!(Instant::now() < until, "no message");
    }
}

fn report(worker: &mut RawClient, draining: bool) {
    let json = format!(r#"{{"msgsInQueue":0,"processingTimePerMsg":1,"draining":{draining}}}"#);
    worker.send(&Packet::PingReq(PingReq::with_payload(json.into())));
    worker.wait_for(PacketType::PingResp);
}

fn payload(publish: &Publish) -> String {
    String::from_utf8_lossy(&publish.payload).into_owned()
}

const KEYS: usize = 3;
const WORKERS: usize = 3;
/// Bound on messages that are published and not done.
const WINDOW: usize = 8;
