//! A scripted broker.

use std::future::Future;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tenbin_client::{Client, ClientError, ClientEvent, ClientOptions, Events, Message, Reconnect};
use tenbin_codec::{
    Ack, ConnAck, Connect, Decoded, Decoder, Packet, PacketId, ProtocolVersion, Publish, QoS, ReasonCode, TopicName,
    WriteBuffer,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Longest wait for an event before a test fails. Only failing tests wait so long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Server(TcpListener);

impl Server {
    pub(crate) async fn start() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub(crate) fn address(&self) -> String {
        self.0.local_addr().unwrap().to_string()
    }

    /// Options of a client of this server that reconnects at once.
    pub(crate) fn options(&self) -> ClientOptions {
        let pause = Duration::from_millis(5);
        ClientOptions::new(self.address(), "c1").reconnect(Reconnect::Backoff { first: pause, most: pause })
    }

    /// Accepts a TCP connection and reads its CONNECT.
    pub(crate) async fn accept(&self) -> (Peer, Connect) {
        let (stream, _) = within(self.0.accept()).await.unwrap();
        let decoder = Decoder::server(u32::MAX);
        let mut peer = Peer { stream, input: BytesMut::new(), decoder };
        match peer.receive().await {
            Packet::Connect(connect) => (peer, *connect),
            packet => panic!("not CONNECT: {packet:?}"),
        }
    }

    /// Accepts a connection and its CONNECT.
    pub(crate) async fn welcome(&self, session_present: bool) -> (Peer, Connect) {
        let (mut peer, connect) = self.accept().await;
        peer.send(Packet::ConnAck(Box::new(ConnAck::new(session_present, ReasonCode::Success)))).await;
        (peer, connect)
    }

    /// Connects a client with `options`, and takes its first event.
    pub(crate) async fn client(&self, options: ClientOptions) -> (Client, Events, Peer) {
        let (connected, (peer, _)) = tokio::join!(Client::connect(options), self.welcome(false));
        let (client, mut events) = connected.unwrap();
        assert!(matches!(next(&mut events).await, ClientEvent::Connected { session_present: false }));
        (client, events, peer)
    }

    /// Returns the result of a connection that gets `connack`.
    pub(crate) async fn answer(
        &self,
        options: ClientOptions,
        connack: ConnAck,
    ) -> (Result<(Client, Events), ClientError>, Peer) {
        tokio::join!(Client::connect(options), async {
            let (mut peer, _) = self.accept().await;
            peer.send(Packet::ConnAck(Box::new(connack))).await;
            peer
        })
    }
}

/// The server's end of a connection.
pub(crate) struct Peer {
    stream: TcpStream,
    input: BytesMut,
    decoder: Decoder,
}

impl Peer {
    /// Returns the next packet; `None` at the end of the stream.
    pub(crate) async fn try_receive(&mut self) -> Option<Packet> {
        loop {
            if let Decoded::Packet(packet) = self.decoder.decode(&mut self.input).unwrap() {
                return Some(packet);
            }
            let count = within(self.stream.read_buf(&mut self.input)).await;
            if count.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    pub(crate) async fn receive(&mut self) -> Packet {
        self.try_receive().await.expect("the client is connected")
    }

    pub(crate) async fn receive_publish(&mut self) -> Publish {
        match self.receive().await {
            Packet::Publish(publish) => publish,
            packet => panic!("not PUBLISH: {packet:?}"),
        }
    }

    pub(crate) async fn send(&mut self, packet: Packet) {
        let mut out = WriteBuffer::new();
        packet.encode(self.version(), &mut out);
        self.send_bytes(&out.to_bytes()).await;
    }

    pub(crate) async fn send_bytes(&mut self, bytes: &[u8]) {
        within(self.stream.write_all(bytes)).await.unwrap();
    }

    /// Publishes `text` to `t`; at QoS 1 and 2 with this Packet Identifier.
    pub(crate) async fn publish(&mut self, qos: QoS, packet_id: u16, dup: bool, text: &str) {
        let mut publish = Publish::new(topic("t"), Bytes::copy_from_slice(text.as_bytes()));
        publish.qos = qos;
        publish.dup = dup;
        publish.packet_id = PacketId::new(packet_id).filter(|_| qos.is_acknowledged());
        self.send(Packet::Publish(publish)).await;
    }

    fn version(&self) -> ProtocolVersion {
        self.decoder.version().unwrap()
    }
}

pub(crate) fn topic(name: &str) -> TopicName {
    TopicName::try_from(name).unwrap()
}

pub(crate) fn ack(packet_id: u16) -> Ack {
    Ack::new(PacketId::new(packet_id).unwrap(), ReasonCode::Success)
}

pub(crate) async fn next(events: &mut Events) -> ClientEvent {
    within(events.recv()).await.expect("the client has not ended")
}

pub(crate) async fn next_message(events: &mut Events) -> Message {
    match next(events).await {
        ClientEvent::Message(message) => message,
        event => panic!("no message: {event:?}"),
    }
}

/// Awaits a future for at most [`PATIENCE`].
pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("in time")
}
