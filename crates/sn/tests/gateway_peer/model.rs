//! A model client and a model broker, with a lossy, duplicating and reordering link between client and gateway.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::prelude::*;
use tenbin_codec::{Ack, Packet, PacketId, Publish, QoS, ReasonCode, TopicName};
use tenbin_sn::Action;
use tenbin_sn_codec::v1_2::{self, Connect, Disconnect, Message, PingReq, PubAck, RegAck, ReturnCode, Topic};

use crate::rig::{Rig, connect, gateway, id, packet_id};

const RETRY: Duration = Duration::from_millis(200);
const MESSAGES: u32 = 150;
const TOPICS: [&str; 3] = ["a/b", "xy", "pre/defined"];

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ mixed >> 31) % end
    }
}

/// A datagram under way, ordered by its arrival.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct UnderWay {
    arrival: Instant,
    sequence: u64,
    is_to_client: bool,
    datagram: Vec<u8>,
}

/// Datagrams under way in both directions, by time of arrival.
struct Link {
    dice: Dice,
    under_way: BinaryHeap<Reverse<UnderWay>>,
    sequence: u64,
}

impl Link {
    /// 10 % loss, 5 % duplicates, up to 40 ms of delay.
    fn send(&mut self, now: Instant, is_to_client: bool, datagram: &[u8]) {
        let copies = match self.dice.below(100) {
            0..10 => 0,
            10..15 => 2,
            _ => 1,
        };
        for _ in 0..copies {
            self.sequence += 1;
            let arrival = now + Duration::from_millis(self.dice.below(41));
            let (sequence, datagram) = (self.sequence, datagram.to_vec());
            self.under_way.push(Reverse(UnderWay { arrival, sequence, is_to_client, datagram }));
        }
    }
}

/// Answers of a receiver, which remembers the last ids.
#[derive(Default)]
struct Received {
    /// Numbers of the messages, in order of arrival, with QoS.
    messages: Vec<(u32, QoS)>,
    unreleased: BTreeSet<u16>,
    released: VecDeque<u16>,
}

impl Received {
    fn take(&mut self, message_id: u16, qos: QoS, payload: &[u8]) {
        let number = u32::from_be_bytes(payload.try_into().expect("a number"));
        if qos == QoS::AtLeastOnce {
            // Repetitions of QoS 1 are allowed: the first of each message counts.
            if !self.messages.contains(&(number, qos)) {
                self.messages.push((number, qos));
            }
        } else if !self.released.contains(&message_id) && self.unreleased.insert(message_id) {
            self.messages.push((number, qos));
        }
    }

    fn release(&mut self, message_id: u16) {
        if self.unreleased.remove(&message_id) {
            self.released.push_back(message_id);
            if self.released.len() > 16 {
                self.released.pop_front();
            }
        }
    }

    fn assert_complete(&self, who: &str) {
        let expected: Vec<_> = (0..MESSAGES).map(|number| (number, qos_of(number))).collect();
        assert_eq!(self.messages, expected, "{who}");
    }
}

fn qos_of(number: u32) -> QoS {
    if number.is_multiple_of(3) { QoS::AtLeastOnce } else { QoS::ExactlyOnce }
}

/// The broker: a reliable stream, and one message at a time.
#[derive(Default)]
struct Broker {
    sent: u32,
    /// The message under way, and whether it is released.
    under_way: Option<(PacketId, u32, bool)>,
    received: Received,
    /// PUBLISHes at QoS 2.
    publishes: usize,
}

impl Broker {
    /// Answers one packet.
    fn handle(&mut self, packet: Packet) -> Vec<Packet> {
        let ack = |id| Ack::new(id, ReasonCode::Success);
        match packet {
            Packet::Publish(publish) => {
                let id = publish.packet_id.expect("QoS 1 or 2");
                self.publishes += usize::from(publish.qos == QoS::ExactlyOnce);
                self.received.take(id.get(), publish.qos, &publish.payload);
                vec![if publish.qos == QoS::AtLeastOnce { Packet::PubAck(ack(id)) } else { Packet::PubRec(ack(id)) }]
            }
            Packet::PubRel(release) => {
                self.received.release(release.packet_id.get());
                vec![Packet::PubComp(ack(release.packet_id))]
            }
            Packet::PubAck(ack) | Packet::PubComp(ack) => {
                let (id, number, is_released) = self.under_way.take().expect("a message under way");
                assert_eq!((ack.packet_id, ack.reason), (id, ReasonCode::Success));
                assert_eq!(is_released, qos_of(number) == QoS::ExactlyOnce);
                self.next()
            }
            Packet::PubRec(received) => {
                let (id, _, is_released) = self.under_way.as_mut().expect("a message under way");
                assert_eq!((received.packet_id, *is_released), (*id, false));
                *is_released = true;
                vec![Packet::PubRel(ack(received.packet_id))]
            }
            Packet::PingReq(_) => vec![Packet::PingResp],
            other => panic!("unexpected {other:?}"),
        }
    }

    fn next(&mut self) -> Vec<Packet> {
        if self.sent == MESSAGES {
            return Vec::new();
        }
        let (number, id) = (self.sent, packet_id((self.sent % 65_535) as u16 + 1));
        self.sent += 1;
        self.under_way = Some((id, number, false));
        let topic = TopicName::try_from(TOPICS[number as usize % TOPICS.len()]).expect("a name");
        let mut publish = Publish::new(topic, Bytes::copy_from_slice(&number.to_be_bytes()));
        publish.qos = qos_of(number);
        publish.packet_id = Some(id);
        vec![Packet::Publish(publish)]
    }
}

/// The client: one message at a time, repeated until it is answered.
struct Client {
    sent: u32,
    is_released: bool,
    repeat_at: Instant,
    received: Received,
    names: BTreeMap<u16, String>,
}

impl Client {
    /// Sends the current message, or its release.
    fn publish(&mut self, dup: bool) -> Option<Vec<u8>> {
        let number = self.sent;
        if number == MESSAGES {
            return None;
        }
        let message_id = id((number % 65_535) as u16 + 1);
        let qos = match qos_of(number) {
            QoS::AtLeastOnce => v1_2::QoS::AtLeastOnce,
            _ => v1_2::QoS::ExactlyOnce,
        };
        Some(if self.is_released {
            encoded(&Message::PubRel(message_id))
        } else {
            let topic = Topic::Predefined(1);
            let data = &number.to_be_bytes();
            let message_id = Some(message_id);
            encoded(&Message::Publish(v1_2::Publish { dup, qos: Some(qos), retain: false, topic, message_id, data }))
        })
    }

    /// Answers one datagram.
    fn handle(&mut self, datagram: &[u8]) -> Option<Vec<u8>> {
        let current = id((self.sent % 65_535) as u16 + 1);
        match Message::decode(datagram).expect("a legal message") {
            Message::Register(register) => {
                self.names.insert(register.topic_id, register.topic.to_owned());
                let (topic_id, message_id, code) = (register.topic_id, register.message_id, ReturnCode::Accepted);
                Some(encoded(&Message::RegAck(RegAck { topic_id, message_id, code })))
            }
            Message::Publish(publish) => {
                let number = u32::from_be_bytes(publish.data.try_into().expect("a number"));
                let name = match publish.topic {
                    Topic::Normal(topic_id) => self.names.get(&topic_id).expect("registered").clone(),
                    Topic::Short(name) => name.as_str().to_owned(),
                    other => format!("{other:?}"),
                };
                let expected = TOPICS[number as usize % TOPICS.len()].replace("pre/defined", "Predefined(1)");
                assert_eq!(name, expected);
                let message_id = publish.message_id.expect("QoS 1 or 2");
                self.received.take(message_id.get(), qos_of(number), publish.data);
                Some(encoded(&match qos_of(number) {
                    QoS::AtLeastOnce => Message::PubAck(PubAck {
                        topic_id: publish.topic.field(),
                        message_id: Some(message_id),
                        code: ReturnCode::Accepted,
                    }),
                    _ => Message::PubRec(message_id),
                }))
            }
            Message::PubRel(message_id) => {
                self.received.release(message_id.get());
                Some(encoded(&Message::PubComp(message_id)))
            }
            Message::PubAck(puback) if puback.message_id == Some(current) && qos_of(self.sent) == QoS::AtLeastOnce => {
                assert_eq!(puback.code, ReturnCode::Accepted);
                self.advance()
            }
            Message::PubRec(message_id) if message_id == current && self.sent < MESSAGES => {
                self.is_released = true;
                self.publish(false)
            }
            Message::PubComp(message_id) if message_id == current && self.is_released => self.advance(),
            _ => None,
        }
    }

    fn advance(&mut self) -> Option<Vec<u8>> {
        self.sent += 1;
        self.is_released = false;
        self.publish(false)
    }
}

fn encoded(message: &Message<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    message.encode(&mut out);
    out
}

/// All parts, after the connection is set up without loss.
struct World {
    rig: Rig,
    link: Link,
    broker: Broker,
    client: Client,
    /// PUBLISHes that the peer has sent, which it may repeat only with DUP.
    published: BTreeSet<Vec<u8>>,
}

impl World {
    fn new(seed: u64, awake_messages: Option<NonZeroU16>) -> Self {
        let gateway = gateway(|settings| {
            settings.retry = RETRY;
            settings.retries = 30;
            settings.awake_messages = awake_messages;
        });
        let rig = Rig::active_with(&gateway, Connect { duration: 0, ..connect("c") }, None);
        let (now, names) = (rig.now, BTreeMap::new());
        let client =
            Client { sent: 0, is_released: false, repeat_at: now + RETRY, received: Received::default(), names };
        let link = Link { dice: Dice(seed), under_way: BinaryHeap::new(), sequence: 0 };
        Self { rig, link, broker: Broker::default(), client, published: BTreeSet::new() }
    }

    /// Passes the peer's output on until it has none.
    fn flush(&mut self) {
        loop {
            let now = self.rig.now;
            for mut datagram in self.rig.sent() {
                self.link.send(now, true, &datagram);
                if let Ok(Message::Publish(publish)) = Message::decode(&datagram) {
                    let is_copy = publish.dup;
                    v1_2::Publish::mark_dup(&mut datagram);
                    assert_eq!(!self.published.insert(datagram), is_copy, "every copy is marked, and no other");
                }
            }
            let answers: Vec<Packet> =
                self.rig.packets().into_iter().flat_map(|packet| self.broker.handle(packet)).collect();
            if answers.is_empty() {
                return;
            }
            self.packets_arrive(answers);
        }
    }

    fn packets_arrive(&mut self, packets: Vec<Packet>) {
        for packet in packets {
            assert!(self.rig.peer.accepts_packets());
            self.rig.broker(packet);
            assert_eq!(self.rig.action, Action::Continue);
        }
    }

    fn client_sends(&mut self, datagram: &[u8]) {
        let now = self.rig.now;
        self.link.send(now, false, datagram);
    }

    /// Lets time pass to the next arrival, or to `limit`. Returns the datagram for the client, if it is one.
    fn step(&mut self, limit: Instant) -> Option<Vec<u8>> {
        let arrival = self.link.under_way.peek().map(|Reverse(first)| first.arrival).filter(|&at| at <= limit);
        let until = arrival.unwrap_or(limit);
        while let Some(deadline) = self.rig.peer.poll_timeout().filter(|&deadline| deadline <= until) {
            let time = deadline.saturating_duration_since(self.rig.now);
            self.rig.pass(time);
            assert_eq!(self.rig.action, Action::Continue);
            self.flush();
        }
        self.rig.now = until;
        arrival?;
        let Reverse(UnderWay { is_to_client, datagram, .. }) = self.link.under_way.pop()?;
        if is_to_client {
            return Some(datagram);
        }
        self.rig.datagram(&datagram);
        assert_eq!(self.rig.action, Action::Continue);
        self.flush();
        None
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn lossy_link_keeps_messages_complete_and_in_order(seed in any::<u64>()) {
        let mut world = World::new(seed, None);
        let first = world.broker.next();
        world.packets_arrive(first);
        world.flush();
        if let Some(datagram) = world.client.publish(false) {
            world.client_sends(&datagram);
        }
        let end = world.rig.now + Duration::from_secs(1000);
        while world.client.sent < MESSAGES || world.broker.sent < MESSAGES || world.broker.under_way.is_some() {
            assert!(world.rig.now < end, "it takes too long");
            if let Some(datagram) = world.step(world.client.repeat_at) {
                let before = (world.client.sent, world.client.is_released);
                if let Some(answer) = world.client.handle(&datagram) {
                    world.client_sends(&answer);
                }
                if before != (world.client.sent, world.client.is_released) {
                    world.client.repeat_at = world.rig.now + RETRY;
                }
            } else if world.rig.now >= world.client.repeat_at {
                world.client.repeat_at = world.rig.now + RETRY;
                if let Some(datagram) = world.client.publish(true) {
                    world.client_sends(&datagram);
                }
            }
        }
        world.client.received.assert_complete("to the client");
        world.broker.received.assert_complete("to the broker");
        let at_qos_2 = (0..MESSAGES).filter(|&number| qos_of(number) == QoS::ExactlyOnce).count();
        prop_assert_eq!(world.broker.publishes, at_qos_2, "each QoS 2 message reaches the broker once");
    }

    #[test]
    fn sleeping_client_behind_a_lossy_link_gets_all(seed in any::<u64>()) {
        let mut world = World::new(seed, NonZeroU16::new(5));
        world.client.sent = MESSAGES;
        let sleep = encoded(&Message::Disconnect(Disconnect { duration: Some(600) }));
        let wake = encoded(&Message::PingReq(PingReq { client_id: Some("c") }));
        world.rig.datagram(&sleep);
        world.rig.sent();
        let first = world.broker.next();
        world.packets_arrive(first);
        world.flush();
        let end = world.rig.now + Duration::from_secs(1000);
        while world.broker.sent < MESSAGES || world.broker.under_way.is_some() {
            // Asleep: everything is missed.
            let awake_at = world.rig.now + Duration::from_millis(world.link.dice.below(3000));
            while world.rig.now < awake_at {
                world.step(awake_at);
            }
            // Awake, until PINGRESP.
            let mut repeat_at = world.rig.now;
            loop {
                assert!(world.rig.now < end, "it takes too long");
                if world.rig.now >= repeat_at {
                    world.client_sends(&wake);
                    repeat_at = world.rig.now + RETRY;
                }
                match world.step(repeat_at) {
                    Some(datagram) if Message::decode(&datagram) == Ok(Message::PingResp) => break,
                    Some(datagram) => {
                        if let Some(answer) = world.client.handle(&datagram) {
                            world.client_sends(&answer);
                        }
                    }
                    None => {}
                }
            }
        }
        world.client.received.assert_complete("to the client");
    }
}
