//! A gateway with a broker inside, on a real socket. It may lose a third of all datagrams.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tenbin_codec::{
    Ack, ConnAck, Decoded, Decoder, Packet, PacketId, Publish, QoS, ReasonCode, SubAck, TopicFilter, UnsubAck,
    WriteBuffer,
};
use tenbin_sn::{Action, End, Gateway, GatewayPeer, Io, Output, PredefinedTopics, Settings};
use tenbin_sn_codec::v1_2::{Connect, Disconnect, GwInfo, Message, Topic};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::sleep_until;

pub(crate) const RETRY: Duration = Duration::from_millis(50);

/// Topic and payload of a Will; `None` for a client without one.
type Will = Option<(String, Vec<u8>)>;

/// A running gateway; dropping it ends it.
pub(crate) struct TestGateway {
    pub(crate) address: String,
    /// Wills of the connections to the broker, in order: topic and payload.
    pub(crate) wills: Arc<Mutex<Vec<Will>>>,
    commands: mpsc::Sender<Order>,
    task: JoinHandle<()>,
}

/// An order of the test.
enum Order {
    /// Publish as a client of the broker.
    Publish(Publish),
    /// End all connections, as if the gateway had forgotten them.
    Forget,
}

impl TestGateway {
    /// Starts a gateway. With `is_lossy` a third of the datagrams is lost in each direction.
    pub(crate) async fn start(is_lossy: bool) -> Self {
        let settings = Settings { retry: RETRY, retries: 100, ..Settings::default() };
        let predefined = PredefinedTopics::new([(7, "predefined/seven")]).expect("legal");
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
        let address = socket.local_addr().expect("an address").to_string();
        let wills = Arc::default();
        let (commands, orders) = mpsc::channel(16);
        let world = World {
            gateway: Arc::new(Gateway::new(settings, predefined)),
            socket,
            is_lossy,
            seed: 1,
            peers: HashMap::new(),
            wills: Arc::clone(&wills),
            output: Output::default(),
        };
        Self { address, wills, commands, task: tokio::spawn(world.run(orders)) }
    }

    pub(crate) async fn publish(&self, topic: &str, payload: &str, qos: QoS) {
        let publish = Publish {
            dup: false,
            qos,
            retain: false,
            topic: topic.try_into().expect("a name"),
            packet_id: None,
            topic_alias: None,
            subscription_identifiers: Vec::new(),
            properties: None,
            payload: payload.to_owned().into(),
        };
        assert!(self.commands.send(Order::Publish(publish)).await.is_ok(), "the gateway runs");
    }

    pub(crate) async fn forget(&self) {
        assert!(self.commands.send(Order::Forget).await.is_ok(), "the gateway runs");
    }
}

impl Drop for TestGateway {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct World {
    gateway: Arc<Gateway>,
    socket: UdpSocket,
    is_lossy: bool,
    seed: u32,
    peers: HashMap<SocketAddr, Session>,
    wills: Arc<Mutex<Vec<Will>>>,
    output: Output,
}

/// A client, and its session at the broker.
struct Session {
    peer: GatewayPeer,
    upstream: WriteBuffer,
    decoder: Decoder,
    input: BytesMut,
    subscriptions: Vec<(TopicFilter, QoS)>,
    /// Messages for the client, while the peer accepts none or one is under way.
    waiting: VecDeque<Publish>,
    is_delivering: bool,
    last_id: u16,
}

impl World {
    async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        let mut buffer = [0; 2048];
        loop {
            let deadline = self.peers.values().filter_map(|session| session.peer.poll_timeout()).min();
            let deadline = deadline.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
            tokio::select! {
                received = self.socket.recv_from(&mut buffer) => {
                    if let Ok((size, from)) = received && !self.is_lost() {
                        self.receive(&buffer[..size], from).await;
                    }
                }
                () = sleep_until(deadline.into()) => {
                    let addresses: Vec<_> = self.peers.keys().copied().collect();
                    for address in addresses {
                        self.with(address, |peer, io| peer.handle_timeout(io)).await;
                    }
                }
                Some(order) = orders.recv() => match order {
                    Order::Publish(publish) => self.route(&publish).await,
                    Order::Forget => self.peers.clear(),
                }
            }
        }
    }

    /// Not each third one: repetitions could keep in step with the loss.
    fn is_lost(&mut self) -> bool {
        self.seed = self.seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.is_lossy && (self.seed >> 16).is_multiple_of(3)
    }

    async fn receive(&mut self, datagram: &[u8], from: SocketAddr) {
        let message = Message::decode(datagram).expect("a client sends legal messages");
        match &message {
            Message::SearchGw(_) => self.send(&Message::GwInfo(GwInfo { gateway_id: 9, address: &[] }), from).await,
            Message::Publish(publish) if publish.qos.is_none() => {
                let topic = match publish.topic {
                    Topic::Predefined(7) => "predefined/seven".try_into().expect("a name"),
                    Topic::Short(name) => name.as_str().try_into().expect("a name"),
                    other => panic!("QoS -1 at {other:?}"),
                };
                let publish = Publish {
                    dup: false,
                    qos: QoS::AtMostOnce,
                    retain: publish.retain,
                    topic,
                    packet_id: None,
                    topic_alias: None,
                    subscription_identifiers: Vec::new(),
                    properties: None,
                    payload: publish.data.to_vec().into(),
                };
                self.route(&publish).await;
            }
            Message::Connect(connect) if !self.peers.contains_key(&from) => {
                self.accept(connect, datagram.len(), from).await;
            }
            _ if !self.peers.contains_key(&from) => {
                self.send(&Message::Disconnect(Disconnect { duration: None }), from).await;
            }
            _ => {
                let end = self.with(from, |peer, io| peer.handle_message(&message, datagram.len(), io)).await;
                if let (Some(End::NewConnection), Message::Connect(connect)) = (end, &message) {
                    self.accept(connect, datagram.len(), from).await;
                }
            }
        }
    }

    async fn accept(&mut self, connect: &Connect<'_>, size: usize, from: SocketAddr) {
        let mut upstream = WriteBuffer::new();
        let mut io = Io { now: Instant::now(), upstream: &mut upstream, output: &mut self.output };
        let (peer, action) = GatewayPeer::accept(&self.gateway, connect, size, None, &mut io);
        let session = Session {
            peer,
            upstream,
            decoder: Decoder::server(1 << 20),
            input: BytesMut::new(),
            subscriptions: Vec::new(),
            waiting: VecDeque::new(),
            is_delivering: false,
            last_id: 0,
        };
        self.peers.insert(from, session);
        self.with(from, |_, _| action).await;
    }

    /// Calls a peer and follows its output to the end. Returns how the peer ended.
    async fn with(
        &mut self,
        address: SocketAddr,
        call: impl FnOnce(&mut GatewayPeer, &mut Io<'_>) -> Action,
    ) -> Option<End> {
        let session = self.peers.get_mut(&address)?;
        let mut end = None;
        let mut routed = Vec::new();
        session.call(&mut self.output, &mut end, call);
        while end.is_none() && session.step(&mut self.output, &mut end, &mut routed, &self.wills) {}
        let datagrams: Vec<_> = self.output.datagrams.iter().map(<[u8]>::to_vec).collect();
        self.output.datagrams.clear();
        if end.is_some() {
            self.peers.remove(&address);
        }
        for datagram in datagrams {
            self.send_bytes(&datagram, address).await;
        }
        for publish in routed {
            Box::pin(self.route(&publish)).await;
        }
        end
    }

    /// Passes a message to all subscribers.
    async fn route(&mut self, publish: &Publish) {
        let addresses: Vec<_> = self.peers.keys().copied().collect();
        for address in addresses {
            let Some(session) = self.peers.get_mut(&address) else { continue };
            let granted = session.subscriptions.iter().find(|(filter, _)| filter.matches(&publish.topic));
            if let Some(&(_, granted)) = granted {
                let publish = Publish { qos: publish.qos.min(granted), dup: false, ..publish.clone() };
                session.waiting.push_back(publish);
                self.with(address, |_, _| Action::Continue).await;
            }
        }
    }

    async fn send(&mut self, message: &Message<'_>, to: SocketAddr) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.send_bytes(&bytes, to).await;
    }

    async fn send_bytes(&mut self, datagram: &[u8], to: SocketAddr) {
        if !self.is_lost() {
            let _ = self.socket.send_to(datagram, to).await;
        }
    }
}

impl Session {
    fn call(
        &mut self,
        output: &mut Output,
        end: &mut Option<End>,
        call: impl FnOnce(&mut GatewayPeer, &mut Io<'_>) -> Action,
    ) {
        let mut io = Io { now: Instant::now(), upstream: &mut self.upstream, output };
        match call(&mut self.peer, &mut io) {
            Action::Continue => {}
            Action::End(reason) => *end = Some(reason),
            Action::OpenUpstream | Action::ReopenUpstream => {
                io.upstream.clear();
                (self.decoder, self.is_delivering) = (Decoder::server(1 << 20), false);
                self.peer.upstream_opened(&mut io);
            }
        }
    }

    /// The broker's next step. False if there is none now.
    fn step(
        &mut self,
        output: &mut Output,
        end: &mut Option<End>,
        routed: &mut Vec<Publish>,
        wills: &Mutex<Vec<Will>>,
    ) -> bool {
        // Ahead of the client's packets: a wake ends when two PINGREQs are answered without a message between them.
        let can_deliver = !self.is_delivering && self.peer.accepts_packets() && self.peer.is_connected();
        if can_deliver && let Some(mut publish) = self.waiting.pop_front() {
            if publish.qos != QoS::AtMostOnce {
                self.last_id += 1;
                publish.packet_id = PacketId::new(self.last_id);
                self.is_delivering = true;
            }
            self.call(output, end, |peer, io| peer.handle_packet(Packet::Publish(publish), io));
            return true;
        }
        self.input.extend_from_slice(&self.upstream.to_bytes());
        self.upstream.clear();
        if let Decoded::Packet(packet) = self.decoder.decode(&mut self.input).expect("legal packets") {
            if let Packet::Connect(connect) = &packet {
                let will = connect.will.as_ref();
                let will = will.map(|will| (will.topic.text().as_str().to_owned(), will.payload.to_vec()));
                wills.lock().expect("no panic").push(will);
            }
            if let Some(answer) = self.broker(packet, routed) {
                self.call(output, end, |peer, io| peer.handle_packet(answer, io));
            }
            return true;
        }
        false
    }

    /// The broker's answer to a packet.
    fn broker(&mut self, packet: Packet, routed: &mut Vec<Publish>) -> Option<Packet> {
        let ack = |id| Ack::new(id, ReasonCode::Success);
        Some(match packet {
            Packet::Connect(connect) => {
                Packet::ConnAck(Box::new(ConnAck::new(!connect.clean_start, ReasonCode::Success)))
            }
            Packet::Subscribe(subscribe) => {
                let mut reasons = Vec::new();
                for subscription in subscribe.subscriptions {
                    let filter = subscription.filter;
                    if filter.as_bytes() == b"forbidden" {
                        reasons.push(ReasonCode::NotAuthorized);
                        continue;
                    }
                    let qos = subscription.options.qos;
                    self.subscriptions.retain(|(known, _)| *known != filter);
                    self.subscriptions.push((filter, qos));
                    reasons.push(match qos {
                        QoS::AtMostOnce => ReasonCode::Success,
                        QoS::AtLeastOnce => ReasonCode::GrantedQoS1,
                        QoS::ExactlyOnce => ReasonCode::GrantedQoS2,
                    });
                }
                Packet::SubAck(SubAck { packet_id: subscribe.packet_id, properties: Default::default(), reasons })
            }
            Packet::Unsubscribe(unsubscribe) => {
                self.subscriptions.retain(|(known, _)| !unsubscribe.filters.contains(known));
                let (packet_id, reasons) = (unsubscribe.packet_id, vec![ReasonCode::Success]);
                Packet::UnsubAck(UnsubAck { packet_id, properties: Default::default(), reasons })
            }
            Packet::Publish(publish) => {
                let answer = publish.packet_id.map(|id| match publish.qos {
                    QoS::ExactlyOnce => Packet::PubRec(ack(id)),
                    _ => Packet::PubAck(ack(id)),
                });
                routed.push(publish);
                return answer;
            }
            Packet::PubRel(release) => Packet::PubComp(ack(release.packet_id)),
            Packet::PubRec(received) => Packet::PubRel(ack(received.packet_id)),
            Packet::PubAck(_) | Packet::PubComp(_) => {
                self.is_delivering = false;
                return None;
            }
            Packet::PingReq(_) => Packet::PingResp,
            Packet::Disconnect(_) => return None,
            other => panic!("unexpected {other:?}"),
        })
    }
}
