//! Whatever is changed when the broker is killed: what was acknowledged is there, and of what was not, each or none.

use std::collections::HashMap;
use std::io::Write as _;
use std::time::{Duration, Instant, SystemTime};

use tenbin_codec::{Packet, PacketId, ProtocolVersion, Publish, QoS, Subscribe, Unsubscribe};

use super::Stage;
use super::support::{BrokerProcess, ConfigFile, RawClient, Silence, filter, lasting, retained, subscription};

/// `TENBIN_ROUNDS` asks for more.
const ROUNDS: usize = 5;
const KEYS: u64 = 8;
/// Changes under way at a time.
const WINDOW: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Filter(u64),
    Topic(u64),
}

/// What may be there after a kill, the oldest first: what was acknowledged last, and what was sent since. A subscription is
/// there or not, a retained message has a number; 0 is nothing.
type Possible = HashMap<Key, Vec<u64>>;

#[test]
fn what_was_acknowledged_is_there_whenever_the_broker_is_killed() {
    kill_again_and_again("always", ROUNDS);
}

#[test]
fn a_kill_takes_nothing_that_the_disk_has_not_confirmed() {
    kill_again_and_again("interval", 2);
    kill_again_and_again("never", 2);
}

fn kill_again_and_again(sync: &str, rounds: usize) {
    let rounds = rounds_or(rounds);
    let config = ConfigFile::new(&format!("[store]\nsync = \"{sync}\"\nsync_interval_ms = 50\n"));
    let arguments = ["--config", config.path()];
    let mut random = Random::new();
    let stage = Stage::new();
    let mut possible = Possible::new();
    let mut acknowledged = 0;
    for round in 0..rounds {
        let broker = stage.start_with(&arguments);
        look(&broker, &mut possible, round);
        acknowledged += change(broker, &mut possible, &mut random);
    }
    look(&stage.start_with(&arguments), &mut possible, rounds);
    assert!(acknowledged > 20 * rounds, "{acknowledged} changes acknowledged in {rounds} rounds, {sync}");
}

/// `TENBIN_ROUNDS`, if it is set.
pub(crate) fn rounds_or(rounds: usize) -> usize {
    std::env::var("TENBIN_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(rounds)
}

/// What is there has to be possible, and is all that is from here on.
fn look(broker: &BrokerProcess, possible: &mut Possible, round: usize) {
    let (mut client, connack) = RawClient::connect(broker.address(), lasting(ProtocolVersion::V5, "client"));
    assert_eq!(connack.session_present, round > 0, "round {round}");
    let mut observer = broker.v5("observer");
    observer.subscribe("topic/#", QoS::AtMostOnce);
    let mut found = HashMap::new();
    for message in observer.drain() {
        let number = |text: &[u8]| String::from_utf8_lossy(text).parse().expect("a number");
        let key = Key::Topic(number(&message.topic.as_bytes()[6..]));
        assert_eq!(found.insert(key, number(&message.payload)), None, "{key:?}");
    }
    for key in 0..KEYS {
        observer.publish(&format!("filter/{key}"), &key.to_string(), QoS::AtLeastOnce);
    }
    for payload in client.drain_payloads() {
        found.insert(Key::Filter(payload.parse().expect("a number")), 1);
    }
    for key in (0..KEYS).flat_map(|key| [Key::Filter(key), Key::Topic(key)]) {
        let is = found.get(&key).copied().unwrap_or(0);
        let may_be = possible.entry(key).or_insert_with(|| vec![0]);
        assert!(may_be.contains(&is), "round {round}: {key:?} is {is}, and may be {may_be:?}");
        *may_be = vec![is];
    }
    client.disconnect();
}

/// Changes this and that, and kills the broker meanwhile; how many were acknowledged.
fn change(broker: BrokerProcess, possible: &mut Possible, random: &mut Random) -> usize {
    let mut client = broker.connect(lasting(ProtocolVersion::V5, "client"));
    let mut broker = Some(broker);
    let until = Instant::now() + Duration::from_millis(100 + random.below(200));
    let mut under_way = HashMap::<PacketId, (Key, u64)>::new();
    let mut acknowledged = 0;
    loop {
        if broker.is_some() && Instant::now() >= until {
            broker = None;
        }
        while broker.is_some() && under_way.len() < WINDOW {
            let id = client.next_id();
            let (key, value) = send(&mut client, id, random);
            possible.entry(key).or_default().push(value);
            under_way.insert(id, (key, possible[&key].len() as u64));
        }
        match client.try_receive(Duration::from_millis(1)) {
            Ok(packet) => {
                let Some(id) = acknowledges(&packet) else { continue };
                let (key, _) = under_way.remove(&id).expect("sent and not acknowledged");
                acknowledged += 1;
                // As many as are still under way of this key, and the one before them.
                let left = under_way.values().filter(|(other, _)| *other == key).count();
                let may_be = possible.get_mut(&key).expect("sent");
                may_be.drain(..may_be.len() - 1 - left);
            }
            Err(Silence::TimedOut) if broker.is_some() => {}
            Err(Silence::TimedOut | Silence::Closed) => return acknowledged,
            Err(silence) => panic!("{silence:?}"),
        }
    }
}

fn send(client: &mut RawClient, packet_id: PacketId, random: &mut Random) -> (Key, u64) {
    let key = random.below(KEYS);
    let (user_properties, topic_filter) = (Vec::new(), format!("filter/{key}"));
    match random.below(4) {
        0 => {
            let subscriptions = vec![subscription(&topic_filter, QoS::AtLeastOnce)];
            let subscribe = Subscribe { packet_id, subscription_identifier: None, user_properties, subscriptions };
            client.try_send_bytes(&bytes(&Packet::Subscribe(subscribe)));
            (Key::Filter(key), 1)
        }
        1 => {
            let unsubscribe = Unsubscribe { packet_id, user_properties, filters: vec![filter(&topic_filter)] };
            client.try_send_bytes(&bytes(&Packet::Unsubscribe(unsubscribe)));
            (Key::Filter(key), 0)
        }
        clears => {
            let value = if clears == 2 && random.below(2) == 0 { 0 } else { 1 + random.below(1_000_000) };
            let payload = if value == 0 { String::new() } else { value.to_string() };
            let publish = Publish { packet_id: Some(packet_id), ..retained(&format!("topic/{key}"), &payload) };
            client.try_send_bytes(&bytes(&Packet::Publish(publish)));
            (Key::Topic(key), value)
        }
    }
}

fn bytes(packet: &Packet) -> bytes::Bytes {
    super::support::encode(packet, ProtocolVersion::V5)
}

fn acknowledges(packet: &Packet) -> Option<PacketId> {
    match packet {
        Packet::SubAck(ack) => Some(ack.packet_id),
        Packet::UnsubAck(ack) => Some(ack.packet_id),
        Packet::PubAck(ack) => Some(ack.packet_id),
        _ => None,
    }
}

/// xorshift64*
pub(crate) struct Random(u64);

impl Random {
    /// Another one each time, unless `TENBIN_SEED` says which; tells it.
    pub(crate) fn new() -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("later than 1970").as_nanos() as u64;
        let seed = std::env::var("TENBIN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(now | 1);
        let _ = writeln!(std::io::stderr(), "TENBIN_SEED={seed}");
        Self(seed)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) % end
    }
}
