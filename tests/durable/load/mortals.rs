//! Clients with Wills that end in every way, and the receiver of these Wills.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tenbin_codec::{Ack, Connect, Disconnect, Packet, PacketId, ProtocolVersion, Publish, QoS, ReasonCode, Will};

use super::world::Round;
use crate::support::{Dice, PATIENCE, RawClient, Silence, encode, lasting, text, topic};

/// Client that connects again and again, each time with a Will that carries the client's number.
pub(crate) struct Mortal {
    number: usize,
    dice: Dice,
    /// Expected fate of the Will of each life.
    fates: Vec<Fate>,
    /// Life whose Will is dropped, provided that the broker survives it.
    dropped: Option<usize>,
}

#[derive(Clone, Copy)]
struct Fate {
    expected: Expected,
    qos: QoS,
    is_retained: bool,
    /// Number of crashes before this life.
    crashes: usize,
}

/// Identifies a Will: client and life.
type Whose = (usize, usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// The broker accepted the connection, which ended without DISCONNECT.
    Published,
    /// The broker closed after DISCONNECT, or the client came back within the delay. A later answer, which the broker
    /// had to store, confirms it.
    Dropped,
    /// The broker may have died in between.
    Either,
}

/// Receives all Wills, in a persistent session.
#[derive(Default)]
pub(crate) struct Heir {
    client: Option<RawClient>,
    /// Packet Identifiers of QoS 2 messages before their PUBREL.
    unreleased: HashSet<PacketId>,
    /// How often each Will arrived, and the number of crashes before its last arrival.
    came: HashMap<Whose, (usize, usize)>,
}

impl Mortal {
    pub(crate) fn new(number: usize, seed: u64) -> Self {
        let dice = Dice::new(seed, 5000 + number);
        Self { number, dice, fates: Vec::new(), dropped: None }
    }

    /// Lives and dies until the round is over or the broker is gone.
    pub(crate) fn work(&mut self, round: &Round) {
        while !round.is_over() && self.live(round) {}
        self.dropped = None;
    }

    /// Runs one life. Returns false if the broker is gone.
    fn live(&mut self, round: &Round) -> bool {
        let life = self.fates.len();
        // No delay, a short one, or one longer than any run, which only the end of the session cuts short.
        let delay = [0, 0, 1, 3600][self.dice.within(0..4) as usize];
        let version = if delay == 0 && self.dice.percent(50) { ProtocolVersion::V311 } else { ProtocolVersion::V5 };
        let qos = if self.dice.percent(50) { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
        let is_retained = self.dice.percent(30);
        let connect = Connect {
            will: Some(self.will(life, qos, is_retained, delay)),
            ..lasting(version, &self.client_id(delay))
        };
        self.fates.push(Fate { expected: Expected::Either, qos, is_retained, crashes: round.crashes() });
        let Some((mut client, _)) = RawClient::reach(round.address, connect) else { return false };
        if let Some(life) = self.dropped.take() {
            self.expect(life, Expected::Dropped);
        }
        let until = Instant::now() + Duration::from_millis(self.dice.within(1..150));
        while Instant::now() < until && !round.is_over() {
            match client.try_receive(Duration::from_millis(2)) {
                Err(Silence::TimedOut) => {}
                // The broker ended the connection.
                _ => {
                    self.expect(life, if delay == 3600 { Expected::Either } else { Expected::Published });
                    return false;
                }
            }
        }
        match self.dice.within(0..3) {
            0 => {
                let disconnect = Packet::Disconnect(Disconnect::new(ReasonCode::Success));
                client.try_send_bytes(&encode(&disconnect, version));
                let is_closed = client.try_receive(PATIENCE) == Err(Silence::Closed);
                self.dropped = is_closed.then_some(life);
                is_closed && round.may_return()
            }
            _ if delay == 3600 => self.return_in_time(round, client, life),
            _ => {
                drop(client);
                self.expect(life, Expected::Published);
                true
            }
        }
    }

    /// Drops the Will with the next connection of the session, which itself ends with DISCONNECT.
    fn return_in_time(&mut self, round: &Round, client: RawClient, life: usize) -> bool {
        let held = self.dice.percent(50).then_some(client);
        let again = lasting(ProtocolVersion::V5, &self.client_id(3600));
        let Some((mut client, connack)) = RawClient::reach(round.address, again) else { return false };
        drop(held);
        if !connack.session_present {
            round.complain(format!("{}: its session is gone", self.client_id(3600)));
        }
        self.dropped = Some(life);
        client.try_send_bytes(&encode(&Packet::Disconnect(Disconnect::new(ReasonCode::Success)), ProtocolVersion::V5));
        client.try_receive(PATIENCE) == Err(Silence::Closed)
    }

    fn expect(&mut self, life: usize, expected: Expected) {
        self.fates[life].expected = expected;
    }

    fn will(&self, life: usize, qos: QoS, retain: bool, delay: u32) -> Will {
        let topic = topic(&format!("wills/{}/{life}", self.number));
        let payload = Bytes::from(life.to_string());
        Will { qos, retain, topic, payload, delay_interval: (delay > 0).then_some(delay), properties: None }
    }

    /// Delayed Wills have a separate session, so that a connection without delay does not drop a pending Will.
    fn client_id(&self, delay: u32) -> String {
        match delay {
            1 => format!("mortal-{}-life-{}", self.number, self.fates.len()),
            delay => format!("mortal-{}-delay-{delay}", self.number),
        }
    }
}

impl Heir {
    /// Begins the session.
    pub(crate) fn set_up(&self, broker: SocketAddr) {
        let (mut client, _) = RawClient::connect(broker, heir());
        client.subscribe("wills/#", QoS::ExactlyOnce);
        client.disconnect();
    }

    /// Receives until the round is over or the broker is gone.
    pub(crate) fn work(&mut self, round: &Round) {
        let Some((client, connack)) = RawClient::reach(round.address, heir()) else { return };
        if !connack.session_present {
            round.complain("heir: its session is gone".to_owned());
        }
        self.client = Some(client);
        while self.take_next(round) && !round.is_over() {}
        self.client = None;
    }

    /// Receives until all expected Wills are there or none arrives for long, then checks the retained ones.
    pub(crate) fn finish(&mut self, round: &Round, mortals: &[Mortal]) {
        let mut progress = (Instant::now(), 0);
        let mut missing = self.missing(mortals);
        while !missing.is_empty() && progress.0.elapsed() < PATIENCE {
            self.client = RawClient::reach(round.address, heir()).map(|(client, _)| client);
            let until = Instant::now() + Duration::from_millis(200);
            while self.take_next(round) && Instant::now() < until {}
            if self.came.len() > progress.1 {
                progress = (Instant::now(), self.came.len());
            }
            missing = self.missing(mortals);
        }
        for (mortal, life) in missing {
            round.complain(format!("heir: the Will of life {life} of mortal {mortal} never came"));
        }
        for (&(mortal, life), &(count, crashes)) in &self.came {
            let what = format!("a Will of life {life} of mortal {mortal} came, {count} times");
            let Some(fate) = fate(mortals, (mortal, life)) else {
                round.complain(format!("heir: {what}: there is no such life"));
                continue;
            };
            if fate.expected == Expected::Dropped {
                round.complain(format!("heir: {what}: it was dropped"));
            }
            // A crash may lose the record that a Will was published: the broker publishes it again. At QoS 1 it may
            // also lose the record that an earlier Will was sent, which is then sent again without DUP.
            let crashes = crashes - fate.crashes;
            let sent_again = if fate.qos == QoS::AtLeastOnce { crashes * (crashes + 1) / 2 } else { 0 };
            if count > 1 + crashes + sent_again {
                round.complain(format!("heir: {what} at {}, after {crashes} crashes", fate.qos));
            }
        }
        self.look_at_retained(round, mortals);
    }

    /// Asserts that a retained Will exists if and only if it arrived.
    ///
    /// A Will that arrived shortly before a crash may not have been durable. The broker then publishes it again after
    /// its delay.
    fn look_at_retained(&self, round: &Round, mortals: &[Mortal]) {
        let is_wanted = |will: &&Whose| fate(mortals, **will).is_some_and(|fate| fate.is_retained);
        let until = Instant::now() + PATIENCE;
        let mut retained = retained_wills(round);
        while !self.came.keys().filter(is_wanted).all(|will| retained.contains(will)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
            retained = retained_wills(round);
        }
        for &(mortal, life) in &retained {
            let fate = fate(mortals, (mortal, life));
            if fate.is_none_or(|fate| !fate.is_retained || fate.expected == Expected::Dropped) {
                round.complain(format!("heir: a Will of life {life} of mortal {mortal} is retained"));
            }
        }
        for (mortal, life) in self.came.keys().filter(is_wanted).filter(|will| !retained.contains(will)) {
            round.complain(format!("heir: the Will of life {life} of mortal {mortal} came and is not retained"));
        }
    }

    /// Number of Wills that arrived.
    pub(crate) fn count(&self) -> usize {
        self.came.len()
    }

    fn missing(&self, mortals: &[Mortal]) -> Vec<Whose> {
        let lives = mortals.iter().flat_map(|mortal| {
            let fates = mortal.fates.iter().enumerate();
            fates.filter(|(_, fate)| fate.expected == Expected::Published).map(|(life, _)| (mortal.number, life))
        });
        lives.filter(|will| !self.came.contains_key(will)).collect()
    }

    /// Handles the next packet. Returns false if the broker is gone.
    fn take_next(&mut self, round: &Round) -> bool {
        let Some(client) = &mut self.client else { return false };
        let answer = match client.try_receive(Duration::from_millis(2)) {
            Ok(Packet::Publish(publish)) => {
                let Some(will) = whose(&publish) else {
                    round.complain(format!("heir: nobody published {publish:?}"));
                    return true;
                };
                let (id, is_repeated) = match (publish.qos, publish.packet_id) {
                    (QoS::ExactlyOnce, Some(id)) => (Some(id), !self.unreleased.insert(id)),
                    (_, id) => (id, publish.dup && self.came.contains_key(&will)),
                };
                if !is_repeated {
                    let (count, crashes) = self.came.entry(will).or_default();
                    (*count, *crashes) = (*count + 1, round.crashes());
                }
                let ack = id.map(|id| Ack::new(id, ReasonCode::Success));
                ack.map(|ack| if publish.qos == QoS::ExactlyOnce { Packet::PubRec(ack) } else { Packet::PubAck(ack) })
            }
            Ok(Packet::PubRel(ack)) => {
                self.unreleased.remove(&ack.packet_id);
                Some(Packet::PubComp(Ack::new(ack.packet_id, ReasonCode::Success)))
            }
            Ok(_) | Err(Silence::TimedOut) => None,
            Err(_) => return false,
        };
        answer.into_iter().for_each(|packet| client.try_send_bytes(&encode(&packet, ProtocolVersion::V5)));
        true
    }
}

fn retained_wills(round: &Round) -> HashSet<Whose> {
    let (mut observer, _) = RawClient::connect(round.address, Connect::new(ProtocolVersion::V5, text("observer")));
    observer.subscribe("wills/#", QoS::AtMostOnce);
    // A delayed Will may be published during the check.
    observer.drain().iter().filter(|message| message.retain).filter_map(whose).collect()
}

fn fate(mortals: &[Mortal], (mortal, life): Whose) -> Option<Fate> {
    mortals.get(mortal).and_then(|mortal| mortal.fates.get(life)).copied()
}

fn whose(publish: &Publish) -> Option<Whose> {
    let levels = std::str::from_utf8(publish.topic.as_bytes()).ok()?.strip_prefix("wills/")?;
    let (mortal, life) = levels.split_once('/')?;
    (publish.payload == life).then_some((mortal.parse().ok()?, life.parse().ok()?))
}

fn heir() -> Connect {
    lasting(ProtocolVersion::V5, "heir")
}
