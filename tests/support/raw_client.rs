use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tenbin_codec::{
    Ack, ConnAck, Connect, DecodeError, Decoded, Decoder, Disconnect, PACKET_SIZE_MAX, Packet, PacketId, PacketType,
    PingReq, ProtocolVersion, Publish, QoS, ReasonCode, Subscribe, Subscription, Unsubscribe,
};

use super::{ClientStream, PATIENCE, at_qos, encode, filter, subscription};

/// A client that sends any packet on request, legal or not, and returns all received packets.
///
/// It acknowledges only in the methods that say so, and knows nothing of sessions.
pub(crate) struct RawClient {
    stream: ClientStream,
    version: ProtocolVersion,
    decoder: Decoder,
    input: BytesMut,
    /// Packets that arrived during the wait for another one.
    set_aside: VecDeque<Packet>,
    last_id: u16,
}

/// Reason why no packet arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Silence {
    TimedOut,
    Closed,
    /// The broker sent an illegal packet.
    Illegal(DecodeError),
}

impl RawClient {
    /// Opens a connection and sends nothing.
    pub(crate) fn open(address: SocketAddr, version: ProtocolVersion) -> Self {
        Self::try_open(address, version).expect("the broker listens")
    }

    /// As [`RawClient::open`], for a broker that may be gone.
    pub(crate) fn try_open(address: SocketAddr, version: ProtocolVersion) -> Option<Self> {
        TcpStream::connect(address).ok().map(|stream| Self::on(stream, version))
    }

    pub(crate) fn on(stream: impl Into<ClientStream>, version: ProtocolVersion) -> Self {
        let stream = stream.into();
        let _ = stream.tcp().set_nodelay(true); // unix sockets have no such option
        stream.tcp().set_write_timeout(Some(PATIENCE)).expect("a socket of ours");
        let decoder = Decoder::client(version, PACKET_SIZE_MAX);
        Self { stream, version, decoder, input: BytesMut::new(), set_aside: VecDeque::new(), last_id: 0 }
    }

    /// Connects. The broker must accept.
    pub(crate) fn connect(address: SocketAddr, connect: Connect) -> (Self, ConnAck) {
        let (client, connack) = Self::try_connect(address, connect);
        assert_eq!(connack.reason, ReasonCode::Success, "CONNACK");
        (client, connack)
    }

    /// Connects. The broker must answer.
    pub(crate) fn try_connect(address: SocketAddr, connect: Connect) -> (Self, ConnAck) {
        Self::open(address, connect.version).introduce(connect)
    }

    /// Sends CONNECT. The broker must answer.
    pub(crate) fn introduce(mut self, connect: Connect) -> (Self, ConnAck) {
        let client = &mut self;
        client.send(&Packet::Connect(Box::new(connect)));
        match client.receive() {
            Packet::ConnAck(connack) => (self, *connack),
            other => panic!("{other:?} instead of CONNACK"),
        }
    }

    /// Connects, or returns `None` if the broker is gone or about to end. A broker that stays must accept.
    pub(crate) fn reach(address: SocketAddr, connect: Connect) -> Option<(Self, ConnAck)> {
        let mut client = Self::on(TcpStream::connect(address).ok()?, connect.version);
        client.try_send_bytes(&encode(&Packet::Connect(Box::new(connect)), client.version));
        match client.receive_or_end()? {
            Packet::ConnAck(connack) if connack.reason == ReasonCode::ServerUnavailable => None,
            Packet::ConnAck(connack) => {
                assert_eq!(connack.reason, ReasonCode::Success, "CONNACK");
                Some((client, *connack))
            }
            other => panic!("{other:?} instead of CONNACK"),
        }
    }

    pub(crate) fn stream(&self) -> &ClientStream {
        &self.stream
    }

    pub(crate) fn version(&self) -> ProtocolVersion {
        self.version
    }

    /// Sends arbitrary bytes.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the broker takes what it is sent");
    }

    /// As [`RawClient::send_bytes`], for a broker that may have closed already.
    pub(crate) fn try_send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    pub(crate) fn send(&mut self, packet: &Packet) {
        let bytes = encode(packet, self.version);
        self.send_bytes(&bytes);
    }

    /// The next packet.
    ///
    /// # Panics
    /// If none comes.
    pub(crate) fn receive(&mut self) -> Packet {
        self.try_receive(PATIENCE).unwrap_or_else(|silence| panic!("{silence:?} where a packet should come"))
    }

    /// The next packet, or why there is none.
    pub(crate) fn try_receive(&mut self, patience: Duration) -> Result<Packet, Silence> {
        match self.set_aside.pop_front() {
            Some(packet) => Ok(packet),
            None => self.read_packet(Instant::now() + patience),
        }
    }

    /// The next packet, or `None` where the broker closes.
    pub(crate) fn receive_or_end(&mut self) -> Option<Packet> {
        match self.try_receive(PATIENCE) {
            Ok(packet) => Some(packet),
            Err(Silence::Closed) => None,
            Err(silence) => panic!("{silence:?} where a packet or the end should come"),
        }
    }

    /// Returns the next packet of a type. Other packets before it are set aside.
    pub(crate) fn wait_for(&mut self, wanted: PacketType) -> Packet {
        if let Some(position) = self.set_aside.iter().position(|packet| packet.packet_type() == wanted) {
            return self.set_aside.remove(position).expect("just found");
        }
        let until = Instant::now() + PATIENCE;
        loop {
            match self.read_packet(until) {
                Ok(packet) if packet.packet_type() == wanted => return packet,
                Ok(packet) => self.set_aside.push_back(packet),
                Err(silence) => {
                    let first = self.set_aside.front();
                    panic!(
                        "{silence:?} where {wanted} should come; {} other packets came: {first:?}…",
                        self.set_aside.len()
                    );
                }
            }
        }
    }

    /// Returns the next packet, which must be a PUBLISH, without acknowledging it.
    pub(crate) fn receive_publish(&mut self) -> Publish {
        match self.receive() {
            Packet::Publish(publish) => publish,
            other => panic!("{other:?} instead of PUBLISH"),
        }
    }

    /// Returns the next packet, which must be a PUBLISH, and completes its handshake.
    pub(crate) fn receive_message(&mut self) -> Publish {
        let publish = self.receive_publish();
        self.acknowledge(&publish);
        publish
    }

    /// Returns the next messages, acknowledged, and asserts that no more wait. Messages on disk may arrive later than
    /// [`RawClient::drain`] waits for them.
    pub(crate) fn receive_messages(&mut self, count: usize) -> Vec<Publish> {
        let messages = (0..count).map(|_| self.receive_message()).collect();
        self.expect_nothing_waiting();
        messages
    }

    /// Acknowledges a message and completes its handshake.
    pub(crate) fn acknowledge(&mut self, publish: &Publish) {
        let Some(id) = publish.packet_id else { return };
        if publish.qos == QoS::AtLeastOnce {
            self.send(&Packet::PubAck(Ack::new(id, ReasonCode::Success)));
            return;
        }
        self.send(&Packet::PubRec(Ack::new(id, ReasonCode::Success)));
        match self.wait_for(PacketType::PubRel) {
            Packet::PubRel(ack) => assert_eq!(ack, Ack::new(id, ReasonCode::Success), "PUBREL"),
            other => panic!("{other:?} instead of PUBREL"),
        }
        self.send(&Packet::PubComp(Ack::new(id, ReasonCode::Success)));
    }

    /// Publishes and waits for all acknowledgements. Returns the Reason Code of the first.
    pub(crate) fn publish(&mut self, topic: &str, payload: &str, qos: QoS) -> ReasonCode {
        self.publish_with(at_qos(topic, payload, qos))
    }

    /// As [`RawClient::publish`]; adds the Packet Identifier.
    pub(crate) fn publish_with(&mut self, mut publish: Publish) -> ReasonCode {
        if !publish.qos.is_acknowledged() {
            self.send(&Packet::Publish(publish));
            return ReasonCode::Success;
        }
        let id = self.next_id();
        let qos = publish.qos;
        publish.packet_id = Some(id);
        self.send(&Packet::Publish(publish));
        if qos == QoS::AtLeastOnce {
            return self.wait_for_ack(PacketType::PubAck, id);
        }
        let reason = self.wait_for_ack(PacketType::PubRec, id);
        if !reason.is_error() {
            self.send(&Packet::PubRel(Ack::new(id, ReasonCode::Success)));
            assert_eq!(self.wait_for_ack(PacketType::PubComp, id), ReasonCode::Success);
        }
        reason
    }

    /// Waits for the acknowledgement of one packet. Returns its Reason Code.
    pub(crate) fn wait_for_ack(&mut self, packet_type: PacketType, id: PacketId) -> ReasonCode {
        match self.wait_for(packet_type) {
            Packet::PubAck(ack) | Packet::PubRec(ack) | Packet::PubRel(ack) | Packet::PubComp(ack) => {
                assert_eq!(ack.packet_id, id, "{packet_type}"); // [MQTT-2.2.1-5]
                ack.reason
            }
            other => panic!("{other:?} is no acknowledgement"),
        }
    }

    /// Subscribes to one filter, which must be granted at that QoS.
    pub(crate) fn subscribe(&mut self, topic_filter: &str, qos: QoS) {
        let reasons = self.subscribe_to(None, vec![subscription(topic_filter, qos)]);
        assert_eq!(reasons.iter().map(|reason| reason.byte()).collect::<Vec<_>>(), [qos.bits()], "{topic_filter}");
    }

    /// Subscribes, with or without a Subscription Identifier. Returns the Reason Codes of SUBACK.
    pub(crate) fn subscribe_to(
        &mut self,
        identifier: Option<u32>,
        subscriptions: Vec<Subscription>,
    ) -> Vec<ReasonCode> {
        let packet_id = self.next_id();
        let user_properties = Vec::new();
        let subscribe = Subscribe { packet_id, subscription_identifier: identifier, user_properties, subscriptions };
        self.send(&Packet::Subscribe(subscribe));
        match self.wait_for(PacketType::SubAck) {
            Packet::SubAck(suback) => {
                assert_eq!(suback.packet_id, packet_id, "[MQTT-3.8.4-2]");
                suback.reasons
            }
            other => panic!("{other:?} instead of SUBACK"),
        }
    }

    /// Unsubscribes. Returns the Reason Codes of UNSUBACK, none at 3.1.1.
    pub(crate) fn unsubscribe(&mut self, filters: &[&str]) -> Vec<ReasonCode> {
        let packet_id = self.next_id();
        let filters = filters.iter().map(|text| filter(text)).collect();
        self.send(&Packet::Unsubscribe(Unsubscribe { packet_id, user_properties: Vec::new(), filters }));
        match self.wait_for(PacketType::UnsubAck) {
            Packet::UnsubAck(unsuback) => {
                assert_eq!(unsuback.packet_id, packet_id, "[MQTT-3.10.4-5]");
                unsuback.reasons
            }
            other => panic!("{other:?} instead of UNSUBACK"),
        }
    }

    /// Sends PINGREQ and waits for PINGRESP: the broker has processed all earlier packets of this connection.
    pub(crate) fn settle(&mut self) {
        self.send(&Packet::PingReq(PingReq::PLAIN));
        self.wait_for(PacketType::PingResp);
    }

    /// Returns a message that was set aside, e.g. by [`RawClient::settle`], without acknowledging it.
    pub(crate) fn take_set_aside(&mut self) -> Option<Publish> {
        match self.set_aside.pop_front()? {
            Packet::Publish(publish) => Some(publish),
            other => panic!("{other:?} instead of PUBLISH"),
        }
    }

    /// Receives and acknowledges the messages that wait for this client.
    ///
    /// After the publisher's acknowledgement a message is in the queue of its receiver. The broker sends queued
    /// messages before the answer to a later PINGREQ, or some of them if there are many. So when an answer arrives
    /// alone, no message waits, and no pause is needed.
    ///
    /// With a store this does not hold for a session that was offline: its messages are read from the disk first, see
    /// [`RawClient::receive_messages`].
    pub(crate) fn drain(&mut self) -> Vec<Publish> {
        let mut messages = Vec::new();
        loop {
            self.settle();
            // A message that an acknowledgement releases may come behind the answer to the first PINGREQ.
            self.settle();
            if self.set_aside.is_empty() {
                return messages;
            }
            while let Some(packet) = self.set_aside.pop_front() {
                match packet {
                    Packet::Publish(publish) => {
                        self.acknowledge(&publish);
                        messages.push(publish);
                    }
                    other => panic!("{other:?} instead of PUBLISH"),
                }
            }
        }
    }

    /// The payloads of the messages that wait for this client, as text.
    pub(crate) fn drain_payloads(&mut self) -> Vec<String> {
        self.drain().iter().map(|publish| String::from_utf8_lossy(&publish.payload).into_owned()).collect()
    }

    /// Asserts that nothing waits for this client, see [`RawClient::drain`].
    pub(crate) fn expect_nothing_waiting(&mut self) {
        self.settle();
        assert_eq!(self.set_aside.front(), None, "nothing should come");
    }

    /// Asserts that nothing arrives for so long. Only for cases that no reply can show.
    pub(crate) fn expect_nothing_for(&mut self, duration: Duration) {
        match self.try_receive(duration) {
            Err(Silence::TimedOut) => {}
            other => panic!("{other:?} where nothing should come"),
        }
    }

    /// Asserts that the broker closes without a further packet.
    pub(crate) fn expect_closed(&mut self) {
        match self.try_receive(PATIENCE) {
            Err(Silence::Closed) => {}
            other => panic!("{other:?} where the broker should close"),
        }
    }

    /// Asserts that the broker ends the connection: DISCONNECT and close, or just close at 3.1.1.
    pub(crate) fn expect_end(&mut self, reason: ReasonCode) {
        if self.version.is_v5() {
            match self.receive() {
                Packet::Disconnect(disconnect) => assert_eq!(disconnect.reason, reason, "DISCONNECT"),
                other => panic!("{other:?} instead of DISCONNECT"),
            }
        }
        self.expect_closed();
    }

    /// Sends DISCONNECT and waits until the broker has closed.
    pub(crate) fn disconnect(self) {
        self.disconnect_with(Disconnect::new(ReasonCode::Success));
    }

    /// As [`RawClient::disconnect`], with this packet.
    pub(crate) fn disconnect_with(mut self, disconnect: Disconnect) {
        self.send(&Packet::Disconnect(disconnect));
        self.read_to_end();
    }

    /// Closes the connection without DISCONNECT and waits until the broker has noticed.
    pub(crate) fn cut(self) {
        self.half_close();
    }

    /// Ends the sending direction, and reads until the broker has closed.
    pub(crate) fn half_close(mut self) -> Vec<Packet> {
        let _ = self.stream.tcp().shutdown(Shutdown::Write);
        self.read_to_end()
    }

    /// Reads all packets until the broker has closed.
    pub(crate) fn read_to_end(&mut self) -> Vec<Packet> {
        let mut packets = Vec::new();
        loop {
            match self.try_receive(PATIENCE) {
                Ok(packet) => packets.push(packet),
                Err(Silence::Closed) => return packets,
                Err(silence) => panic!("{silence:?} where the broker should close"),
            }
        }
    }

    /// Returns a Packet Identifier that was not used recently.
    pub(crate) fn next_id(&mut self) -> PacketId {
        self.last_id = self.last_id % 60_000 + 1;
        PacketId::new(self.last_id).expect("not 0")
    }

    fn read_packet(&mut self, until: Instant) -> Result<Packet, Silence> {
        loop {
            match self.decoder.decode(&mut self.input) {
                Ok(Decoded::Packet(packet)) => return Ok(packet),
                Ok(Decoded::NeedMore(_)) => {}
                Err(error) => return Err(Silence::Illegal(error)),
            }
            self.read_some(until)?;
        }
    }

    fn read_some(&mut self, until: Instant) -> Result<(), Silence> {
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        self.stream.tcp().set_read_timeout(Some(left)).expect("a socket of ours");
        let mut chunk = [0; 16 * 1024];
        match self.stream.read(&mut chunk) {
            Ok(0) => Err(Silence::Closed),
            Ok(read) => {
                self.input.extend_from_slice(&chunk[..read]);
                Ok(())
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Err(Silence::TimedOut),
                ErrorKind::Interrupted => Ok(()),
                _ => Err(Silence::Closed),
            },
        }
    }
}
