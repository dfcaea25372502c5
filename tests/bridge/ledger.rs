//! A ledger of numbered messages across two brokers and the bridge between them, each of which is killed at random.
//!
//! Two publishers at each broker, of QoS 1 and 2, number their messages. A receiver at the other broker notes what comes.
//! QoS 2 messages must arrive exactly once, QoS 1 messages at least once, and both in order.
//!
//! A run prints its seed. `TENBIN_BRIDGE_SEED` repeats the choice of the victims (not the timing), and
//! `TENBIN_BRIDGE_KILLS` is their number.

use std::collections::HashSet;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tenbin_codec::{Ack, Packet, PacketId, ProtocolVersion, Publish, QoS, ReasonCode};

use crate::bridge_process::{BridgeProcess, table, topics};
use crate::support::{BrokerProcess, ConfigFile, DataDirectory, Dice, PATIENCE, RawClient, Silence, at_qos, lasting};

const SEED: &str = "TENBIN_BRIDGE_SEED";
/// Default number of kills.
const KILLS: u64 = 8;
/// Messages that arrive between two kills.
const BETWEEN: std::ops::Range<u64> = 5..60;

#[test]
fn no_message_is_lost_or_doubled_by_kills_of_all_three() {
    run(false);
}

#[test]
fn no_message_is_lost_or_doubled_with_a_bridge_in_a_broker() {
    run(true);
}

fn run(is_in_broker: bool) {
    let seed = crate::support::seed(SEED);
    let kills = std::env::var("TENBIN_BRIDGE_KILLS").map_or(KILLS, |kills| kills.parse().expect("a number"));
    // Past the test harness, which would capture the line.
    let _ = writeln!(std::io::stderr(), "{SEED}={seed} TENBIN_BRIDGE_KILLS={kills}, in a broker: {is_in_broker}");
    let mut dice = Dice::new(seed, 0);
    let directories = [DataDirectory::new(), DataDirectory::new()];
    let remote = directories[1].start();
    let tables = |local: &str| {
        let keys = format!("receive_maximum = 20\n{local}");
        ConfigFile::new(&(table("ledger", remote.address(), &keys) + &topics("out", "out/#") + &topics("in", "in/#")))
    };
    let (local, config, mut bridge) = if is_in_broker {
        let config = tables("");
        (directories[0].start_with(&["--config", config.path()]), config, None)
    } else {
        let local = directories[0].start();
        let config = tables(&format!("local = \"mqtt://{}\"", local.address()));
        let bridge = BridgeProcess::start(&config);
        (local, config, Some(bridge))
    };
    let log = bridge.as_ref().map_or(local.log(), BridgeProcess::log);
    log.wait_for(&["bridge connected"], PATIENCE);
    let addresses = [local.address(), remote.address()];
    let mut brokers = [Some(local), Some(remote)];
    let start_again = |at: usize| {
        let address = addresses[at].to_string();
        let arguments = ["--listen", &address, "--data", directories[at].path_text(), "--config", config.path()];
        let has_bridge = is_in_broker && at == 0;
        BrokerProcess::start_exactly(if has_bridge { &arguments } else { &arguments[..4] })
    };

    let (is_over, arrived) = (AtomicBool::new(false), AtomicUsize::new(0));
    let sent = [(); 4].map(|()| AtomicUsize::new(0));
    let ways = [("out", 0), ("in", 1)];
    let lanes =
        ways.into_iter().flat_map(|(topic, at)| [QoS::AtLeastOnce, QoS::ExactlyOnce].map(|qos| (topic, at, qos)));
    let received = thread::scope(|scope| {
        let receivers = ways.map(|(topic, at)| Receiver::new(addresses[1 - at], topic));
        // All before the first kill, which could otherwise come between a session's begin and its CONNACK.
        let publishers: Vec<_> =
            lanes.map(|(topic, at, qos)| Publisher::new(addresses[at], format!("{topic}/{qos}"), qos)).collect();
        for (publisher, sent) in publishers.into_iter().zip(&sent) {
            let is_over = &is_over;
            scope.spawn(move || publisher.run(is_over, sent));
        }
        let (sent, is_over_now) = (&sent, &is_over);
        let receivers = receivers.map(|receiver| {
            let (arrived, first) = (&arrived, usize::from(receiver.topic == "in") * 2);
            scope.spawn(move || {
                receiver.run(arrived, || {
                    let total = || [first, first + 1].map(|lane| sent[lane].load(Ordering::SeqCst));
                    is_over_now.load(Ordering::SeqCst).then(total)
                })
            })
        });
        for _ in 0..kills {
            let goal = arrived.load(Ordering::SeqCst) + dice.within(BETWEEN) as usize;
            let until = Instant::now() + PATIENCE;
            while arrived.load(Ordering::SeqCst) < goal {
                if Instant::now() > until {
                    is_over.store(true, Ordering::SeqCst); // Otherwise the publishers go on.
                    panic!("{SEED}={seed}: nothing arrives any more");
                }
                thread::sleep(Duration::from_millis(1));
            }
            match dice.within(if is_in_broker { 0..2 } else { 0..3 }) as usize {
                2 => {
                    drop(bridge.take());
                    bridge = Some(BridgeProcess::start(&config));
                }
                at => {
                    brokers[at] = None;
                    brokers[at] = Some(start_again(at));
                }
            }
        }
        is_over.store(true, Ordering::SeqCst);
        receivers.map(|receiver| receiver.join().expect("it found nothing wrong"))
    });
    for (at, [least, exactly]) in received.into_iter().enumerate() {
        let [sent_least, sent_exactly] = [0, 1].map(|qos| sent[at * 2 + qos].load(Ordering::SeqCst));
        assert_eq!(exactly, (0..sent_exactly).collect::<Vec<_>>(), "{SEED}={seed}: QoS 2, once and in order");
        let mut next = 0;
        for number in least {
            assert!(number <= next, "{SEED}={seed}: {number} of QoS 1 overtook {next}");
            next = next.max(number + 1);
        }
        assert_eq!(next, sent_least, "{SEED}={seed}: QoS 1");
        assert!(sent_least > 0 && sent_exactly > 0);
    }
}

/// A connection of a session that lasts, as soon as the broker is there.
fn connect(address: SocketAddr, client_id: &str, is_first: bool) -> RawClient {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some((client, connack)) = RawClient::reach(address, lasting(ProtocolVersion::V5, client_id)) {
            assert_eq!(connack.session_present, !is_first, "the session of {client_id}");
            return client;
        }
        assert!(Instant::now() < until, "{address} does not come back");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Publishes one message after the other, and repeats what the broker has not acknowledged.
struct Publisher {
    address: SocketAddr,
    topic: String,
    qos: QoS,
    client: RawClient,
}

impl Publisher {
    fn new(address: SocketAddr, topic: String, qos: QoS) -> Self {
        let client = connect(address, &format!("publisher of {topic}"), true);
        Self { address, topic, qos, client }
    }

    fn run(mut self, is_over: &AtomicBool, sent: &AtomicUsize) {
        let mut number = 0;
        while !is_over.load(Ordering::SeqCst) {
            // First, so that the receiver does not end too early.
            sent.store(number + 1, Ordering::SeqCst);
            self.publish(number);
            number += 1;
        }
    }

    fn publish(&mut self, number: usize) {
        let id = PacketId::new((number % 1000 + 1) as u16);
        let mut publish = Publish { packet_id: id, ..at_qos(&self.topic, &number.to_string(), self.qos) };
        while !self.exchange(&Packet::Publish(publish.clone())) {
            publish.dup = true;
        }
        if self.qos == QoS::ExactlyOnce {
            let release = Packet::PubRel(Ack::new(id.expect("1 to 1000"), ReasonCode::Success));
            while !self.exchange(&release) {}
        }
    }

    /// Sends a packet and waits for its answer. After the loss of the connection there is another one, and false.
    fn exchange(&mut self, packet: &Packet) -> bool {
        self.client.try_send_bytes(&crate::support::encode(packet, ProtocolVersion::V5));
        match self.client.try_receive(PATIENCE) {
            Ok(Packet::PubAck(ack) | Packet::PubRec(ack) | Packet::PubComp(ack)) => {
                // PUBCOMP of a PUBREL whose first answer was lost has another code.
                let is_fine = !ack.reason.is_error() || matches!(packet, Packet::PubRel(_));
                assert!(is_fine, "{} refuses {packet:?}: {}", self.address, ack.reason);
                true
            }
            Err(Silence::Closed) | Ok(Packet::Disconnect(_)) => {
                self.client = connect(self.address, &format!("publisher of {}", self.topic), false);
                false
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Receives messages, and keeps the state of its side of QoS 2.
struct Receiver {
    address: SocketAddr,
    topic: &'static str,
    client: RawClient,
    /// Identifiers of QoS 2 messages that are not released.
    known: HashSet<PacketId>,
    /// Numbers of QoS 1, and of QoS 2.
    numbers: [Vec<usize>; 2],
}

impl Receiver {
    fn new(address: SocketAddr, topic: &'static str) -> Self {
        let mut client = connect(address, topic, true);
        client.subscribe(&format!("{topic}/#"), QoS::ExactlyOnce);
        Self { address, topic, client, known: HashSet::new(), numbers: Default::default() }
    }

    /// Receives until it has the messages that `total` tells at the end, or until too long nothing comes.
    fn run(mut self, arrived: &AtomicUsize, total: impl Fn() -> Option<[usize; 2]>) -> [Vec<usize>; 2] {
        let mut last = Instant::now();
        loop {
            let has_all = |total: [usize; 2]| {
                let last = |numbers: &Vec<usize>| numbers.iter().max().map_or(0, |most| most + 1);
                [last(&self.numbers[0]), last(&self.numbers[1])] == total && self.known.is_empty()
            };
            if total().is_some_and(has_all) || last.elapsed() > PATIENCE {
                return self.numbers;
            }
            match self.client.try_receive(Duration::from_millis(100)) {
                Ok(Packet::Publish(publish)) => {
                    last = Instant::now();
                    arrived.fetch_add(1, Ordering::SeqCst);
                    self.take(&publish);
                }
                Ok(Packet::PubRel(ack)) => {
                    self.known.remove(&ack.packet_id);
                    self.answer(&Packet::PubComp(Ack::new(ack.packet_id, ReasonCode::Success)));
                }
                Err(Silence::TimedOut) => {}
                Err(Silence::Closed) | Ok(Packet::Disconnect(_)) => {
                    self.client = connect(self.address, self.topic, false);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn take(&mut self, publish: &Publish) {
        let id = publish.packet_id.expect("QoS 1 or 2");
        let number = std::str::from_utf8(&publish.payload).ok().and_then(|text| text.parse().ok()).expect("a number");
        let ack = Ack::new(id, ReasonCode::Success);
        if publish.qos == QoS::AtLeastOnce {
            self.numbers[0].push(number);
            self.answer(&Packet::PubAck(ack));
            return;
        }
        if self.known.insert(id) {
            self.numbers[1].push(number);
        }
        self.answer(&Packet::PubRec(ack));
    }

    fn answer(&mut self, packet: &Packet) {
        self.client.try_send_bytes(&crate::support::encode(packet, ProtocolVersion::V5));
    }
}
