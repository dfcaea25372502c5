//! Clients with Wills that end in every way, and the heir that must learn of it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tenbin_codec::{Connect, Disconnect, Packet, ProtocolVersion, QoS, ReasonCode, Will};

use super::world::Round;
use crate::support::{Dice, PATIENCE, RawClient, Silence, encode, lasting, topic};

/// One client after the other, each life with a Will of its own number.
pub(crate) struct Mortal {
    number: usize,
    dice: Dice,
    lives: usize,
    expected: HashMap<usize, Expected>,
    /// The life whose Will is dropped, if the broker outlives it.
    dropped: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// The broker accepted the connection, which ended without DISCONNECT.
    Published,
    /// The broker closed after DISCONNECT, or the client came back within the delay; and it has acknowledged something later
    /// that it had to keep.
    Dropped,
    /// The broker may have died in between.
    Either,
}

/// Subscribes to all Wills in a session that lasts.
#[derive(Default)]
pub(crate) struct Heir {
    client: Option<RawClient>,
    came: HashMap<(usize, usize), usize>,
}

impl Mortal {
    pub(crate) fn new(number: usize, seed: u64) -> Self {
        let dice = Dice::new(seed, 5000 + number);
        Self { number, dice, lives: 0, expected: HashMap::new(), dropped: None }
    }

    /// Lives and dies until the round is over or the broker gone.
    pub(crate) fn work(&mut self, round: &Round) {
        while !round.is_over() && self.live(round) {}
        self.dropped = None;
    }

    /// Whether the broker is still there.
    fn live(&mut self, round: &Round) -> bool {
        let life = self.lives;
        // A delay that no run outlasts, but the session is thrown away; or none; or a short one.
        let delay = [0, 0, 1, 3600][self.dice.within(0..4) as usize];
        let version = if delay == 0 && self.dice.percent(50) { ProtocolVersion::V311 } else { ProtocolVersion::V5 };
        let connect = self.connect_packet(version, life, delay);
        self.lives += 1;
        self.expected.insert(life, Expected::Either);
        let Some((mut client, _)) = RawClient::reach(round.address, connect) else { return false };
        if let Some(life) = self.dropped.take() {
            self.expected.insert(life, Expected::Dropped);
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

    /// The next connection of the session drops the Will; its own ends with a DISCONNECT.
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
        self.expected.insert(life, expected);
    }

    fn connect_packet(&self, version: ProtocolVersion, life: usize, delay: u32) -> Connect {
        let will = Will {
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: topic(&format!("wills/{}", self.number)),
            payload: Bytes::from(life.to_string()),
            delay_interval: (delay > 0).then_some(delay),
            properties: None,
        };
        Connect { will: Some(will), ..lasting(version, &self.client_id(delay)) }
    }

    /// A delay has a session of its own, so that a connection without one does not drop a Will that waits.
    fn client_id(&self, delay: u32) -> String {
        match delay {
            1 => format!("mortal-{}-life-{}", self.number, self.lives),
            delay => format!("mortal-{}-delay-{delay}", self.number),
        }
    }
}

impl Heir {
    /// Begins the session.
    pub(crate) fn set_up(&self, broker: SocketAddr) {
        let (mut client, _) = RawClient::connect(broker, heir());
        client.subscribe("wills/#", QoS::AtLeastOnce);
        client.disconnect();
    }

    /// Receives until the round is over or the broker gone.
    pub(crate) fn work(&mut self, round: &Round) {
        let Some((client, connack)) = RawClient::reach(round.address, heir()) else { return };
        if !connack.session_present {
            round.complain("heir: its session is gone".to_owned());
        }
        self.client = Some(client);
        while self.take_next(round) && !round.is_over() {}
        self.client = None;
    }

    /// Receives until all Wills are there that must come, or none comes for long.
    pub(crate) fn finish(&mut self, round: &Round, mortals: &[Mortal]) {
        let mut progress = (Instant::now(), 0);
        let mut missing = self.missing(mortals);
        while !missing.is_empty() && progress.0.elapsed() < PATIENCE {
            self.client = RawClient::reach(round.address, heir()).map(|(client, _)| client);
            let until = Instant::now() + Duration::from_millis(200);
            while self.take_next(round) && Instant::now() < until {}
            let came = self.came.values().sum();
            if came > progress.1 {
                progress = (Instant::now(), came);
            }
            missing = self.missing(mortals);
        }
        for (mortal, life) in missing {
            round.complain(format!("heir: the Will of life {life} of mortal {mortal} never came"));
        }
        for (&(mortal, life), &count) in &self.came {
            let expected = mortals.get(mortal).and_then(|mortal| mortal.expected.get(&life));
            if expected.is_none_or(|&expected| expected == Expected::Dropped) {
                round.complain(format!(
                    "heir: a Will of life {life} of mortal {mortal} came, {count} times: {expected:?}"
                ));
            }
        }
    }

    /// How many Wills came.
    pub(crate) fn count(&self) -> usize {
        self.came.len()
    }

    fn missing(&self, mortals: &[Mortal]) -> Vec<(usize, usize)> {
        let expected = mortals.iter().flat_map(|mortal| mortal.expected.iter().map(|one| (mortal.number, one)));
        let published = expected.filter(|(_, (_, expected))| **expected == Expected::Published);
        published.map(|(mortal, (&life, _))| (mortal, life)).filter(|will| !self.came.contains_key(will)).collect()
    }

    /// Whether the broker is still there.
    fn take_next(&mut self, round: &Round) -> bool {
        let Some(client) = &mut self.client else { return false };
        match client.try_receive(Duration::from_millis(2)) {
            Ok(Packet::Publish(publish)) => {
                let number = |bytes: &[u8]| std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
                let mortal = publish.topic.as_bytes().strip_prefix(b"wills/").and_then(number);
                let Some(will) = mortal.zip(number(&publish.payload)) else {
                    round.complain(format!("heir: nobody published {publish:?}"));
                    return true;
                };
                *self.came.entry(will).or_default() += 1;
                let ack = publish.packet_id.map(|id| tenbin_codec::Ack::new(id, ReasonCode::Success));
                let ack = ack.map(|ack| encode(&Packet::PubAck(ack), ProtocolVersion::V5));
                client.try_send_bytes(&ack.unwrap_or_default());
                true
            }
            Ok(_) | Err(Silence::TimedOut) => true,
            Err(_) => false,
        }
    }
}

fn heir() -> Connect {
    lasting(ProtocolVersion::V5, "heir")
}
