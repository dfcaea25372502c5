//! Members of a trunk and their packets, without I/O.

mod distributing;
mod flowing;
mod moving;
mod requesting;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustc_hash::FxBuildHasher;
use tenbin_codec::{
    Ack, ConnAck, Packet, PacketId, PingReq, ProtocolVersion, Publish, QoS, ReasonCode, Subscription, Text,
    TopicFilter, TopicName, UnsubAck, Will, WriteBuffer,
};

use super::subscriptions::Subscriptions;

pub(super) use moving::Delivered;

/// Names a member. Keys of members that left name none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Key {
    index: u32,
    generation: u32,
}

/// One trunk.
#[derive(Default)]
pub(super) struct Hub {
    state: State,
    /// Packets for the broker.
    out: WriteBuffer,
    /// Bytes for the broker so far, and those that were written.
    queued: u64,
    written: u64,
    task: Option<Waker>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    subscriptions: Subscriptions,
    requests: HashMap<PacketId, Request, FxBuildHasher>,
    last_id: u16,
    /// QoS 1 and 2 messages under way to the broker.
    publishing: u16,
    /// Messages beyond the broker's Receive Maximum.
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// Filters without members whose UNSUBSCRIBE waits for a Packet Identifier.
    unsubscribing: VecDeque<TopicFilter>,
    /// QoS 2 messages of the broker that it has not released.
    unreleased: HashSet<PacketId, FxBuildHasher>,
    /// Streams of members that left, which wait for the end of the output.
    blocked: Vec<Waker>,
    /// Members that wait for room, each once.
    without_room: Vec<Key>,
    /// Members whose connection is replaced for another Will.
    parked: HashMap<Text, (Key, Instant), FxBuildHasher>,
    /// PINGREQs that the broker has not answered, oldest first.
    pings: VecDeque<Ping>,
    receivers: Vec<(Key, QoS)>,
    /// Bytes of a payload that a client may get.
    payload_bytes_maximum: usize,
    /// Messages to members that were slow, or whose Will had no room.
    dropped: u64,
}

#[derive(Default)]
enum State {
    #[default]
    Down,
    Opening,
    Up(Box<ConnAck>),
}

#[derive(Default)]
struct Slot {
    generation: u32,
    member: Option<Member>,
}

/// A client on the trunk.
#[derive(Default)]
struct Member {
    /// Packets for it.
    inbound: WriteBuffer,
    waker: Option<Waker>,
    /// Wakes its writer once there is room.
    room: Option<Waker>,
    /// CONNACK was written.
    is_connected: bool,
    /// Nothing follows `inbound`.
    is_closed: bool,
    /// The last read may have ended within a packet.
    is_cut: bool,
    will: Option<Box<Will>>,
    /// With the QoS that it asked for.
    filters: Vec<(TopicFilter, QoS)>,
    last_id: u16,
    /// QoS 1 and 2 messages to it that it has not acknowledged, with their ends in the output to the member.
    unacknowledged: HashMap<PacketId, i64, FxBuildHasher>,
    /// Bytes that the member has read.
    read: i64,
    /// Its messages and SUBSCRIBEs that the broker has not answered.
    unanswered: usize,
    /// QoS 2 messages of which it has PUBREC, and has not sent PUBREL.
    unreleased: HashSet<PacketId, FxBuildHasher>,
    /// Present while it moves to a connection of its own.
    moving: Option<Box<moving::Moving>>,
}

/// Reason of a PINGREQ.
enum Ping {
    KeepAlive,
    /// A member ends its subscriptions once the broker has answered.
    Move(Key),
}

/// A request to the broker whose answer is due.
enum Request {
    /// The member with its own identifier; none for a Will, or if the member left.
    Publish(Option<(Key, PacketId)>),
    Subscribe {
        owner: (Key, PacketId),
        filter: TopicFilter,
        identifier: u32,
        qos: QoS,
    },
    Unsubscribe,
}

/// A QoS 1 or 2 message for the broker.
struct Waiting {
    owner: Option<(Key, PacketId)>,
    qos: QoS,
    retain: bool,
    topic: TopicName,
    payload: Bytes,
}

/// Reason for the end of the trunk's connection.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct TrunkError(pub(super) String);

/// Bytes for one member beyond which messages to it are dropped.
const MEMBER_BYTES_MAXIMUM: usize = 64 * 1024;
/// Bytes for the broker beyond which members wait.
const OUT_BYTES_MAXIMUM: usize = 1 << 20;
/// Wills that wait for the broker.
const WILLS_MAXIMUM: usize = 10_000;
/// Time for a new connection of a member with another Will.
const PARK_TIME: Duration = Duration::from_secs(60);
const VERSION: ProtocolVersion = ProtocolVersion::V5;
/// Bytes of a Will's PUBLISH besides its payload; a Will with its topic has at most 1 KiB by default.
const PUBLISH_OVERHEAD: usize = 1040;

impl Hub {
    /// A trunk that is down. `payload_bytes_maximum` bounds messages to clients.
    pub(super) fn new(payload_bytes_maximum: usize) -> Self {
        Self { payload_bytes_maximum, ..Self::default() }
    }

    /// Adds a member. It gets CONNACK once the trunk is up. True if the trunk has to be opened.
    pub(super) fn join(&mut self, client_id: &Text, will: Option<Will>) -> (Key, bool) {
        if let Some((last, _)) = self.parked.remove(client_id) {
            self.leave(last, false);
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.member = Some(Member { will: will.map(Box::new), ..Member::default() });
        let key = Key { index, generation: slot.generation };
        self.welcome(key, false);
        let is_down = matches!(self.state, State::Down);
        if is_down {
            self.state = State::Opening;
        }
        (key, is_down)
    }

    /// Resumes a member whose connection was replaced, with another Will.
    pub(super) fn resume(&mut self, client_id: &Text, will: Option<&Will>) -> Option<Key> {
        let (key, _) = self.parked.remove(client_id)?;
        let member = self.member(key)?;
        member.will = will.cloned().map(Box::new);
        member.is_connected = false;
        // CONNACK comes before messages of the meantime.
        let meantime = std::mem::take(&mut member.inbound);
        self.welcome(key, true);
        if let Some(member) = self.member(key) {
            // The ends of messages do not count CONNACK.
            member.read -= member.inbound.len() as i64;
            member.inbound.append(meantime);
        }
        Some(key)
    }

    /// Keeps a member whose connection is about to be replaced.
    pub(super) fn park(&mut self, key: Key, client_id: &Text, now: Instant) {
        self.forget_parked(now);
        let Some(member) = self.member(key) else { return };
        (member.will, member.waker) = (None, None);
        if member.is_cut {
            // Its stream has the first part of a packet.
            member.inbound = WriteBuffer::new();
            let read = member.read;
            member.unacknowledged.retain(|_, end| *end <= read);
            self.dropped += 1;
        }
        if let Some((last, _)) = self.parked.insert(client_id.detach(), (key, now)) {
            self.leave(last, false);
        }
    }

    /// Removes a member; its Will is published if it has one and `publishes_will`.
    pub(super) fn leave(&mut self, key: Key, publishes_will: bool) {
        self.detach(key);
        let Some(slot) = self.slots.get_mut(key.index as usize).filter(|slot| slot.generation == key.generation) else {
            return;
        };
        let Some(member) = slot.member.take() else { return };
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.index);
        if let Some(will) = member.will.filter(|_| publishes_will) {
            let Will { qos, retain, topic, payload, .. } = *will;
            self.publish(Waiting { owner: None, qos, retain, topic, payload });
        }
    }

    /// Ends a member's subscriptions, and returns them.
    fn detach(&mut self, key: Key) -> Vec<(TopicFilter, QoS)> {
        let Some(member) = self.member(key) else { return Vec::new() };
        let filters = std::mem::take(&mut member.filters);
        for (filter, _) in &filters {
            self.unsubscribe(key, filter);
        }
        filters
    }

    /// Handles a packet of a member.
    ///
    /// # Errors
    /// A packet that no client of the gateway sends.
    pub(super) fn handle_member(&mut self, key: Key, packet: Packet) -> Result<(), TrunkError> {
        if self.member(key).is_none_or(|member| member.is_closed) {
            return Ok(()); // The client is told, and repeats it.
        }
        match packet {
            Packet::Publish(Publish { qos, retain, topic, packet_id, payload, .. }) => {
                let owner = packet_id.map(|id| (key, id));
                if owner.is_some()
                    && let Some(member) = self.member(key)
                {
                    member.unanswered += 1;
                }
                self.publish(Waiting { owner, qos, retain, topic, payload });
            }
            // The trunk has released it already.
            Packet::PubRel(release) => {
                if let Some(member) = self.member(key) {
                    member.unreleased.remove(&release.packet_id);
                }
                self.send(key, &Packet::PubComp(Ack::new(release.packet_id, ReasonCode::Success)));
            }
            Packet::PubRec(received) => {
                let release = Packet::PubRel(Ack::new(received.packet_id, ReasonCode::Success));
                if received.reason.is_error() {
                    self.note_acknowledged(key, received.packet_id);
                } else {
                    self.send(key, &release);
                }
            }
            Packet::PubAck(ack) | Packet::PubComp(ack) => self.note_acknowledged(key, ack.packet_id),
            Packet::Subscribe(subscribe) => {
                let [Subscription { filter, options }] = &subscribe.subscriptions[..] else {
                    return Err(TrunkError("a SUBSCRIBE without exactly one filter".to_owned()));
                };
                self.subscribe(key, subscribe.packet_id, filter, options.qos);
            }
            Packet::Unsubscribe(unsubscribe) => {
                for filter in &unsubscribe.filters {
                    self.forget_filter(key, filter);
                }
                let reasons = vec![ReasonCode::Success; unsubscribe.filters.len()];
                let packet_id = unsubscribe.packet_id;
                self.send(key, &Packet::UnsubAck(UnsubAck { packet_id, properties: Default::default(), reasons }));
            }
            Packet::PingReq(_) => self.send(key, &Packet::PingResp),
            _ => return Err(TrunkError("a packet that is none of a client's".to_owned())),
        }
        Ok(())
    }

    /// Handles a packet of the broker.
    ///
    /// # Errors
    /// The connection is over.
    pub(super) fn handle_broker(&mut self, packet: Packet) -> Result<(), TrunkError> {
        match packet {
            Packet::Publish(publish) => self.distribute(&publish),
            Packet::PubRel(release) => {
                self.unreleased.remove(&release.packet_id);
                self.write(&Packet::PubComp(Ack::new(release.packet_id, ReasonCode::Success)));
            }
            Packet::PubAck(ack) => {
                self.answer(&ack, Packet::PubAck);
                self.finish_publish(ack.packet_id);
            }
            Packet::PubRec(ack) => {
                self.answer(&ack, Packet::PubRec);
                if ack.reason.is_error() {
                    self.finish_publish(ack.packet_id);
                } else {
                    // At once: a client that takes its time would hold up all others.
                    self.write(&Packet::PubRel(Ack::new(ack.packet_id, ReasonCode::Success)));
                }
            }
            Packet::PubComp(ack) => self.finish_publish(ack.packet_id),
            Packet::SubAck(suback) => self.finish_subscribe(&suback),
            Packet::UnsubAck(unsuback) => {
                self.requests.remove(&unsuback.packet_id);
                self.send_waiting();
            }
            Packet::PingResp => {
                if let Some(Ping::Move(key)) = self.pings.pop_front() {
                    self.end_subscriptions(key);
                }
            }
            Packet::Disconnect(disconnect) => {
                return Err(TrunkError(format!("broker sent DISCONNECT: {}", disconnect.reason)));
            }
            _ => return Err(TrunkError("broker sent a packet that no client gets".to_owned())),
        }
        Ok(())
    }

    /// The broker has accepted the trunk.
    pub(super) fn up(&mut self, connack: ConnAck) {
        self.state = State::Up(Box::new(connack));
        for key in self.keys() {
            self.welcome(key, false);
        }
        self.send_waiting();
    }

    /// The trunk could not be opened or has ended: so have all its members. `reason` is the broker's refusal.
    pub(super) fn down(&mut self, reason: Option<ReasonCode>) {
        self.state = State::Down;
        self.out.clear();
        self.written = self.queued;
        self.publishing = 0;
        self.pings.clear();
        self.unsubscribing.clear();
        self.requests.clear();
        self.unreleased.clear();
        self.subscriptions = Subscriptions::default();
        // Messages of members that left stay, as Wills do.
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|message| message.owner.is_none_or(|(key, _)| self.member(key).is_none()));
        waiting.iter_mut().for_each(|message| message.owner = None);
        self.waiting = waiting;
        self.waiting_bytes = self.waiting.iter().map(Waiting::bytes).sum();
        for (key, _) in std::mem::take(&mut self.parked).into_values() {
            self.leave(key, false);
        }
        for key in self.keys() {
            if let Some(reason) = reason {
                self.send(key, &Packet::ConnAck(Box::new(ConnAck::new(false, reason))));
            }
            if let Some(member) = self.member(key) {
                member.is_closed = true;
                member.filters.clear();
                member.unanswered = 0;
                member.wake();
            }
        }
        self.unblock();
    }

    /// Writes PINGREQ.
    ///
    /// # Errors
    /// The last PINGREQ was not answered.
    pub(super) fn tick(&mut self, now: Instant) -> Result<(), TrunkError> {
        if self.pings.iter().any(|ping| matches!(ping, Ping::KeepAlive)) {
            return Err(TrunkError("broker does not answer PINGREQ".to_owned()));
        }
        self.ping(Ping::KeepAlive);
        self.forget_parked(now);
        Ok(())
    }

    fn ping(&mut self, ping: Ping) {
        self.pings.push_back(ping);
        self.write(&Packet::PingReq(PingReq::PLAIN));
    }

    /// Forgets members whose new connection did not come.
    fn forget_parked(&mut self, now: Instant) {
        let late: Vec<Text> =
            self.parked.iter().filter(|(_, (_, since))| now >= *since + PARK_TIME).map(|(id, _)| id.clone()).collect();
        for client_id in late {
            if let Some((key, _)) = self.parked.remove(&client_id) {
                self.leave(key, false);
            }
        }
    }

    /// Messages that were dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    fn welcome(&mut self, key: Key, session_present: bool) {
        let State::Up(terms) = &self.state else { return };
        let will = self.slots.get(key.index as usize).and_then(|slot| slot.member.as_ref()?.will.as_deref());
        if let Some(reason) = will.and_then(|will| refusal(terms, will.qos, will.retain, will.payload.len())) {
            self.send(key, &Packet::ConnAck(Box::new(ConnAck::new(false, reason))));
            if let Some(member) = self.member(key) {
                (member.is_connected, member.is_closed, member.will) = (true, true, None);
            }
            return;
        }
        let mut connack = ConnAck::new(session_present, ReasonCode::Success);
        let properties = &terms.properties;
        connack.properties.maximum_qos = properties.maximum_qos;
        connack.properties.retain_available = properties.retain_available;
        connack.properties.maximum_packet_size = properties.maximum_packet_size;
        if let Some(member) = self.member(key)
            && !std::mem::replace(&mut member.is_connected, true)
        {
            self.send(key, &Packet::ConnAck(Box::new(connack)));
        }
    }

    /// Writes a packet to a member.
    pub(super) fn send(&mut self, key: Key, packet: &Packet) {
        if let Some(member) = self.member(key) {
            packet.encode(VERSION, &mut member.inbound);
            member.wake();
        }
    }

    /// Writes a packet to the broker.
    fn write(&mut self, packet: &Packet) {
        self.write_with(|out| packet.encode(VERSION, out));
    }

    fn write_with(&mut self, encode: impl FnOnce(&mut WriteBuffer)) {
        let before = self.out.len();
        encode(&mut self.out);
        self.queued += (self.out.len() - before) as u64;
        if let Some(task) = self.task.take() {
            task.wake();
        }
    }

    fn member(&mut self, key: Key) -> Option<&mut Member> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation == key.generation { slot.member.as_mut() } else { None }
    }

    fn keys(&self) -> Vec<Key> {
        let slots = self.slots.iter().zip(0..).filter(|(slot, _)| slot.member.is_some());
        slots.map(|(slot, index)| Key { index, generation: slot.generation }).collect()
    }
}

impl Member {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Waiting {
    fn bytes(&self) -> usize {
        self.topic.as_bytes().len() + self.payload.len() + size_of::<Self>()
    }
}

/// Why the broker would end the trunk for a message, if it would.
fn refusal(terms: &ConnAck, qos: QoS, retain: bool, payload_bytes: usize) -> Option<ReasonCode> {
    let terms = &terms.properties;
    if terms.maximum_qos.is_some_and(|maximum| qos > maximum) {
        return Some(ReasonCode::QoSNotSupported);
    }
    if retain && terms.retain_available == Some(false) {
        return Some(ReasonCode::RetainNotSupported);
    }
    let room = terms.maximum_packet_size.map_or(usize::MAX, |size| size.get() as usize);
    (payload_bytes + PUBLISH_OVERHEAD > room).then_some(ReasonCode::PacketTooLarge)
}
