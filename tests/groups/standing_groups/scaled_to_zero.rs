//! Members to zero under steady QoS 1 load, `kill -9` of the broker in between, and members back.
//!
//! Short by default: a second or so. In full, a minute without members:
//!
//! ```text
//!   TENBIN_STANDING=full cargo test --test groups -- --nocapture scaled_to_zero
//! ```

use std::collections::HashMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tenbin_codec::{Connect, Packet, ProtocolVersion, ReasonCode};

use crate::standing_groups::{QoS, RULE, join};
use crate::support::{ConfigFile, DataDirectory, PATIENCE, RawClient, at_qos, encode, text};

/// What publishers and members share.
struct Stage {
    /// `None` while no broker runs.
    broker: Mutex<Option<SocketAddr>>,
    /// Numbers up to which the messages of each publisher are acknowledged.
    acknowledged: [AtomicUsize; PUBLISHERS],
    is_over: AtomicBool,
}

impl Stage {
    fn acknowledged(&self) -> usize {
        self.acknowledged.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Waits for a number of further acknowledgements to publishers, and at least for a time.
    fn wait_for_more(&self, messages: usize, time: Duration) {
        let (wanted, begin) = (self.acknowledged() + messages, Instant::now());
        while self.acknowledged() < wanted || begin.elapsed() < time {
            assert!(begin.elapsed() < time + PATIENCE, "{} of {wanted}", self.acknowledged());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Publishes numbered messages, each until it is acknowledged.
    fn publish(&self, publisher: usize) {
        let id = format!("publisher {publisher}");
        let mut client: Option<RawClient> = None;
        let mut number = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            let address = *self.broker.lock().expect("no panic");
            if client.is_none() {
                let connect = Connect::new(ProtocolVersion::V5, text(&id));
                client = address.and_then(|address| RawClient::reach(address, connect)).map(|(client, _)| client);
            }
            let Some(connected) = &mut client else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            let mut publish = at_qos(&format!("jobs/{publisher}"), &number.to_string(), QoS::AtLeastOnce);
            publish.packet_id = Some(connected.next_id());
            connected.try_send_bytes(&encode(&Packet::Publish(publish), ProtocolVersion::V5));
            match connected.receive_or_end() {
                Some(Packet::PubAck(ack)) => {
                    assert_eq!(ack.reason, ReasonCode::Success, "message {number}");
                    number += 1;
                    self.acknowledged[publisher].store(number, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(2)); // about 500 messages a second
                }
                Some(other) => panic!("{other:?} instead of PUBACK"),
                None => client = None,
            }
        }
    }
}

/// Messages that the members got, by publisher: number and how often.
#[derive(Default)]
struct Received([HashMap<usize, usize>; PUBLISHERS]);

impl Received {
    fn messages(&self) -> usize {
        self.0.iter().map(HashMap::len).sum()
    }

    fn copies(&self) -> usize {
        self.0.iter().flat_map(HashMap::values).sum::<usize>() - self.messages()
    }

    /// Receives and acknowledges until `is_over` says so. Returns the numbers of each publisher, in order.
    fn take(&mut self, members: &mut [RawClient], is_over: impl Fn(&Self) -> bool) -> Vec<[Vec<usize>; PUBLISHERS]> {
        let mut orders = vec![<[Vec<usize>; PUBLISHERS]>::default(); members.len()];
        let until = Instant::now() + PATIENCE * 4;
        while !is_over(self) {
            assert!(Instant::now() < until, "{} messages received", self.messages());
            for (member, order) in members.iter_mut().zip(&mut orders) {
                while let Ok(Packet::Publish(publish)) = member.try_receive(Duration::from_millis(1)) {
                    member.acknowledge(&publish);
                    let publisher = usize::from(publish.topic.as_bytes()[5] - b'0');
                    let number = std::str::from_utf8(&publish.payload).expect("digits").parse().expect("a number");
                    *self.0[publisher].entry(number).or_default() += 1;
                    order[publisher].push(number);
                }
            }
        }
        orders
    }
}

#[test]
fn group_scaled_to_zero_and_killed_loses_nothing() {
    let (empty, at_least) = match std::env::var("TENBIN_STANDING").is_ok_and(|value| value == "full") {
        true => (Duration::from_secs(60), 1000),
        false => (Duration::ZERO, 150),
    };
    let file = ConfigFile::new(RULE);
    let directory = DataDirectory::new();
    let start = || directory.start_with(&["--config", file.path()]);
    let mut broker = start();
    let stage = Stage {
        broker: Mutex::new(Some(broker.address())),
        acknowledged: Default::default(),
        is_over: AtomicBool::new(false),
    };
    let mut received = Received::default();
    let (orders, alone) = std::thread::scope(|scope| {
        let publishers = [0, 1].map(|publisher| {
            scope.spawn({
                let stage = &stage;
                move || stage.publish(publisher)
            })
        });
        let mut members = [0, 1, 2].map(|number| join(&broker, &format!("member {number}")));
        received.take(&mut members, |received| received.messages() >= at_least);
        drop(members);
        let alone = stage.acknowledged();
        stage.wait_for_more(at_least, empty / 2);
        *stage.broker.lock().expect("no panic") = None;
        broker.signal("KILL");
        broker.wait_for_exit(PATIENCE);
        broker = start();
        *stage.broker.lock().expect("no panic") = Some(broker.address());
        stage.wait_for_more(at_least, empty / 2);
        let alone = stage.acknowledged() - alone;
        let mut members = [3, 4].map(|number| join(&broker, &format!("member {number}")));
        let wanted = stage.acknowledged() + at_least;
        let mut orders = received.take(&mut members, |received| received.messages() >= wanted);
        stage.is_over.store(true, Ordering::Relaxed);
        publishers.into_iter().for_each(|publisher| publisher.join().expect("no panic"));
        let rest = received.take(&mut members, |received| received.messages() >= stage.acknowledged());
        for (order, rest) in orders.iter_mut().zip(rest) {
            order.iter_mut().zip(rest).for_each(|(order, rest)| order.extend(rest));
        }
        members.iter_mut().for_each(RawClient::expect_nothing_waiting);
        (orders, alone)
    });
    let published = stage.acknowledged();
    let lost = stage.acknowledged.iter().zip(&received.0).map(|(published, received)| {
        (0..published.load(Ordering::Relaxed)).filter(|number| !received.contains_key(number)).count()
    });
    let (lost, copies) = (lost.sum::<usize>(), received.copies());
    let figures = format!("{published} acknowledged, {alone} of them without a member: {lost} lost, {copies} copies");
    let _ = writeln!(std::io::stderr(), "{figures}");
    assert_eq!(lost, 0, "{figures}");
    for order in orders.iter().flatten() {
        assert!(order.is_sorted(), "order of a publisher at one member: {order:?}");
    }
}

const PUBLISHERS: usize = 2;
