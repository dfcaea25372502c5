//! A small broker for tests: share groups served in turn, all QoS levels, faults on demand.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::BytesMut;
use tenbin_codec::{
    Ack, AckProperties, ConnAck, Decoded, Decoder, Packet, PacketId, ProtocolVersion, Publish, QoS, ReasonCode, SubAck,
    TopicFilter, UnsubAck, WriteBuffer,
};

/// Faults of the broker; messages are counted from 0.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    pub(crate) lose: Option<u64>,
    pub(crate) duplicate: Option<u64>,
    /// Stalls for [`STALL`] before it delivers this message.
    pub(crate) stall: Option<u64>,
    /// Ends all connections instead of delivering this message.
    pub(crate) die: Option<u64>,
    /// Neither acknowledges nor delivers this message.
    pub(crate) swallow: Option<u64>,
    /// Refuses every message: not authorized.
    pub(crate) refuse: bool,
    pub(crate) often: Often,
    /// Ranges of messages with separate faults, in place of `often`.
    pub(crate) script: &'static [(Range<u64>, Often)],
}

/// Repeated faults: each affects every n-th message.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Often {
    pub(crate) lose: Option<u64>,
    pub(crate) duplicate: Option<u64>,
    /// As `duplicate`, with the DUP flag on the copy.
    pub(crate) redeliver: Option<u64>,
    /// Delivered after the publisher's next message.
    pub(crate) hold_back: Option<u64>,
    /// Delivered to all members of the share group.
    pub(crate) give_to_all: Option<u64>,
    /// One byte of the payload's stamp is changed.
    pub(crate) damage: Option<u64>,
    /// Refused: not authorized. Only at QoS 1.
    pub(crate) refuse: Option<u64>,
    /// Neither acknowledged nor delivered.
    pub(crate) swallow: Option<u64>,
    /// Delivered, but not acknowledged.
    pub(crate) keep_ack: Option<u64>,
}

/// Longer than the driver waits before it gives up outstanding deliveries.
const STALL: Duration = Duration::from_millis(500);

/// Starts a broker that serves until the test process ends.
pub(crate) fn start(faults: Faults) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let broker = Arc::new(Broker { faults, state: Mutex::default() });
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let broker = Arc::clone(&broker);
            std::thread::spawn(move || broker.serve(stream));
        }
    });
    address
}

struct Broker {
    faults: Faults,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    connections: Vec<TcpStream>,
    subscribers: Vec<Subscriber>,
    messages: u64,
    /// Delayed messages, by publisher.
    held: HashMap<SocketAddr, (u64, Publish)>,
}

struct Subscriber {
    filter: TopicFilter,
    stream: TcpStream,
    peer: Option<SocketAddr>,
    version: ProtocolVersion,
    packet_id: u16,
}

impl Broker {
    fn serve(&self, mut stream: TcpStream) {
        stream.set_nodelay(true).expect("a socket");
        let peer = stream.peer_addr().ok();
        self.state.lock().unwrap().connections.push(stream.try_clone().expect("a socket"));
        let mut decoder = Decoder::server(1 << 21);
        let mut input = BytesMut::new();
        let mut chunk = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = stream.read(&mut chunk) {
            input.extend_from_slice(&chunk[..count]);
            while let Decoded::Packet(packet) = decoder.decode(&mut input).expect("well-formed packets") {
                let version = decoder.version().expect("CONNECT comes first");
                if let Some(answer) = self.answer(packet, version, &stream) {
                    // The peer may be gone already.
                    let _ = stream.write_all(&encode(&answer, version));
                }
            }
        }
        self.forget(peer);
    }

    /// Removes the peer's subscriptions.
    fn forget(&self, peer: Option<SocketAddr>) {
        self.state.lock().unwrap().subscribers.retain(|subscriber| subscriber.peer != peer);
    }

    fn answer(&self, packet: Packet, version: ProtocolVersion, stream: &TcpStream) -> Option<Packet> {
        let ack = |packet_id| Ack::new(packet_id, ReasonCode::Success);
        match packet {
            Packet::Connect(_) => Some(Packet::ConnAck(Box::new(ConnAck::new(false, ReasonCode::Success)))),
            Packet::PingReq(_) => Some(Packet::PingResp),
            Packet::Subscribe(subscribe) => {
                let reasons = subscribe.subscriptions.iter().map(|subscription| {
                    ReasonCode::from_byte(subscription.options.qos.bits()).expect("the granted QoS is a reason")
                });
                let reasons = reasons.collect();
                for subscription in subscribe.subscriptions {
                    let stream = stream.try_clone().expect("a socket");
                    let peer = stream.peer_addr().ok();
                    let subscriber = Subscriber { filter: subscription.filter, stream, peer, version, packet_id: 0 };
                    self.state.lock().unwrap().subscribers.push(subscriber);
                }
                let properties = AckProperties::default();
                Some(Packet::SubAck(SubAck { packet_id: subscribe.packet_id, properties, reasons }))
            }
            Packet::Unsubscribe(unsubscribe) => {
                self.forget(stream.peer_addr().ok());
                let reasons = unsubscribe.filters.iter().map(|_| ReasonCode::Success).collect();
                let properties = AckProperties::default();
                Some(Packet::UnsubAck(UnsubAck { packet_id: unsubscribe.packet_id, properties, reasons }))
            }
            Packet::Publish(publish) => {
                if self.faults.swallow == Some(self.state.lock().unwrap().messages) {
                    return None;
                }
                let number = self.state.lock().unwrap().messages;
                let often = self.often(number);
                let is_refused = is_its_turn(number, often.refuse);
                if is_refused || is_its_turn(number, often.swallow) {
                    self.state.lock().unwrap().messages += 1;
                    let refusal = |id| Packet::PubAck(Ack::new(id, ReasonCode::NotAuthorized));
                    return publish.packet_id.filter(|_| is_refused).map(refusal);
                }
                if self.faults.refuse {
                    let ack = |packet_id| Ack::new(packet_id, ReasonCode::NotAuthorized);
                    return publish.packet_id.map(|id| Packet::PubAck(ack(id)));
                }
                self.take(publish.clone(), stream.peer_addr().ok());
                if is_its_turn(number, often.keep_ack) {
                    return None;
                }
                match publish.qos {
                    QoS::AtMostOnce => None,
                    QoS::AtLeastOnce => publish.packet_id.map(|id| Packet::PubAck(ack(id))),
                    QoS::ExactlyOnce => publish.packet_id.map(|id| Packet::PubRec(ack(id))),
                }
            }
            Packet::PubRec(rec) => Some(Packet::PubRel(ack(rec.packet_id))),
            Packet::PubRel(rel) => Some(Packet::PubComp(ack(rel.packet_id))),
            Packet::Disconnect(_) => {
                // The peer sends nothing more and waits for the end.
                let _ = stream.shutdown(std::net::Shutdown::Both);
                None
            }
            _ => None,
        }
    }

    fn take(&self, publish: Publish, peer: Option<SocketAddr>) {
        let mut state = self.state.lock().unwrap();
        let number = state.messages;
        state.messages += 1;
        if self.faults.stall == Some(number) {
            std::thread::sleep(STALL);
        }
        if self.faults.die == Some(number) {
            for connection in state.connections.drain(..) {
                let _ = connection.shutdown(std::net::Shutdown::Both);
            }
            return;
        }
        let Some(peer) = peer else { return };
        let held = state.held.remove(&peer);
        if held.is_none() && is_its_turn(number, self.often(number).hold_back) {
            state.held.insert(peer, (number, publish));
            return;
        }
        self.deliver(&mut state, number, publish);
        if let Some((number, publish)) = held {
            self.deliver(&mut state, number, publish);
        }
    }

    /// Repeated faults of message `number`.
    fn often(&self, number: u64) -> Often {
        let own = self.faults.script.iter().find(|(messages, _)| messages.contains(&number));
        own.map_or(self.faults.often, |(_, often)| *often)
    }

    fn deliver(&self, state: &mut State, number: u64, mut publish: Publish) {
        let often = self.often(number);
        if self.faults.lose == Some(number) || is_its_turn(number, often.lose) {
            return;
        }
        if is_its_turn(number, often.damage) {
            let mut payload = publish.payload.to_vec();
            // The stream's highest byte: no such stream exists.
            payload[10] ^= 0x80;
            publish.payload = payload.into();
        }
        let is_wanted = |subscriber: &&mut Subscriber| match subscriber.filter.shared() {
            Some(shared) => shared.filter.matches(&publish.topic),
            None => subscriber.filter.matches(&publish.topic),
        };
        let mut wanted: Vec<_> = state.subscribers.iter_mut().filter(is_wanted).collect();
        let is_shared = wanted.first().is_some_and(|first| first.filter.is_shared());
        if is_shared && !is_its_turn(number, often.give_to_all) {
            let turn = number as usize % wanted.len();
            wanted = vec![wanted.swap_remove(turn)];
        }
        for subscriber in wanted {
            subscriber.send(publish.clone());
            if self.faults.duplicate == Some(number) || is_its_turn(number, often.duplicate) {
                subscriber.send(publish.clone());
            }
            if is_its_turn(number, often.redeliver) {
                subscriber.send(Publish { dup: true, ..publish.clone() });
            }
        }
    }
}

/// Whether message `number` is an `every`-th one, counted from the first.
fn is_its_turn(number: u64, every: Option<u64>) -> bool {
    every.is_some_and(|every| number % every == every - 1)
}

impl Subscriber {
    fn send(&mut self, mut publish: Publish) {
        if publish.qos.is_acknowledged() {
            self.packet_id = self.packet_id.checked_add(1).unwrap_or(1);
            publish.packet_id = PacketId::new(self.packet_id);
        }
        // The subscriber may have left.
        let _ = self.stream.write_all(&encode(&Packet::Publish(publish), self.version));
    }
}

fn encode(packet: &Packet, version: ProtocolVersion) -> bytes::Bytes {
    let mut out = WriteBuffer::new();
    packet.encode(version, &mut out);
    out.to_bytes()
}
