//! A broker whose packets the test writes one by one.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};

use bytes::BytesMut;
use tenbin_codec::{
    Ack, AckProperties, ConnAck, Connect, Decoded, Decoder, Packet, PacketId, ProtocolVersion, Publish, QoS,
    ReasonCode, SubAck, Subscribe, TopicName, WriteBuffer,
};

use crate::client::PATIENCE;

pub(super) struct ScriptedBroker {
    listener: TcpListener,
    pub(super) address: SocketAddr,
}

/// A connection of the gateway.
pub(super) struct Connection {
    stream: TcpStream,
    decoder: Decoder,
    input: BytesMut,
}

impl ScriptedBroker {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        Self { listener, address }
    }

    /// The next connection with its CONNECT, which is not answered.
    pub(super) fn accept(&self) -> (Connection, Box<Connect>) {
        let (stream, _) = self.listener.accept().expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        let mut connection = Connection { stream, decoder: Decoder::server(1 << 20), input: BytesMut::new() };
        let Some(Packet::Connect(connect)) = connection.read() else { panic!("CONNECT") };
        (connection, connect)
    }
}

impl Connection {
    /// The next packet; `None` at the end of the stream.
    pub(super) fn read(&mut self) -> Option<Packet> {
        let mut buffer = [0; 4096];
        loop {
            if let Decoded::Packet(packet) = self.decoder.decode(&mut self.input).expect("legal packets") {
                return Some(packet);
            }
            match self.stream.read(&mut buffer).expect("a packet in time") {
                0 => return None,
                size => self.input.extend_from_slice(&buffer[..size]),
            }
        }
    }

    pub(super) fn receive(&mut self) -> Packet {
        self.read().expect("a packet")
    }

    pub(super) fn receive_publish(&mut self) -> Publish {
        match self.receive() {
            Packet::Publish(publish) => publish,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn receive_subscribe(&mut self) -> Subscribe {
        match self.receive() {
            Packet::Subscribe(subscribe) => subscribe,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn send(&mut self, packet: &Packet) {
        let mut out = WriteBuffer::new();
        packet.encode(ProtocolVersion::V5, &mut out);
        self.stream.write_all(&out.to_bytes()).expect("the gateway reads");
    }

    pub(super) fn connack(&mut self, reason: ReasonCode) {
        self.send(&Packet::ConnAck(Box::new(ConnAck::new(false, reason))));
    }

    pub(super) fn suback(&mut self, packet_id: PacketId, reasons: &[ReasonCode]) {
        let (properties, reasons) = (AckProperties::default(), reasons.to_vec());
        self.send(&Packet::SubAck(SubAck { packet_id, properties, reasons }));
    }

    /// Sends a message, to the subscription with an identifier if there is one.
    pub(super) fn publish(&mut self, qos: QoS, packet_id: u16, identifier: Option<u32>, payload: &'static str) {
        self.send(&Packet::Publish(Publish {
            dup: false,
            qos,
            retain: false,
            topic: TopicName::try_from("plant/1").expect("a topic"),
            packet_id: PacketId::new(packet_id),
            topic_alias: None,
            subscription_identifiers: identifier.into_iter().collect(),
            properties: None,
            payload: payload.into(),
        }));
    }
}

pub(super) fn ack(packet_id: u16) -> Ack {
    Ack::new(PacketId::new(packet_id).expect("not 0"), ReasonCode::Success)
}
