//! A ledger of a work queue under faults: each acknowledged message was processed by a worker, or is a dead letter.
//!
//! One worker works, one is slow, one rejects everything, and one never acknowledges. Every tenth message is rejected by
//! all. `kill -9`, or a power cut, ends each round. `TENBIN_WORK_QUEUE_ROUNDS` is the number of rounds,
//! `TENBIN_WORK_QUEUE_SEED` repeats their lengths.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tenbin_codec::{Ack, Connect, Packet, PacketId, ProtocolVersion, Publish, QoS, ReasonCode};

use super::{config, payload};
use crate::support::{
    BrokerProcess, ConfigFile, DataDirectory, Dice, DiskImage, PATIENCE, RawClient, Silence, at_qos, encode, seed,
    share, text,
};

const KEYS: &str = "on_reject = \"retry\"\nretry_delay_ms = 20\nretry_delay_maximum_ms = 100\n\
     acknowledge_within_ms = 1000\ndeliveries_maximum = 4\ndead_letter = \"dead/%g/%t\"";
const WITHIN: Duration = Duration::from_millis(1000);
/// Unacknowledged messages of the publisher.
const WINDOW: usize = 30;

#[test]
fn each_message_is_processed_or_a_letter_after_kills() {
    let data = DataDirectory::new();
    let mut rounds = Rounds::new(data.path().to_owned());
    for _ in 0..number("TENBIN_WORK_QUEUE_ROUNDS", 3) {
        drop(rounds.play()); // as by `kill -9`
        rounds.crashes += 1;
    }
    rounds.finish();
}

#[test]
fn each_message_is_processed_or_a_letter_after_power_cuts() {
    let Some(mut disk) = DiskImage::mount_new() else { return };
    let mut rounds = Rounds::new(disk.path().join("data"));
    for _ in 0..number("TENBIN_WORK_QUEUE_ROUNDS", 3) {
        let broker = rounds.play();
        disk.cut_power(broker);
        rounds.data = disk.path().join("data");
        rounds.crashes += 1;
    }
    rounds.finish();
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |value| value.parse().expect("a number"))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Works,
    IsSlow,
    Rejects,
    Hangs,
}

/// A member of the work queue.
struct Worker {
    kind: Kind,
    client: RawClient,
    /// Messages that it still has to acknowledge, with their time.
    has: Vec<(Instant, Publish)>,
}

#[derive(Default)]
struct Ledger {
    published: u32,
    acknowledged: BTreeSet<u32>,
    /// Messages that a worker acknowledged with success, and whether that was in time.
    processed: BTreeMap<u32, bool>,
    letters: BTreeMap<u32, usize>,
}

struct Rounds {
    data: PathBuf,
    config: ConfigFile,
    dice: Dice,
    ledger: Ledger,
    crashes: usize,
}

impl Rounds {
    fn new(data: PathBuf) -> Self {
        let dice = Dice::new(seed("TENBIN_WORK_QUEUE_SEED"), 0);
        Self { data, config: config(KEYS), dice, ledger: Ledger::default(), crashes: 0 }
    }

    fn start(&self) -> BrokerProcess {
        let data = self.data.to_str().expect("a readable name");
        BrokerProcess::start(&["--listen", "127.0.0.1:0", "--data", data, "--config", self.config.path()])
    }

    /// Loads a broker for some seconds, and returns it as it is.
    fn play(&mut self) -> BrokerProcess {
        let broker = self.start();
        let mut workers =
            [Kind::Works, Kind::IsSlow, Kind::Rejects, Kind::Hangs].map(|kind| Worker::join(&broker, kind));
        let (mut publisher, mut undertaker) = (broker.v5("publisher"), undertaker(&broker));
        let until = Instant::now() + Duration::from_millis(self.dice.within(2500..4000));
        let mut waiting = BTreeMap::new();
        while Instant::now() < until {
            if waiting.len() < WINDOW {
                let number = self.ledger.published;
                self.ledger.published += 1;
                let mut publish = at_qos(&format!("jobs/{}", number % 5), &number.to_string(), QoS::AtLeastOnce);
                let id = PacketId::new(u16::try_from(number % 60_000 + 1).expect("in range")).expect("not 0");
                publish.packet_id = Some(id);
                publisher.send(&Packet::Publish(publish));
                waiting.insert(id, number);
            }
            while let Ok(packet) = publisher.try_receive(Duration::from_micros(100)) {
                let Packet::PubAck(ack) = packet else { panic!("{packet:?}") };
                let number = waiting.remove(&ack.packet_id).expect("published");
                assert!(!ack.reason.is_error(), "{:?}", ack.reason);
                self.ledger.acknowledged.insert(number);
            }
            workers.iter_mut().for_each(|worker| worker.go_on(&broker, &mut self.ledger));
            bury(&mut undertaker, &mut self.ledger);
        }
        if self.crashes == 0 {
            self.ledger.assert_strict();
        }
        broker
    }

    /// Waits for the rest of the messages.
    fn finish(mut self) {
        let broker = self.start();
        let (mut worker, mut undertaker) = (Worker::join(&broker, Kind::Works), undertaker(&broker));
        let begin = Instant::now();
        let left = |ledger: &Ledger| {
            let is_done = |number: &&u32| ledger.processed.contains_key(number) || ledger.letters.contains_key(number);
            ledger.acknowledged.iter().filter(|number| !is_done(number)).copied().collect::<Vec<_>>()
        };
        while !left(&self.ledger).is_empty() {
            assert!(begin.elapsed() < PATIENCE, "lost: {:?} of {}", left(&self.ledger), self.ledger.published);
            worker.go_on(&broker, &mut self.ledger);
            bury(&mut undertaker, &mut self.ledger);
        }
        let Ledger { acknowledged, processed, letters, .. } = &self.ledger;
        assert!(acknowledged.len() > 100 && processed.len() > 100, "{} {}", acknowledged.len(), processed.len());
        assert!(letters.len() > 10, "{letters:?}");
        // A crash may lose the end of an original and the acknowledgement of its letter, and so repeat a letter twice.
        let most = letters.values().max().expect("there are letters");
        assert!(*most <= 2 * self.crashes + 1, "{letters:?}");
    }
}

impl Ledger {
    /// Without a crash, no message is processed and a letter, and each letter comes once.
    fn assert_strict(&self) {
        let is_both = |number: &&u32| self.processed.get(number).is_some_and(|in_time| *in_time);
        let both: Vec<_> = self.letters.keys().filter(is_both).collect();
        assert!(both.is_empty(), "processed, and dead letters: {both:?}");
        assert!(self.letters.values().all(|count| *count == 1), "{:?}", self.letters);
    }
}

impl Worker {
    fn join(broker: &BrokerProcess, kind: Kind) -> Self {
        let name = match kind {
            Kind::Works => "works",
            Kind::IsSlow => "is slow",
            Kind::Rejects => "rejects",
            Kind::Hangs => "hangs",
        };
        let mut connect = Connect::new(ProtocolVersion::V5, text(name));
        connect.properties.receive_maximum = NonZeroU16::new(5);
        let mut client = broker.connect(connect);
        client.subscribe(&share("workers", "jobs/#"), QoS::AtLeastOnce);
        Self { kind, client, has: Vec::new() }
    }

    fn go_on(&mut self, broker: &BrokerProcess, ledger: &mut Ledger) {
        match self.client.try_receive(Duration::from_micros(100)) {
            Ok(Packet::Publish(publish)) => self.has.push((Instant::now(), publish)),
            Ok(Packet::Disconnect(_)) | Err(Silence::Closed) => *self = Self::join(broker, self.kind),
            Ok(other) => panic!("{other:?}"),
            Err(_) => {}
        }
        let pause = match self.kind {
            Kind::Works => Duration::ZERO,
            Kind::IsSlow | Kind::Rejects => Duration::from_millis(50),
            Kind::Hangs => return,
        };
        while let Some((since, publish)) = self.has.pop_if(|(since, _)| since.elapsed() >= pause) {
            let number: u32 = payload(&publish).parse().expect("a number");
            let is_rejected = self.kind == Kind::Rejects || number.is_multiple_of(10);
            let reason = if is_rejected { ReasonCode::UnspecifiedError } else { ReasonCode::Success };
            let ack = Packet::PubAck(Ack::new(publish.packet_id.expect("QoS 1"), reason));
            if !is_rejected {
                *ledger.processed.entry(number).or_default() |= since.elapsed() < WITHIN / 2;
            }
            self.client.try_send_bytes(&encode(&ack, ProtocolVersion::V5));
        }
    }
}

fn undertaker(broker: &BrokerProcess) -> RawClient {
    let mut undertaker = broker.v5("undertaker");
    undertaker.subscribe(&share("dead", "dead/#"), QoS::AtLeastOnce);
    undertaker
}

fn bury(undertaker: &mut RawClient, ledger: &mut Ledger) {
    while let Ok(Packet::Publish(letter)) = undertaker.try_receive(Duration::from_micros(100)) {
        undertaker.acknowledge(&letter);
        *ledger.letters.entry(payload(&letter).parse().expect("a number")).or_default() += 1;
    }
}
