//! A small broker with lasting sessions, which ends connections at known messages. It has two doors.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::BytesMut;
use tenbin_codec::{
    Ack, AckProperties, ConnAck, Decoded, Decoder, Packet, PacketId, ProtocolVersion, Publish, QoS, ReasonCode, SubAck,
    TopicFilter, WriteBuffer,
};
use tenbin_loadgen::run::Stamp;

/// Faults; messages are counted from 0, with those that were sent again.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    /// After every n-th message the broker ends all connections, before it acknowledges the message.
    pub(crate) drop_all: Option<u64>,
    /// At this message the first door closes for ever.
    pub(crate) close_door: Option<u64>,
}

/// Counts of the broker.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) messages: u64,
    /// Connections that the broker ended.
    pub(crate) dropped: u64,
    /// Messages with the DUP flag.
    pub(crate) marked: u64,
    /// Due times of all messages, by sequence number.
    pub(crate) due_ns: HashMap<u32, HashSet<u64>>,
    /// Connections accepted at each door.
    pub(crate) accepted: [u64; 2],
}

pub(crate) struct SessionBroker {
    pub(crate) doors: [SocketAddr; 2],
    shared: Arc<Shared>,
}

struct Shared {
    faults: Faults,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    seen: Seen,
    is_closed: bool,
    connections: u64,
    sessions: HashMap<String, Session>,
}

#[derive(Default)]
struct Session {
    filter: Option<TopicFilter>,
    /// Unacknowledged messages to the client, and whether PUBREL is due instead.
    outgoing: VecDeque<(PacketId, Publish, bool)>,
    last_id: u16,
    /// Packet Identifiers of QoS 2 from the client, before PUBREL.
    incoming: HashSet<u16>,
    connection: Option<Connection>,
}

struct Connection {
    stream: TcpStream,
    door: usize,
    /// Distinguishes it from other connections of the session.
    number: u64,
}

impl SessionBroker {
    /// Starts a broker that serves until the test process ends.
    pub(crate) fn start(faults: Faults) -> Self {
        let shared = Arc::new(Shared { faults, state: Mutex::default() });
        let doors = [0, 1].map(|door| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let address = listener.local_addr().expect("bound");
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let shared = Arc::clone(&shared);
                    std::thread::spawn(move || shared.serve(stream, door));
                }
            });
            address
        });
        Self { doors, shared }
    }

    pub(crate) fn seen(&self) -> Seen {
        self.shared.state().seen.clone()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn serve(&self, mut stream: TcpStream, door: usize) {
        if door == 0 && self.state().is_closed {
            return;
        }
        stream.set_nodelay(true).expect("a socket");
        let mut decoder = Decoder::server(1 << 21);
        let (mut input, mut chunk, mut client) = (BytesMut::new(), vec![0; 64 * 1024], String::new());
        let number = {
            let mut state = self.state();
            state.connections += 1;
            state.connections
        };
        while let Ok(count @ 1..) = stream.read(&mut chunk) {
            input.extend_from_slice(&chunk[..count]);
            while let Decoded::Packet(packet) = decoder.decode(&mut input).expect("well-formed packets") {
                if let Packet::Connect(connect) = &packet {
                    client = connect.client_id.to_string();
                }
                if !self.take(packet, &client, &stream, (door, number)) {
                    return;
                }
            }
        }
    }

    /// Handles a packet; returns whether the connection goes on.
    fn take(&self, packet: Packet, client: &str, stream: &TcpStream, (door, number): (usize, u64)) -> bool {
        let mut state = self.state();
        let ack = |packet_id| Ack::new(packet_id, ReasonCode::Success);
        match packet {
            Packet::Connect(connect) => {
                if connect.clean_start {
                    state.sessions.remove(client);
                }
                state.seen.accepted[door] += 1;
                let is_present = state.sessions.contains_key(client);
                let session = state.sessions.entry(client.to_owned()).or_default();
                send(stream, Packet::ConnAck(Box::new(ConnAck::new(is_present, ReasonCode::Success))));
                for (id, publish, is_released) in &session.outgoing {
                    send(
                        stream,
                        match is_released {
                            true => Packet::PubRel(ack(*id)),
                            false => Packet::Publish(Publish { dup: true, ..publish.clone() }),
                        },
                    );
                }
                let stream = stream.try_clone().expect("a socket");
                session.connection = Some(Connection { stream, door, number });
            }
            Packet::Disconnect(_) => {
                state.sessions.remove(client);
                return false;
            }
            // The broker has ended this connection.
            _ if !state.is_connected(client, number) => return false,
            Packet::Subscribe(subscribe) => {
                let subscription = &subscribe.subscriptions[0];
                let granted = ReasonCode::from_byte(subscription.options.qos.bits()).expect("a granted QoS");
                let session = state.sessions.get_mut(client).expect("it is connected");
                session.filter = Some(subscription.filter.clone());
                let (packet_id, properties) = (subscribe.packet_id, AckProperties::default());
                send(stream, Packet::SubAck(SubAck { packet_id, properties, reasons: vec![granted] }));
            }
            Packet::PingReq(_) => send(stream, Packet::PingResp),
            Packet::Publish(publish) => return self.publish(&mut state, publish, client, stream, number),
            Packet::PubRel(rel) => {
                state.sessions.get_mut(client).expect("it is connected").incoming.remove(&rel.packet_id.get());
                send(stream, Packet::PubComp(ack(rel.packet_id)));
            }
            Packet::PubRec(rec) => {
                let session = state.sessions.get_mut(client).expect("it is connected");
                session.outgoing.iter_mut().filter(|(id, ..)| *id == rec.packet_id).for_each(|entry| entry.2 = true);
                send(stream, Packet::PubRel(ack(rec.packet_id)));
            }
            Packet::PubAck(done) | Packet::PubComp(done) => {
                let session = state.sessions.get_mut(client).expect("it is connected");
                session.outgoing.retain(|(id, ..)| *id != done.packet_id);
            }
            other => panic!("unexpected {}", other.packet_type()),
        }
        true
    }

    fn publish(&self, state: &mut State, publish: Publish, client: &str, stream: &TcpStream, connection: u64) -> bool {
        let number = state.seen.messages;
        state.seen.messages += 1;
        state.seen.marked += u64::from(publish.dup);
        let stamp = Stamp::decode(&publish.payload).expect("payloads have a stamp");
        state.seen.due_ns.entry(stamp.sequence).or_default().insert(stamp.due_ns);
        let session = state.sessions.get_mut(client).expect("it is connected");
        let is_new = match (publish.qos, publish.packet_id) {
            (QoS::ExactlyOnce, Some(id)) => session.incoming.insert(id.get()),
            _ => true,
        };
        let wants = |session: &&mut Session| {
            is_new && session.filter.as_ref().is_some_and(|filter| filter.matches(&publish.topic))
        };
        state.sessions.values_mut().filter(wants).for_each(|session| session.deliver(&publish));
        if self.faults.close_door == Some(number) {
            state.is_closed = true;
            state.drop_connections(|door| door == 0);
        }
        if self.faults.drop_all.is_some_and(|every| number % every == every - 1) {
            state.drop_connections(|_| true);
        }
        if !state.is_connected(client, connection) {
            return false;
        }
        match (publish.qos, publish.packet_id) {
            (QoS::AtLeastOnce, Some(id)) => send(stream, Packet::PubAck(Ack::new(id, ReasonCode::Success))),
            (QoS::ExactlyOnce, Some(id)) => send(stream, Packet::PubRec(Ack::new(id, ReasonCode::Success))),
            _ => {}
        }
        true
    }
}

impl State {
    /// Whether this connection is the session's.
    fn is_connected(&self, client: &str, number: u64) -> bool {
        let connection = self.sessions.get(client).and_then(|session| session.connection.as_ref());
        connection.is_some_and(|connection| connection.number == number)
    }

    fn drop_connections(&mut self, is_hit: impl Fn(usize) -> bool) {
        for session in self.sessions.values_mut() {
            if let Some(connection) = session.connection.take_if(|connection| is_hit(connection.door)) {
                let _ = connection.stream.shutdown(Shutdown::Both);
                self.seen.dropped += 1;
            }
        }
    }
}

impl Session {
    fn deliver(&mut self, publish: &Publish) {
        let mut publish = Publish { dup: false, packet_id: None, ..publish.clone() };
        if publish.qos.is_acknowledged() {
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            let id = PacketId::new(self.last_id).expect("above 0");
            publish.packet_id = Some(id);
            self.outgoing.push_back((id, publish.clone(), false));
        }
        if let Some(Connection { stream, .. }) = &self.connection {
            send(stream, Packet::Publish(publish));
        }
    }
}

fn send(mut stream: &TcpStream, packet: Packet) {
    let mut out = WriteBuffer::new();
    packet.encode(ProtocolVersion::V5, &mut out);
    // The peer may be gone already.
    let _ = stream.write_all(&out.to_bytes());
}
