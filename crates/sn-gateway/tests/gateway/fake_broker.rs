//! A broker made for tests: it accepts every client, tells the test of each packet, and sends packets when told to.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use tenbin_codec::{
    Ack, AckProperties, ConnAck, Connect, Decoded, Decoder, Packet, ProtocolVersion, QoS, ReasonCode, SubAck, UnsubAck,
    WriteBuffer,
};

use crate::client::PATIENCE;

pub(crate) struct FakeBroker {
    pub(crate) address: SocketAddr,
    events: Receiver<Event>,
    state: Arc<State>,
}

/// An event of one client's stream.
#[derive(Debug)]
pub(crate) enum Event {
    Connected(Box<Connect>),
    Packet(Box<Packet>),
    Closed(String),
}

#[derive(Default)]
struct State {
    streams: Mutex<HashMap<String, TcpStream>>,
    /// Clients that have connected.
    sessions: Mutex<Vec<String>>,
    is_stopped: std::sync::atomic::AtomicBool,
}

impl FakeBroker {
    pub(crate) fn start() -> Self {
        Self::start_at(([127, 0, 0, 1], 0).into())
    }

    pub(crate) fn start_at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (sender, events) = sync_channel(10_000);
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if shared.is_stopped.load(std::sync::atomic::Ordering::SeqCst) {
                    return;
                }
                let (shared, sender) = (Arc::clone(&shared), sender.clone());
                std::thread::spawn(move || serve(stream, &shared, &sender));
            }
        });
        Self { address, events, state }
    }

    /// The next event.
    pub(crate) fn event(&self) -> Event {
        self.events.recv_timeout(PATIENCE).expect("an event in time")
    }

    /// An event, if there is one.
    pub(crate) fn try_event(&self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    /// The next packet other than CONNECT.
    pub(crate) fn packet(&self) -> Packet {
        loop {
            if let Event::Packet(packet) = self.event() {
                return *packet;
            }
        }
    }

    /// The next CONNECT.
    pub(crate) fn connect(&self) -> Connect {
        loop {
            if let Event::Connected(connect) = self.event() {
                return *connect;
            }
        }
    }

    /// Sends a packet to a client.
    pub(crate) fn send(&self, client_id: &str, packet: &Packet) {
        let mut streams = self.state.streams.lock().expect("not poisoned");
        write(streams.get_mut(client_id).expect("a connected client"), packet);
    }

    /// Closes all streams and the port.
    pub(crate) fn stop(self) -> SocketAddr {
        self.state.is_stopped.store(true, std::sync::atomic::Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        for stream in self.state.streams.lock().expect("not poisoned").values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        while TcpStream::connect(self.address).is_ok() {
            std::thread::yield_now();
        }
        self.address
    }
}

fn serve(mut stream: TcpStream, state: &State, events: &SyncSender<Event>) {
    let mut decoder = Decoder::server(1 << 20);
    let (mut input, mut buffer) = (BytesMut::new(), [0; 4096]);
    let mut name = String::new();
    loop {
        match decoder.decode(&mut input).expect("legal packets") {
            Decoded::Packet(Packet::Connect(connect)) => {
                name = connect.client_id.to_string();
                let mut sessions = state.sessions.lock().expect("not poisoned");
                let session_present = !connect.clean_start && sessions.contains(&name);
                sessions.push(name.clone());
                drop(sessions);
                let mut answers = stream.try_clone().expect("a stream");
                // The test may stop the broker as soon as the client has CONNACK.
                let mut streams = state.streams.lock().expect("not poisoned");
                write(&mut answers, &Packet::ConnAck(Box::new(ConnAck::new(session_present, ReasonCode::Success))));
                streams.insert(name.clone(), answers);
                drop(streams);
                let _ = events.send(Event::Connected(connect));
            }
            Decoded::Packet(packet) => {
                if let Some(answer) = answer(&packet) {
                    write(&mut stream, &answer);
                }
                let _ = events.send(Event::Packet(Box::new(packet)));
            }
            Decoded::NeedMore(_) => match stream.read(&mut buffer) {
                Ok(0) | Err(_) => {
                    let _ = events.send(Event::Closed(name));
                    return;
                }
                Ok(size) => input.extend_from_slice(&buffer[..size]),
            },
        }
    }
}

fn answer(packet: &Packet) -> Option<Packet> {
    match packet {
        Packet::Publish(publish) => {
            let id = publish.packet_id?;
            Some(Packet::PubAck(Ack::new(id, ReasonCode::Success)))
        }
        Packet::Subscribe(subscribe) => Some(Packet::SubAck(SubAck {
            packet_id: subscribe.packet_id,
            reasons: subscribe.subscriptions.iter().map(|subscription| granted(subscription.options.qos)).collect(),
            properties: AckProperties::default(),
        })),
        Packet::Unsubscribe(unsubscribe) => Some(Packet::UnsubAck(UnsubAck {
            packet_id: unsubscribe.packet_id,
            reasons: vec![ReasonCode::Success; unsubscribe.filters.len()],
            properties: AckProperties::default(),
        })),
        Packet::PingReq(_) => Some(Packet::PingResp),
        _ => None,
    }
}

fn granted(qos: QoS) -> ReasonCode {
    match qos {
        QoS::AtMostOnce => ReasonCode::Success,
        QoS::AtLeastOnce => ReasonCode::GrantedQoS1,
        QoS::ExactlyOnce => ReasonCode::GrantedQoS2,
    }
}

fn write(stream: &mut TcpStream, packet: &Packet) {
    let mut out = WriteBuffer::new();
    packet.encode(ProtocolVersion::V5, &mut out);
    let _ = stream.write_all(&out.to_bytes());
}
