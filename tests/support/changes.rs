use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tenbin_codec::{Connect, Packet, PacketId, ProtocolVersion, Publish, QoS, Subscribe, Unsubscribe};

use super::{Dice, PATIENCE, RawClient, Silence, encode, filter, lasting, retained, subscription, text};

/// Random changes of one client's subscriptions and retained messages, and their possible states.
pub(crate) struct Changes {
    dice: Dice,
    /// Possible values of each key, oldest first: the last acknowledged one, then those sent since. A subscription
    /// exists or not, a retained message has a number. 0 stands for nothing.
    possible: HashMap<Key, Vec<u64>>,
    /// Number of acknowledged changes.
    pub(crate) acknowledged: usize,
    looks: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Filter(u64),
    Topic(u64),
}

impl Changes {
    pub(crate) fn new(dice: Dice) -> Self {
        Self { dice, possible: HashMap::new(), acknowledged: 0, looks: 0 }
    }

    /// Checks that the broker's state is possible; from here on it is the only possible one. Returns the violations.
    pub(crate) fn look(&mut self, broker: SocketAddr) -> Vec<String> {
        let until = Instant::now() + PATIENCE;
        let (mut client, connack) = loop {
            match RawClient::reach(broker, changer()) {
                Some(reached) => break reached,
                None => assert!(Instant::now() < until, "the broker begins no session"),
            }
        };
        let mut wrong = Vec::new();
        if connack.session_present != (self.looks > 0) {
            wrong.push(format!("changer: its session is there: {}", connack.session_present));
        }
        self.looks += 1;
        let (mut observer, _) = RawClient::connect(broker, Connect::new(ProtocolVersion::V5, text("observer")));
        observer.subscribe("changes/topic/#", QoS::AtMostOnce);
        let mut found = HashMap::new();
        for message in observer.drain() {
            let key = Key::Topic(number(&message.topic.as_bytes()["changes/topic/".len()..]));
            if found.insert(key, number(&message.payload)).is_some() {
                wrong.push(format!("{key:?} is there twice"));
            }
        }
        client.subscribe(END, QoS::AtLeastOnce);
        for key in 0..KEYS {
            let payload = (self.looks * KEYS + key).to_string();
            observer.publish(&format!("changes/filter/{key}"), &payload, QoS::AtLeastOnce);
        }
        observer.publish(END, &(self.looks * KEYS).to_string(), QoS::AtLeastOnce);
        // Queued messages arrive first. The broker resends some if it was killed before it stored their PUBACK.
        loop {
            let message = client.receive_message();
            let number = number(&message.payload);
            match (number / KEYS == self.looks, message.topic.as_bytes() == END.as_bytes()) {
                (true, true) => break,
                (true, false) => drop(found.insert(Key::Filter(number % KEYS), 1)),
                (false, _) => {}
            }
        }
        for key in (0..KEYS).flat_map(|key| [Key::Filter(key), Key::Topic(key)]) {
            let is = found.get(&key).copied().unwrap_or(0);
            let may_be = self.possible.entry(key).or_insert_with(|| vec![0]);
            if !may_be.contains(&is) {
                wrong.push(format!("{key:?} is {is}, and may be {may_be:?}"));
            }
            *may_be = vec![is];
        }
        client.disconnect();
        wrong
    }

    /// Makes random changes until `over` is set or the broker is gone, then reads the remaining answers.
    pub(crate) fn make(&mut self, broker: SocketAddr, over: &AtomicBool) {
        let Some((mut client, _)) = RawClient::reach(broker, changer()) else { return };
        let mut under_way = HashMap::<PacketId, Key>::new();
        loop {
            let is_over = over.load(Ordering::Relaxed);
            while !is_over && under_way.len() < WINDOW {
                let id = client.next_id();
                let (key, value) = self.send(&mut client, id);
                self.possible.entry(key).or_default().push(value);
                under_way.insert(id, key);
            }
            match client.try_receive(Duration::from_millis(1)) {
                Ok(packet) => {
                    let Some((id, is_refused)) = acknowledges(&packet) else { continue };
                    let key = under_way.remove(&id).expect("sent and not acknowledged");
                    self.acknowledged += 1;
                    // The values in flight for this key, and the one before them.
                    let left = under_way.values().filter(|other| **other == key).count();
                    let may_be = self.possible.get_mut(&key).expect("sent");
                    let value = may_be.len() - 1 - left;
                    if is_refused {
                        may_be.remove(value);
                    } else {
                        may_be.drain(..value);
                    }
                }
                Err(Silence::TimedOut) if !is_over => {}
                Err(Silence::TimedOut | Silence::Closed) => return,
                Err(silence) => panic!("{silence:?}"),
            }
        }
    }

    fn send(&mut self, client: &mut RawClient, packet_id: PacketId) -> (Key, u64) {
        let key = self.dice.within(0..KEYS);
        let (user_properties, topic_filter) = (Vec::new(), format!("changes/filter/{key}"));
        let (packet, changed) = match self.dice.within(0..4) {
            0 => {
                let subscriptions = vec![subscription(&topic_filter, QoS::AtLeastOnce)];
                let subscribe = Subscribe { packet_id, subscription_identifier: None, user_properties, subscriptions };
                (Packet::Subscribe(subscribe), (Key::Filter(key), 1))
            }
            1 => {
                let unsubscribe = Unsubscribe { packet_id, user_properties, filters: vec![filter(&topic_filter)] };
                (Packet::Unsubscribe(unsubscribe), (Key::Filter(key), 0))
            }
            clears => {
                let clears = clears == 2 && self.dice.percent(50);
                let value = if clears { 0 } else { self.dice.within(1..1_000_000) };
                let payload = if clears { String::new() } else { value.to_string() };
                let publish = retained(&format!("changes/topic/{key}"), &payload);
                (Packet::Publish(Publish { packet_id: Some(packet_id), ..publish }), (Key::Topic(key), value))
            }
        };
        client.try_send_bytes(&encode(&packet, ProtocolVersion::V5));
        changed
    }
}

fn changer() -> Connect {
    lasting(ProtocolVersion::V5, "changer")
}

fn number(text: &[u8]) -> u64 {
    String::from_utf8_lossy(text).parse().expect("a number")
}

/// Identifier of an acknowledged change, and whether it was refused.
fn acknowledges(packet: &Packet) -> Option<(PacketId, bool)> {
    match packet {
        Packet::SubAck(ack) => Some((ack.packet_id, ack.reasons.iter().any(|reason| reason.is_error()))),
        Packet::UnsubAck(ack) => Some((ack.packet_id, ack.reasons.iter().any(|reason| reason.is_error()))),
        Packet::PubAck(ack) => Some((ack.packet_id, ack.reason.is_error())),
        _ => None,
    }
}

/// Topic of a message that the client always gets, after all others.
const END: &str = "changes/end";
const KEYS: u64 = 8;
/// Changes in flight.
const WINDOW: usize = 16;
