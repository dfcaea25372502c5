use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tenbin_codec::{
    Ack, Connect, Decoded, Decoder, MessageProperties, Packet, PacketId, PacketType, PingReq, ProtocolVersion, Publish,
    QoS, ReasonCode, Subscribe, Subscription, SubscriptionOptions, Text, TopicFilter, TopicName, Unsubscribe,
    WriteBuffer,
};

/// A blocking MQTT 5.0 client that sends exactly the packets that a test asks for.
pub(super) struct TestClient {
    stream: TcpStream,
    decoder: Decoder,
    input: BytesMut,
    aside: VecDeque<Packet>,
}

impl TestClient {
    pub(super) fn connect(address: SocketAddr, connect: Connect) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let decoder = Decoder::client(ProtocolVersion::V5, u32::MAX);
        let mut client = Self { stream, decoder, input: BytesMut::new(), aside: VecDeque::new() };
        client.send(Packet::Connect(Box::new(connect)));
        assert!(
            matches!(client.wait_for(PacketType::ConnAck), Packet::ConnAck(ack) if ack.reason == ReasonCode::Success)
        );
        client
    }

    pub(super) fn send(&mut self, packet: Packet) {
        self.send_together([packet]);
    }

    /// Sends all packets in one write.
    pub(super) fn send_together(&mut self, packets: impl IntoIterator<Item = Packet>) {
        let mut out = WriteBuffer::new();
        packets.into_iter().for_each(|packet| packet.encode(ProtocolVersion::V5, &mut out));
        self.stream.write_all(&out.to_bytes()).unwrap();
    }

    /// Returns the next packet of a type and sets others aside for later calls.
    pub(super) fn wait_for(&mut self, wanted: PacketType) -> Packet {
        if let Some(position) = self.aside.iter().position(|packet| packet.packet_type() == wanted) {
            return self.aside.remove(position).unwrap();
        }
        loop {
            while let Decoded::Packet(packet) = self.decoder.decode(&mut self.input).unwrap() {
                if packet.packet_type() == wanted {
                    return packet;
                }
                self.aside.push_back(packet);
            }
            let mut chunk = [0; 4096];
            let read = self.stream.read(&mut chunk).unwrap();
            assert!(read > 0, "closed where {wanted} should come");
            self.input.extend_from_slice(&chunk[..read]);
        }
    }

    pub(super) fn receive(&mut self) -> Publish {
        match self.wait_for(PacketType::Publish) {
            Packet::Publish(publish) => publish,
            other => panic!("{other:?}"),
        }
    }

    /// Returns all messages received so far, up to the answer to a ping.
    pub(super) fn receive_all(&mut self) -> Vec<Publish> {
        self.settle();
        let mut messages = Vec::new();
        while self.aside.iter().any(|packet| packet.packet_type() == PacketType::Publish) {
            messages.push(self.receive());
        }
        messages
    }

    pub(super) fn settle(&mut self) {
        self.send(Packet::PingReq(PingReq::PLAIN));
        self.wait_for(PacketType::PingResp);
    }

    pub(super) fn report(&mut self, json: &'static str) {
        self.send(Packet::PingReq(PingReq::with_payload(Bytes::from_static(json.as_bytes()))));
        self.wait_for(PacketType::PingResp);
    }

    pub(super) fn acknowledge(&mut self, publish: &Publish) {
        let Some(id) = publish.packet_id else { return };
        let ack = Ack::new(id, ReasonCode::Success);
        if publish.qos == QoS::AtLeastOnce {
            return self.send(Packet::PubAck(ack));
        }
        self.send(Packet::PubRec(ack.clone()));
        self.wait_for(PacketType::PubRel);
        self.send(Packet::PubComp(ack));
    }

    pub(super) fn subscribe(&mut self, filter: &str, qos: QoS) {
        let options = SubscriptionOptions { qos, ..SubscriptionOptions::default() };
        let subscriptions = vec![Subscription { filter: TopicFilter::try_from(filter).unwrap(), options }];
        let packet_id = PacketId::new(1).unwrap();
        let subscribe =
            Subscribe { packet_id, subscription_identifier: None, user_properties: Vec::new(), subscriptions };
        self.send(Packet::Subscribe(subscribe));
        self.wait_for(PacketType::SubAck);
    }

    pub(super) fn unsubscribe(&mut self, filter: &str) {
        let (packet_id, filters) = (PacketId::new(1).unwrap(), vec![TopicFilter::try_from(filter).unwrap()]);
        self.send(Packet::Unsubscribe(Unsubscribe { packet_id, user_properties: Vec::new(), filters }));
        self.wait_for(PacketType::UnsubAck);
    }

    /// Publishes one message to `work` and waits until it is in its receivers' queues.
    pub(super) fn publish(&mut self, qos: QoS, payload: usize, expiry: Option<u32>) {
        let id = PacketId::new(1).filter(|_| qos.is_acknowledged());
        let mut publish = Publish::new(TopicName::try_from("work").unwrap(), vec![b'x'; payload].into());
        (publish.qos, publish.packet_id) = (qos, id);
        let properties = MessageProperties { message_expiry_interval: expiry, ..MessageProperties::default() };
        publish.properties = properties.boxed();
        self.send(Packet::Publish(publish));
        match qos {
            QoS::AtMostOnce => self.settle(),
            QoS::AtLeastOnce => drop(self.wait_for(PacketType::PubAck)),
            QoS::ExactlyOnce => {
                self.wait_for(PacketType::PubRec);
                self.send(Packet::PubRel(Ack::new(id.unwrap(), ReasonCode::Success)));
                self.wait_for(PacketType::PubComp);
            }
        }
    }
}

/// Returns a CONNECT whose session outlives its connection if `lasts`, or else ends with it.
pub(super) fn connect(client_id: &str, lasts: bool) -> Connect {
    let mut connect = Connect::new(ProtocolVersion::V5, Text::try_from(client_id).unwrap());
    connect.clean_start = !lasts;
    connect.properties.session_expiry_interval = lasts.then_some(u32::MAX);
    connect
}

pub(super) const PATIENCE: Duration = Duration::from_secs(60);
