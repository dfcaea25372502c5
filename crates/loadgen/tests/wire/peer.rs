use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tenbin_codec::{
    ConnAck, Connect, Decoded, Decoder, Packet, ProtocolVersion, Publish, QoS, ReasonCode, SubAck, WriteBuffer,
};

use crate::stage::{PATIENCE, success};

/// Broker side of a connection.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    decoder: Decoder,
    input: BytesMut,
}

impl Peer {
    /// Accepts the next client; returns its CONNECT without answering it.
    pub(crate) fn accept(listener: &TcpListener) -> (Self, Connect) {
        let until = Instant::now() + PATIENCE;
        let stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(error) => assert!(Instant::now() < until, "no client connects: {error}"),
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        stream.set_nonblocking(false).expect("a socket can wait");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket has that");
        let mut peer = Self { stream, decoder: Decoder::server(u32::MAX), input: BytesMut::new() };
        match peer.receive() {
            Some(Packet::Connect(connect)) => (peer, *connect),
            other => panic!("{other:?} instead of CONNECT"),
        }
    }

    /// As [`Peer::accept`], and answers with `connack`.
    pub(crate) fn welcome(listener: &TcpListener, connack: ConnAck) -> (Self, Connect) {
        let (mut peer, connect) = Self::accept(listener);
        peer.send(&Packet::ConnAck(Box::new(connack)));
        (peer, connect)
    }

    /// Accepts a client that subscribes at `qos`.
    pub(crate) fn subscriber(listener: &TcpListener, qos: QoS) -> Self {
        let (mut peer, _) = Self::welcome(listener, success());
        let granted = ReasonCode::from_byte(qos.bits()).expect("a level is granted by its number");
        peer.answer_subscribe(granted);
        peer
    }

    pub(crate) fn answer_subscribe(&mut self, reason: ReasonCode) {
        let Some(Packet::Subscribe(subscribe)) = self.receive() else { panic!("SUBSCRIBE was expected") };
        let (packet_id, properties) = (subscribe.packet_id, Default::default());
        self.send(&Packet::SubAck(SubAck { packet_id, properties, reasons: vec![reason] }));
    }

    /// Next packet; `None` at the end of the stream.
    pub(crate) fn receive(&mut self) -> Option<Packet> {
        loop {
            match self.decoder.decode(&mut self.input).expect("the driver keeps to the protocol") {
                Decoded::Packet(packet) => return Some(packet),
                Decoded::NeedMore(_) => {
                    let mut bytes = [0; 4096];
                    match self.stream.read(&mut bytes) {
                        Ok(0) => return None,
                        Ok(count) => self.input.extend_from_slice(&bytes[..count]),
                        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                        Err(error) => panic!("nothing came: {error}"),
                    }
                }
            }
        }
    }

    pub(crate) fn receive_publish(&mut self) -> Publish {
        match self.receive() {
            Some(Packet::Publish(publish)) => publish,
            other => panic!("{other:?} instead of PUBLISH"),
        }
    }

    /// All remaining packets, up to the end of the stream.
    pub(crate) fn rest(&mut self) -> Vec<Packet> {
        std::iter::from_fn(|| self.receive()).collect()
    }

    /// Whether no bytes arrive for 100 ms.
    pub(crate) fn is_silent(&mut self) -> bool {
        self.stream.set_read_timeout(Some(Duration::from_millis(100))).expect("a socket has that");
        let nothing = self.input.is_empty() && self.stream.peek(&mut [0]).is_err();
        self.stream.set_read_timeout(Some(PATIENCE)).expect("a socket has that");
        nothing
    }

    /// Whether bytes arrive within 5 ms.
    pub(crate) fn has_more(&mut self) -> bool {
        self.stream.set_read_timeout(Some(Duration::from_millis(5))).expect("a socket has that");
        let is_there = !self.input.is_empty() || self.stream.peek(&mut [0]).is_ok();
        self.stream.set_read_timeout(Some(PATIENCE)).expect("a socket has that");
        is_there
    }

    pub(crate) fn send(&mut self, packet: &Packet) {
        let mut out = WriteBuffer::new();
        packet.encode(self.decoder.version().unwrap_or(ProtocolVersion::V5), &mut out);
        self.send_bytes(&out.to_bytes());
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the driver listens");
    }
}
